//! The errors of pulling from a registry.

use std::io;
use std::time::Duration;

use super::manifest::OciManifestError;
use ostler_model::digest::Digest;
use ostler_net::ExchangeError;

/// Why a plugin could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The host cannot be reached.
    #[error("cannot connect to {host}: {source}; check the name and that the registry runs")]
    Connect {
        /// The host and the port of the registry.
        host: String,
        /// The error of the kernel or the resolver.
        source: io::Error,
    },
    /// There is no trusted encrypted connection.
    #[error(
        "TLS with {host} failed: {source}; a private authority can be named with SSL_CERT_FILE, and \
         plain HTTP is allowed with\nregistry \"{host}\" {{\n  insecure = true\n}}"
    )]
    Tls {
        /// The host and the port of the registry.
        host: String,
        /// The error of the TLS handshake.
        source: io::Error,
    },
    /// The machine has no certificates to trust.
    #[error("the machine has no certificate authorities; install them or set SSL_CERT_FILE")]
    NoRoots,
    /// Plain HTTP is not allowed with this host.
    #[error(
        "{host} would be asked over plain HTTP, which is allowed only for this machine and for registries \
         configured with insecure = true"
    )]
    Plain {
        /// The host and the port of the registry.
        host: String,
    },
    /// Nothing came for too long.
    #[error("{host} did not {what} within {limit:?}; try again later")]
    TimedOut {
        /// The host and the port of the registry.
        host: String,
        /// What was waited for, as a part of the message.
        what: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// HTTP was interrupted or malformed.
    #[error("the answer of {host} was cut off or is not HTTP: {source}")]
    Http {
        /// The host and the port of the registry.
        host: String,
        /// The error of hyper.
        source: hyper::Error,
    },
    /// An address cannot be requested.
    #[error("{host} sent an address that cannot be used: {reason}")]
    Address {
        /// The host that sent the address.
        host: String,
        /// Why the address cannot be requested.
        reason: &'static str,
    },
    /// There were too many redirects.
    #[error("{host} redirects more than {limit} times")]
    Redirects {
        /// The host and the port of the registry.
        host: String,
        /// The largest number of redirects that are followed.
        limit: usize,
    },
    /// Credentials are missing or wrong.
    #[error(
        "{host} refuses access ({status}); give credentials with OSTLER_REGISTRY={host}, \
         OSTLER_REGISTRY_USERNAME and OSTLER_REGISTRY_PASSWORD, or with `docker login {host}`"
    )]
    Refused {
        /// The host and the port of the registry.
        host: String,
        /// The HTTP status of the answer.
        status: u16,
    },
    /// The demand for credentials is not understood.
    #[error("{host} asks for credentials in a way that is not supported: {challenge}")]
    Challenge {
        /// The host and the port of the registry.
        host: String,
        /// The text of the demand, cut.
        challenge: String,
    },
    /// The registry does not have what was asked for.
    #[error("{host} has no {what}; check repository and tag")]
    Missing {
        /// The host and the port of the registry.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// There were too many requests, and waiting did not help.
    #[error("{host} is busy ({status}); try again later")]
    Busy {
        /// The host and the port of the registry.
        host: String,
        /// The HTTP status of the answer.
        status: u16,
    },
    /// The answer has a status other than success.
    #[error("{host} answered {status} when asked for {what}")]
    Status {
        /// The host and the port of the registry.
        host: String,
        /// The HTTP status of the answer.
        status: u16,
        /// What was asked for.
        what: String,
    },
    /// The answer has more bytes than accepted.
    #[error("{what} of {host} is larger than {max} bytes")]
    TooLarge {
        /// The host and the port of the registry.
        host: String,
        /// What was asked for: the manifest or a blob.
        what: String,
        /// The number of bytes accepted.
        max: u64,
    },
    /// There are fewer bytes than the manifest says.
    #[error("{what} of {host} has {found} bytes, but the manifest says {expected}")]
    Short {
        /// The host and the port of the registry.
        host: String,
        /// What was asked for: the manifest or a blob.
        what: String,
        /// The number of bytes in the manifest.
        expected: u64,
        /// The number of bytes that came.
        found: u64,
    },
    /// The bytes are not those that were asked for.
    #[error("{what} of {host} has the digest {}, not {}; it was changed", found.to_tagged(), expected.to_tagged())]
    Digest {
        /// The host and the port of the registry.
        host: String,
        /// What was asked for: the manifest or a blob.
        what: String,
        /// The digest that was asked for.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// The manifest does not describe a plugin.
    #[error("what {host} has there is not a plugin: {source}")]
    Manifest {
        /// The host and the port of the registry.
        host: String,
        /// Why the manifest is not accepted.
        source: OciManifestError,
    },
    /// The token cannot be used.
    #[error("{host} gave no token that can be used")]
    Token {
        /// The host of the token service.
        host: String,
    },
}

impl RegistryError {
    /// The error of an exchange with a host; `what` was asked for.
    pub(super) fn from_exchange(host: &str, what: &str, error: ExchangeError) -> Self {
        let host = host.to_owned();
        match error {
            ExchangeError::Connect(source) => Self::Connect { host, source },
            ExchangeError::Tls(source) => Self::Tls { host, source },
            ExchangeError::Name => Self::Address { host, reason: "it is not a host name" },
            ExchangeError::TimedOut { what, limit } => Self::TimedOut { host, what, limit },
            ExchangeError::Http(source) => Self::Http { host, source },
            ExchangeError::TooLarge { max } => Self::TooLarge { host, what: what.to_owned(), max },
        }
    }
}
