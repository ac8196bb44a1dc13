//! One question to a task: a connection, or a request over one. The answer is hostile until read:
//! everything taken from it has a bound, and it is read within the check's timeout.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::job::CheckKind;
use ostler_model::limits::{CHECK_HEAD_BYTES_MAX, CHECK_HEADERS_MAX, CHECK_OUTPUT_BYTES_MAX};
use ostler_model::shown::hides;

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub passing: bool,
    /// At most [`CHECK_OUTPUT_BYTES_MAX`], without control characters but line breaks and tabs.
    pub output: String,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    /// Nobody took the connection.
    #[error("cannot connect to {address}: {source}")]
    Connect { address: SocketAddr, source: std::io::Error },
    /// The method or path is not one. The job file was checked, so only a job that came another
    /// way can have it.
    #[error("the request cannot be made: {0}")]
    Request(#[source] hyper::http::Error),
    /// The other side broke off or does not speak HTTP.
    #[error("no HTTP answer from {address}: {}", chain(source))]
    Http { address: SocketAddr, source: hyper::Error },
}

/// Ask once; takes at most `timeout`.
pub(super) async fn ask(kind: &CheckKind, address: SocketAddr, timeout: Duration) -> Answer {
    let mut heard = Heard::default();
    let asked = clock::timeout(timeout, async {
        match kind {
            CheckKind::Tcp => connect(address).await.map(drop),
            CheckKind::Http { method, path } => exchange(method, path, address, &mut heard).await,
        }
    });
    let asked = asked.await;
    let answer = match (heard.status, asked) {
        // What the status says stands, even when the rest of the answer never came.
        (Some(status), _) => Answer { passing: status.is_success(), output: heard.text(status) },
        (None, Some(Ok(()))) => Answer { passing: true, output: format!("connected to {address}") },
        (None, Some(Err(error))) => Answer { passing: false, output: error.to_string() },
        (None, None) => {
            let timeout = humantime::format_duration(timeout);
            let output = format!("no answer from {address} within the timeout of {timeout}");
            Answer { passing: false, output }
        }
    };
    Answer { output: printable(&answer.output), ..answer }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, ProbeError> {
    TcpStream::connect(address).await.map_err(|source| ProbeError::Connect { address, source })
}

/// What has been read of an answer so far.
#[derive(Default)]
struct Heard {
    status: Option<StatusCode>,
    /// At most [`CHECK_OUTPUT_BYTES_MAX`].
    body: Vec<u8>,
}

impl Heard {
    fn text(&self, status: StatusCode) -> String {
        let body = String::from_utf8_lossy(&self.body);
        match body.trim() {
            "" => format!("status {status}"),
            body => format!("status {status}: {body}"),
        }
    }
}

/// One request on a connection of its own. Redirects are not followed: they are an answer.
async fn exchange(
    method: &str,
    path: &str,
    address: SocketAddr,
    heard: &mut Heard,
) -> Result<(), ProbeError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, concat!("ostler/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(ProbeError::Request)?;
    let stream = connect(address).await?;
    let no_http = |source| ProbeError::Http { address, source };
    let (mut requests, connection) = http1::Builder::new()
        .max_buf_size(CHECK_HEAD_BYTES_MAX)
        .max_headers(CHECK_HEADERS_MAX)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(no_http)?;
    // The connection has to be driven while the answer is read; how it ends shows there.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<Infallible>().await
    };
    let answered = async {
        let response = requests.send_request(request).await.map_err(no_http)?;
        heard.status = Some(response.status());
        read_body(response, &mut heard.body).await;
        Ok(())
    };
    tokio::select! {
        biased;
        result = answered => result,
        never = driven => match never {},
    }
}

/// The beginning of the body; whatever goes wrong in it does not change the answer.
async fn read_body(response: Response<Incoming>, into: &mut Vec<u8>) {
    let mut body = response.into_body();
    while into.len() < CHECK_OUTPUT_BYTES_MAX {
        let Some(Ok(frame)) = body.frame().await else { return };
        let Ok(data) = frame.into_data() else { continue };
        let room = CHECK_OUTPUT_BYTES_MAX.saturating_sub(into.len());
        into.extend(data.take(room).chunk());
    }
}

/// The text cut to the bound, with what hides or steers a terminal replaced: it is shown on terminals.
fn printable(text: &str) -> String {
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
