//! The agent's API, asked over its unix socket, or over TCP.
//!
//! ```text
//! address ─► ApiClient ─ connect ─ request ─► head ─┬─► body, bounded, in time ─► ostler_wire
//!                │        one connection each    └─► Frames: a stream, never silent for long
//!                └── no agent, refused, broken ─► ClientError ─► Exit
//! ```
//! What arrives is bounded and read into types before anything is shown of it; who shows it
//! escapes it as any text of others. Nothing here knows the agent's own crates.

mod address;
mod dial;
mod error;
mod exec;
mod frames;

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

pub use address::{Address, AddressError, AgentAt};
use dial::dial;
pub use dial::{ClientTls, ClientTlsError, ClientTlsFiles};
pub use error::{ClientError, RequestName, Trouble};
pub use exec::{ExecHeard, ExecInputs, ExecOutputs, ExecSaid};
pub use frames::{Frames, LogFrame, Pieces};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{
    API_REQUEST_WALL_MAX, CLIENT_BODY_BYTES_MAX, CLIENT_CONNECT_WALL_MAX, CLIENT_GRACE,
    CLIENT_REFUSAL_BYTES_MAX, CLIENT_START_PAUSE, CLIENT_START_WALL_MAX, CLIENT_WAIT,
};
use ostler_model::vars::Secret;
use ostler_state::{Holder, holder};

/// Header with the secret of a token.
const TOKEN: &str = "x-nomad-token";
/// Header with the index of an answer.
const INDEX: &str = "x-nomad-index";

/// The way to an agent. Cheap; every request has a connection of its own.
#[derive(Clone, Debug)]
pub struct ApiClient {
    address: Address,
    /// Where jobs are looked for; none: in the one that a path names, or in all.
    namespace: Option<String>,
    token: Option<Secret>,
    tls: Option<ClientTls>,
    waiting: fn(&str, bool),
}

/// An answer whose body is still to come.
struct Answer {
    response: Response<Incoming>,
    /// Drives the connection; ends with this.
    connection: JoinSet<()>,
}

/// A path, which may have a query, with more of one.
fn with_query(path: &str, more: &str) -> String {
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}{more}")
}

impl ApiClient {
    /// An agent at `address`. Nothing is asked yet. While the agent starts, `waiting` is called
    /// with each new state of the start, and whether it is the first.
    #[must_use]
    pub const fn new(address: Address, waiting: fn(&str, bool)) -> Self {
        Self { address, namespace: None, token: None, tls: None, waiting }
    }

    /// Ask for what is in this namespace, wherever a path names none.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// As [`ApiClient::within`], unless a namespace is named already.
    #[must_use]
    pub fn or_within(self, namespace: &str) -> Self {
        if self.namespace.is_some() { self } else { self.within(namespace) }
    }

    /// The namespaces that lists are of, for a query: the one that was named, or all.
    #[must_use]
    pub fn namespaces(&self) -> String {
        segment(self.namespace.as_deref().unwrap_or("*"))
    }

    /// Where the agent is.
    #[must_use]
    pub const fn at(&self) -> &AgentAt {
        &self.address.at
    }

    /// Send this secret of a token with every request.
    #[must_use]
    pub fn bearing(mut self, secret: &str) -> Self {
        self.token = Some(Secret::new(secret));
        self
    }

    /// Know the agent so, where its address is one with TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Does an agent listen there, or will as soon as it has started?
    pub async fn is_there(&self) -> bool {
        let stream = clock::timeout(CLIENT_CONNECT_WALL_MAX, dial(self.at(), self.tls.as_ref()));
        let will_be = |holder: Holder| holder.serves && !holder.ends;
        matches!(stream.await, Some(Ok(_))) || self.holder().is_some_and(will_be)
    }

    /// Who has the data directory.
    fn holder(&self) -> Option<Holder> {
        holder(self.at().socket()?.parent()?)
    }

    /// Read something. `path` begins with `/v1/` and has the query.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Bytes::new(), Duration::ZERO).await.map(|(value, _)| value)
    }

    /// Read something once it is newer than `index` (0: at once), and its index. An answer that is
    /// no newer comes when nothing changed for a while.
    async fn get_after<T: DeserializeOwned>(
        &self,
        path: &str,
        index: u64,
    ) -> Result<(T, u64), ClientError> {
        let wait = CLIENT_WAIT.as_secs();
        let path = with_query(path, &format!("index={index}&wait={wait}s"));
        self.ask(Method::GET, &path, Bytes::new(), CLIENT_WAIT + CLIENT_WAIT / 16).await
    }

    /// Look at something, and again after each change, until `look` says what came of it.
    ///
    /// # Errors
    /// When the agent cannot be asked, or `look` fails.
    pub async fn watch<T: DeserializeOwned, R, E: From<ClientError>>(
        &self,
        path: &str,
        mut look: impl AsyncFnMut(T) -> Result<Option<R>, E>,
    ) -> Result<R, E> {
        let mut index = 0;
        loop {
            let (found, seen) = self.get_after(path, index).await?;
            if let Some(came) = look(found).await? {
                return Ok(came);
            }
            // An index that goes back is another agent's: begin anew.
            index = if seen < index { 0 } else { seen };
        }
    }

    /// Change something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|source| {
            RequestName::new(&Method::PUT, path, self.at()).failed(Trouble::Question(source))
        })?;
        self.ask(Method::PUT, path, Bytes::from(body), Duration::ZERO).await.map(|(value, _)| value)
    }

    /// End something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::DELETE, path, Bytes::new(), Duration::ZERO).await.map(|(value, _)| value)
    }

    /// Ask for something that has no answer but that it is done.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call(&self, method: Method, path: &str) -> Result<(), ClientError> {
        let asked = RequestName::new(&method, path, self.at());
        let limit = API_REQUEST_WALL_MAX + CLIENT_GRACE;
        let done = async || {
            let answer = self.send(&asked, &method, path, Bytes::new()).await?;
            answer.whole(&asked).await
        };
        self.started(async || in_time(limit, &asked, done()).await).await.map(drop)
    }

    /// A stream of frames, as long as there are some.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream(&self, path: &str) -> Result<Frames, ClientError> {
        let asked = RequestName::new(&Method::GET, path, self.at());
        let limit = API_REQUEST_WALL_MAX + CLIENT_GRACE;
        let begun = async || {
            let answer = self.send(&asked, &Method::GET, path, Bytes::new()).await?;
            let Answer { response, connection } = answer;
            Ok(Frames::new(response.into_body(), connection, asked.clone()))
        };
        self.started(async || in_time(limit, &asked, begun()).await).await
    }

    /// The body of an answer as it comes, for as long as it comes, of an agent that has started.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pieces(&self, path: &str) -> Result<Pieces, ClientError> {
        let asked = RequestName::new(&Method::GET, path, self.at());
        let limit = API_REQUEST_WALL_MAX + CLIENT_GRACE;
        let begun = async {
            let Answer { response, connection } =
                self.send(&asked, &Method::GET, path, Bytes::new()).await?;
            Ok(Pieces::new(response.into_body(), connection, asked.clone()))
        };
        in_time(limit, &asked, begun).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        wait: Duration,
    ) -> Result<(T, u64), ClientError> {
        let asked = RequestName::new(&method, path, self.at());
        let answered = async || {
            let answer = self.send(&asked, &method, path, body.clone()).await?;
            let index = answer.response.headers().get(INDEX);
            let index = index.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
            Ok((answer.whole(&asked).await?, index))
        };
        let limit = wait + API_REQUEST_WALL_MAX + CLIENT_GRACE;
        let (bytes, index) =
            self.started(async || in_time(limit, &asked, answered()).await).await?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok((value, index)),
            Err(source) => Err(asked.failed(Trouble::Answer(source))),
        }
    }

    /// A path with its namespace.
    fn placed<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let query = path.split_once('?').map(|(_, query)| query);
        let names = |query: &str| query.split('&').any(|part| part.starts_with("namespace="));
        match &self.namespace {
            Some(namespace) if !query.is_some_and(names) => {
                with_query(path, &format!("namespace={}", segment(namespace))).into()
            }
            _ => path.into(),
        }
    }

    /// Send a request and wait for the head of an answer that is no refusal.
    async fn send(
        &self,
        asked: &RequestName,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, ClientError> {
        self.send_with(asked, method, path, body, &[]).await
    }

    /// The same with more headers. An upgrade that was asked for is no refusal either.
    async fn send_with(
        &self,
        asked: &RequestName,
        method: &Method,
        path: &str,
        body: Bytes,
        headers: &[(HeaderName, &str)],
    ) -> Result<Answer, ClientError> {
        let connected =
            clock::timeout(CLIENT_CONNECT_WALL_MAX, dial(self.at(), self.tls.as_ref())).await;
        let stream = match connected {
            Some(Ok(stream)) => stream,
            Some(Err(source)) => return Err(self.not_there(source)),
            None => return Err(asked.clone().failed(Trouble::TooSlow(CLIENT_CONNECT_WALL_MAX))),
        };
        let path = self.placed(path);
        let without_tls = matches!(self.at(), AgentAt::Tcp { tls: false, .. });
        let broken = |source: hyper::Error| {
            asked.clone().failed(match source.is_parse() && without_tls {
                true => Trouble::NoHttp(source),
                false => Trouble::Broken(source),
            })
        };
        let (mut sender, driver) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut connection = JoinSet::new();
        connection.spawn(async move {
            // Told where the answer is awaited, too.
            if let Err(error) = driver.with_upgrades().await {
                tracing::debug!(%error, "the connection to the agent ended");
            }
        });
        let mut request = Request::builder()
            .method(method.clone())
            .uri(&*path)
            .header(HOST, self.at().host())
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(TOKEN, token.reveal());
        }
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|source| asked.clone().failed(Trouble::Request(source)))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let passes = status == StatusCode::SERVICE_UNAVAILABLE
            && response.headers().contains_key(RETRY_AFTER);
        let answer = Answer { response, connection };
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        let text = answer.text().await;
        if passes {
            return Err(ClientError::Starting { text });
        }
        Err(asked.clone().failed(Trouble::Refused { status: status.as_u16(), text }))
    }

    /// What `ask` says once the agent has started, which is waited for with a bound.
    async fn started<T>(
        &self,
        ask: impl AsyncFn() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let (since, mut said) = (Stopwatch::start(), None);
        loop {
            let text = match ask().await {
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

    fn not_there(&self, source: std::io::Error) -> ClientError {
        let nobody = [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&source.kind());
        match self.holder().filter(|_| nobody) {
            Some(Holder { pid, ends: true, .. }) => {
                // Another one may follow it: that is waited for, and said at once when none does.
                let text = format!("the agent (pid {pid}) is ending and does not answer any more");
                return ClientError::Starting { text };
            }
            Some(Holder { pid, serves: true, .. }) => {
                let at = self.at();
                let text = match source.kind() {
                    ErrorKind::NotFound => format!(
                        "the agent (pid {pid}) has no socket at {at} now: it is starting, or the socket was removed \
                         and is made again"
                    ),
                    _ => format!("the agent (pid {pid}) is starting and does not answer yet"),
                };
                return ClientError::Starting { text };
            }
            Some(Holder { pid, serves: false, .. }) => {
                return ClientError::Busy { at: self.at().clone(), pid };
            }
            None => {}
        }
        let Address { at, data_dir } = &self.address;
        ClientError::NotRunning { at: at.clone(), data_dir: data_dir.clone(), source }
    }
}

impl Answer {
    /// The whole body, within the bound.
    async fn whole(self, asked: &RequestName) -> Result<Bytes, ClientError> {
        let Self { response, connection } = self;
        let body = Limited::new(response.into_body(), CLIENT_BODY_BYTES_MAX).collect().await;
        drop(connection);
        match body {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => Err(asked.clone().failed(match error.downcast::<hyper::Error>() {
                Ok(source) => Trouble::Broken(*source),
                Err(_) => Trouble::TooLarge(CLIENT_BODY_BYTES_MAX),
            })),
        }
    }

    /// What a refusal says, cut to a readable length.
    async fn text(self) -> String {
        let Self { response, connection } = self;
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            let room = CLIENT_REFUSAL_BYTES_MAX.saturating_sub(bytes.len());
            let data = frame.into_data().unwrap_or_default();
            bytes.extend(data.iter().take(room));
            if bytes.len() >= CLIENT_REFUSAL_BYTES_MAX {
                break;
            }
        }
        drop(connection);
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

async fn in_time<T>(
    limit: Duration,
    asked: &RequestName,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let late = || Err(asked.clone().failed(Trouble::TooSlow(limit)));
    clock::timeout(limit, work).await.unwrap_or_else(late)
}

/// A name as one segment of a path, or as a value in a query.
#[must_use]
pub fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

/// The data directory an agent uses when nobody names one: `/var/lib/ostler` for root, else
/// `ostler` under `XDG_STATE_HOME` or `~/.local/state`. None for who has no home.
#[must_use]
pub fn default_data_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/ostler"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let states =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(states?.join("ostler"))
}

#[cfg(test)]
mod tests;
