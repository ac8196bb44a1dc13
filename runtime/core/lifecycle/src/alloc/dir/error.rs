//! The errors of allocation directories, with what to do about them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::alloc::remove::UndeletedParts;
use ostler_model::ids::{AllocId, TaskName};

/// Why an allocation directory could not be made, opened or removed.
#[derive(Debug, thiserror::Error)]
pub enum AllocDirError {
    /// The operating system refused.
    #[error("cannot {action} {}: {}", .path.display(), hint(.source))]
    Io {
        /// What was tried: `create`, `open` …
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Something else is where a directory should be.
    #[error(
        "{} is {found}, not a directory; nothing was changed: remove it and try again",
        .path.display()
    )]
    NotDirectory {
        /// Path where the directory should be.
        path: PathBuf,
        /// What is there instead: `a symbolic link`, `a file`.
        found: &'static str,
    },
    /// The allocation has no directory.
    #[error("allocation directory {} does not exist", .path.display())]
    Missing {
        /// Path where the directory should be.
        path: PathBuf,
    },
    /// Parts could not be removed; the rest is gone.
    #[error("cannot remove all of {}: {left}", .path.display())]
    Left {
        /// The allocation's directory.
        path: PathBuf,
        /// What is left of the directory, and why.
        left: UndeletedParts,
    },
    /// Somebody else is changing the directory and does not come to an end.
    #[error(
        "the directory of allocation {alloc} is still being built, moved or removed after {} s; \
         try again",
        .waited.as_secs()
    )]
    Busy {
        /// The allocation whose directory is busy.
        alloc: AllocId,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The task has the name of the shared directory.
    #[error("no task can be named {name:?}: the allocation's shared directory has this name")]
    ReservedTaskName {
        /// Name of the task: `alloc`.
        name: TaskName,
    },
}

/// The text of an error, with the next step for errors that have one.
pub(in super::super) fn hint(source: &io::Error) -> String {
    let step = match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system there is read-only; mount it so that it can be written, or look in the kernel's log \
             why it is"
        }
        io::ErrorKind::StorageFull => "the disk is full; free some space and try again",
        io::ErrorKind::QuotaExceeded => "the disk quota is used up; free some space and try again",
        io::ErrorKind::PermissionDenied => {
            "permission denied; run the agent as the owner of the data directory"
        }
        _ => return source.to_string(),
    };
    step.to_owned()
}
