//! The trace of one allocation: a span from its placement until it runs, and the spans below it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Span;
use tracing::field::Empty;

use super::context::{SpanIds, TraceContext};
use ostler_model::limits::TRACE_ALLOC_SPANS_MAX;

/// The trace of an allocation, if it has one.
pub type TracedAlloc = Option<Arc<AllocTrace>>;

/// A new span below that of an allocation, if the allocation is traced.
#[must_use]
pub fn child_span(traced: &TracedAlloc) -> Option<SpanIds> {
    traced.as_ref()?.child()
}

/// The place of an allocation's spans in a trace. It lives with the owner of the allocation and is
/// not on record.
#[derive(Debug)]
pub struct AllocTrace {
    context: TraceContext,
    /// The number of spans that the allocation may still have, so that tasks which restart for
    /// weeks make no endless trace.
    left: AtomicU32,
    /// The span that is open until the allocation runs or has ended.
    way: Mutex<Option<Span>>,
}

impl AllocTrace {
    /// Start the trace of an allocation that was placed.
    #[must_use]
    pub fn start_trace(
        parent: TraceContext,
        alloc: &str,
        job: &str,
        namespace: &str,
        group: &str,
    ) -> Arc<Self> {
        let ids = parent.child();
        let span = crate::span!(
            Some(ids),
            "allocation start",
            alloc,
            job,
            namespace,
            group,
            status = Empty,
            error = Empty
        );
        Arc::new(Self {
            context: ids.context(),
            left: AtomicU32::new(TRACE_ALLOC_SPANS_MAX),
            way: Mutex::new(Some(span)),
        })
    }

    fn child(&self) -> Option<SpanIds> {
        let less = |left: u32| left.checked_sub(1);
        let had = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        had.ok().map(|_| self.context.child())
    }

    /// End the first span, because the allocation runs or has ended, with its status and the error
    /// if it failed.
    pub fn end_span(&self, status: &str, error: Option<&str>) {
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(span) = way {
            span.record("status", status);
            span.record("error", error);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_has_so_many_spans_and_no_more() {
        let parent = TraceContext::new();
        let traced = Some(AllocTrace::start_trace(parent, "a", "j", "default", "g"));
        let first = child_span(&traced).unwrap();
        assert_eq!(first.trace_id(), parent.trace_id());
        assert_ne!(first.parent_id(), parent.span_id(), "below the allocation's own");
        let more = std::iter::from_fn(|| child_span(&traced)).count();
        assert_eq!(more, TRACE_ALLOC_SPANS_MAX as usize - 1);
        assert_eq!(child_span(&None), None);
    }
}
