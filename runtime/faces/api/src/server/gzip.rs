//! Packs answers for clients that accept it.
//!
//! ```text
//!   Accept-Encoding: gzip ─┬─ short, or a stream ───► as it is: lines of a stream come at once
//!                          ├─ up to some KiB ───────► packed here
//!                          └─ longer ─► computed ─┬─► packed
//!                                                 └─► as it is: the caller has much waiting, or it takes too long
//! ```
//! Packing costs more than everything else about an answer, and no client needs it. So long answers
//! are packed in the background, with the callers in turns, and only while that delays nobody.

use std::io::Write as _;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::access::RequestCaller;
use super::compute_pool::ComputePool;
use super::state::ApiState;
use ostler_model::cancellation::CancelFlag;
use ostler_model::clock;
use ostler_model::limits::{API_GZIP_BYTES_MIN, API_GZIP_INLINE_BYTES_MAX};

/// The longest time that an answer waits to be packed; then it is sent as it is.
const PACKING_WALL_MAX: Duration = Duration::from_secs(2);

/// Middleware: pack the answer if the client accepts it and it helps.
pub(super) async fn pack_answer(State(api): ApiState, request: Request, next: Next) -> Response {
    let caller = RequestCaller::from_request(&request);
    let wanted = accepts_gzip(request.headers());
    let mut response = next.run(request).await;
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept-Encoding"));
    let length = response.body().size_hint().exact();
    let long = length.is_some_and(|length| length >= API_GZIP_BYTES_MIN);
    if !wanted || !long || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // The body is complete already, because its length is known.
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return Response::from_parts(parts, Body::empty());
    };
    let packed = clock::timeout(PACKING_WALL_MAX, pack(&api.computing, caller, bytes.clone()));
    let body = match packed.await.flatten() {
        Some(packed) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.remove(CONTENT_LENGTH);
            packed
        }
        None => bytes,
    };
    Response::from_parts(parts, Body::from(body))
}

/// Whether the client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
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

/// Pack the bytes. `None` if they should be sent as they are.
async fn pack(computing: &ComputePool, caller: RequestCaller, bytes: Bytes) -> Option<Bytes> {
    if bytes.len() <= API_GZIP_INLINE_BYTES_MAX {
        return gzip(&bytes, &CancelFlag::default());
    }
    computing.run_if_spare(caller, move |wanted| gzip(&bytes, wanted)).await.flatten()
}

/// Pack the bytes on this thread. `None` if that fails, or nobody waits for it any more.
fn gzip(bytes: &[u8], wanted: &CancelFlag) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    for piece in bytes.chunks(API_GZIP_INLINE_BYTES_MAX) {
        if wanted.is_cancelled() {
            return None;
        }
        encoder.write_all(piece).ok()?;
    }
    encoder.finish().ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Read as _;
    use std::task::Poll;

    use ostler_model::limits::API_COMPUTING_WAITING_MAX;

    use super::*;

    #[test]
    fn gzip_is_wanted_unless_it_is_ruled_out() {
        let wants = |text: &'static str| {
            accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert!(wants("gzip") && wants("deflate, GZIP;q=0.5") && wants("br,gzip"));
        assert!(!wants("") && !wants("identity") && !wants("gzip;q=0") && !wants("xgzip"));
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    /// A body that is too long to be packed on the thread that answers.
    fn long() -> Bytes {
        Bytes::from(vec![b'x'; 2 * API_GZIP_INLINE_BYTES_MAX])
    }

    #[tokio::test]
    async fn long_answers_are_packed_in_the_turns_of_what_is_computed() {
        let computing = ComputePool::new();
        let busy = computing.busy_with(RequestCaller::Near).await;
        let mut packed = Box::pin(pack(&computing, RequestCaller::Near, long()));
        assert!(futures_util::poll!(&mut packed).is_pending(), "the caller has no thread left");
        let short = long().slice(..API_GZIP_INLINE_BYTES_MAX);
        assert!(
            pack(&computing, RequestCaller::Near, short).await.is_some(),
            "short ones wait for none"
        );
        let operators = pack(&computing, RequestCaller::Operator, long());
        assert!(operators.await.is_some(), "whoever asks for much holds up no other");
        drop(busy);
        assert!(packed.await.is_some());
    }

    #[tokio::test]
    async fn an_answer_of_a_caller_with_much_waiting_is_not_packed_and_keeps_no_request_out() {
        let computing = ComputePool::new();
        let busy = computing.busy_with(RequestCaller::Near).await;
        let mut waiting = Vec::new();
        let refused = loop {
            let mut packed = Box::pin(pack(&computing, RequestCaller::Near, long()));
            match futures_util::poll!(&mut packed) {
                Poll::Pending => waiting.push(packed),
                Poll::Ready(packed) => break packed,
            }
            assert!(waiting.len() < API_COMPUTING_WAITING_MAX, "they are bounded");
        };
        assert!(refused.is_none() && !waiting.is_empty());
        let mut request = Box::pin(computing.run(RequestCaller::Near, |_| 1));
        assert!(futures_util::poll!(&mut request).is_pending(), "there is a place for it");
        drop(busy);
        assert_eq!(request.await.unwrap(), 1);
        for packed in waiting {
            assert!(packed.await.is_some());
        }
    }

    #[test]
    fn nothing_is_packed_that_nobody_waits_for() {
        let (waiter, wanted) = CancelFlag::new_pair();
        assert!(gzip(&long(), &wanted).is_some());
        drop(waiter);
        assert!(gzip(&long(), &wanted).is_none());
    }

    #[tokio::test]
    async fn what_is_packed_is_the_same_when_it_is_unpacked() {
        let computing = ComputePool::new();
        for length in [API_GZIP_INLINE_BYTES_MAX / 2, 2 * API_GZIP_INLINE_BYTES_MAX] {
            let bytes = Bytes::from(vec![b'x'; length]);
            let packed = pack(&computing, RequestCaller::Near, bytes.clone()).await.unwrap();
            assert!(packed.len() < length / 10);
            let mut back = Vec::new();
            flate2::read::GzDecoder::new(&*packed).read_to_end(&mut back).unwrap();
            assert_eq!(back, bytes);
        }
    }
}
