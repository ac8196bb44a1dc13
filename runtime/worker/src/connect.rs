//! The socket of a worker in its directory.
//!
//! The kernel takes at most 107 bytes of path, and data directories may lie deeper: the directory is
//! opened, and the socket named by its descriptor. A worker holds a descriptor of its own socket, which
//! reaches it after its name was removed.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with, sockopt,
};

/// Its name there.
pub(crate) const SOCKET: &str = "socket";

fn named(dir: &Path) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    let address = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd());
    Ok((dir, SocketAddrUnix::new(address)?))
}

fn packets() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connect to the worker of a directory. Never waits.
pub(crate) fn to(dir: &Path) -> io::Result<OwnedFd> {
    let (_dir, address) = named(dir)?;
    let socket = packets()?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// Connect by a path that is short. Never waits.
pub(crate) fn through(path: &Path) -> io::Result<OwnedFd> {
    let socket = packets()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listen in a directory.
pub(crate) fn at(dir: &Path) -> io::Result<OwnedFd> {
    let (_dir, address) = named(dir)?;
    let socket = packets()?;
    bind(&socket, &address)?;
    listen(&socket, 4)?;
    Ok(socket)
}

/// Take the next connection; of another user than this one, none.
pub(crate) fn accept(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let connection = accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let theirs = sockopt::socket_peercred(&connection)?.uid;
    if theirs != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(connection)
}
