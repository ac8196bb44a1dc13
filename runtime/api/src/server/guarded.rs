//! Bodies with something beside them: kept as long as the body is, and asked whether it may go on.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::error::Failure;

/// What stands beside a body.
pub(super) trait Guard: Unpin {
    /// Why nothing more of the body may come.
    fn refusal(&self) -> Option<Failure>;
}

/// A body, and what stands beside it.
pub(super) struct Guarded<G> {
    pub(super) body: Body,
    pub(super) guard: G,
}

impl<G: Guard> HttpBody for Guarded<G> {
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
