//! The address of an agent.
//!
//! ```text
//! --address, OSTLER_ADDR ─► --data-dir, OSTLER_DATA_DIR ─► the default data directory
//! ```
//! The first one that is given counts.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;

use crate::SOCKET_NAME;

/// The scheme of the address of a socket.
const UNIX: &str = "unix://";
/// The port if a URL names none; the same as Nomad's.
const PORT: u16 = 4646;

/// The address of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAddress {
    /// The endpoint to connect to.
    pub at: AgentEndpoint,
    /// The data directory of the agent, if it was named or chosen; for messages.
    pub data_dir: Option<PathBuf>,
}

/// The endpoint of an agent: a socket, or a host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEndpoint {
    /// The path of the agent's unix socket.
    Socket(PathBuf),
    /// A host and a port, over TCP.
    Tcp {
        /// Whether the connection has TLS.
        tls: bool,
        /// A host name or an IP address; an IPv6 address without its brackets.
        host: String,
        /// The TCP port on which the agent listens.
        port: u16,
    },
}

impl AgentEndpoint {
    /// The path of the socket, if it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Socket(path) => Some(path),
            Self::Tcp { .. } => None,
        }
    }

    /// The value of the `Host` header.
    #[must_use]
    pub(super) fn host(&self) -> String {
        match self {
            Self::Socket(_) => "ostler".to_owned(),
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for AgentEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp { tls, .. } => {
                write!(f, "{}://{}", if *tls { "https" } else { "http" }, self.host())
            }
        }
    }
}

/// Why no address could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The given text is neither the path of a socket nor a URL.
    #[error(
        "{given:?} is not the address of an agent; expected a socket such as unix:///run/ostler.sock, or a URL \
         without a path such as https://node1.example:4646"
    )]
    Unknown {
        /// The text that was given as an address.
        given: String,
    },
    /// No address was given, and there is no home directory.
    #[error("no data directory is given and there is no home directory; give --data-dir")]
    NoDefault,
}

impl AgentAddress {
    /// Choose the address from the command line, the environment or the default.
    ///
    /// # Errors
    /// When `address` is neither a socket nor a URL, or nothing is named and there is no default.
    pub fn from_options(
        address: Option<&str>,
        data_dir: Option<&Path>,
    ) -> Result<Self, AddressError> {
        // An empty environment variable counts as absent.
        if let Some(given) = address.filter(|given| !given.is_empty()) {
            return Self::parse(given);
        }
        let dir = data_dir.map(Path::to_owned).or_else(default_data_dir);
        dir.map(|dir| Self::in_dir(&dir)).ok_or(AddressError::NoDefault)
    }

    /// The address of the agent with this data directory.
    #[must_use]
    pub fn in_dir(dir: &Path) -> Self {
        Self { at: AgentEndpoint::Socket(dir.join(SOCKET_NAME)), data_dir: Some(dir.to_owned()) }
    }

    fn parse(given: &str) -> Result<Self, AddressError> {
        let unknown = || AddressError::Unknown { given: given.chars().take(128).collect() };
        let at = match given.split_once("://") {
            Some(("http", _)) => url(given, false).ok_or_else(unknown)?,
            Some(("https", _)) => url(given, true).ok_or_else(unknown)?,
            _ => {
                let path = given.strip_prefix(UNIX).unwrap_or(given);
                if path.is_empty() || path.contains("://") {
                    return Err(unknown());
                }
                AgentEndpoint::Socket(PathBuf::from(path))
            }
        };
        Ok(Self { at, data_dir: None })
    }
}

/// Parse a URL that has only a host and perhaps a port.
fn url(given: &str, tls: bool) -> Option<AgentEndpoint> {
    let uri: Uri = given.parse().ok()?;
    let authority = uri.authority()?;
    let alone = matches!(uri.path(), "" | "/") && uri.query().is_none();
    let plain = alone && !authority.as_str().contains('@') && !authority.host().is_empty();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    plain.then(|| AgentEndpoint::Tcp { tls, host, port: authority.port_u16().unwrap_or(PORT) })
}

/// The data directory that an agent uses if none is named: `/var/lib/ostler` for root, otherwise
/// `ostler` under `XDG_STATE_HOME` or `~/.local/state`. None for a user without a home directory.
#[must_use]
pub fn default_data_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/ostler"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let states =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(states?.join("ostler"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn of(address: Option<&str>, data_dir: Option<&str>) -> Result<String, String> {
        let address = AgentAddress::from_options(address, data_dir.map(Path::new));
        address.map(|address| address.at.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_comes_before_a_data_directory_and_a_default_last() {
        let socket = |path: &str| Ok(path.to_owned());
        assert_eq!(of(Some("unix:///run/o.sock"), Some("/data")), socket("/run/o.sock"));
        assert_eq!(of(Some("/run/o.sock"), None), socket("/run/o.sock"));
        assert_eq!(of(Some("o.sock"), None), socket("o.sock"));
        assert_eq!(of(None, Some("/data")), socket("/data/ostler.sock"));
        assert_eq!(of(Some(""), Some("/data")), socket("/data/ostler.sock"));
        let default = of(None, None).unwrap();
        assert!(default.ends_with("ostler/ostler.sock"), "{default}");
    }

    #[test]
    fn a_url_names_a_host_and_perhaps_a_port() {
        for (given, shown) in [
            ("http://127.0.0.1", "http://127.0.0.1:4646"),
            ("https://node1.example:8443/", "https://node1.example:8443"),
            ("http://[::1]:80", "http://[::1]:80"),
        ] {
            assert_eq!(of(Some(given), None), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn other_addresses_are_refused_with_the_forms_that_are_meant() {
        for wrong in ["ftp://127.0.0.1:4646", "unix://", "http://", "http://a/v1", "https://a@b"] {
            let error = of(Some(wrong), None).unwrap_err();
            assert!(error.contains("unix:///") && error.contains("https://"), "{error}");
        }
    }
}
