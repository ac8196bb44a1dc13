//! Decides by name and kind what becomes of an entry of an archive. Pure.

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

/// Longest name of a file, bytes; the limit of the kernel.
const NAME_BYTES_MAX: usize = 255;

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryPlacement {
    /// The entry goes into this directory, below these names; no names mean the directory itself.
    At(MovedDir, Vec<OsString>),
    /// The entry says why the rest is missing.
    SenderFailed,
    /// The entry belongs to a task that the new group does not have.
    NotMoved,
    /// The entry is left out, and people are told.
    LeftOut(&'static str),
}

/// Why the name of an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadEntryName {
    #[error("is not a path inside of a directory")]
    Path,
    #[error("is too deep or too long")]
    TooLong,
    #[error("is not part of what moves (alloc/data, and local of each task)")]
    Elsewhere,
}

/// Decide where an entry of an archive of `from` goes, in an allocation with these tasks.
pub(super) fn place_entry(
    entry: &ArchiveEntry,
    from: AllocId,
    tasks: &BTreeSet<TaskName>,
) -> Result<EntryPlacement, BadEntryName> {
    let names = names(&entry.path)?;
    let (item, below) = match names.as_slice() {
        [name] if *name == error_entry(from).as_bytes() => return Ok(EntryPlacement::SenderFailed),
        [top, b"data", below @ ..] if *top == SHARED.as_bytes() => (MovedDir::Data, below),
        [task, b"local", below @ ..] if *task != SHARED.as_bytes() => {
            let task = std::str::from_utf8(task).ok().and_then(|task| task.parse().ok());
            let task: TaskName = task.ok_or(BadEntryName::Elsewhere)?;
            if !tasks.contains(&task) {
                return Ok(EntryPlacement::NotMoved);
            }
            (MovedDir::Local(task), below)
        }
        _ => return Err(BadEntryName::Elsewhere),
    };
    match &entry.kind {
        // In the place of the directory itself only a directory may come.
        kind if below.is_empty() && *kind != ArchiveEntryKind::Directory => {
            Err(BadEntryName::Elsewhere)
        }
        ArchiveEntryKind::Symlink(target) if !stays_inside(names.len(), target) => {
            Ok(EntryPlacement::LeftOut("a link that leads out"))
        }
        ArchiveEntryKind::HardLink(_) => Ok(EntryPlacement::LeftOut("a hard link")),
        ArchiveEntryKind::Other(what) => Ok(EntryPlacement::LeftOut(what)),
        _ => Ok(EntryPlacement::At(
            item,
            below.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect(),
        )),
    }
}

/// The names of a path that only leads down.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, BadEntryName> {
    // In some archives the path of a directory ends with a slash.
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        if name.is_empty() || name == b"." || name == b".." || name.contains(&0) {
            return Err(BadEntryName::Path);
        }
        if name.len() > NAME_BYTES_MAX || names.len() >= MOVED_DEPTH_MAX {
            return Err(BadEntryName::TooLong);
        }
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
