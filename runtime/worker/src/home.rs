//! The directory in which an agent finds a worker, as the worker sees it.
//!
//! A worker whose socket was removed and in which nothing lives is of no use: what it keeps for the next
//! agent is of tasks that are over. As long as one lives, an agent finds it in `/proc` (`found.rs`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, inotify, statat};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::connect::SOCKET;

/// Bytes of notices taken at once.
const NOTICES_BYTES: usize = 4096;

/// Opened before the process is confined.
pub(crate) struct Home {
    dir: OwnedFd,
    /// By which an agent reaches the socket when its name is gone (`found.rs`).
    _socket: OwnedFd,
    /// The kernel's notices that names went from it; each user may only have so many (`inotify(7)`).
    notices: Option<OwnedFd>,
}

impl Home {
    /// The directory of this worker, with its socket in it.
    pub fn of(dir: &Path) -> io::Result<Self> {
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

    /// Is the socket there no more?
    pub fn is_gone(&self) -> bool {
        matches!(statat(&self.dir, SOCKET, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }

    /// What tells that something was removed, once. Inside a runtime.
    pub fn notices(&mut self) -> io::Result<Option<Notices>> {
        let Some(notices) = self.notices.take() else { return Ok(None) };
        // SAFETY: the descriptor is owned here, never changes, and is closed only with the `AsyncFd`.
        let notices = unsafe { AsyncFd::register_with_interest(notices, Interest::READABLE) }?;
        Ok(Some(Notices(notices)))
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

/// See [`Home::notices`].
pub(crate) struct Notices(AsyncFd<OwnedFd>);

impl Notices {
    /// Wait for one, and take those that are there.
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
        let mut home = Home::of(&at).unwrap();
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
