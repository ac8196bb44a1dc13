//! A client of the agent's API, over its unix socket or over TCP.
//!
//! ```text
//! address ─► ApiClient ─ connect ─ request ─► head ─┬─► body, bounded, in time ─► type of the route
//!                │        one connection each    └─► LogFrameStream: never silent for long
//!                └── no agent, refused, broken ─► ClientError ─► Exit
//! ```
//! Requests are made by [`crate::routes::endpoints`], so that the path, the method and the types come from the
//! table of routes. Answers are bounded and parsed into types before any of it is shown. Callers must escape the
//! texts like any text from outside.

mod address;
mod dial;
mod error;
mod exec;
mod frames;

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, RETRY_AFTER};
use hyper::{Request, StatusCode};
use ostler_net::{ExchangeError, HttpAnswer, HttpBounds};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::request::{ApiRequest, FrameBody, RequestLine};
use crate::routes::QueryKey;
pub use address::{AddressError, AgentAddress, AgentEndpoint, default_data_dir};
use dial::dial;
pub use dial::{ClientTls, ClientTlsError, ClientTlsFiles};
pub use error::{ClientError, ClientTrouble, RequestName};
pub use exec::{ExecInputEvent, ExecInputs, ExecOutputEvent, ExecOutputs};
pub use frames::{BodyPieces, LogFrame, LogFrameStream};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{
    API_REQUEST_WALL_MAX, CLIENT_BODY_BYTES_MAX, CLIENT_CONNECT_WALL_MAX, CLIENT_GRACE,
    CLIENT_REFUSAL_BYTES_MAX, CLIENT_START_PAUSE, CLIENT_START_WALL_MAX, CLIENT_WAIT,
};
use ostler_model::vars::Secret;
use ostler_state::{Holder, holder};

/// The header that has the secret of a token.
const TOKEN: &str = "x-nomad-token";
/// The header that has the index of an answer.
const INDEX: &str = "x-nomad-index";

/// A client of one agent. It is cheap: every request has a connection of its own.
#[derive(Clone, Debug)]
pub struct ApiClient {
    address: AgentAddress,
    /// The namespace to look in; none for the one that the path names, or for all.
    namespace: Option<String>,
    token: Option<Secret>,
    tls: Option<ClientTls>,
    waiting: fn(&str, bool),
}

impl ApiClient {
    /// A client of the agent at `address`. It sends nothing yet. While the agent starts, it calls
    /// `waiting` with each new state of the start, and with whether it is the first one.
    #[must_use]
    pub const fn new(address: AgentAddress, waiting: fn(&str, bool)) -> Self {
        Self { address, namespace: None, token: None, tls: None, waiting }
    }

    /// Use this namespace wherever a path names none.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// As [`ApiClient::in_namespace`], unless a namespace is set already.
    #[must_use]
    pub fn or_in_namespace(self, namespace: &str) -> Self {
        if self.namespace.is_some() { self } else { self.in_namespace(namespace) }
    }

    /// The namespace of lists: the one that was set, or `*` for all.
    #[must_use]
    pub fn listed_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("*")
    }

    /// The endpoint of the agent.
    #[must_use]
    pub const fn endpoint(&self) -> &AgentEndpoint {
        &self.address.at
    }

    /// Send this secret of a token with every request.
    #[must_use]
    pub fn with_token(mut self, secret: &str) -> Self {
        self.token = Some(Secret::new(secret));
        self
    }

    /// Use this TLS if the address of the agent has TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Whether an agent listens there, or will do so as soon as it has started.
    pub async fn is_there(&self) -> bool {
        let stream =
            clock::timeout(CLIENT_CONNECT_WALL_MAX, dial(self.endpoint(), self.tls.as_ref()));
        let will_be = |holder: Holder| holder.serves && !holder.ends;
        matches!(stream.await, Some(Ok(_))) || self.holder().is_some_and(will_be)
    }

    /// The process that holds the data directory.
    fn holder(&self) -> Option<Holder> {
        holder(self.endpoint().socket()?.parent()?)
    }

    /// Send a request without a body, and read the answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send<T: DeserializeOwned>(
        &self,
        request: &ApiRequest<(), T>,
    ) -> Result<T, ClientError> {
        self.ask(request, Bytes::new(), Duration::ZERO).await.map(|(value, _)| value)
    }

    /// Send a request with its body, and read the answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_body<B: Serialize, T: DeserializeOwned>(
        &self,
        request: &ApiRequest<B, T>,
        body: &B,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|source| {
            self.name(request.line()).into_error(ClientTrouble::Question(source))
        })?;
        self.ask(request, Bytes::from(body), Duration::ZERO).await.map(|(value, _)| value)
    }

    /// Send a request whose answer has no body of interest.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_only<T>(&self, request: &ApiRequest<(), T>) -> Result<(), ClientError> {
        self.ask_bytes(request.line(), Bytes::new(), Duration::ZERO).await.map(drop)
    }

    /// Read an object and its index as soon as it is newer than `index`; 0 for at once. If nothing
    /// changes for a while, the answer is no newer.
    async fn read_after<T: DeserializeOwned>(
        &self,
        request: &ApiRequest<(), T>,
        index: u64,
    ) -> Result<(T, u64), ClientError> {
        let wait = format!("{}s", CLIENT_WAIT.as_secs());
        let request = request.clone().with(QueryKey::Index, index).with(QueryKey::Wait, wait);
        self.ask(&request, Bytes::new(), CLIENT_WAIT + CLIENT_WAIT / 16).await
    }

    /// Read an object, and read it again after each change, until `look` returns a result.
    ///
    /// # Errors
    /// When the agent cannot be asked, or `look` fails.
    pub async fn watch_until<T: DeserializeOwned, R, E: From<ClientError>>(
        &self,
        request: &ApiRequest<(), T>,
        mut look: impl AsyncFnMut(T) -> Result<Option<R>, E>,
    ) -> Result<R, E> {
        let mut index = 0;
        loop {
            let (found, seen) = self.read_after(request, index).await?;
            if let Some(came) = look(found).await? {
                return Ok(came);
            }
            // An index that goes back belongs to another agent: begin anew.
            index = if seen < index { 0 } else { seen };
        }
    }

    /// Read a stream of frames for as long as it lasts.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream_frames(
        &self,
        request: &ApiRequest<(), FrameBody>,
    ) -> Result<LogFrameStream, ClientError> {
        let begun = async |name: &RequestName| {
            let answer = self.send_head(request.line(), Bytes::new(), &[]).await?;
            Ok(LogFrameStream::new(answer, name.clone()))
        };
        self.ask_when_started(request.line(), Duration::ZERO, begun).await
    }

    /// Read the body of an answer piece by piece, whatever it is. The agent must have started.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn read_pieces<T>(
        &self,
        request: &ApiRequest<(), T>,
    ) -> Result<BodyPieces, ClientError> {
        let name = self.name(request.line());
        let limit = API_REQUEST_WALL_MAX + CLIENT_GRACE;
        let begun = async {
            let answer = self.send_head(request.line(), Bytes::new(), &[]).await?;
            Ok(BodyPieces::new(answer, name.clone()))
        };
        ask_in_time(limit, &name, begun).await
    }

    /// The name of a request, for messages.
    fn name(&self, line: &RequestLine) -> RequestName {
        RequestName::new(&line.method, &line.target, self.endpoint())
    }

    async fn ask<B, T: DeserializeOwned>(
        &self,
        request: &ApiRequest<B, T>,
        body: Bytes,
        wait: Duration,
    ) -> Result<(T, u64), ClientError> {
        let (bytes, index) = self.ask_bytes(request.line(), body, wait).await?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok((value, index)),
            Err(source) => Err(self.name(request.line()).into_error(ClientTrouble::Answer(source))),
        }
    }

    /// The body of the answer to a request, and its index. The types of the bodies are left to the
    /// caller, so that this is compiled once and not for each of them.
    async fn ask_bytes(
        &self,
        line: &RequestLine,
        body: Bytes,
        wait: Duration,
    ) -> Result<(Vec<u8>, u64), ClientError> {
        let answered = async |name: &RequestName| {
            let answer = self.send_head(line, body.clone(), &[]).await?;
            let index = answer.headers().get(INDEX);
            let index = index.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
            Ok((read_body(answer, name).await?, index))
        };
        self.ask_when_started(line, wait, answered).await
    }

    /// The target of a request with the namespace of this client, unless it names one already.
    fn target_with_namespace(&self, line: &RequestLine) -> String {
        let mut line = line.clone();
        if let Some(namespace) = &self.namespace
            && !line.has(QueryKey::Namespace)
        {
            line.add(QueryKey::Namespace, namespace);
        }
        line.target
    }

    /// Send a request, and wait for the head of an answer that is no refusal. An answer that upgrades
    /// the connection is no refusal either.
    async fn send_head(
        &self,
        line: &RequestLine,
        body: Bytes,
        headers: &[(HeaderName, &str)],
    ) -> Result<HttpAnswer, ClientError> {
        let asked = self.name(line);
        let connected =
            clock::timeout(CLIENT_CONNECT_WALL_MAX, dial(self.endpoint(), self.tls.as_ref())).await;
        let stream = match connected {
            Some(Ok(stream)) => stream,
            Some(Err(source)) => return Err(self.connect_error(source)),
            None => {
                return Err(asked
                    .clone()
                    .into_error(ClientTrouble::TooSlow(CLIENT_CONNECT_WALL_MAX)));
            }
        };
        let target = self.target_with_namespace(line);
        let without_tls = matches!(self.endpoint(), AgentEndpoint::Tcp { tls: false, .. });
        let mut head = Request::builder()
            .method(line.method.clone())
            .uri(target)
            .header(HOST, self.endpoint().host())
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            head = head.header(TOKEN, token.reveal());
        }
        for (name, value) in headers {
            head = head.header(name, *value);
        }
        let request = head
            .body(Full::new(body))
            .map_err(|source| asked.clone().into_error(ClientTrouble::Request(source)))?;
        let mut answer =
            HttpAnswer::ask(stream, request, HttpBounds::default()).await.map_err(|error| {
                let no_http = matches!(&error, ExchangeError::Http(source) if source.is_parse());
                let trouble = if no_http && without_tls {
                    ClientTrouble::NoHttp(error)
                } else {
                    ClientTrouble::Broken(error)
                };
                asked.clone().into_error(trouble)
            })?;
        let status = answer.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        let passes =
            status == StatusCode::SERVICE_UNAVAILABLE && answer.headers().contains_key(RETRY_AFTER);
        // A refusal is cut to a readable length.
        let mut text = Vec::new();
        answer.read_beginning(CLIENT_REFUSAL_BYTES_MAX, &mut text).await;
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        if passes {
            return Err(ClientError::Starting { text });
        }
        Err(asked.clone().into_error(ClientTrouble::Refused { status: status.as_u16(), text }))
    }

    /// What `ask` returns once the agent has started. The time for that is bounded, and so is the time
    /// of each try: the usual one and `wait`.
    async fn ask_when_started<R>(
        &self,
        line: &RequestLine,
        wait: Duration,
        ask: impl AsyncFn(&RequestName) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        let (since, mut said) = (Stopwatch::start(), None);
        let (name, limit) = (self.name(line), wait + API_REQUEST_WALL_MAX + CLIENT_GRACE);
        loop {
            let text = match ask_in_time(limit, &name, ask(&name)).await {
                Err(ClientError::Starting { text }) if since.elapsed() < CLIENT_START_WALL_MAX => {
                    text
                }
                answered => return answered,
            };
            if said.as_ref() != Some(&text) {
                (self.waiting)(&text, said.is_none());
                said = Some(text);
            }
            clock::sleep(CLIENT_START_PAUSE).await;
        }
    }

    fn connect_error(&self, source: std::io::Error) -> ClientError {
        let nobody = [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&source.kind());
        match self.holder().filter(|_| nobody) {
            Some(Holder { pid, ends: true, .. }) => {
                // Another agent may follow it, so wait for that one; the error is reported at once
                // if none does.
                let text = format!("the agent (pid {pid}) is shutting down and no longer answers");
                return ClientError::Starting { text };
            }
            Some(Holder { pid, serves: true, .. }) => {
                let at = self.endpoint();
                let text = match source.kind() {
                    ErrorKind::NotFound => format!(
                        "the agent (pid {pid}) has no socket at {at} now: it is starting, or the socket was \
                         removed and will be made again"
                    ),
                    _ => format!("the agent (pid {pid}) is starting and does not answer yet"),
                };
                return ClientError::Starting { text };
            }
            Some(Holder { pid, serves: false, .. }) => {
                return ClientError::Busy { at: self.endpoint().clone(), pid };
            }
            None => {}
        }
        let AgentAddress { at, data_dir } = &self.address;
        ClientError::NotRunning { at: at.clone(), data_dir: data_dir.clone(), source }
    }
}

/// Read the whole body of an answer, within the bound.
async fn read_body(mut answer: HttpAnswer, asked: &RequestName) -> Result<Vec<u8>, ClientError> {
    answer.read_body(CLIENT_BODY_BYTES_MAX as u64).await.map_err(|error| {
        asked.clone().into_error(match error {
            ExchangeError::TooLarge { .. } => ClientTrouble::TooLarge(CLIENT_BODY_BYTES_MAX),
            broken => ClientTrouble::Broken(broken),
        })
    })
}

async fn ask_in_time<T>(
    limit: Duration,
    asked: &RequestName,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let late = || Err(asked.clone().into_error(ClientTrouble::TooSlow(limit)));
    clock::timeout(limit, work).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests;
