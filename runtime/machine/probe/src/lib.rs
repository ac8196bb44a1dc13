//! Asks a service once: by a connection, an HTTP request, or a call of the standard health service
//! of gRPC. The answer is untrusted: everything taken from it is bounded, and it is read within the
//! check's timeout.
//!
//! ```text
//! ask ─► connect ─► [tls] ─┬─► http: one request, status and the beginning of the body
//!                          ├─► grpc: one call of grpc.health.v1.Health/Check
//!                          └─► tcp: that was all
//! ```
//! Start reading with [`ask`]. Checks by script are not made here, because they run inside tasks.

mod grpc;
mod http;
mod tls;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::limits::CHECK_OUTPUT_BYTES_MAX;
use ostler_model::printable::is_hidden_char;
use ostler_model::service::{CheckKind, CheckStatus, CheckTls};
use ostler_net::{ExchangeError, Stream};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckAnswer {
    /// The status: passing, warning or critical.
    pub status: CheckStatus,
    /// The status code of an HTTP answer.
    pub code: Option<u16>,
    /// The output, of at most [`CHECK_OUTPUT_BYTES_MAX`] bytes, without control characters except
    /// line breaks and tabs.
    pub output: String,
}

impl CheckAnswer {
    /// A passing answer with this output.
    #[must_use]
    pub fn new_passing(output: &str) -> Self {
        Self::new(CheckStatus::Passing, output)
    }

    /// A critical answer with this reason.
    #[must_use]
    pub fn new_critical(output: &str) -> Self {
        Self::new(CheckStatus::Critical, output)
    }

    /// An answer with any status.
    #[must_use]
    pub fn new(status: CheckStatus, output: &str) -> Self {
        Self { status, code: None, output: printable_text(output) }
    }
}

/// The address of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTarget {
    /// An IP address or a host name.
    pub host: String,
    /// The port of the service.
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

/// Why a check has no answer.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    /// Nobody accepted the connection.
    #[error("cannot connect to {to}: {source}")]
    Connect { to: String, source: std::io::Error },
    /// The TLS handshake failed.
    #[error("TLS failed with {to}: {source}")]
    Tls { to: String, source: std::io::Error },
    /// There are no authorities to verify a certificate with, or the name is not valid.
    #[error("TLS failed with {to}: {why}")]
    NoTls { to: String, why: String },
    /// The job file was checked, but `${…}` became something that cannot be sent.
    #[error("the request cannot be made: {0}")]
    Request(#[source] hyper::http::Error),
    /// The other side closed the connection or does not speak HTTP.
    #[error("no HTTP answer from {to}: {}", chain(source))]
    Http { to: String, source: ExchangeError },
}

/// What has arrived so far. It is used if the rest never comes.
#[derive(Default)]
struct PartialAnswer {
    answer: Option<CheckAnswer>,
    /// The beginning of the body.
    body: Vec<u8>,
}

/// Ask once, with all `${…}` replaced. This takes at most `timeout`.
pub async fn ask(kind: &CheckKind, target: &CheckTarget, timeout: Duration) -> CheckAnswer {
    let mut heard = PartialAnswer::default();
    let asked = clock::timeout(timeout, async {
        match kind {
            CheckKind::Tcp => {
                let stream = connect(target).await?;
                drop(stream);
                heard.answer = Some(CheckAnswer::new_passing(&format!("connected to {target}")));
                Ok(())
            }
            CheckKind::Http(http) => {
                let stream = open(target, http.tls.as_ref(), tls::SpokenProtocol::Http1).await?;
                http::ask(http, target, stream, &mut heard).await
            }
            CheckKind::Grpc { service, tls } => {
                let stream = open(target, tls.as_ref(), tls::SpokenProtocol::Http2).await?;
                grpc::ask(service, target, tls.is_some(), stream, &mut heard).await
            }
            CheckKind::Script { .. } => Ok(()),
        }
    });
    let asked = asked.await;
    match (heard.answer, asked) {
        // The status is used even if the rest of the answer never came.
        (Some(answer), _) => http::append_body(answer, &heard.body),
        (None, Some(Ok(()))) => CheckAnswer::new_critical("it is not checked over the network"),
        (None, Some(Err(error))) => CheckAnswer::new_critical(&error.to_string()),
        (None, None) => {
            let timeout = humantime::format_duration(timeout);
            let output = format!("no answer from {target} within the timeout of {timeout}");
            CheckAnswer::new_critical(&output)
        }
    }
}

async fn connect(target: &CheckTarget) -> Result<TcpStream, ProbeError> {
    let connected = TcpStream::connect((target.host.as_str(), target.port)).await;
    connected.map_err(|source| ProbeError::Connect { to: target.to_string(), source })
}

async fn open(
    target: &CheckTarget,
    tls: Option<&CheckTls>,
    speaks: tls::SpokenProtocol,
) -> Result<Box<dyn Stream>, ProbeError> {
    let stream = connect(target).await?;
    match tls {
        None => Ok(Box::new(stream)),
        Some(tls) => tls::connect_tls(stream, target, tls, speaks).await,
    }
}

/// The text, cut to the limit, with hidden and control characters replaced, because it is shown
/// on terminals.
#[must_use]
pub fn printable_text(text: &str) -> String {
    let mut clean = String::with_capacity(text.len().min(CHECK_OUTPUT_BYTES_MAX));
    for character in text.chars() {
        let character = match character {
            '\n' | '\t' => character,
            hidden if is_hidden_char(hidden) => char::REPLACEMENT_CHARACTER,
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
