//! The socket of a worker, which lies in the worker's directory.
//!
//! The kernel takes at most 107 bytes of path, and data directories may lie deeper. So the
//! directory is opened, and the socket is named by the descriptor of the directory. A worker holds
//! a descriptor of its own socket: through it the socket is reached after its name was removed.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with, sockopt,
};

/// Name of the socket in the directory of its worker.
pub(crate) const SOCKET: &str = "socket";

fn socket_address(dir: &Path) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    let address = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd());
    Ok((dir, SocketAddrUnix::new(address)?))
}

fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connect to the worker that lives in a directory. Never waits.
pub(crate) fn connect_to_dir(dir: &Path) -> io::Result<OwnedFd> {
    let (_dir, address) = socket_address(dir)?;
    let socket = packet_socket()?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// Connect by a path that is short enough for the kernel. Never waits.
pub(crate) fn connect_to_path(path: &Path) -> io::Result<OwnedFd> {
    let socket = packet_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Make the socket of a directory and listen on it.
pub(crate) fn listen_in_dir(dir: &Path) -> io::Result<OwnedFd> {
    let (_dir, address) = socket_address(dir)?;
    let socket = packet_socket()?;
    bind(&socket, &address)?;
    listen(&socket, 4)?;
    Ok(socket)
}

/// Take the next connection. A connection of another user is refused.
pub(crate) fn accept(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let connection = accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let theirs = sockopt::socket_peercred(&connection)?.uid;
    if theirs != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(connection)
}
