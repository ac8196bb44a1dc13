//! Where the API listens, and why it cannot.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::tls::ApiTls;
use ostler_access::Tokens;

/// The longest path of a unix socket, bytes: `sockaddr_un` has 108 with the final zero.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The path of the socket is longer than the kernel allows.
    #[error(
        "the path of the API's socket, {}, has {length} bytes; a socket's path has at most {}: \
         give a shorter --data-dir",
        socket.display(), SOCKET_PATH_BYTES_MAX
    )]
    PathTooLong {
        /// The path of the socket.
        socket: PathBuf,
        /// The length of the path, bytes.
        length: usize,
    },
    /// The socket cannot be created.
    #[error(
        "cannot listen on {} ({step}): {source}; check that the data directory can be written and \
         supports sockets",
        socket.display()
    )]
    Socket {
        /// The path of the socket.
        socket: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// The TCP port cannot be used.
    #[error(
        "cannot listen on {at} over TCP: {source}; choose another in ports {{ http = … }} or addresses {{ http = … }}"
    )]
    Tcp {
        /// The address and the port.
        at: String,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// The threads of the API cannot be started.
    #[error(
        "the threads that answer requests cannot be started: {source}; raise the limit of processes (ulimit -u)"
    )]
    Threads {
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
}

/// How the API is reached over TCP.
#[derive(Debug)]
pub struct TcpListenOptions {
    /// The address and port on which it listens.
    pub at: SocketAddr,
    /// The certificate and key, if it has TLS.
    pub tls: Option<ApiTls>,
    /// The names by which requests may address it, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Where the API listens, and which tokens count.
#[derive(Debug)]
pub struct ListenOptions<'a> {
    /// The path of the socket, which only the agent's user can use.
    pub socket: &'a Path,
    /// How it is reached over TCP, if it is.
    pub tcp: Option<TcpListenOptions>,
    /// The tokens, which say who may do what.
    pub tokens: Tokens,
}
