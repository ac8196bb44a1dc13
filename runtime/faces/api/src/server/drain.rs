//! Reads the rest of a request's body before the answer goes out.
//!
//! ```text
//!   request ─ body behind a lock ─► handler ─ reads it, or answers without ─► answer
//!                     │                                                         │ waits
//!                     └────────── what is left: read and thrown away ◄──────────┘
//!                                 at most so many bytes, for so long
//! ```
//! If a server answers and closes while its client still writes, the client gets a broken pipe and
//! never reads why it was refused. Beyond the bounds this still happens.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};

use ostler_model::clock;
use ostler_model::limits::{API_DRAIN_BYTES_MAX, API_DRAIN_WALL_MAX};

/// Middleware: send the answer when the body has been read, within the bounds.
pub(super) async fn drain_request(request: Request, next: Next) -> Response {
    // A client that asks before it sends a body gets the answer instead.
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let mut rest = SharedBody(Arc::new(Mutex::new(body)));
    let response = next.run(Request::from_parts(parts, Body::new(rest.clone()))).await;
    // What does not arrive in time is not waited for.
    let _in_time = clock::timeout(API_DRAIN_WALL_MAX, rest.drain()).await;
    response
}

/// A body that a handler and its middleware share. Only one of them reads at a time.
#[derive(Clone)]
struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    async fn drain(&mut self) {
        let mut left = API_DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = self.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(less) => left = less,
                None => return,
            }
        }
    }

    fn with_body<T>(&self, look: impl FnOnce(&mut Body) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with_body(|body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.with_body(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with_body(|body| body.size_hint())
    }
}
