//! Sends one request over HTTP/1.1 on a connection of its own.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, header};

use super::{CheckAnswer, CheckTarget, PartialAnswer, ProbeError, printable_text};
use ostler_model::limits::{CHECK_HEAD_BYTES_MAX, CHECK_HEADERS_MAX, CHECK_OUTPUT_BYTES_MAX};
use ostler_model::service::{CheckStatus, HttpCheck};
use ostler_net::{HttpAnswer, HttpBounds, Stream};

/// Ask over HTTP. A redirect is not followed: it is an answer.
pub(super) async fn ask(
    check: &HttpCheck,
    target: &CheckTarget,
    stream: Box<dyn Stream>,
    heard: &mut PartialAnswer,
) -> Result<(), ProbeError> {
    let request = request(check, target)?;
    let bounds = HttpBounds {
        head_bytes: Some(CHECK_HEAD_BYTES_MAX),
        headers: Some(CHECK_HEADERS_MAX),
        ..HttpBounds::default()
    };
    let answer = HttpAnswer::ask(stream, request, bounds).await;
    let no_http = |source| ProbeError::Http { to: target.to_string(), source };
    let mut answer = answer.map_err(no_http)?;
    heard.answer = Some(status_answer(answer.status()));
    // An error in the body does not change the answer.
    answer.read_beginning(CHECK_OUTPUT_BYTES_MAX, &mut heard.body).await;
    Ok(())
}

/// The request. Headers from the job replace the usual ones.
fn request(check: &HttpCheck, target: &CheckTarget) -> Result<Request<Full<Bytes>>, ProbeError> {
    let mut request = Request::builder().method(check.method.as_str()).uri(&check.path);
    let given = |name: &str| check.headers.keys().any(|key| key.eq_ignore_ascii_case(name));
    let host = target.to_string();
    let usual = [
        (header::HOST, host.as_str()),
        (header::USER_AGENT, ostler_net::USER_AGENT),
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
