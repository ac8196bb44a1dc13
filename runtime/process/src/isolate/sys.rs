//! The kernel's newer calls on mounts, as far as needed (Linux 5.12), and namespaces.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC.unsigned_abs();
const AT_RECURSIVE: libc::c_uint = 0x8000;
const AT_EMPTY_PATH: libc::c_uint = libc::AT_EMPTY_PATH.unsigned_abs();
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;

/// Attributes of a mount.
pub(super) const READ_ONLY: u64 = 1;
pub(super) const NO_SUID: u64 = 2;
pub(super) const NO_DEV: u64 = 4;
pub(super) const NO_EXEC: u64 = 8;

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

fn done(result: libc::c_long) -> io::Result<RawFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(result).map_err(io::Error::other)
}

fn opened(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = done(result)?;
    // SAFETY: the call made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A copy of the mounts at an open path and below, attached nowhere.
pub(super) fn clone_tree(at: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE;
    // SAFETY: a live descriptor and an empty C string.
    opened(unsafe {
        libc::syscall(libc::SYS_open_tree, at.as_fd().as_raw_fd(), c"".as_ptr(), flags)
    })
}

/// Set attributes of a mount and of those below.
pub(super) fn set_attributes(mount: impl AsFd, set: u64) -> io::Result<()> {
    change_attributes(mount, set, AT_EMPTY_PATH | AT_RECURSIVE)
}

/// Set attributes of a mount alone.
pub(super) fn set_attributes_here(mount: impl AsFd, set: u64) -> io::Result<()> {
    change_attributes(mount, set, AT_EMPTY_PATH)
}

fn change_attributes(mount: impl AsFd, set: u64, flags: libc::c_uint) -> io::Result<()> {
    let attr = MountAttr { set, ..MountAttr::default() };
    // SAFETY: a live descriptor, an empty C string, and a structure of the size given.
    done(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Attach a mount at a path relative to a directory; a link at its end is not followed.
pub(super) fn attach(mount: impl AsFd, dir: impl AsFd, path: &CStr) -> io::Result<()> {
    move_to(mount, dir, path, MOVE_MOUNT_F_EMPTY_PATH)
}

/// Attach a mount over what is open.
pub(super) fn attach_over(mount: impl AsFd, target: impl AsFd) -> io::Result<()> {
    move_to(mount, target, c"", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)
}

fn move_to(mount: impl AsFd, dir: impl AsFd, path: &CStr, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: live descriptors and C strings.
    done(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            dir.as_fd().as_raw_fd(),
            path.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// A file system of a kind, mounted nowhere.
pub(super) fn file_system(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    // SAFETY: C strings that live, a descriptor that lives, null where nothing is meant.
    unsafe {
        let context = opened(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC))?;
        let configure = |what: libc::c_uint, key: *const libc::c_char, value: *const _| {
            let context = context.as_raw_fd();
            done(libc::syscall(libc::SYS_fsconfig, context, what, key, value, 0)).map(drop)
        };
        for (key, value) in options {
            configure(FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())?;
        }
        let none = std::ptr::null::<libc::c_char>();
        configure(FSCONFIG_CMD_CREATE, none, none)?;
        let context = context.as_raw_fd();
        opened(libc::syscall(libc::SYS_fsmount, context, FSMOUNT_CLOEXEC, attributes))
    }
}

/// Make all mounts of this namespace private.
pub(super) fn make_private() -> io::Result<()> {
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)
}

/// The directory we are in becomes the root, and the old one is gone.
pub(super) fn become_root() -> io::Result<()> {
    match rustix::process::pivot_root(c".", c".") {
        Ok(()) => {
            // SAFETY: a C string.
            let detached = unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) };
            if detached < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // The root is the initial memory file system, which cannot be pivoted.
        Err(rustix::io::Errno::INVAL) => {
            mount(Some(c"."), c"/", libc::MS_MOVE)?;
            rustix::process::chroot(c".")?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::process::chdir(c"/")?)
}

fn mount(from: Option<&CStr>, to: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let from = from.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: C strings, and null where the call takes it.
    let done = unsafe { libc::mount(from, to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// New namespaces for this process.
pub(super) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call over a plain number, in a process with one thread.
    if unsafe { libc::unshare(flags) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
