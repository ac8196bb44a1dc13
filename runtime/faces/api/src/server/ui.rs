//! `/ui/`: the web page for browsers. `ostler_ui` has the files; this module turns them into
//! answers.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};

use ostler_ui::{PageAnswer, PageRequest};

/// `GET /` and `GET /ui`: lead to the page. The address is relative, because a proxy may put a prefix before it.
pub(super) async fn redirect() -> Response {
    let place = (LOCATION, HeaderValue::from_static("ui/"));
    with_page_headers((StatusCode::TEMPORARY_REDIRECT, [place]).into_response())
}

pub(super) async fn page(uri: Uri, headers: HeaderMap) -> Response {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let path = uri.path().strip_prefix("/ui/").unwrap_or_default();
    let asked = PageRequest { path, has: text(IF_NONE_MATCH), takes: text(ACCEPT_ENCODING) };
    let answer = match ostler_ui::answer_request(asked) {
        PageAnswer::File { kind, tag, gzip, body } => {
            let mut response = Body::from(body).into_response();
            set(&mut response, CONTENT_TYPE, kind);
            set(&mut response, ETAG, &tag);
            set(&mut response, VARY, "accept-encoding");
            if gzip {
                set(&mut response, CONTENT_ENCODING, "gzip");
            }
            response
        }
        PageAnswer::Unchanged { tag } => {
            let mut response = StatusCode::NOT_MODIFIED.into_response();
            set(&mut response, ETAG, &tag);
            response
        }
        PageAnswer::Missing => {
            (StatusCode::NOT_FOUND, "the page has no such file; it starts at /ui/").into_response()
        }
    };
    with_page_headers(answer)
}

/// Add the headers that every answer of the page has.
fn with_page_headers(mut response: Response) -> Response {
    for (name, value) in ostler_ui::HEADERS {
        set(&mut response, HeaderName::from_static(name), value);
    }
    response
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    // Names and values come from the page itself and are always valid.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
