//! Network namespaces that outlive the process that made them: a file holds each, as with `ip
//! netns`.
//!
//! ```text
//! empty file ─► thread: unshare ─► loopback up ─► its namespace bound over the file ─► thread ends
//! removed: unbound, then the file; what still runs in there keeps the namespace until it ends
//! ```

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, OFlags, fstatfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use serde::{Deserialize, Serialize};

use super::isolate::{loopback_up, sys};

/// The kernel's type number of its file system of namespaces (`NSFS_MAGIC`).
const NAMESPACES: FsWord = 0x6e73_6673;

/// The network of an allocation, for a process in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskNetwork {
    /// Path of the file that holds the namespace.
    pub namespace: PathBuf,
    /// The host name in there; the node's when absent.
    pub hostname: Option<String>,
}

impl TaskNetwork {
    /// Move this process, which has one thread, into the network. Its later children are in it too.
    pub(super) fn enter(&self) -> io::Result<()> {
        enter(&self.namespace)?;
        if let Some(name) = &self.hostname {
            sys::unshare(libc::CLONE_NEWUTS)?;
            rustix::system::sethostname(name.as_bytes())?;
        }
        Ok(())
    }

    /// Move this process, which has one thread, to a task that is in the network.
    pub(super) fn join(&self, task: &OwnedFd) -> io::Result<()> {
        enter(&self.namespace)?;
        if self.hostname.is_some() { sys::join(task, libc::CLONE_NEWUTS) } else { Ok(()) }
    }
}

/// Whether this file holds a namespace.
#[must_use]
pub fn is_namespace_file(path: &Path) -> bool {
    File::open(path)
        .and_then(|file| Ok(fstatfs(file.as_fd())?))
        .is_ok_and(|of| of.f_type == NAMESPACES)
}

/// Whether this process may make a network namespace.
#[must_use]
pub fn may_create() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Make a network namespace whose loopback is up, and a file that holds it. Blocks for some
/// milliseconds. Needs the right to administrate the system (`CAP_SYS_ADMIN`).
///
/// # Errors
/// When the file holds a namespace already, or the kernel refuses.
pub fn create(path: &Path) -> io::Result<()> {
    if is_namespace_file(path) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let target = path.to_owned();
    let made = std::thread::Builder::new().name("netns".to_owned()).spawn(move || {
        // The change is of this thread alone, which ends here.
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

/// Let go of a namespace, and remove its file. An absent file is no error.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(path: &Path) -> io::Result<()> {
    // Nobody binds it more than once; the loop is bounded all the same.
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

/// Move this process, which has one thread, into the namespace.
///
/// # Errors
/// When the file holds no namespace, or the kernel refuses.
pub fn enter(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let name = CString::new(path.as_os_str().as_bytes())?;
    let file = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?;
    sys::join(file, libc::CLONE_NEWNET)
}
