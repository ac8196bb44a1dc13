//! `/ui/`: the page for browsers. What there is, is in `ostler_ui`; here it becomes answers.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::router::Api;
use ostler_ui::{PageAnswer, PageAsked};

/// The page and the way to it. A redirect is relative: a proxy may put a prefix before it.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/", get(|| async { to("ui/") }))
        .route("/ui", get(|| async { to("ui/") }))
        .route("/ui/", get(page))
        .route("/ui/{*path}", get(page))
}

fn to(place: &'static str) -> Response {
    let place = (LOCATION, HeaderValue::from_static(place));
    said((StatusCode::TEMPORARY_REDIRECT, [place]).into_response())
}

async fn page(uri: Uri, headers: HeaderMap) -> Response {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let path = uri.path().strip_prefix("/ui/").unwrap_or_default();
    let asked = PageAsked { path, has: text(IF_NONE_MATCH), takes: text(ACCEPT_ENCODING) };
    let answer = match ostler_ui::answer(asked) {
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
            (StatusCode::NOT_FOUND, "the page has no such file; it begins at /ui/").into_response()
        }
    };
    said(answer)
}

/// With what is said with every answer of the page.
fn said(mut response: Response) -> Response {
    for (name, value) in ostler_ui::HEADERS {
        set(&mut response, HeaderName::from_static(name), value);
    }
    response
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    // Names and values are the page's own, and are always some.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
