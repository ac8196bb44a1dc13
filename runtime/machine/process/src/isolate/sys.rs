//! System calls on mounts (Linux 5.12) and namespaces.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

/// Attributes of a mount.
pub(super) const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
pub(super) const NO_SUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
pub(super) const NO_DEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
pub(super) const NO_EXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;

/// A copy of the mounts at an open path and below, attached nowhere.
pub(super) fn clone_tree(at: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(rustix::mount::open_tree(at, c"", flags)?)
}

/// Set attributes of a mount and of those below, and let none of them learn of mounts elsewhere.
pub(super) fn set_attributes(mount: impl AsFd, set: MountAttrFlags) -> io::Result<()> {
    change_attributes(mount, set, OpenTreeFlags::AT_RECURSIVE)
}

/// Set attributes of a mount alone, and let it not learn of mounts elsewhere.
pub(super) fn set_attributes_here(mount: impl AsFd, set: MountAttrFlags) -> io::Result<()> {
    change_attributes(mount, set, OpenTreeFlags::empty())
}

/// `mount_setattr`, which rustix lacks.
fn change_attributes(
    mount: impl AsFd,
    set: MountAttrFlags,
    which: OpenTreeFlags,
) -> io::Result<()> {
    // What to set, clear and propagate, and a user namespace.
    let private = MountPropagationFlags::PRIVATE.bits();
    let attributes: [u64; 4] = [set.bits().into(), 0, private.into(), 0];
    // SAFETY: a live descriptor, an empty C string, and a structure of the size given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            (which | OpenTreeFlags::AT_EMPTY_PATH).bits(),
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attach a mount at a path relative to a directory; a link at its end is not followed.
pub(super) fn attach(mount: impl AsFd, dir: impl AsFd, path: &CStr) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", dir, path, flags)?)
}

/// Attach a mount over the file or directory that is open as `target`.
pub(super) fn attach_over(mount: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", target, c"", flags)?)
}

/// Make a file system of this kind, mounted nowhere.
pub(super) fn file_system(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Make all mounts of this namespace private.
pub(super) fn make_private() -> io::Result<()> {
    let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change(c"/", flags)?)
}

/// Make the working directory the root, and unmount the old root.
pub(super) fn become_root() -> io::Result<()> {
    match rustix::process::pivot_root(c".", c".") {
        Ok(()) => rustix::mount::unmount(c".", UnmountFlags::DETACH)?,
        // The root is the initial memory file system, which cannot be pivoted.
        Err(rustix::io::Errno::INVAL) => {
            rustix::mount::mount_move(c".", c"/")?;
            rustix::process::chroot(c".")?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::process::chdir(c"/")?)
}

/// Join the namespaces of another process, given by its pidfd, all or none (Linux 5.8); or the one
/// namespace that a file holds.
pub(in super::super) fn join(process: impl AsFd, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call over a live descriptor, in a process with one thread.
    let joined = unsafe { libc::setns(process.as_fd().as_raw_fd(), flags) };
    if joined < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Give this process new namespaces.
pub(in super::super) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call over a plain number, in a process with one thread.
    if unsafe { libc::unshare(flags) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
