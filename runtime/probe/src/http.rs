//! Sends one request over HTTP/1.1 on a connection of its own.

use std::convert::Infallible;

use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;

use super::{CheckAnswer, CheckTarget, PartialAnswer, ProbeError, ProbeStream, printable_text};
use ostler_model::limits::{CHECK_HEAD_BYTES_MAX, CHECK_HEADERS_MAX, CHECK_OUTPUT_BYTES_MAX};
use ostler_model::service::{CheckStatus, HttpCheck};

/// Ask over HTTP. A redirect is not followed: it is an answer.
pub(super) async fn ask(
    check: &HttpCheck,
    target: &CheckTarget,
    stream: Box<dyn ProbeStream>,
    heard: &mut PartialAnswer,
) -> Result<(), ProbeError> {
    let request = request(check, target)?;
    let no_http = |source| ProbeError::Http { to: target.to_string(), source };
    let (mut requests, connection) = http1::Builder::new()
        .max_buf_size(CHECK_HEAD_BYTES_MAX)
        .max_headers(CHECK_HEADERS_MAX)
        .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(no_http)?;
    // The connection must be driven while the answer is read. Its end shows in the answer.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<Infallible>().await
    };
    let answered = async {
        let response = requests.send_request(request).await.map_err(no_http)?;
        heard.answer = Some(status_answer(response.status()));
        read_body(response, &mut heard.body).await;
        Ok(())
    };
    tokio::select! {
        biased;
        result = answered => result,
        never = driven => match never {},
    }
}

/// The request. Headers from the job replace the usual ones.
fn request(check: &HttpCheck, target: &CheckTarget) -> Result<Request<Full<Bytes>>, ProbeError> {
    let mut request = Request::builder().method(check.method.as_str()).uri(&check.path);
    let given = |name: &str| check.headers.keys().any(|key| key.eq_ignore_ascii_case(name));
    let host = target.to_string();
    let usual = [
        (header::HOST, host.as_str()),
        (header::USER_AGENT, concat!("ostler/", env!("CARGO_PKG_VERSION"))),
        (header::ACCEPT, "*/*"),
    ];
    for (name, value) in usual.into_iter().filter(|(name, _)| !given(name.as_str())) {
        request = request.header(name, value);
    }
    for (name, values) in &check.headers {
        for value in values {
            request = request.header(name.as_str(), value.as_str());
        }
    }
    request
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(check.body.clone())))
        .map_err(ProbeError::Request)
}

fn status_answer(status: StatusCode) -> CheckAnswer {
    let word = match status {
        good if good.is_success() => CheckStatus::Passing,
        StatusCode::TOO_MANY_REQUESTS => CheckStatus::Warning,
        _ => CheckStatus::Critical,
    };
    CheckAnswer { status: word, code: Some(status.as_u16()), output: format!("status {status}") }
}

/// The answer with the beginning of its body.
pub(super) fn append_body(answer: CheckAnswer, body: &[u8]) -> CheckAnswer {
    let body = String::from_utf8_lossy(body);
    match body.trim() {
        "" => answer,
        body => {
            CheckAnswer { output: printable_text(&format!("{}: {body}", answer.output)), ..answer }
        }
    }
}

/// Read the beginning of the body. An error in it does not change the answer.
async fn read_body(response: Response<Incoming>, into: &mut Vec<u8>) {
    let mut body = response.into_body();
    while into.len() < CHECK_OUTPUT_BYTES_MAX {
        let Some(Ok(frame)) = body.frame().await else { return };
        let Ok(data) = frame.into_data() else { continue };
        let room = CHECK_OUTPUT_BYTES_MAX.saturating_sub(into.len());
        into.extend(data.take(room).chunk());
    }
}
