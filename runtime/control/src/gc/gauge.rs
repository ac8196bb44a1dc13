//! How full the file system of the allocations is, and what each has on it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::choice::FsUse;
use ostler_lifecycle::alloc::DiskMeter;
use ostler_lifecycle::alloc::size::AllocDiskUse;
use ostler_model::ids::AllocId;
use tokio_util::sync::CancellationToken;

/// Tells how full the file system is, and what allocations have of it.
pub trait Gauge: DiskMeter {
    /// Measure; may block. `sync`: something was removed, and what it freed should be seen.
    ///
    /// # Errors
    /// When the operating system does not tell.
    fn measure(&self, sync: bool) -> io::Result<FsUse>;
}

/// Says what the processes of an allocation hold of files without a name, of a file system.
pub type HeldFiles = dyn Fn(AllocId, u64, &CancellationToken) -> AllocDiskUse + Send + Sync;

/// The file system that holds a directory.
#[derive(Clone)]
pub struct FsGauge {
    /// The directory.
    pub root: PathBuf,
    /// What no directory shows.
    pub held: Arc<HeldFiles>,
}

impl DiskMeter for FsGauge {
    fn held(&self, alloc: AllocId, device: u64, cancel: &CancellationToken) -> AllocDiskUse {
        (self.held)(alloc, device, cancel)
    }
}

impl Gauge for FsGauge {
    fn measure(&self, sync: bool) -> io::Result<FsUse> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty())?;
        if sync {
            // Some file systems (btrfs, xfs) free what was unlinked later, in the background. A
            // look too early would have the next allocation removed for nothing.
            rustix::fs::syncfs(&root)?;
        }
        let stat = rustix::fs::fstatvfs(&root)?;
        // As df does: what is kept for root is neither used nor free for us.
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
