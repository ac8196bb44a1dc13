//! Writes the payload that the job was dispatched with into the task's directory.

use std::io::Write as _;

use super::{HookError, Preparation, TaskHook};
use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::alloc::owner::{give_file, open_or_create};
use crate::task::TaskScope;
use ostler_model::clock;
use ostler_model::job::TaskPayload;
use ostler_model::ports::{BoxFuture, FileOwner};

pub(super) struct PayloadHook;

impl TaskHook for PayloadHook {
    fn name(&self) -> &'static str {
        "dispatch_payload"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let Some(payload) = scope.task.payload.clone().filter(|_| !preparation.goes_on) else {
                return Ok(());
            };
            let (root, id, task) =
                (scope.node.alloc_root.clone(), scope.allocation.id, scope.task.name.clone());
            let owner = preparation.owner;
            let written = clock::run_blocking(move || {
                let dir = AllocDir::open(&root, id)?;
                write(&dir.local_dir(&task)?, &payload, owner).map_err(|source| AllocDirError::Io {
                    action: "write",
                    path: dir.task(&task).local.join(&payload.file),
                    source,
                })
            });
            written
                .await
                .map_err(HookError::passing_setup)?
                .map_err(|error| HookError::on_disk(&error))
        })
    }
}

/// Write the payload. An earlier run may have put anything in its place; no path leads out
/// of the directory.
fn write(
    local: &cap_std::fs::Dir,
    payload: &TaskPayload,
    owner: Option<FileOwner>,
) -> std::io::Result<()> {
    let path = std::path::Path::new(&payload.file);
    let name = path.file_name().ok_or_else(|| std::io::Error::other("it has no name"))?;
    let dir = open_or_create(local, path.parent().unwrap_or(std::path::Path::new("")), owner)?;
    match dir.remove_file(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = cap_std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    let mut file = dir.open_with(name, &options)?;
    if let Some(owner) = owner {
        give_file(&file, owner)?;
    }
    file.write_all(&payload.bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_payload_is_written_where_it_belongs_and_never_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("local"), dir.path().join("outside"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&outside, "kept").unwrap();
        let local = cap_std::fs::Dir::open_ambient_dir(&inside, cap_std::ambient_authority());
        let local = local.unwrap();
        let payload = |file: &str| TaskPayload { file: file.to_owned(), bytes: b"new".to_vec() };
        write(&local, &payload("a/b.json"), None).unwrap();
        assert_eq!(std::fs::read(inside.join("a/b.json")).unwrap(), b"new");
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        write(&local, &payload("link"), None).unwrap();
        assert_eq!(std::fs::read(inside.join("link")).unwrap(), b"new");
        std::os::unix::fs::symlink(dir.path(), inside.join("up")).unwrap();
        write(&local, &payload("up/outside"), None).unwrap_err();
        write(&local, &payload("../outside"), None).unwrap_err();
        assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
    }
}
