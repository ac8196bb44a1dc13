//! The byte streams that connections of the server and of the client use.

use tokio::io::{AsyncRead, AsyncWrite};

/// A socket, or TLS over one.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}
