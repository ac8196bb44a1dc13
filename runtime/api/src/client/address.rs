//! Where the agent is.
//!
//! ```text
//! --address, OSTLER_ADDR ─► --data-dir, OSTLER_DATA_DIR ─► the default data directory
//! ```
//! The first one given counts.

use std::path::{Path, PathBuf};

use super::default_data_dir;
use crate::SOCKET_NAME;

/// Scheme of addresses.
const UNIX: &str = "unix://";

/// An agent's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its socket.
    pub socket: PathBuf,
    /// Its data directory, when that was named or chosen: for messages.
    pub data_dir: Option<PathBuf>,
}

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not one of a unix socket.
    #[error("{given:?} is no address of an agent; it must be a path, like unix:///run/ostler.sock")]
    NotUnix {
        /// What was given.
        given: String,
    },
    /// Nothing was named, and there is no home directory.
    #[error("no data directory is named and there is no home directory; give --data-dir")]
    NoDefault,
}

impl Address {
    /// The address that the command line, the environment or the default names.
    ///
    /// # Errors
    /// When `address` is none of a unix socket, or nothing is named and there is no default.
    pub fn of(address: Option<&str>, data_dir: Option<&Path>) -> Result<Self, AddressError> {
        // An environment variable without a text says nothing.
        if let Some(given) = address.filter(|given| !given.is_empty()) {
            return Self::parse(given);
        }
        let dir = data_dir.map(Path::to_owned).or_else(default_data_dir);
        dir.map(|dir| Self::in_dir(&dir)).ok_or(AddressError::NoDefault)
    }

    /// That of the agent with this data directory.
    #[must_use]
    pub fn in_dir(dir: &Path) -> Self {
        Self { socket: dir.join(SOCKET_NAME), data_dir: Some(dir.to_owned()) }
    }

    fn parse(given: &str) -> Result<Self, AddressError> {
        let path = given.strip_prefix(UNIX).unwrap_or(given);
        if path.is_empty() || path.contains("://") {
            return Err(AddressError::NotUnix { given: given.chars().take(128).collect() });
        }
        Ok(Self { socket: PathBuf::from(path), data_dir: None })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn of(address: Option<&str>, data_dir: Option<&str>) -> Result<PathBuf, String> {
        let address = Address::of(address, data_dir.map(Path::new));
        address.map(|address| address.socket).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_comes_before_a_data_directory_and_a_default_last() {
        let socket = |path: &str| Ok(PathBuf::from(path));
        assert_eq!(of(Some("unix:///run/o.sock"), Some("/data")), socket("/run/o.sock"));
        assert_eq!(of(Some("/run/o.sock"), None), socket("/run/o.sock"));
        assert_eq!(of(Some("o.sock"), None), socket("o.sock"));
        assert_eq!(of(None, Some("/data")), socket("/data/ostler.sock"));
        assert_eq!(of(Some(""), Some("/data")), socket("/data/ostler.sock"));
        let default = of(None, None).unwrap();
        assert!(default.ends_with("ostler/ostler.sock"), "{}", default.display());
    }

    #[test]
    fn other_addresses_are_refused_with_the_form_that_is_meant() {
        for wrong in ["http://127.0.0.1:4646", "unix://"] {
            let error = of(Some(wrong), None).unwrap_err();
            assert!(error.contains("unix:///"), "{error}");
        }
    }
}
