//! Measures how much disk an allocation uses, for `ephemeral_disk.size`.
//!
//! Everything below the allocation's directory counts, but for `alloc/logs` and the files that a
//! device plugin assigned: so `alloc/data` and `alloc/tmp` count, and `local`, `secrets` and `tmp`
//! of each task. Logs are left out because the `logs` block bounds them on its own, and the agent,
//! not the task, decides how long they stay; a task must not be stopped for what it printed. The
//! agent gathers the assigned files ([`ASSIGNED_FILES`]). They count only where users other than
//! the agent's could write. Tasks may write during a measurement, so a result is of no exact
//! moment; files that come and go never make it fail.
//!
//! - Blocks count, not lengths: a sparse file costs what it occupies. A file with several names counts
//!   once. Files that were deleted and are still open are added by a [`DiskMeter`] that knows the processes.
//! - Nothing is written, not even access times: 2,000 allocations at rest wrote 9 MB of them.
//! - No link is followed, no other file system is entered (a mount has its own limit).
//! - Memory is bounded by the entries ([`MEASURE_ENTRIES_MAX`]), open files by
//!   [`MEASURE_OPEN_LEVELS_MAX`], whatever the depth: deeper levels are left by `..`, and it is
//!   checked that this leads where it should, since a task can move the directory meanwhile.
//!
//! Nomad uses the size for placing only (#2749, #2296); here [`over_limit`] decides on
//! the measured use.

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

/// How much an allocation has on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocDiskUse {
    /// Bytes that the blocks occupy.
    pub bytes: u64,
    /// Bytes by the lengths of the files; more than `bytes` with sparse files.
    pub apparent_bytes: u64,
    /// Number of files, directories and links.
    pub inodes: u64,
    /// False: not everything could be read, and all three numbers are lower bounds.
    pub complete: bool,
}

impl AllocDiskUse {
    /// The sum of both.
    const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            apparent_bytes: self.apparent_bytes.saturating_add(other.apparent_bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            complete: self.complete && other.complete,
        }
    }
}

/// Measures how much allocations have on disk. May block.
pub trait DiskMeter: Send + Sync + 'static {
    /// What an allocation has in its directory below `root`, as [`measure`] finds it, together with
    /// the deleted files that its processes hold.
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
        Ok(found.plus(self.deleted_files_use(alloc, device, cancel)))
    }

    /// The deleted files on the file system `device` that the processes of an allocation's tasks
    /// still hold open. A meter that does not look at processes finds none.
    fn deleted_files_use(
        &self,
        _alloc: AllocId,
        _device: u64,
        _cancel: &CancellationToken,
    ) -> AllocDiskUse {
        AllocDiskUse { complete: true, ..AllocDiskUse::default() }
    }

    /// Bytes in use on the file system of `root`, whoever wrote them; `None` when the file system
    /// does not tell.
    fn filled_bytes(&self, root: &Path) -> Option<u64> {
        let fs = rustix::fs::statvfs(root).ok()?;
        Some(fs.f_blocks.saturating_sub(fs.f_bfree).saturating_mul(fs.f_frsize))
    }
}

/// A meter that measures directories alone, and no processes.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryMeter;

impl DiskMeter for DirectoryMeter {}

/// Measure the directory of an allocation. Blocks. When it is cancelled it returns the incomplete
/// result so far.
///
/// # Errors
/// [`AllocDirError::Missing`] when there is no directory; other errors when it cannot be opened.
pub fn measure(
    root: &Path,
    alloc: AllocId,
    cancel: &CancellationToken,
) -> Result<AllocDiskUse, AllocDirError> {
    measure_on(root, alloc, cancel, MEASURE_ENTRIES_MAX).map(|(found, _)| found)
}

/// As [`measure`]; returns the device number of the file system too.
fn measure_on(
    root: &Path,
    alloc: AllocId,
    cancel: &CancellationToken,
    entries_max: u64,
) -> Result<(AllocDiskUse, u64), AllocDirError> {
    let dir = AllocDir::open(root, alloc)?;
    let stat = rustix::fs::fstat(dir.fd()).map_err(|e| io_error("read", dir.path())(e.into()))?;
    let mut walk = DiskWalk {
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

/// The sentence for people when an allocation has more on disk than `disk` allows; `None` while
/// it has not.
#[must_use]
pub fn over_limit(used: &AllocDiskUse, disk: EphemeralDisk) -> Option<String> {
    let EphemeralDisk { size_mb, size_stated, .. } = disk;
    (used.bytes > u64::from(size_mb).saturating_mul(MIB)).then(|| {
        let at_least = if used.complete { "" } else { "at least " };
        let mib = used.bytes.div_ceil(MIB);
        let limit = if size_stated {
            format!("ephemeral_disk.size allows {size_mb} MiB")
        } else {
            format!(
                "the job has no ephemeral_disk.size, whose default is {size_mb} MiB; the allocation keeps running, but a \
                 size given in the job would be enforced"
            )
        };
        format!("the allocation has {at_least}{mib} MiB on disk without its logs; {limit}")
    })
}

/// A directory on the path from the top to the present directory of the walk.
struct WalkLevel {
    /// Device and inode.
    identity: (u64, u64),
    /// The open directory; only the first levels are kept open.
    dir: Option<OwnedFd>,
    /// Subdirectories that are still to be visited.
    pending: Vec<CString>,
}

struct DiskWalk<'a> {
    found: AllocDiskUse,
    /// The file system of the allocation.
    device: u64,
    /// Device and inode of each file with several names that was counted.
    linked: BTreeSet<(u64, u64)>,
    entries_left: u64,
    cancel: &'a CancellationToken,
    /// The levels of the walk, the outermost first.
    levels: Vec<WalkLevel>,
}

impl DiskWalk<'_> {
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
            if self.is_stopped() {
                self.found.complete &= self.levels.iter().all(|level| level.pending.is_empty());
                return;
            }
        }
    }

    /// Has the walk reached its bound, or was it cancelled?
    fn is_stopped(&self) -> bool {
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
        self.levels.push(WalkLevel { identity, dir: kept, pending });
    }

    /// Count the entries of a directory. Returns the names of its subdirectories.
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
            if self.is_stopped() {
                self.found.complete = false;
                break;
            }
            self.entries_left -= 1;
            // An entry that went since it was listed costs nothing any more.
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

/// Read the entries of a directory without changing its access time, where the system allows that:
/// for the owner and for root.
fn read_quietly(dir: &OwnedFd) -> Result<Dir, Errno> {
    let open = |flags| rustix::fs::openat(dir, c".", flags, Mode::empty());
    let opened = match open(DIRECTORY_FLAGS | OFlags::NOATIME) {
        Err(Errno::PERM) => open(DIRECTORY_FLAGS),
        opened => opened,
    };
    Dir::new(opened?)
}

/// Is it a directory that only the agent's user can write?
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
