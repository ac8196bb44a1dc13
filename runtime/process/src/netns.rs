//! Network namespaces that outlive who made them: each held by a file, as `ip netns` does it.
//!
//! ```text
//! empty file ─► thread: unshare ─► loopback up ─► its namespace bound over the file ─► thread ends
//! removed: unbound, then the file; what still runs in there keeps the namespace until it ends
//! ```

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FsWord, OFlags, fstatfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::isolate::{loopback_up, sys};

/// What the kernel calls its file system of namespaces (`NSFS_MAGIC`).
const NAMESPACES: FsWord = 0x6e73_6673;

/// Does this file hold a namespace?
#[must_use]
pub fn is_held(path: &Path) -> bool {
    File::open(path)
        .and_then(|file| Ok(fstatfs(file.as_fd())?))
        .is_ok_and(|of| of.f_type == NAMESPACES)
}

/// May this process make one?
#[must_use]
pub fn may_create() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Make a network namespace with a loopback that is up, and hold it by a file, which is made. Blocks for
/// some milliseconds. Needs the right to administrate the system.
///
/// # Errors
/// When the file is there and holds one already, or the kernel refuses.
pub fn create(path: &Path) -> io::Result<()> {
    if is_held(path) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let target = path.to_owned();
    let made = std::thread::Builder::new().name("netns".to_owned()).spawn(move || {
        // Of this thread alone, which ends with it.
        sys::unshare(libc::CLONE_NEWNET)?;
        loopback_up()?;
        Ok(mount_bind("/proc/thread-self/ns/net", &target)?)
    })?;
    let made = made.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
    if made.is_err() {
        let _not_there = std::fs::remove_file(path);
    }
    made
}

/// Let go of a namespace, and remove its file. One that is not there is removed.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(path: &Path) -> io::Result<()> {
    // Bound more than once by nobody; bounded all the same.
    for _ in 0..8 {
        match unmount(path, UnmountFlags::DETACH) {
            Ok(()) => {}
            // Nothing is bound there, or there is no file.
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// This process, of one thread, goes into the namespace.
///
/// # Errors
/// When the file holds none, or the kernel refuses.
pub fn enter(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let name = CString::new(path.as_os_str().as_bytes())?;
    let file = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?;
    sys::join(file, libc::CLONE_NEWNET)
}
