//! Why the agent did not do what it was asked.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use tokio_rustls::rustls;

use super::AgentAt;
use ostler_model::limits::CLIENT_START_WALL_MAX;

/// A request, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName {
    method: String,
    path: String,
    at: String,
}

impl RequestName {
    /// A request to the agent there.
    pub fn new(method: &Method, path: &str, at: &AgentAt) -> Self {
        // The query is for machines.
        let path = path.split('?').next().unwrap_or_default().to_owned();
        Self { method: method.to_string(), path, at: at.to_string() }
    }

    /// It failed.
    pub fn failed(self, trouble: Trouble) -> ClientError {
        ClientError::Failed { asked: self, trouble }
    }
}

/// Why the agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or not for this user.
    #[error("{}", not_running(.at, .data_dir.as_deref(), .source))]
    NotRunning {
        /// Where it was looked for.
        at: AgentAt,
        /// Its data directory, when that is known.
        data_dir: Option<PathBuf>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// An agent is there, starts or ends, and was not so far in time.
    #[error(
        "{text}; it was waited for {} s: see its log, and try again", CLIENT_START_WALL_MAX.as_secs()
    )]
    Starting {
        /// Who, and how far it is.
        text: String,
    },
    /// The data directory is in use, and nobody is to be asked.
    #[error(
        "no agent answers at {}: process {pid} uses its data directory for a command of its own, \
         such as `ostler run`; wait for its end, or say where an agent is with --data-dir or --address",
        at
    )]
    Busy {
        /// Where an agent was looked for.
        at: AgentAt,
        /// Who uses the directory.
        pid: u32,
    },
    /// A request failed.
    #[error("{}", failed(asked, trouble))]
    Failed {
        /// Which.
        asked: RequestName,
        /// How.
        #[source]
        trouble: Trouble,
    },
}

/// How a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The agent says no.
    #[error("{}", refused(*.status, .text))]
    Refused {
        /// Status code.
        status: u16,
        /// Why.
        text: String,
    },
    /// No answer.
    #[error(
        "the agent did not answer in {} s; what was asked may still be done: see its log", .0.as_secs()
    )]
    TooSlow(Duration),
    /// The connection ended early.
    #[error("the connection to the agent broke ({0}); see its log")]
    Broken(#[source] hyper::Error),
    /// What answers over TCP is no HTTP.
    #[error(
        "what answers there does not speak HTTP ({0}); if it is an agent with TLS, give its address with \
         https:// in place of http://"
    )]
    NoHttp(#[source] hyper::Error),
    /// The request has no form.
    #[error("the request cannot be made: {0}")]
    Request(#[source] hyper::http::Error),
    /// The request cannot be written.
    #[error("the request cannot be written as JSON: {0}")]
    Question(#[source] serde_json::Error),
    /// More than is read of an answer.
    #[error("the agent's answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The agent ended a session, and says why.
    #[error("{0}")]
    Ended(String),
    /// The agent ended a session early, and does not say why.
    #[error(
        "the connection to the agent ended before the command did, and the command with it: see the agent's log"
    )]
    Cut,
    /// The agent did not take a session up.
    #[error(
        "the agent did not go on with a WebSocket ({0}); is it of another version than this command?"
    )]
    NoSession(String),
    /// An answer of another form.
    #[error("the agent's answer cannot be read ({0}); is it of another version than this command?")]
    Answer(#[source] serde_json::Error),
}

/// What is wrong with the question is said as it is; of all else one wants to know what was asked.
fn failed(asked: &RequestName, trouble: &Trouble) -> String {
    let RequestName { method, path, at } = asked;
    match trouble {
        Trouble::Refused { status: 400 | 409, text } if !text.is_empty() => text.clone(),
        Trouble::Ended(text) => text.clone(),
        _ => format!("{trouble} ({method} {path} at {at})"),
    }
}

fn refused(status: u16, text: &str) -> String {
    match (status, text) {
        (503, "") => "the agent is busy or not ready; try again (status 503)".to_owned(),
        (status, "") => format!("the agent answered with status {status}"),
        (status, text) => format!("{text} (status {status})"),
    }
}

/// The cause in words, where TLS has only the name of an error for it.
fn cause_of(source: &io::Error) -> String {
    let error = source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)))
            if other.0.to_string() == "CaUsedAsEndEntity" =>
        {
            "the certificate that it shows is one of an authority, and a server needs one of its own that an \
             authority signed (`openssl req -x509` makes the former unless it is told basicConstraints=CA:FALSE)"
                .to_owned()
        }
        _ => source.to_string(),
    }
}

/// The next step, where TLS is what fails.
fn of_tls(at: &AgentAt, source: &io::Error) -> String {
    let error = source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidMessage(_)) => {
            let plain = at.to_string().replacen("https", "http", 1);
            format!("; it does not answer with TLS: if it has none, give its address as {plain}")
        }
        Some(rustls::Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
        )) => {
            "; name the authority that vouches for it with --ca-cert FILE (NOMAD_CACERT)".to_owned()
        }
        Some(rustls::Error::InvalidCertificate(
            rustls::CertificateError::NotValidForName
            | rustls::CertificateError::NotValidForNameContext { .. },
        )) => "; name the one that its certificate has with NOMAD_TLS_SERVER_NAME".to_owned(),
        _ => String::new(),
    }
}

fn not_running(at: &AgentAt, data_dir: Option<&Path>, source: &io::Error) -> String {
    if at.socket().is_none() {
        let cause = cause_of(source);
        return format!("the agent at {at} cannot be reached: {cause}{}", of_tls(at, source));
    }
    if source.kind() == io::ErrorKind::PermissionDenied {
        return format!("the agent at {at} is another user's: {source}");
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
    /// What was asked is wrong; otherwise the agent cannot do it, or is not there.
    #[must_use]
    pub const fn wrong_input(&self) -> bool {
        matches!(self, Self::Failed { trouble: Trouble::Refused { status: 400 | 404, .. }, .. })
    }

    /// It is not as it was to be for the change.
    #[must_use]
    pub const fn conflict(&self) -> bool {
        matches!(self, Self::Failed { trouble: Trouble::Refused { status: 409, .. }, .. })
    }

    /// What was asked for is not there.
    #[must_use]
    pub const fn not_found(&self) -> bool {
        matches!(self, Self::Failed { trouble: Trouble::Refused { status: 404, .. }, .. })
    }
}
