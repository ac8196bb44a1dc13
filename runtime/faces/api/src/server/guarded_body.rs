//! Bodies with a guard. The guard is kept as long as the body, and can refuse the rest of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::error::RequestFailure;

/// The guard of a body.
pub(super) trait BodyGuard: Unpin {
    /// Why the rest of the body is refused; none if it is not.
    fn refusal(&self) -> Option<RequestFailure>;
}

/// A body with its guard.
pub(super) struct GuardedBody<G> {
    pub(super) body: Body,
    pub(super) guard: G,
}

impl<G: BodyGuard> HttpBody for GuardedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled.is_ready().then(|| self.guard.refusal()).flatten() {
            Some(failure) => Poll::Ready(Some(Err(axum::Error::new(failure)))),
            None => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
