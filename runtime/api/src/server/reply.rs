//! Answers: JSON with Nomad's headers.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

use super::error::Failure;
use super::params::Params;

/// Index of what was asked for: to be given back as `index` to wait for what comes after.
pub(super) const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");

/// `value` as JSON.
pub(super) fn json<T: Serialize + ?Sized>(params: &Params, value: &T) -> Result<Response, Failure> {
    let text =
        if params.pretty() { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let text = text.map_err(|error| Failure::Internal(error.to_string()))?;
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok((StatusCode::OK, [kind], Body::from(text)).into_response())
}

/// A value as one line of JSON, for streams.
pub(super) fn line<T: Serialize + ?Sized>(value: &T) -> io::Result<Bytes> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text.into())
}

/// A page of a list, and the token by which the next one is asked for.
pub(super) fn page<T: Serialize>(
    params: &Params,
    page: &[T],
    next: Option<&str>,
) -> Result<Response, Failure> {
    let mut response = json(params, page)?;
    if let Some(token) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    Ok(response)
}

/// No body: done.
pub(super) fn done() -> Response {
    StatusCode::OK.into_response()
}

/// With the index of a change that was made.
pub(super) fn at_index(index: u64, mut response: Response) -> Response {
    response.headers_mut().insert(INDEX, HeaderValue::from(index));
    response
}

/// With the index of what was read, and that nobody knows it better: there is no other server.
pub(super) fn read_at(index: u64, response: Response) -> Response {
    let mut response = at_index(index, response);
    response.headers_mut().insert(KNOWN_LEADER, HeaderValue::from_static("true"));
    response.headers_mut().insert(LAST_CONTACT, HeaderValue::from_static("0"));
    response
}
