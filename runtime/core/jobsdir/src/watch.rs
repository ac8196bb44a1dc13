//! Watches a directory for changes.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use ostler_model::ports::BoxFuture;

/// Reports that something in a directory changed. It does not report what changed, because the directory is
/// read as a whole.
pub trait DirWatch: Send + Sync {
    /// Wait until something in the directory changes.
    ///
    /// # Errors
    /// When the directory can no longer be watched.
    fn wait_changed(&self) -> BoxFuture<'_, std::io::Result<()>>;
}

/// The kernel's notifications of changes in one directory.
pub struct InotifyWatch(AsyncFd<OwnedFd>);

impl InotifyWatch {
    /// Watch a directory for files that come, go or are written. Needs a tokio runtime.
    ///
    /// # Errors
    /// When there is no such directory, or the system's limit of watches is reached.
    pub fn new(dir: &Path) -> std::io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let what = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, dir, what)?;
        // SAFETY: the descriptor is owned by what is registered, which gives it away nowhere, and
        // is closed after it was taken out.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(fd?))
    }

    async fn wait_event(&self) -> std::io::Result<()> {
        let mut seen = false;
        let mut buffer = [0_u8; 4_096];
        loop {
            let mut ready = self.0.readable().await?;
            loop {
                match rustix::io::read(self.0.get_ref(), &mut buffer) {
                    Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => seen = true,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
            if seen {
                return Ok(());
            }
        }
    }
}

impl DirWatch for InotifyWatch {
    fn wait_changed(&self) -> BoxFuture<'_, std::io::Result<()>> {
        Box::pin(self.wait_event())
    }
}
