//! Why nothing came from a registry.

use std::io;
use std::time::Duration;

use super::manifest::OciManifestError;
use ostler_model::digest::Digest;

/// Why a plugin could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The host cannot be reached.
    #[error("cannot connect to {host}: {source}; check the name and that the registry runs")]
    Connect {
        /// Host and port.
        host: String,
        /// What the kernel or the resolver said.
        source: io::Error,
    },
    /// No trusted encrypted connection.
    #[error(
        "no TLS with {host}: {source}; a private authority can be named with SSL_CERT_FILE, and \
         plain HTTP is allowed with\nregistry \"{host}\" {{\n  insecure = true\n}}"
    )]
    Tls {
        /// Host and port.
        host: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The machine has no certificates to trust.
    #[error("the machine has no certificate authorities; install them or set SSL_CERT_FILE")]
    NoRoots,
    /// Plain HTTP where it is not allowed.
    #[error(
        "{host} is to be asked over plain HTTP, which is allowed only with this machine and \
             with registries configured with insecure = true"
    )]
    Plain {
        /// Host and port.
        host: String,
    },
    /// Nothing came for too long.
    #[error("{host} did not {what} within {limit:?}; try again later")]
    TimedOut {
        /// Host and port.
        host: String,
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
    /// HTTP was broken off or malformed.
    #[error("the answer of {host} broke off or is no HTTP: {source}")]
    Http {
        /// Host and port.
        host: String,
        /// What hyper said.
        source: hyper::Error,
    },
    /// An address that cannot be asked.
    #[error("{host} sent an address that cannot be used: {reason}")]
    Address {
        /// Who sent it.
        host: String,
        /// Why not.
        reason: &'static str,
    },
    /// Redirected in circles.
    #[error("{host} redirects more than {limit} times")]
    Redirects {
        /// Host and port.
        host: String,
        /// The limit.
        limit: usize,
    },
    /// Credentials are missing or wrong.
    #[error(
        "{host} refuses access ({status}); give credentials with OSTLER_REGISTRY={host}, \
         OSTLER_REGISTRY_USERNAME and OSTLER_REGISTRY_PASSWORD, or with `docker login {host}`"
    )]
    Refused {
        /// Host and port.
        host: String,
        /// Its status.
        status: u16,
    },
    /// A demand for credentials that is not understood.
    #[error("{host} asks for credentials in a way that is not supported: {challenge}")]
    Challenge {
        /// Host and port.
        host: String,
        /// Its words, cut.
        challenge: String,
    },
    /// Not there.
    #[error("{host} has no {what}; check repository and tag")]
    Missing {
        /// Host and port.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// Too many requests, and waiting did not help.
    #[error("{host} is busy ({status}); try again later")]
    Busy {
        /// Host and port.
        host: String,
        /// Its status.
        status: u16,
    },
    /// Another status than success.
    #[error("{host} answered {status} when asked for {what}")]
    Status {
        /// Host and port.
        host: String,
        /// The status.
        status: u16,
        /// What was asked for.
        what: String,
    },
    /// More bytes than accepted.
    #[error("{what} of {host} is larger than {max} bytes")]
    TooLarge {
        /// Host and port.
        host: String,
        /// What.
        what: String,
        /// Bytes accepted.
        max: u64,
    },
    /// Fewer bytes than the manifest says.
    #[error("{what} of {host} has {found} bytes, and the manifest says {expected}")]
    Short {
        /// Host and port.
        host: String,
        /// What.
        what: String,
        /// Bytes said.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// Other bytes than asked for.
    #[error("{what} of {host} has the digest {}, not {}; somebody changed it", found.tagged(), expected.tagged())]
    Digest {
        /// Host and port.
        host: String,
        /// What.
        what: String,
        /// The digest that was asked for.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// The manifest does not describe a plugin.
    #[error("what {host} has there is no plugin: {source}")]
    Manifest {
        /// Host and port.
        host: String,
        /// Why not.
        source: OciManifestError,
    },
    /// A token that cannot be used.
    #[error("{host} gave no token that can be used")]
    Token {
        /// The host of the token service.
        host: String,
    },
}
