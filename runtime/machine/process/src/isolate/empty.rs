//! A mount namespace with nothing in it. Those of tasks are copies of it.
//!
//! A copy of the node's own namespace would have every mount of the node, among them the secrets of
//! every other task: the more tasks there are, the longer each start would take.
//!
//! ```text
//! zygote begins: child in a namespace of its own ─► empty root, old root detached ─► held by a descriptor
//! task's helper: opens what the task sees ─► joins the empty namespace ─► its copy ─► mounts what it opened
//! ```

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};

use super::{sys, vfork_child};

/// The directory of the empty root on which the root of a task is mounted.
pub(super) const MOUNT_POINT: &std::ffi::CStr = c"/proc";

/// Holds an empty mount namespace.
#[derive(Debug)]
pub(in super::super) struct EmptyMounts(OwnedFd);

impl EmptyMounts {
    /// Make one.
    ///
    /// # Errors
    /// When this process may not make it, or no `/proc` could be mounted in a copy of it. Namespaces are
    /// then made as copies of the node's.
    ///
    /// # Safety
    /// This process has one thread and all its signals are blocked.
    pub unsafe fn new() -> io::Result<Self> {
        let mut made = Err(io::ErrorKind::UnexpectedEof.into());
        // SAFETY: as the caller says. The child shares the descriptors, so that what it opens is this process's.
        unsafe { vfork_child::run_vfork(libc::CLONE_FILES, || made = empty_own_namespace())? };
        made.map(Self)
    }

    /// Move this process, which has one thread, into the namespace.
    pub fn join(&self) -> io::Result<()> {
        sys::join(&self.0, libc::CLONE_NEWNS)
    }
}

/// Make a mount namespace for this process, and leave nothing in it. Returns its file.
fn empty_own_namespace() -> io::Result<OwnedFd> {
    sys::unshare(libc::CLONE_NEWNS)?;
    // Opened while there is a `/proc`.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let held = rustix::fs::open(c"/proc/self/ns/mnt", flags, Mode::empty())?;
    sys::make_private()?;
    let root = sys::file_system(c"tmpfs", &[(c"mode", c"0755"), (c"size", c"64k")], sys::NO_SUID)?;
    sys::attach(&root, CWD, MOUNT_POINT)?;
    rustix::process::fchdir(&root)?;
    sys::become_root()?;
    rustix::fs::mkdirat(CWD, MOUNT_POINT, Mode::from_raw_mode(0o755))?;
    // In a container the kernel mounts a `/proc` only where another is to be seen.
    sys::file_system(c"proc", &[], sys::NO_SUID | sys::NO_DEV | sys::NO_EXEC)?;
    sys::set_attributes(&root, sys::READ_ONLY)?;
    Ok(held)
}
