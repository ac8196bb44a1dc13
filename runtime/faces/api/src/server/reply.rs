//! Builds answers: JSON with Nomad's headers.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

use super::error::RequestFailure;
use super::params::Params;
use ostler_model::limits::API_LIST_PIECE_BYTES;

/// The header with the index of the answer. A client sends it back as `index` to wait for the next change.
pub(super) const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");

/// An answer with `value` as JSON.
pub(super) fn json<T: Serialize + ?Sized>(
    params: &Params,
    value: &T,
) -> Result<Response, RequestFailure> {
    let text =
        if params.pretty() { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let text = text.map_err(|error| RequestFailure::Internal(error.to_string()))?;
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok((StatusCode::OK, [kind], Body::from(text)).into_response())
}

/// A value as one line of JSON, for streams.
pub(super) fn line<T: Serialize + ?Sized>(value: &T) -> io::Result<Bytes> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text.into())
}

/// An answer with a page of a list, and the token for the next page.
pub(super) fn page<T: Serialize>(
    params: &Params,
    page: &[T],
    next: Option<&str>,
) -> Result<Response, RequestFailure> {
    Ok(with_next(json(params, page)?, next))
}

/// Add the token for the next page to an answer.
pub(super) fn with_next(mut response: Response, next: Option<&str>) -> Response {
    if let Some(token) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    response
}

/// An answer with a list of values that are JSON already. Whatever its length, little more than one
/// piece of it is copied at a time.
pub(super) fn json_list(values: Vec<Bytes>) -> Response {
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (StatusCode::OK, [kind], Body::new(JsonList::new(values))).into_response()
}

/// An answer without a body, for a request that was carried out.
pub(super) fn empty_answer() -> Response {
    StatusCode::OK.into_response()
}

/// Add the index of a change to an answer.
pub(super) fn with_index(index: u64, mut response: Response) -> Response {
    response.headers_mut().insert(INDEX, HeaderValue::from(index));
    response
}

/// Add the index of a reading to an answer, and that the leader has answered: there is no other server.
pub(super) fn with_read_index(index: u64, response: Response) -> Response {
    let mut response = with_index(index, response);
    response.headers_mut().insert(KNOWN_LEADER, HeaderValue::from_static("true"));
    response.headers_mut().insert(LAST_CONTACT, HeaderValue::from_static("0"));
    response
}

/// The body of a JSON list whose values are JSON already.
struct JsonList {
    values: vec::IntoIter<Bytes>,
    left: usize,
    begun: bool,
}

impl JsonList {
    fn new(values: Vec<Bytes>) -> Self {
        let commas = values.len().saturating_sub(1);
        let left = values.iter().map(Bytes::len).sum::<usize>().saturating_add(commas + "[]".len());
        Self { values: values.into_iter(), left, begun: false }
    }

    /// The next piece: whole values, of about the length of a piece.
    fn piece(&mut self) -> Bytes {
        let mut piece =
            Vec::with_capacity(self.left.min(API_LIST_PIECE_BYTES + API_LIST_PIECE_BYTES / 4));
        while piece.len() < API_LIST_PIECE_BYTES {
            let first = !std::mem::replace(&mut self.begun, true);
            match self.values.next() {
                Some(value) => {
                    piece.push(if first { b'[' } else { b',' });
                    piece.extend_from_slice(&value);
                }
                None => {
                    piece.extend_from_slice(if first { b"[]" } else { b"]" });
                    break;
                }
            }
        }
        self.left = self.left.saturating_sub(piece.len());
        piece.into()
    }
}

impl HttpBody for JsonList {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready((self.left > 0).then(|| Ok(Frame::data(self.piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn a_list_of_written_values_is_as_long_as_it_says_and_comes_in_pieces() {
        for (count, length) in [(0, 0), (1, 3), (3, API_LIST_PIECE_BYTES), (4_000, 100)] {
            let values: Vec<String> = (0..count).map(|_| "x".repeat(length)).collect();
            let texts = values.iter().map(|text| serde_json::to_vec(text).unwrap().into());
            let mut list = JsonList::new(texts.collect());
            let said = list.left;
            let (mut whole, mut pieces) = (Vec::new(), 0);
            while !list.is_end_stream() {
                let piece = list.piece();
                assert!(piece.len() < API_LIST_PIECE_BYTES + length + 8, "{}", piece.len());
                whole.extend_from_slice(&piece);
                pieces += 1;
            }
            assert_eq!(whole.len(), said);
            assert_eq!(serde_json::from_slice::<Vec<String>>(&whole).unwrap(), values);
            assert_eq!(pieces > 1, said > API_LIST_PIECE_BYTES);
        }
        let body = json_list(vec![Bytes::from_static(b"1"), Bytes::from_static(b"2")]).into_body();
        assert_eq!(body.size_hint().exact(), Some(5));
        assert_eq!(to_bytes(body, 100).await.unwrap(), "[1,2]");
    }
}
