//! Connections to others, and what is read from them: every size and every wait has a bound.
//!
//! ```text
//! files, machine ─ pem, tls ─► TLS configuration ─┐
//! host, port ─ connect ─► TcpStream ── secure ◄───┘─► dyn Stream ─ HttpAnswer::ask ─► head, then the body in pieces
//! ```
//! All clients of Ostler use it: that of registries, downloads, health checks, the API, traces and
//! the nodes of a cluster. Start with [`HttpAnswer`], then [`client_config`].

mod connect;
mod http;
pub mod pem;
mod tls;

use tokio::io::{AsyncRead, AsyncWrite};

pub use connect::{connect, secure};
pub use http::{ExchangeError, HttpAnswer, HttpBounds, drive_with};
pub use tls::{
    OwnCertificate, ServerTrust, TlsFileError, client_config, machine_authorities,
    machine_connector, machine_roots, read_roots, server_config, strict_roots, usable_roots,
};

/// A stream of bytes to another program: a socket, or TLS over one.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The name of this program in the requests that it sends.
pub const USER_AGENT: &str = concat!("ostler/", env!("CARGO_PKG_VERSION"));
