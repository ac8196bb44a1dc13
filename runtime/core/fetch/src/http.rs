//! Downloads a file by HTTP. Redirects are followed, headers are shown only to the host they are
//! meant for, and every wait is bounded.

use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, StatusCode};
use ostler_model::artifact::HttpUrl;
use ostler_model::clock;
use ostler_model::limits::{
    ARTIFACT_ANSWER_HEADERS_MAX, ARTIFACT_CONNECT_WALL, ARTIFACT_HEAD_BYTES_MAX,
    ARTIFACT_HEAD_WALL, ARTIFACT_REDIRECTS_MAX, ARTIFACT_SILENCE_WALL,
};
use ostler_net::{ExchangeError, HttpAnswer, HttpBounds, Stream};
use tokio_rustls::TlsConnector;

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

impl HttpError {
    fn from_exchange(host: &str, error: ExchangeError) -> Self {
        let host = host.to_owned();
        match error {
            ExchangeError::Connect(source) => Self::Connect { host, source },
            ExchangeError::Tls(source) => Self::Tls { host, source },
            ExchangeError::Name => Self::Request { host },
            ExchangeError::TimedOut { what, limit } => Self::TimedOut { host, what, limit },
            ExchangeError::Http(source) => Self::Http { host, source },
            ExchangeError::TooLarge { max } => Self::TooLarge { host, max },
        }
    }
}

/// The request for a download.
pub(crate) struct DownloadRequest {
    pub(crate) url: HttpUrl,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) bytes_max: u64,
    /// The longest time for the whole download.
    pub(crate) wall: Duration,
}

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
        let answer = get(&at, own.then_some(ask), tls).await?;
        let (host, status) = (at.host(), answer.status());
        match status {
            StatusCode::OK => return body(answer, host, ask.bytes_max, into, told).await,
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let location = answer.headers().get(LOCATION).and_then(|text| text.to_str().ok());
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
    mut answer: HttpAnswer,
    host: String,
    max: u64,
    into: &mut impl Write,
    told: &mut dyn FnMut(u64, Option<u64>),
) -> Result<u64, HttpError> {
    let of = answer.size_hint().exact();
    if of.is_some_and(|of| of > max) {
        return Err(HttpError::TooLarge { host, max });
    }
    let failed = |error| HttpError::from_exchange(&host, error);
    let mut bytes = 0_u64;
    while let Some(data) = answer.next_piece().await.map_err(failed)? {
        bytes = bytes.saturating_add(data.len() as u64);
        if bytes > max {
            return Err(HttpError::TooLarge { host, max });
        }
        into.write_all(&data).map_err(HttpError::Write)?;
        told(bytes, of);
    }
    Ok(bytes)
}

/// Send one request.
async fn get(
    at: &HttpUrl,
    own: Option<&DownloadRequest>,
    tls: Option<&TlsConnector>,
) -> Result<HttpAnswer, HttpError> {
    let host = at.host();
    let stream = connect(at, tls).await?;
    let request = request(at, own).ok_or_else(|| HttpError::Request { host: host.clone() })?;
    let bounds = HttpBounds {
        head_bytes: Some(ARTIFACT_HEAD_BYTES_MAX),
        headers: Some(ARTIFACT_ANSWER_HEADERS_MAX),
        head_wait: Some(ARTIFACT_HEAD_WALL),
        silence: Some(ARTIFACT_SILENCE_WALL),
    };
    let answer = HttpAnswer::ask(stream, request, bounds).await;
    answer.map_err(|error| HttpError::from_exchange(&host, error))
}

fn request(at: &HttpUrl, own: Option<&DownloadRequest>) -> Option<Request<Full<Bytes>>> {
    let mut request = Request::get(at.target()).body(Full::default()).ok()?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(ostler_net::USER_AGENT));
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

async fn connect(at: &HttpUrl, tls: Option<&TlsConnector>) -> Result<Box<dyn Stream>, HttpError> {
    let (host, limit) = (at.host(), ARTIFACT_CONNECT_WALL);
    let failed = |error| HttpError::from_exchange(&host, error);
    let stream = ostler_net::connect(&host, at.port(), limit).await.map_err(failed)?;
    if !at.is_https() {
        return Ok(Box::new(stream));
    }
    let tls = tls.ok_or(HttpError::NoRoots)?;
    ostler_net::secure(tls, &host, stream, limit).await.map_err(failed)
}
