//! Resolves paths that a job names for its templates and artifacts to names below the directory of
//! an allocation. Pure.
//!
//! ```text
//! as it is written      a task with a root of its own (exec)     a task that sees the node's paths (raw_exec)
//! local/x, ./local/x    <task>/local/x                           the same
//! run.sh                <task>/run.sh, which it sees as /run.sh  <task>/run.sh
//! /app/x                <task>/app/x, which it sees as /app/x    <task>/app/x, as in Nomad
//! ../alloc/data/x       <shared>/data/x                          the same
//! /alloc/data/x         <shared>/data/x                          <task>/alloc/data/x
//! ```
//! In the shared directory, only the parts that tasks may write are destinations: `data` and `tmp`.

use std::path::{Path, PathBuf};

use crate::ids::TaskName;
use crate::isolation::BASE_DEFAULT;
use crate::ports::FsIsolation;

/// Name of the directory that tasks share.
const SHARED: &str = "alloc";
/// Directories in it that tasks may write.
const LENT: [&str; 2] = ["data", "tmp"];
/// Directories that each task has.
const OWN: [&str; 3] = ["local", "secrets", "tmp"];
/// Paths in a task's own root that belong to the kernel or the agent.
const KERNEL: [&str; 5] = ["/dev", "/proc", OWN_FILES, "/.blank-file", "/.blank-dir"];

/// Path at which a task with a root of its own sees its whole directory, beside the single parts
/// of it.
pub const OWN_FILES: &str = "/.own";

/// Directory of an allocation in which the agent gathers files that are assigned to its WASM tasks.
/// No task has a name with a space.
pub const ASSIGNED_FILES: &str = "assigned files";

/// The directories of a task, by the paths that the task uses.
#[derive(Clone, Copy, Debug)]
pub struct TaskView<'a> {
    /// Name of the task, which is also the name of its directory.
    pub task: &'a TaskName,
    /// Value of `NOMAD_ALLOC_DIR`.
    pub alloc: &'a str,
    /// Value of `NOMAD_TASK_DIR`.
    pub local: &'a str,
    /// Value of `NOMAD_SECRETS_DIR`.
    pub secrets: &'a str,
    /// Whether the task sees its whole directory by the node's paths, as its root, or only the
    /// parts that each task has.
    pub sees: FsIsolation,
}

/// A path below the directory of an allocation, as a list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPath {
    /// The names of the path. The first is the task's directory or the shared one.
    pub names: Vec<String>,
    /// The path is one of the directories that each allocation has, so no file can be there.
    pub is_directory: bool,
}

impl TaskPath {
    /// Whether the path is in the shared directory, and the path below that or below the
    /// task's directory.
    #[must_use]
    pub fn split(&self) -> (bool, PathBuf) {
        let (first, below) = self.names.split_first().map_or(("", [].as_slice()), |(a, b)| (a, b));
        (first == SHARED, below.iter().collect())
    }

    /// Whether a task with this view of the file system sees the path.
    #[must_use]
    pub fn is_seen(&self, sees: FsIsolation) -> bool {
        let (shared, below) = self.split();
        sees != FsIsolation::Preopen || shared || OWN.iter().any(|own| below.starts_with(own))
    }
}

/// Why a path cannot be used for a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskPathError {
    /// The path leads above or beside the task's directories.
    #[error(
        "{0:?} leads out of the task's own directory and the one that the tasks share (alloc); begin \
         with local/, secrets/ or ${{NOMAD_ALLOC_DIR}}/data/"
    )]
    Outside(String),
    /// The path has a name that a file system cannot have.
    #[error("{0:?} has a name that no file can have")]
    Name(String),
    /// The path is in a part of the shared directory that tasks may not write.
    #[error(
        "{0:?} is in a part of the shared directory that tasks only read; begin with \
         ${{NOMAD_ALLOC_DIR}}/data/ or ${{NOMAD_ALLOC_DIR}}/tmp/"
    )]
    ReadOnly(String),
    /// The path is below a directory that the task sees from the node.
    #[error(
        "{path:?} would be in {system}, which the task sees as it is on the node, read-only; choose a \
         path outside of it, such as local/…"
    )]
    System {
        /// The path as the job has it.
        path: String,
        /// The directory of the node.
        system: &'static str,
    },
}

impl TaskPathError {
    /// The same error for a path that the job writes as `text`.
    #[must_use]
    pub fn named(self, text: &str) -> Self {
        let path = text.to_owned();
        match self {
            Self::Outside(_) => Self::Outside(path),
            Self::Name(_) => Self::Name(path),
            Self::ReadOnly(_) => Self::ReadOnly(path),
            Self::System { system, .. } => Self::System { path, system },
        }
    }
}

/// Resolves the destination of a file or directory that is made for the task. An absolute path that
/// the task itself uses means what the task sees there; any other absolute path counts from the
/// task's directory.
///
/// # Errors
/// When the path leads elsewhere, or to a directory in which nothing may be put.
pub fn destination(text: &str, view: TaskView<'_>) -> Result<TaskPath, TaskPathError> {
    let path = leads(text, view, true)?;
    let (shared, below) = path.split();
    if shared {
        let lent = LENT.iter().any(|lent| below.starts_with(lent));
        return if lent { Ok(path) } else { Err(TaskPathError::ReadOnly(text.to_owned())) };
    }
    if view.sees == FsIsolation::Chroot {
        let seen = Path::new("/").join(below);
        let mut system = BASE_DEFAULT.into_iter().chain(KERNEL);
        if let Some(system) = system.find(|system| seen.starts_with(system)) {
            return Err(TaskPathError::System { path: text.to_owned(), system });
        }
    }
    Ok(path)
}

/// Resolves the path of a file that is read for the task. Of the node's paths, only those of the
/// task's own directories are allowed.
///
/// # Errors
/// When the path leads elsewhere.
pub fn source(text: &str, view: TaskView<'_>) -> Result<TaskPath, TaskPathError> {
    leads(text, view, view.sees != FsIsolation::None)
}

/// Resolves a path. `below`: an absolute path that is none of the view's counts from the
/// task's directory.
fn leads(text: &str, view: TaskView<'_>, below: bool) -> Result<TaskPath, TaskPathError> {
    let own = view.task.as_str();
    let outside = || TaskPathError::Outside(text.to_owned());
    let seen = [
        (view.alloc, [SHARED].as_slice()),
        (view.local, &[own, "local"]),
        (view.secrets, &[own, "secrets"]),
    ];
    let known = seen.into_iter().find_map(|(dir, names)| {
        let rest = text.strip_prefix(dir.trim_end_matches('/'))?;
        (dir.starts_with('/') && (rest.is_empty() || rest.starts_with('/')))
            .then_some((names, rest))
    });
    let itself = [own];
    let (begin, rest) = match known {
        Some(known) => known,
        None if text.starts_with('/') && !below => return Err(outside()),
        None => (itself.as_slice(), text),
    };
    let mut names: Vec<String> = begin.iter().map(|name| (*name).to_owned()).collect();
    for name in rest.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop().ok_or_else(outside)?;
            }
            name if name.len() > 255 || name.contains('\0') => {
                return Err(TaskPathError::Name(text.to_owned()));
            }
            name => names.push(name.to_owned()),
        }
    }
    // A task with a root of its own sees the shared directory beside its own.
    if view.sees != FsIsolation::None && names.starts_with(&[own.to_owned(), SHARED.to_owned()]) {
        names.remove(0);
    }
    let is_directory = match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => return Err(outside()),
        [first, ..] if *first != own && *first != SHARED => return Err(outside()),
        [_] => true,
        [first, dir] if *first == own => OWN.contains(dir),
        [_, dir] => LENT.contains(dir),
        _ => false,
    };
    Ok(TaskPath { names, is_directory })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn view(task: &TaskName, sees: FsIsolation) -> TaskView<'_> {
        match sees {
            FsIsolation::None => TaskView {
                task,
                alloc: "/d/x/alloc",
                local: "/d/x/web/local",
                secrets: "/d/x/web/secrets",
                sees,
            },
            FsIsolation::Chroot | FsIsolation::Preopen => {
                TaskView { task, alloc: "/alloc", local: "/local", secrets: "/secrets", sees }
            }
        }
    }

    fn at(text: &str, sees: FsIsolation) -> Result<String, TaskPathError> {
        let task = TaskName::new("web".to_owned()).unwrap();
        destination(text, view(&task, sees)).map(|place| place.names.join("/"))
    }

    fn read(text: &str, sees: FsIsolation) -> Result<String, TaskPathError> {
        let task = TaskName::new("web".to_owned()).unwrap();
        source(text, view(&task, sees)).map(|place| place.names.join("/"))
    }

    #[test]
    fn a_path_counts_from_the_directory_of_its_task_whoever_sees_it_how() {
        for (text, rooted, plain) in [
            ("local/", "web/local", "web/local"),
            ("./local//a/../b/./c", "web/local/b/c", "web/local/b/c"),
            ("", "web", "web"),
            ("run.sh", "web/run.sh", "web/run.sh"),
            ("/app/latest", "web/app/latest", "web/app/latest"),
            ("/run/x", "web/run/x", "web/run/x"),
            ("/tmp/a", "web/tmp/a", "web/tmp/a"),
            ("/local/x", "web/local/x", "web/local/x"),
            ("/local2", "web/local2", "web/local2"),
            ("../alloc/data/x", "alloc/data/x", "alloc/data/x"),
            ("/alloc/data/x", "alloc/data/x", "web/alloc/data/x"),
            ("alloc/tmp/x", "alloc/tmp/x", "web/alloc/tmp/x"),
            ("/d/x/web/secrets/k", "web/d/x/web/secrets/k", "web/secrets/k"),
            ("/d/x/alloc/tmp/k", "web/d/x/alloc/tmp/k", "alloc/tmp/k"),
        ] {
            assert_eq!(
                at(text, FsIsolation::Chroot).unwrap(),
                rooted,
                "{text:?} in a root of its own"
            );
            assert_eq!(at(text, FsIsolation::None).unwrap(), plain, "{text:?} on the node");
        }
        assert_eq!(at("/etc/x", FsIsolation::None).unwrap(), "web/etc/x");
    }

    #[test]
    fn what_leads_out_is_refused() {
        for text in
            ["..", "../..", "../other/local", "local/../../other", "/../../x", "../../../etc"]
        {
            assert!(
                matches!(at(text, FsIsolation::Chroot), Err(TaskPathError::Outside(_))),
                "{text}"
            );
            assert!(
                matches!(at(text, FsIsolation::None), Err(TaskPathError::Outside(_))),
                "{text}"
            );
        }
        assert!(matches!(at(&"x".repeat(256), FsIsolation::Chroot), Err(TaskPathError::Name(_))));
        assert!(matches!(at("a\0", FsIsolation::Chroot), Err(TaskPathError::Name(_))));
    }

    #[test]
    fn of_the_shared_directory_only_what_tasks_may_write_is_a_destination() {
        for text in ["../alloc/logs/web.stdout.0", "../alloc/x", "../alloc", "../alloc/data/../x"] {
            for sees in [FsIsolation::None, FsIsolation::Chroot, FsIsolation::Preopen] {
                assert!(matches!(at(text, sees), Err(TaskPathError::ReadOnly(_))), "{text}");
            }
            assert!(read(text, FsIsolation::None).is_ok(), "{text} is read");
        }
    }

    #[test]
    fn nothing_is_put_into_what_is_shown_from_the_node() {
        for text in ["/etc/app.conf", "usr/bin/x", "/dev/x", "proc/1", "/run/systemd/resolve/x"] {
            let refused = at(text, FsIsolation::Chroot).unwrap_err();
            assert!(matches!(refused, TaskPathError::System { .. }), "{text}: {refused}");
            at(text, FsIsolation::None).unwrap();
            at(text, FsIsolation::Preopen).unwrap();
        }
        at("/usrlocal/x", FsIsolation::Chroot).unwrap();
    }

    #[test]
    fn what_is_read_is_never_a_file_of_the_node() {
        assert!(matches!(read("/etc/passwd", FsIsolation::None), Err(TaskPathError::Outside(_))));
        assert_eq!(read("/etc/passwd", FsIsolation::Chroot).unwrap(), "web/etc/passwd");
        assert_eq!(read("/d/x/web/local/../b", FsIsolation::None).unwrap(), "web/b");
    }

    #[test]
    fn directories_of_every_task_are_no_files_and_a_wasm_task_sees_no_others() {
        let task = TaskName::new("web".to_owned()).unwrap();
        for (text, directory, seen) in [
            ("local", true, true),
            (".", true, false),
            ("../alloc/data", true, true),
            ("../alloc/data/x", false, true),
            ("tmp/x", false, true),
            ("app/x", false, false),
        ] {
            let path = destination(text, view(&task, FsIsolation::Preopen)).unwrap();
            assert_eq!(path.is_directory, directory, "{text}");
            assert_eq!(path.is_seen(FsIsolation::Preopen), seen, "{text}");
            assert!(path.is_seen(FsIsolation::Chroot) && path.is_seen(FsIsolation::None), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_written_stays_below_its_own(text in "[a./]{0,24}|.{0,24}") {
            for sees in [FsIsolation::None, FsIsolation::Chroot, FsIsolation::Preopen] {
                for place in [at(&text, sees), read(&text, sees)].into_iter().flatten() {
                    let first = place.split('/').next().unwrap();
                    assert!(first == "web" || first == "alloc");
                    assert!(place.split('/').all(|name| name != ".." && name != "."));
                }
            }
        }
    }
}
