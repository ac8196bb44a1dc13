//! Messages to the service manager that started this program (systemd's `sd_notify`).
//!
//! A datagram with lines such as `READY=1` to the socket that `NOTIFY_SOCKET` names. Without it
//! nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable that names the socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Send lines to the service manager, if there is one. An error is only logged: the agent runs
/// without a service manager too.
pub(super) fn notify_manager(lines: &str) {
    let Some(socket) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, lines) {
        tracing::warn!(socket = %socket.display(), %error, "the service manager was not told");
    }
}

/// Send lines to a socket. A name that begins with `@` is in the abstract name space.
fn send(socket: &OsStr, lines: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let own = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up the agent.
    own.set_nonblocking(true)?;
    own.send_to_addr(lines.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn received(at: &UnixDatagram) -> String {
        let mut text = [0; 64];
        let length = at.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn lines_arrive_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&manager), "READY=1");

        let name = format!("{}-abstract", path.display());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&manager), "STOPPING=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        assert!(send(dir.path().join("gone").as_os_str(), "READY=1").is_err());
    }
}
