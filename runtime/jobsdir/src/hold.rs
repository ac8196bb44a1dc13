//! When an empty jobs directory counts as emptied. Pure.
//!
//! ```text
//!  job files in it ───────────────────────────────► removed: the job of a missing file is stopped
//!  none ─ it lost the one it had, and is the same ─► removed: somebody removed that file
//!    └─── it lost several at once, or is another directory, or was not seen before ─► held:
//!         nothing is stopped ─ still empty after JOBS_DIR_HOLD, without a break ─► removed
//!  cannot be read, is not there ──────────────────► nothing is stopped, and the hold begins anew
//! ```
//! A directory that is unmounted, mounted late or emptied by mistake looks like one whose files were
//! all removed, and would take every job along.

use std::time::Duration;

use ostler_model::limits::JOBS_DIR_HOLD;

/// Tells a directory from one that takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirId {
    /// Of its file system.
    pub device: u64,
    /// In it.
    pub inode: u64,
}

/// Are missing files to be taken as removed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFiles {
    /// Yes.
    Removed,
    /// Not yet.
    Held {
        /// Look again after this time.
        left: Duration,
    },
}

/// What is remembered between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hold {
    /// The directory in which there were job files last.
    filled: Option<DirId>,
    /// The one that is empty now, and since when.
    empty: Option<(DirId, Duration)>,
}

impl Hold {
    /// The directory could not be read.
    pub const fn unread(&mut self) {
        self.empty = None;
    }

    /// The directory was read. `at`: time since the first look, which never goes back; `files`: it
    /// has job files; `jobs`: how many run by files.
    pub fn step(&mut self, at: Duration, dir: DirId, files: bool, jobs: usize) -> MissingFiles {
        if files {
            *self = Self { filled: Some(dir), empty: None };
            return MissingFiles::Removed;
        }
        let removed = jobs == 1 && self.filled == Some(dir) && self.empty.is_none();
        if jobs == 0 || removed {
            return MissingFiles::Removed;
        }
        let since = match self.empty {
            Some((before, since)) if before == dir => since,
            _ => at,
        };
        self.empty = Some((dir, since));
        let left = JOBS_DIR_HOLD.saturating_sub(at.saturating_sub(since));
        if left.is_zero() { MissingFiles::Removed } else { MissingFiles::Held { left } }
    }
}
