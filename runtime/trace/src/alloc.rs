//! The trace of one allocation: a span from its placement until it runs, and what is below it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Span;
use tracing::field::Empty;

use super::context::{SpanIds, TraceContext};
use ostler_model::limits::TRACE_ALLOC_SPANS_MAX;

/// The trace of an allocation, where it has one.
pub type TracedAlloc = Option<Arc<AllocTrace>>;

/// A new span below the one of an allocation, where that is traced.
#[must_use]
pub fn child_of(traced: &TracedAlloc) -> Option<SpanIds> {
    traced.as_ref()?.child()
}

/// Where spans of an allocation belong. It goes with its owner: nothing of it is on record.
#[derive(Debug)]
pub struct AllocTrace {
    context: TraceContext,
    /// Spans it may still have: one whose tasks restart for weeks is no endless trace.
    left: AtomicU32,
    /// Open until it runs or has ended.
    way: Mutex<Option<Span>>,
}

impl AllocTrace {
    /// An allocation is placed.
    #[must_use]
    pub fn begin(
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

    /// It is no longer on its way: it runs, or it has ended. What it is called, and why it failed.
    pub fn arrived(&self, status: &str, error: Option<&str>) {
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
        let traced = Some(AllocTrace::begin(parent, "a", "j", "default", "g"));
        let first = child_of(&traced).unwrap();
        assert_eq!(first.trace_id(), parent.trace_id());
        assert_ne!(first.parent_id(), parent.span_id(), "below the allocation's own");
        let more = std::iter::from_fn(|| child_of(&traced)).count();
        assert_eq!(more, TRACE_ALLOC_SPANS_MAX as usize - 1);
        assert_eq!(child_of(&None), None);
    }
}
