//! Why the agent did not carry out a request.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use ostler_net::ExchangeError;
use tokio_rustls::rustls;

use super::address::AgentEndpoint;
use ostler_model::causes;
use ostler_model::limits::CLIENT_START_WALL_MAX;

/// The name of a request, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName {
    method: String,
    path: String,
    at: String,
}

impl RequestName {
    /// The name of a request to the agent at `at`.
    pub fn new(method: &Method, path: &str, at: &AgentEndpoint) -> Self {
        // The query is left out, because it is of no use to people.
        let path = path.split('?').next().unwrap_or_default().to_owned();
        Self { method: method.to_string(), path, at: at.to_string() }
    }

    /// The error that this request failed with `trouble`.
    pub fn into_error(self, trouble: ClientTrouble) -> ClientError {
        ClientError::Failed { asked: self, trouble }
    }
}

/// Why the agent did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent listens there, or not for this user.
    #[error("{}", not_running_text(.at, .data_dir.as_deref(), .source))]
    NotRunning {
        /// The endpoint that was tried.
        at: AgentEndpoint,
        /// The data directory, if it is known.
        data_dir: Option<PathBuf>,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// An agent is starting or ending, and did not finish in time.
    #[error(
        "{text}; gave up after {} s: see its log, and try again", CLIENT_START_WALL_MAX.as_secs()
    )]
    Starting {
        /// Which agent, and the state of its start or end.
        text: String,
    },
    /// The data directory is in use by a process that answers no requests.
    #[error(
        "no agent answers at {}: process {pid} uses its data directory for a command of its own, \
         such as `ostler run`; wait for its end, or say where an agent is with --data-dir or --address",
        at
    )]
    Busy {
        /// The endpoint that was tried.
        at: AgentEndpoint,
        /// The id of the process that uses the directory.
        pid: u32,
    },
    /// The agent was reached, but the request failed.
    #[error("{}", failed_text(asked, trouble))]
    Failed {
        /// The name of the request.
        asked: RequestName,
        /// How the request failed.
        #[source]
        trouble: ClientTrouble,
    },
}

/// How a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientTrouble {
    /// The agent refused the request.
    #[error("{}", refused_text(*.status, .text))]
    Refused {
        /// The HTTP status code.
        status: u16,
        /// The reason that the agent gave; may be empty.
        text: String,
    },
    /// The agent did not answer in time.
    #[error(
        "the agent did not answer within {} s; it may still do what was asked: see its log", .0.as_secs()
    )]
    TooSlow(Duration),
    /// The connection ended early.
    #[error("the connection to the agent broke ({}); see its log", causes::chain(.0))]
    Broken(#[source] ExchangeError),
    /// The other end does not speak HTTP.
    #[error(
        "the server there does not speak HTTP ({0}); if it is an agent with TLS, write https:// instead of \
         http:// in its address"
    )]
    NoHttp(#[source] ExchangeError),
    /// The request could not be built.
    #[error("the request cannot be made: {0}")]
    Request(#[source] hyper::http::Error),
    /// The body of the request could not be written as JSON.
    #[error("the request cannot be written as JSON: {0}")]
    Question(#[source] serde_json::Error),
    /// The answer is longer than the bound.
    #[error("the agent's answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The agent ended a session and gave a reason.
    #[error("{0}")]
    Ended(String),
    /// The agent ended a session early without a reason.
    #[error(
        "the connection to the agent ended before the command did, and the command with it: see the agent's log"
    )]
    Cut,
    /// The agent did not open a session.
    #[error(
        "the agent did not switch to a WebSocket ({0}); is its version different from that of this command?"
    )]
    NoSession(String),
    /// The answer has another form than expected.
    #[error(
        "the agent's answer cannot be read ({0}); is its version different from that of this command?"
    )]
    Answer(#[source] serde_json::Error),
}

/// The message of a failed request. A refusal of a wrong request stands alone; any other message
/// names the request.
fn failed_text(asked: &RequestName, trouble: &ClientTrouble) -> String {
    let RequestName { method, path, at } = asked;
    match trouble {
        ClientTrouble::Refused { status: 400 | 409, text } if !text.is_empty() => text.clone(),
        ClientTrouble::Ended(text) => text.clone(),
        _ => format!("{trouble} ({method} {path} at {at})"),
    }
}

fn refused_text(status: u16, text: &str) -> String {
    match (status, text) {
        (503, "") => "the agent is busy or not ready; try again (status 503)".to_owned(),
        (status, "") => format!("the agent answered with status {status}"),
        (status, text) => format!("{text} (status {status})"),
    }
}

/// The cause in words, if TLS reports only the name of an error.
fn tls_cause(source: &io::Error) -> String {
    let error = source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)))
            if other.0.to_string() == "CaUsedAsEndEntity" =>
        {
            "the certificate that it presents is that of a certificate authority, and a server needs one of \
             its own, signed by an authority (`openssl req -x509` makes one of an authority unless given \
             basicConstraints=CA:FALSE)"
                .to_owned()
        }
        _ => source.to_string(),
    }
}

/// Advice on the next step, if TLS has failed.
fn tls_advice(at: &AgentEndpoint, source: &io::Error) -> String {
    let error = source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidMessage(_)) => {
            let plain = at.to_string().replacen("https", "http", 1);
            format!("; it does not answer with TLS: if it does not use TLS, give its address as {plain}")
        }
        Some(rustls::Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
        )) => {
            "; give the certificate authority that signed its certificate with --ca-cert FILE (NOMAD_CACERT)".to_owned()
        }
        Some(rustls::Error::InvalidCertificate(
            rustls::CertificateError::NotValidForName
            | rustls::CertificateError::NotValidForNameContext { .. },
        )) => "; set NOMAD_TLS_SERVER_NAME to the name in its certificate".to_owned(),
        _ => String::new(),
    }
}

fn not_running_text(at: &AgentEndpoint, data_dir: Option<&Path>, source: &io::Error) -> String {
    if at.socket().is_none() {
        let cause = tls_cause(source);
        return format!("the agent at {at} cannot be reached: {cause}{}", tls_advice(at, source));
    }
    if source.kind() == io::ErrorKind::PermissionDenied {
        return format!("the agent at {at} belongs to another user: {source}");
    }
    let start = match data_dir {
        Some(dir) => format!("ostler agent --data-dir {}", dir.display()),
        None => "ostler agent --data-dir DIR".to_owned(),
    };
    format!(
        "no agent runs at {at} ({source}); start one with `{start}`, or say where it is with \
         --data-dir or --address"
    )
}

impl ClientError {
    /// Whether the request itself was wrong. Otherwise the agent cannot carry it out, or is not there.
    #[must_use]
    pub const fn is_wrong_input(&self) -> bool {
        matches!(
            self,
            Self::Failed { trouble: ClientTrouble::Refused { status: 400 | 404, .. }, .. }
        )
    }

    /// Whether the object was not in the state that the change required.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Failed { trouble: ClientTrouble::Refused { status: 409, .. }, .. })
    }

    /// Whether the requested object does not exist.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::Failed { trouble: ClientTrouble::Refused { status: 404, .. }, .. })
    }
}
