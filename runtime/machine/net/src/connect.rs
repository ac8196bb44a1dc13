//! Connects to a host, with TLS or without. Each step has the same limit.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::{ExchangeError, Stream};
use ostler_model::clock;

/// Connect to a host, which is a name or an IP address.
///
/// # Errors
/// [`ExchangeError::Connect`], or that it takes too long.
pub async fn connect(host: &str, port: u16, limit: Duration) -> Result<TcpStream, ExchangeError> {
    let what = "accept a connection";
    let stream = clock::timeout(limit, TcpStream::connect((host, port))).await;
    stream.ok_or(ExchangeError::TimedOut { what, limit })?.map_err(ExchangeError::Connect)
}

/// Agree on TLS with the host that the stream leads to.
///
/// # Errors
/// [`ExchangeError::Name`] and [`ExchangeError::Tls`], or that it takes too long.
pub async fn secure(
    tls: &TlsConnector,
    host: &str,
    stream: TcpStream,
    limit: Duration,
) -> Result<Box<dyn Stream>, ExchangeError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| ExchangeError::Name)?;
    let what = "agree on TLS";
    let stream = clock::timeout(limit, tls.connect(name, stream)).await;
    let stream = stream.ok_or(ExchangeError::TimedOut { what, limit })?;
    Ok(Box::new(stream.map_err(ExchangeError::Tls)?))
}
