//! The directory in which an agent finds a worker, as the worker sees it.
//!
//! A worker whose socket was removed and in which no task lives is of no use: what it keeps for
//! the next agent is about tasks that have ended. As long as a task lives, an agent finds the
//! worker in `/proc` (`discovery.rs`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, inotify, statat};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::connect::SOCKET;

/// Bytes of notices that are read at once.
const NOTICES_BYTES: usize = 4096;

/// The worker's own directory, opened before the process is confined.
pub(crate) struct Home {
    dir: OwnedFd,
    /// Through this descriptor an agent reaches the socket when its name is gone (`discovery.rs`).
    _socket: OwnedFd,
    /// The kernel's notices that names were removed from the directory. Absent where the kernel
    /// gave none: each user may have only so many (`inotify(7)`).
    notices: Option<OwnedFd>,
}

impl Home {
    /// Open the directory of this worker and the socket in it.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty())?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&opened, SOCKET, flags, Mode::empty())?;
        let notices = notices(dir);
        if let Err(errno) = &notices {
            // There is no log yet that is not standard error.
            tracing::debug!(%errno, "the directory of the worker is looked at without notices");
        }
        Ok(Self { dir: opened, _socket: socket, notices: notices.ok() })
    }

    /// Was the socket removed from the directory?
    pub fn is_gone(&self) -> bool {
        matches!(statat(&self.dir, SOCKET, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }

    /// The notices of removals. Only the first call returns them. Must be called inside a runtime.
    pub fn notices(&mut self) -> io::Result<Option<RemovalNotices>> {
        let Some(notices) = self.notices.take() else { return Ok(None) };
        // SAFETY: the descriptor is owned here, never changes, and is closed only with the `AsyncFd`.
        let notices = unsafe { AsyncFd::register_with_interest(notices, Interest::READABLE) }?;
        Ok(Some(RemovalNotices(notices)))
    }
}

fn notices(dir: &Path) -> Result<OwnedFd, Errno> {
    let notices = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let what = inotify::WatchFlags::DELETE
        | inotify::WatchFlags::MOVED_FROM
        | inotify::WatchFlags::ONLYDIR;
    inotify::add_watch(&notices, dir, what)?;
    Ok(notices)
}

/// Notices that a name was removed from the worker's directory; see [`Home::notices`].
pub(crate) struct RemovalNotices(AsyncFd<OwnedFd>);

impl RemovalNotices {
    /// Wait for a notice, and take all that are there.
    pub async fn next(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        let taken = ready.try_io(|fd| {
            let mut buffer = [0; NOTICES_BYTES];
            loop {
                match rustix::io::read(fd.get_ref(), &mut buffer) {
                    Ok(NOTICES_BYTES) => {}
                    Ok(_) | Err(Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
                    Err(errno) => return Err::<(), io::Error>(errno.into()),
                }
            }
        });
        match taken {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_hears_when_it_cannot_be_found_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("worker");
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join(SOCKET), "").unwrap();
        std::fs::write(at.join("log"), "").unwrap();
        let mut home = Home::open(&at).unwrap();
        let notices = home.notices().unwrap().unwrap();
        std::fs::remove_file(at.join("log")).unwrap();
        notices.next().await.unwrap();
        assert!(!home.is_gone(), "its socket is there");
        std::fs::rename(&at, dir.path().join("moved")).unwrap();
        assert!(!home.is_gone(), "it is found elsewhere");
        std::fs::remove_dir_all(dir.path().join("moved")).unwrap();
        notices.next().await.unwrap();
        assert!(home.is_gone());
    }
}
