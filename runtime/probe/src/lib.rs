//! One question to a service: a connection, an HTTP request, or a call of the standard health service
//! of gRPC. The answer is hostile until read: everything taken from it has a bound, and it is read
//! within the check's timeout.
//!
//! ```text
//! ask ─► connect ─► [tls] ─┬─► http: one request, status and the beginning of the body
//!                          ├─► grpc: one call of grpc.health.v1.Health/Check
//!                          └─► tcp: that was all
//! ```
//! Start with [`ask`]. Scripts are not asked here: they run inside tasks.

mod grpc;
mod http;
mod tls;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::limits::CHECK_OUTPUT_BYTES_MAX;
use ostler_model::service::{CheckKind, CheckStatus, CheckTls};
use ostler_model::shown::hides;

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckAnswer {
    /// Passing, warning or critical.
    pub status: CheckStatus,
    /// The status of an HTTP answer.
    pub code: Option<u16>,
    /// At most [`CHECK_OUTPUT_BYTES_MAX`], without control characters but line breaks and tabs.
    pub output: String,
}

impl CheckAnswer {
    /// It passes, and says this.
    #[must_use]
    pub fn passing(output: &str) -> Self {
        Self::new(CheckStatus::Passing, output)
    }

    /// It does not pass, and this is why.
    #[must_use]
    pub fn critical(output: &str) -> Self {
        Self::new(CheckStatus::Critical, output)
    }

    /// Any.
    #[must_use]
    pub fn new(status: CheckStatus, output: &str) -> Self {
        Self { status, code: None, output: printable(output) }
    }
}

/// Where a service is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTarget {
    /// An address, or a name.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for CheckTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse() {
            Ok(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    /// Nobody took the connection.
    #[error("cannot connect to {to}: {source}")]
    Connect { to: String, source: std::io::Error },
    /// No TLS over it.
    #[error("no TLS with {to}: {source}")]
    Tls { to: String, source: std::io::Error },
    /// There is nothing to verify a certificate by, or no such name.
    #[error("no TLS with {to}: {why}")]
    NoTls { to: String, why: String },
    /// The job file was checked, and `${…}` became something that cannot be sent.
    #[error("the request cannot be made: {0}")]
    Request(#[source] hyper::http::Error),
    /// The other side broke off or does not speak HTTP.
    #[error("no HTTP answer from {to}: {}", chain(source))]
    Http { to: String, source: hyper::Error },
}

/// What has been heard so far; it stands when the rest never comes.
#[derive(Default)]
struct Heard {
    answer: Option<CheckAnswer>,
    /// The beginning of a body.
    body: Vec<u8>,
}

/// Ask once, with all `${…}` replaced; takes at most `timeout`.
pub async fn ask(kind: &CheckKind, target: &CheckTarget, timeout: Duration) -> CheckAnswer {
    let mut heard = Heard::default();
    let asked = clock::timeout(timeout, async {
        match kind {
            CheckKind::Tcp => {
                let stream = connect(target).await?;
                drop(stream);
                heard.answer = Some(CheckAnswer::passing(&format!("connected to {target}")));
                Ok(())
            }
            CheckKind::Http(http) => {
                let stream = open(target, http.tls.as_ref(), tls::Speaks::Http1).await?;
                http::ask(http, target, stream, &mut heard).await
            }
            CheckKind::Grpc { service, tls } => {
                let stream = open(target, tls.as_ref(), tls::Speaks::Http2).await?;
                grpc::ask(service, target, tls.is_some(), stream, &mut heard).await
            }
            CheckKind::Script { .. } => Ok(()),
        }
    });
    let asked = asked.await;
    match (heard.answer, asked) {
        // What the status says stands, even when the rest of the answer never came.
        (Some(answer), _) => http::with_body(answer, &heard.body),
        (None, Some(Ok(()))) => CheckAnswer::critical("it is not asked over the network"),
        (None, Some(Err(error))) => CheckAnswer::critical(&error.to_string()),
        (None, None) => {
            let timeout = humantime::format_duration(timeout);
            let output = format!("no answer from {target} within the timeout of {timeout}");
            CheckAnswer::critical(&output)
        }
    }
}

async fn connect(target: &CheckTarget) -> Result<TcpStream, ProbeError> {
    let connected = TcpStream::connect((target.host.as_str(), target.port)).await;
    connected.map_err(|source| ProbeError::Connect { to: target.to_string(), source })
}

/// A stream of bytes to a service, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn open(
    target: &CheckTarget,
    tls: Option<&CheckTls>,
    speaks: tls::Speaks,
) -> Result<Box<dyn Stream>, ProbeError> {
    let stream = connect(target).await?;
    match tls {
        None => Ok(Box::new(stream)),
        Some(tls) => tls::over(stream, target, tls, speaks).await,
    }
}

/// The text cut to the bound, with what hides or steers a terminal replaced: it is shown on terminals.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len().min(CHECK_OUTPUT_BYTES_MAX));
    for character in text.chars() {
        let character = match character {
            '\n' | '\t' => character,
            hidden if hides(hidden) => char::REPLACEMENT_CHARACTER,
            other => other,
        };
        if clean.len() + character.len_utf8() > CHECK_OUTPUT_BYTES_MAX {
            break;
        }
        clean.push(character);
    }
    clean
}

#[cfg(test)]
mod tests;
