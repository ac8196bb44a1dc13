//! How much disk an allocation uses, for `ephemeral_disk.size`.
//!
//! Counted is everything below the allocation's directory but `alloc/logs` and what a device plugin assigned:
//! `alloc/data` and `alloc/tmp`, and `local`, `secrets` and `tmp` of each task. Logs are left out because the
//! `logs` block bounds them on its own and the agent, not the task, decides how long they stay; a
//! task is not to be stopped for what it printed. Assigned files ([`ASSIGNED_FILES`]) are gathered by the
//! agent; they count all the same where others than the agent's user could write there. What runs now may
//! write meanwhile, so a result is of no exact moment; files that come and go never make it fail.
//!
//! - Blocks, not lengths: a sparse file costs what it occupies. A file with several names counts
//!   once. Files that were deleted and are still open are what a [`DiskMeter`] knows of processes.
//! - Nothing is written, not even access times: 2,000 allocations at rest made 9 MB of them.
//! - No link is followed, no other file system is entered (a mount has its own limit).
//! - Memory is bounded by the entries ([`MEASURE_ENTRIES_MAX`]), open files by
//!   [`MEASURE_OPEN_LEVELS_MAX`], whatever the depth: deeper levels are left by `..`, and it is
//!   checked that this leads where it should, since a task can move the directory meanwhile.
//!
//! Nomad uses the size for placing only (#2749, #2296); here [`over_limit`] decides on the measured
//! use.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::dir::at::{DIRECTORY_FLAGS, io_error, is_dots, open_same_mount};
use super::dir::{AllocDir, AllocDirError, SHARED};
use ostler_model::ids::AllocId;
use ostler_model::job::EphemeralDisk;
use ostler_model::limits::{MEASURE_ENTRIES_MAX, MEASURE_OPEN_LEVELS_MAX, MIB};
use ostler_model::task_path::ASSIGNED_FILES;

/// Bytes in a block of `st_blocks`, on every file system.
const BLOCK_BYTES: u64 = 512;

/// What an allocation has on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocDiskUse {
    /// Bytes occupied.
    pub bytes: u64,
    /// Bytes as the lengths of the files say; more than `bytes` with sparse files.
    pub apparent_bytes: u64,
    /// Files, directories, links …
    pub inodes: u64,
    /// False: not everything could be looked at, and all three are lower bounds.
    pub complete: bool,
}

impl AllocDiskUse {
    /// Both together.
    const fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            apparent_bytes: self.apparent_bytes.saturating_add(other.apparent_bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            complete: self.complete && other.complete,
        }
    }
}

/// Measures what allocations have on disk; may block.
pub trait DiskMeter: Send + Sync + 'static {
    /// What an allocation has in its directory below `root`, as [`measure`] finds it, and what its processes hold.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    fn measure_alloc(
        &self,
        root: &Path,
        alloc: AllocId,
        cancel: &CancellationToken,
    ) -> Result<AllocDiskUse, AllocDirError> {
        let (found, device) = measure_on(root, alloc, cancel, MEASURE_ENTRIES_MAX)?;
        Ok(found.and(self.held(alloc, device, cancel)))
    }

    /// What the processes of an allocation's tasks hold of files that have no name any more, of the file system
    /// `device`. Nothing where there are none that are looked at.
    fn held(&self, _alloc: AllocId, _device: u64, _cancel: &CancellationToken) -> AllocDiskUse {
        AllocDiskUse { complete: true, ..AllocDiskUse::default() }
    }

    /// Bytes that the file system of `root` holds, whoever wrote them; `None` when it does not tell.
    fn filled(&self, root: &Path) -> Option<u64> {
        let fs = rustix::fs::statvfs(root).ok()?;
        Some(fs.f_blocks.saturating_sub(fs.f_bfree).saturating_mul(fs.f_frsize))
    }
}

/// The disk as it is.
#[derive(Clone, Copy, Debug)]
pub struct OnDisk;

impl DiskMeter for OnDisk {}

/// Measure the directory of an allocation. Blocks; cancelled, it returns what it has so far, as
/// not complete.
///
/// # Errors
/// [`AllocDirError::Missing`] when there is none; else when it cannot be opened.
pub fn measure(
    root: &Path,
    alloc: AllocId,
    cancel: &CancellationToken,
) -> Result<AllocDiskUse, AllocDirError> {
    measure_on(root, alloc, cancel, MEASURE_ENTRIES_MAX).map(|(found, _)| found)
}

/// The same, and the file system that it is on.
fn measure_on(
    root: &Path,
    alloc: AllocId,
    cancel: &CancellationToken,
    entries_max: u64,
) -> Result<(AllocDiskUse, u64), AllocDirError> {
    let dir = AllocDir::open(root, alloc)?;
    let stat = rustix::fs::fstat(dir.fd()).map_err(|e| io_error("read", dir.path())(e.into()))?;
    let mut walk = Walk {
        found: AllocDiskUse { complete: true, ..AllocDiskUse::default() },
        device: stat.st_dev,
        linked: BTreeSet::new(),
        entries_left: entries_max,
        cancel,
        levels: Vec::new(),
    };
    walk.count(&stat);
    walk.tree(dir.fd());
    Ok((walk.found, stat.st_dev))
}

/// What is wrong when an allocation has more on disk than it is to have; `None` while it has not, or
/// where it cannot be said.
#[must_use]
pub fn over_limit(used: &AllocDiskUse, disk: EphemeralDisk) -> Option<String> {
    let EphemeralDisk { size_mb, size_stated, .. } = disk;
    (used.bytes > u64::from(size_mb).saturating_mul(MIB)).then(|| {
        let at_least = if used.complete { "" } else { "at least " };
        let mib = used.bytes.div_ceil(MIB);
        let limit = match size_stated {
            true => format!("ephemeral_disk.size allows {size_mb} MiB"),
            false => format!(
                "the job states no ephemeral_disk.size, and {size_mb} MiB are usual; it runs on, and \
                 a stated size would be kept to"
            ),
        };
        format!("the allocation has {at_least}{mib} MiB on disk without its logs; {limit}")
    })
}

/// A directory on the way from the top to where the walk is.
struct Level {
    /// Device and inode.
    identity: (u64, u64),
    /// Open for the first levels only.
    dir: Option<OwnedFd>,
    /// Directories in it that are still to be visited.
    pending: Vec<CString>,
}

struct Walk<'a> {
    found: AllocDiskUse,
    /// The file system of the allocation.
    device: u64,
    /// Files with several names that are counted.
    linked: BTreeSet<(u64, u64)>,
    entries_left: u64,
    cancel: &'a CancellationToken,
    /// Outermost first.
    levels: Vec<Level>,
}

impl Walk<'_> {
    /// Count everything below `top`.
    fn tree(&mut self, top: BorrowedFd<'_>) {
        let Ok(mut at) = rustix::io::dup(top) else {
            self.found.complete = false;
            return;
        };
        self.enter(&at, false);
        while let Some(level) = self.levels.last_mut() {
            let next = if let Some(name) = level.pending.pop() {
                let in_shared = self.levels.len() == 1 && name.to_bytes() == SHARED.as_bytes();
                let child = self.descend(at.as_fd(), &name);
                child.inspect(|child| self.enter(child, in_shared))
            } else {
                self.levels.pop();
                self.ascend(at.as_fd())
            };
            at = next.unwrap_or(at);
            if self.stopped() {
                self.found.complete &= self.levels.iter().all(|level| level.pending.is_empty());
                return;
            }
        }
    }

    /// Enough was looked at, or nobody wants to know any more.
    fn stopped(&self) -> bool {
        self.entries_left == 0 || self.cancel.is_cancelled()
    }

    /// Open a directory of the innermost level; `None` when it is gone, moved or a mount point.
    fn descend(&mut self, at: BorrowedFd<'_>, name: &CStr) -> Option<OwnedFd> {
        let child = open_same_mount(at, name, DIRECTORY_FLAGS);
        if let Err(error) = child {
            let not_ours = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::XDEV];
            self.found.complete &= not_ours.contains(&error);
        }
        child.ok()
    }

    /// Open the directory that is the innermost level now, from the one that was. When a task
    /// moved that one meanwhile, the walk goes on at the innermost level that is still open.
    fn ascend(&mut self, from: BorrowedFd<'_>) -> Option<OwnedFd> {
        let mut way_up = (self.levels.last()?.dir.is_none()).then(|| {
            rustix::fs::openat(from, "..", DIRECTORY_FLAGS | OFlags::NOFOLLOW, Mode::empty())
        });
        while let Some(level) = self.levels.last() {
            let up = way_up.take().and_then(Result::ok);
            if let Some(up) = up.filter(|up| identity(up.as_fd()) == Some(level.identity)) {
                return Some(up);
            }
            if let Some(open) = level.dir.as_ref().and_then(|dir| dir.try_clone().ok()) {
                return Some(open);
            }
            self.found.complete = false;
            self.levels.pop();
        }
        None
    }

    /// Count what is in a directory and make it the innermost level.
    fn enter(&mut self, dir: &OwnedFd, in_shared: bool) {
        let Some(identity) = identity(dir.as_fd()) else {
            self.found.complete = false;
            return;
        };
        let keep = self.levels.len() < MEASURE_OPEN_LEVELS_MAX;
        let kept = if keep { dir.try_clone().ok() } else { None };
        let pending = self.read(dir, in_shared);
        self.levels.push(Level { identity, dir: kept, pending });
    }

    /// Count the entries of a directory; the directories among them are returned.
    fn read(&mut self, dir: &OwnedFd, in_shared: bool) -> Vec<CString> {
        let mut directories = Vec::new();
        let Ok(entries) = read_quietly(dir) else {
            self.found.complete = false;
            return directories;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                self.found.complete = false;
                break;
            };
            let name = entry.file_name();
            if is_dots(name) || (in_shared && name == c"logs") {
                continue;
            }
            if self.stopped() {
                self.found.complete = false;
                break;
            }
            self.entries_left -= 1;
            // Gone since it was listed: it costs nothing any more.
            let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let assigned = self.levels.is_empty() && name.to_bytes() == ASSIGNED_FILES.as_bytes();
            if stat.st_dev != self.device || (assigned && is_agents_alone(&stat)) {
                continue;
            }
            self.count(&stat);
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                directories.push(name.to_owned());
            }
        }
        directories
    }

    fn count(&mut self, stat: &Stat) {
        let several = stat.st_nlink > 1 && !FileType::from_raw_mode(stat.st_mode).is_dir();
        if several && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        let bytes = blocks.saturating_mul(BLOCK_BYTES);
        let length = u64::try_from(stat.st_size).unwrap_or_default();
        self.found.bytes = self.found.bytes.saturating_add(bytes);
        self.found.apparent_bytes = self.found.apparent_bytes.saturating_add(length);
        self.found.inodes = self.found.inodes.saturating_add(1);
    }
}

/// The entries of a directory. Looking must not write: the access time stays where the system lets
/// it, which is for the owner and for root.
fn read_quietly(dir: &OwnedFd) -> Result<Dir, Errno> {
    let open = |flags| rustix::fs::openat(dir, c".", flags, Mode::empty());
    let opened = match open(DIRECTORY_FLAGS | OFlags::NOATIME) {
        Err(Errno::PERM) => open(DIRECTORY_FLAGS),
        opened => opened,
    };
    Dir::new(opened?)
}

/// Is it a directory that nobody writes but the agent's user?
fn is_agents_alone(stat: &Stat) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    FileType::from_raw_mode(stat.st_mode).is_dir()
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & OTHERS_WRITE == 0
}

fn identity(dir: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(dir).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
#[path = "size_tests.rs"]
mod tests;
