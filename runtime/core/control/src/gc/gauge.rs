//! Measures how full the file system of the allocations is, and what each allocation has on it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::choice::FsUse;
use ostler_lifecycle::alloc::DiskMeter;
use ostler_lifecycle::alloc::size::AllocDiskUse;
use ostler_model::ids::AllocId;
use tokio_util::sync::CancellationToken;

/// Measures the file system of the allocations.
pub trait DiskGauge: DiskMeter {
    /// Measure; may block. `sync`: something was removed just now, and the freed room should count.
    ///
    /// # Errors
    /// When the operating system does not answer.
    fn measure(&self, sync: bool) -> io::Result<FsUse>;
}

/// Measures the files without a name that the processes of an allocation hold open on
/// a file system.
pub type HeldFiles = dyn Fn(AllocId, u64, &CancellationToken) -> AllocDiskUse + Send + Sync;

/// The file system that holds a directory.
#[derive(Clone)]
pub struct FsGauge {
    /// The directory whose file system is measured.
    pub root: PathBuf,
    /// Measures what no directory shows.
    pub held: Arc<HeldFiles>,
}

impl DiskMeter for FsGauge {
    fn deleted_files_use(
        &self,
        alloc: AllocId,
        device: u64,
        cancel: &CancellationToken,
    ) -> AllocDiskUse {
        (self.held)(alloc, device, cancel)
    }
}

impl DiskGauge for FsGauge {
    fn measure(&self, sync: bool) -> io::Result<FsUse> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty())?;
        if sync {
            // Some file systems (btrfs, xfs) free deleted files later, in the background. Without
            // the sync the next allocation would be removed for nothing.
            rustix::fs::syncfs(&root)?;
        }
        let stat = rustix::fs::fstatvfs(&root)?;
        // As df does, blocks kept for root count neither as used nor as free.
        let disk_used = stat.f_blocks.saturating_sub(stat.f_bfree);
        let inodes_used = stat.f_files.saturating_sub(stat.f_ffree);
        Ok(FsUse {
            disk_used,
            disk_total: disk_used.saturating_add(stat.f_bavail),
            inodes_used,
            inodes_total: if stat.f_files == 0 {
                0
            } else {
                inodes_used.saturating_add(stat.f_favail)
            },
        })
    }
}
