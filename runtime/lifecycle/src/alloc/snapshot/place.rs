//! What becomes of an entry of an archive, by its name and kind. Pure.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use super::archive::{ArchiveEntry, ArchiveEntryKind};
use super::error_entry;
use crate::alloc::dir::SHARED;
use crate::alloc::migrate::MovedDir;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::MOVED_DEPTH_MAX;
use ostler_model::links::stays_inside;

/// Longest name of a file, bytes; the kernel's.
const NAME_BYTES_MAX: usize = 255;

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// It goes here: what it belongs to, and the names below that; none for the directory itself.
    At(MovedDir, Vec<OsString>),
    /// It says why the rest is not there.
    SenderFailed,
    /// It belongs to a task that the new group does not have.
    NotMoved,
    /// It stays behind, and people hear of it.
    LeftOut(&'static str),
}

/// Why a name is none that may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadName {
    #[error("is no path inside of a directory")]
    Path,
    #[error("is too deep or too long")]
    TooLong,
    #[error("is not of what moves: alloc/data, and local of each task")]
    Elsewhere,
}

/// Where an entry of an archive of `from` goes, in an allocation with these tasks.
pub(super) fn placed(
    entry: &ArchiveEntry,
    from: AllocId,
    tasks: &BTreeSet<TaskName>,
) -> Result<Placed, BadName> {
    let names = names(&entry.path)?;
    let (item, below) = match names.as_slice() {
        [name] if *name == error_entry(from).as_bytes() => return Ok(Placed::SenderFailed),
        [top, b"data", below @ ..] if *top == SHARED.as_bytes() => (MovedDir::Data, below),
        [task, b"local", below @ ..] if *task != SHARED.as_bytes() => {
            let task = std::str::from_utf8(task).ok().and_then(|task| task.parse().ok());
            let task: TaskName = task.ok_or(BadName::Elsewhere)?;
            if !tasks.contains(&task) {
                return Ok(Placed::NotMoved);
            }
            (MovedDir::Local(task), below)
        }
        _ => return Err(BadName::Elsewhere),
    };
    match &entry.kind {
        // What is in the place of the directory itself is a directory.
        kind if below.is_empty() && *kind != ArchiveEntryKind::Directory => Err(BadName::Elsewhere),
        ArchiveEntryKind::Symlink(target) if !stays_inside(names.len(), target) => {
            Ok(Placed::LeftOut("a link that leads out"))
        }
        ArchiveEntryKind::HardLink(_) => Ok(Placed::LeftOut("a hard link")),
        ArchiveEntryKind::Other(what) => Ok(Placed::LeftOut(what)),
        _ => Ok(Placed::At(
            item,
            below.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect(),
        )),
    }
}

/// The names of a path that leads down, one below the other.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, BadName> {
    // A directory has a slash at its end in some archives.
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        if name.is_empty() || name == b"." || name == b".." || name.contains(&0) {
            return Err(BadName::Path);
        }
        if name.len() > NAME_BYTES_MAX || names.len() >= MOVED_DEPTH_MAX {
            return Err(BadName::TooLong);
        }
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
