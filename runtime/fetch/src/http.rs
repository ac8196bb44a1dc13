//! Downloads a file by HTTP. Redirects are followed, headers are shown only to the host they are
//! meant for, and every wait is bounded.

use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_model::artifact::HttpUrl;
use ostler_model::clock;
use ostler_model::limits::{
    ARTIFACT_ANSWER_HEADERS_MAX, ARTIFACT_CONNECT_WALL, ARTIFACT_HEAD_BYTES_MAX,
    ARTIFACT_HEAD_WALL, ARTIFACT_REDIRECTS_MAX, ARTIFACT_SILENCE_WALL,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("cannot connect to {host}: {source}")]
    Connect { host: String, source: std::io::Error },
    #[error(
        "TLS with {host} failed: {source}; a private authority can be named with SSL_CERT_FILE in the agent's \
         environment"
    )]
    Tls { host: String, source: std::io::Error },
    #[error("the machine has no certificate authorities; install them or set SSL_CERT_FILE")]
    NoRoots,
    #[error("{host} did not {what} within {limit:?}")]
    TimedOut { host: String, what: &'static str, limit: Duration },
    #[error("the answer of {host} was cut off or is not HTTP: {source}")]
    Http { host: String, source: hyper::Error },
    #[error("{host} answered {status}")]
    Status { host: String, status: StatusCode },
    #[error("{host} redirects more than {ARTIFACT_REDIRECTS_MAX} times")]
    Redirects { host: String },
    #[error("{host} redirects to an address that cannot be used: {reason}")]
    Redirect { host: String, reason: String },
    #[error("{host} redirects from https to http, which is not followed")]
    Plain { host: String },
    #[error("the address of {host} or a header cannot be part of a request")]
    Request { host: String },
    #[error(
        "{host} sends more than {max} bytes; client {{ artifact {{ http_max_size }} }} of the agent's configuration allows more"
    )]
    TooLarge { host: String, max: u64 },
    #[error("cannot write what came: {0}")]
    Write(std::io::Error),
}

/// The request for a download.
pub(crate) struct DownloadRequest {
    pub(crate) url: HttpUrl,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) bytes_max: u64,
    /// The longest time for the whole download.
    pub(crate) wall: Duration,
}

trait HttpStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> HttpStream for T {}

/// Download the file piece by piece. Returns the number of bytes.
pub(crate) async fn download(
    ask: &DownloadRequest,
    tls: Option<&TlsConnector>,
    into: &mut impl Write,
    told: &mut dyn FnMut(u64, Option<u64>),
) -> Result<u64, HttpError> {
    let (host, limit) = (ask.url.host(), ask.wall);
    let late = || HttpError::TimedOut { host, what: "send everything", limit };
    clock::timeout(limit, follow(ask, tls, into, told)).await.ok_or_else(late)?
}

async fn follow(
    ask: &DownloadRequest,
    tls: Option<&TlsConnector>,
    into: &mut impl Write,
    told: &mut dyn FnMut(u64, Option<u64>),
) -> Result<u64, HttpError> {
    let mut at = ask.url.clone();
    for _ in 0..=ARTIFACT_REDIRECTS_MAX {
        // Headers that are meant for one host are shown to no other.
        let own = at.is_same_place(&ask.url);
        let (response, _connection) = get(&at, own.then_some(ask), tls).await?;
        let (host, status) = (at.host(), response.status());
        match status {
            StatusCode::OK => return body(response, host, ask.bytes_max, into, told).await,
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let location = response.headers().get(LOCATION).and_then(|text| text.to_str().ok());
                let wrong = |reason: String| HttpError::Redirect { host: host.clone(), reason };
                let location = location.ok_or_else(|| wrong("it names no address".to_owned()))?;
                let next = at.join(location).map_err(|error| wrong(error.to_string()))?;
                if at.is_https() && !next.is_https() {
                    return Err(HttpError::Plain { host });
                }
                at = next;
            }
            _ => return Err(HttpError::Status { host, status }),
        }
    }
    Err(HttpError::Redirects { host: at.host() })
}

async fn body(
    mut response: Response<Incoming>,
    host: String,
    max: u64,
    into: &mut impl Write,
    told: &mut dyn FnMut(u64, Option<u64>),
) -> Result<u64, HttpError> {
    let of = response.body().size_hint().exact();
    if of.is_some_and(|of| of > max) {
        return Err(HttpError::TooLarge { host, max });
    }
    let mut bytes = 0_u64;
    let limit = ARTIFACT_SILENCE_WALL;
    loop {
        let frame = clock::timeout(limit, response.body_mut().frame()).await;
        let what = "send more of its answer";
        let frame = frame.ok_or_else(|| HttpError::TimedOut { host: host.clone(), what, limit })?;
        let Some(frame) = frame else { return Ok(bytes) };
        let frame = frame.map_err(|source| HttpError::Http { host: host.clone(), source })?;
        // Trailers are not expected.
        let Ok(data) = frame.into_data() else { continue };
        bytes = bytes.saturating_add(data.len() as u64);
        if bytes > max {
            return Err(HttpError::TooLarge { host, max });
        }
        into.write_all(&data).map_err(HttpError::Write)?;
        told(bytes, of);
    }
}

/// Send one request. The connection ends when the task returned beside the answer is dropped.
async fn get(
    at: &HttpUrl,
    own: Option<&DownloadRequest>,
    tls: Option<&TlsConnector>,
) -> Result<(Response<Incoming>, JoinSet<()>), HttpError> {
    let host = at.host();
    let stream = connect(at, tls).await?;
    let http = |source| HttpError::Http { host: host.clone(), source };
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(ARTIFACT_HEAD_BYTES_MAX).max_headers(ARTIFACT_ANSWER_HEADERS_MAX);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(http)?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        let _ = connection.await;
    });
    let request = request(at, own).ok_or_else(|| HttpError::Request { host: host.clone() })?;
    let limit = ARTIFACT_HEAD_WALL;
    let response = clock::timeout(limit, sender.send_request(request)).await;
    let late = || HttpError::TimedOut { host: host.clone(), what: "answer", limit };
    Ok((response.ok_or_else(late)?.map_err(http)?, driver))
}

fn request(at: &HttpUrl, own: Option<&DownloadRequest>) -> Option<Request<Empty<Bytes>>> {
    let mut request = Request::get(at.target()).body(Empty::new()).ok()?;
    let headers = request.headers_mut();
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("ostler/", env!("CARGO_PKG_VERSION"))),
    );
    if let Some((name, password)) = at.user() {
        let basic = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&basic).ok()?);
    }
    for (name, value) in own.into_iter().flat_map(|ask| &ask.headers) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    // If the job gives a host header, it is used: this is how virtual hosts are addressed.
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::from_str(&at.authority()).ok()?);
    }
    Some(request)
}

async fn connect(
    at: &HttpUrl,
    tls: Option<&TlsConnector>,
) -> Result<Box<dyn HttpStream>, HttpError> {
    let (host, limit) = (at.host(), ARTIFACT_CONNECT_WALL);
    let late = |what| HttpError::TimedOut { host: host.clone(), what, limit };
    let stream = clock::timeout(limit, TcpStream::connect((host.as_str(), at.port()))).await;
    let stream = stream
        .ok_or_else(|| late("accept a connection"))?
        .map_err(|source| HttpError::Connect { host: host.clone(), source })?;
    if !at.is_https() {
        return Ok(Box::new(stream));
    }
    let tls = tls.ok_or(HttpError::NoRoots)?;
    let server = ServerName::try_from(host.clone())
        .map_err(|_| HttpError::Request { host: host.clone() })?;
    let stream = clock::timeout(limit, tls.connect(server, stream)).await;
    let stream = stream
        .ok_or_else(|| late("agree on TLS"))?
        .map_err(|source| HttpError::Tls { host: host.clone(), source })?;
    Ok(Box::new(stream))
}

/// A TLS connector with the machine's authorities, read before the process may not read them
/// any more.
pub(crate) fn tls() -> Option<TlsConnector> {
    ostler_artifact::registry::machine_tls()
}
