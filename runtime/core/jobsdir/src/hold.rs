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

/// The identity of a directory: it tells a directory from another one that takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirId {
    /// The number of the device that holds its file system.
    pub device: u64,
    /// The number of its inode on that device.
    pub inode: u64,
}

/// Whether missing files count as removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFiles {
    /// The missing files count as removed: their jobs are stopped.
    Removed,
    /// The missing files do not count as removed yet: nothing is stopped.
    Held {
        /// The time until the directory has to be looked at again.
        left: Duration,
    },
}

/// What is remembered of an empty directory between two scans.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyDirHold {
    /// The directory that had job files at the last scan that found any.
    filled: Option<DirId>,
    /// The directory that is empty now, and the time since which it is.
    empty: Option<(DirId, Duration)>,
}

impl EmptyDirHold {
    /// Note that the directory could not be read: the hold begins anew.
    pub const fn mark_unreadable(&mut self) {
        self.empty = None;
    }

    /// Note that the directory was read, and decide about its missing files. `at` is the time since the
    /// first scan and never goes back. `files` says whether the directory has job files. `jobs` is the
    /// number of jobs that run by files.
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
