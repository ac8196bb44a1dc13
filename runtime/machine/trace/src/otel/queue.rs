//! The queue of spans to the sending thread. Ending a span never waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_sdk::trace::SpanData;

use crate::recording::count_lost;
use ostler_model::limits::{TRACE_BATCH_MAX, TRACE_BATCH_WAIT, TRACE_QUEUE_MAX};

/// The queue of this process.
static QUEUE: SpanQueue = SpanQueue::new();

/// The queue of this process.
pub(super) fn process_queue() -> &'static SpanQueue {
    &QUEUE
}

/// Spans that wait to be sent.
pub(super) struct SpanQueue {
    waiting: Mutex<WaitingSpans>,
    changed: Condvar,
}

struct WaitingSpans {
    spans: VecDeque<SpanData>,
    /// Whether some spans are taken out and not sent yet.
    busy: bool,
    /// Whether the program ends, so that no more spans are waited for.
    ends: bool,
}

impl SpanQueue {
    const fn new() -> Self {
        let waiting = WaitingSpans { spans: VecDeque::new(), busy: false, ends: false };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingSpans> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Push a span that has ended.
    pub(super) fn push_span(&self, span: SpanData) {
        let mut waiting = self.lock();
        if waiting.spans.len() >= TRACE_QUEUE_MAX {
            drop(waiting);
            return count_lost(1);
        }
        waiting.spans.push_back(span);
        let count = waiting.spans.len();
        drop(waiting);
        // The thread is not woken in between, because after the first span it waits for others.
        if count == 1 || count >= TRACE_BATCH_MAX {
            self.changed.notify_all();
        }
    }

    /// Take the next spans, once there are some and they have waited for others.
    pub(super) fn take_batch(&self) -> Vec<SpanData> {
        let mut waiting = self.lock();
        waiting.busy = false;
        self.changed.notify_all();
        while waiting.spans.is_empty() {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let few =
            |waiting: &mut WaitingSpans| waiting.spans.len() < TRACE_BATCH_MAX && !waiting.ends;
        let waited = self.changed.wait_timeout_while(waiting, TRACE_BATCH_WAIT, few);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.busy = true;
        let count = waiting.spans.len().min(TRACE_BATCH_MAX);
        waiting.spans.drain(..count).collect()
    }

    /// Wait for a limited time until all spans are sent. Returns how many are not.
    pub(super) fn wait_all_sent(&self, wait: Duration) -> usize {
        let mut waiting = self.lock();
        waiting.ends = true;
        self.changed.notify_all();
        let unsent = |waiting: &mut WaitingSpans| waiting.busy || !waiting.spans.is_empty();
        let waited = self.changed.wait_timeout_while(waiting, wait, unsent);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let left = waiting.spans.len();
        waiting.spans.clear();
        left + usize::from(waiting.busy)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
    use std::time::UNIX_EPOCH;

    use super::*;

    fn span() -> SpanData {
        SpanData {
            span_context: SpanContext::NONE,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: "s".into(),
            start_time: UNIX_EPOCH,
            end_time: UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: Default::default(),
        }
    }

    #[test]
    fn who_ends_a_span_does_not_wait_and_the_end_of_the_program_waits_for_a_while() {
        let queue = SpanQueue::new();
        for _ in 0..TRACE_QUEUE_MAX + 7 {
            queue.push_span(span());
        }
        assert_eq!(queue.lock().spans.len(), TRACE_QUEUE_MAX);
        assert_eq!(queue.take_batch().len(), TRACE_BATCH_MAX);
        // The collector does not answer: one request is under way, and the others wait.
        let left = queue.wait_all_sent(Duration::from_millis(1));
        assert_eq!(left, TRACE_QUEUE_MAX - TRACE_BATCH_MAX + 1);
    }

    #[test]
    fn spans_wait_for_others_and_at_the_end_for_none() {
        let queue = SpanQueue::new();
        queue.push_span(span());
        assert_eq!(queue.take_batch().len(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(queue.wait_all_sent(Duration::from_secs(20)), 0));
            // The spans are sent, and the thread asks for more.
            scope.spawn(|| {
                queue.push_span(span());
                drop(queue.take_batch());
                queue.lock().busy = false;
                queue.changed.notify_all();
            });
        });
    }
}
