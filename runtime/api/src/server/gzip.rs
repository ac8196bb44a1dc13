//! Answers packed for whom that is right.
//!
//! ```text
//!   Accept-Encoding: gzip ─┬─ length known, long enough ─► packed
//!                          └─ short, or a stream ────────► as it is: lines of a stream come at once
//! ```

use std::io::Write as _;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;

use ostler_model::clock;
use ostler_model::limits::{API_GZIP_BYTES_MIN, API_GZIP_INLINE_BYTES_MAX};

/// Pack the answer where that was asked for and helps.
pub(super) async fn packed(request: Request, next: Next) -> Response {
    let wanted = accepts(request.headers());
    let mut response = next.run(request).await;
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept-Encoding"));
    let length = response.body().size_hint().exact();
    let long = length.is_some_and(|length| length >= API_GZIP_BYTES_MIN);
    if !wanted || !long || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // It is there already: its length is known.
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return Response::from_parts(parts, Body::empty());
    };
    let body = match pack(bytes.clone()).await {
        Some(packed) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.remove(CONTENT_LENGTH);
            packed
        }
        None => bytes,
    };
    Response::from_parts(parts, Body::from(body))
}

/// Is gzip among what the client takes, and not ruled out?
fn accepts(headers: &HeaderMap) -> bool {
    let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = all.flat_map(|list| list.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let ruled_out = weight
            .trim()
            .strip_prefix("q=")
            .is_some_and(|weight| weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !ruled_out
    })
}

/// `None`: it cannot be done.
async fn pack(bytes: Bytes) -> Option<Bytes> {
    if bytes.len() <= API_GZIP_INLINE_BYTES_MAX {
        return gzip(&bytes);
    }
    // Others are answered meanwhile.
    clock::blocking(move || gzip(&bytes)).await.ok().flatten()
}

fn gzip(bytes: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Read as _;

    use super::*;

    #[test]
    fn gzip_is_wanted_unless_it_is_ruled_out() {
        let wants = |text: &'static str| {
            accepts(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert!(wants("gzip") && wants("deflate, GZIP;q=0.5") && wants("br,gzip"));
        assert!(!wants("") && !wants("identity") && !wants("gzip;q=0") && !wants("xgzip"));
        assert!(!accepts(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn what_is_packed_is_the_same_when_it_is_unpacked() {
        for length in [API_GZIP_INLINE_BYTES_MAX / 2, 2 * API_GZIP_INLINE_BYTES_MAX] {
            let bytes = Bytes::from(vec![b'x'; length]);
            let packed = pack(bytes.clone()).await.unwrap();
            assert!(packed.len() < length / 10);
            let mut back = Vec::new();
            flate2::read::GzDecoder::new(&*packed).read_to_end(&mut back).unwrap();
            assert_eq!(back, bytes);
        }
    }
}
