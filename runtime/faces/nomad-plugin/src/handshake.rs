//! The handshake between Nomad and a program of its plugin directory, before they use gRPC.
//!
//! Nomad sets an environment variable that no person sets. It then reads one line of standard
//! output: the version of the handshake, the version of the services, and their address.

use std::io::{self, Write as _};
use std::path::Path;

/// The variable that Nomad sets for its plugins.
pub const COOKIE: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
/// The value that Nomad sets [`COOKIE`] to.
const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// Version of the handshake.
const CORE: u32 = 1;
/// Version of the services.
const SERVICES: u32 = 2;

/// Why the handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// A person executed the program, not Nomad.
    #[error(
        "this command serves a plugin to Nomad: it is run by a Nomad client, not by hand. Copy or link the \
         program into the client's plugin_dir and name it in a plugin block of its configuration"
    )]
    NotNomad,
    /// The line for Nomad could not be written.
    #[error("Nomad did not take the address of the plugin: {0}")]
    Line(#[source] io::Error),
}

/// Did Nomad start this process as a plugin?
#[must_use]
pub fn is_called_by_nomad() -> bool {
    std::env::var(COOKIE).is_ok_and(|value| value == COOKIE_VALUE)
}

/// Fail unless Nomad started this process.
pub(crate) fn expect_nomad() -> Result<(), HandshakeError> {
    if is_called_by_nomad() { Ok(()) } else { Err(HandshakeError::NotNomad) }
}

/// The line that tells Nomad where the services are.
fn line(socket: &Path) -> String {
    format!("{CORE}|{SERVICES}|unix|{}|grpc\n", socket.display())
}

/// Tell Nomad where the services are. Nothing else may ever be written to standard output.
pub(crate) fn announce(socket: &Path) -> Result<(), HandshakeError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(line(socket).as_bytes()).and_then(|()| out.flush());
    written.map_err(HandshakeError::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_what_nomad_reads() {
        assert_eq!(line(Path::new("/tmp/x/s")), "1|2|unix|/tmp/x/s|grpc\n");
    }
}
