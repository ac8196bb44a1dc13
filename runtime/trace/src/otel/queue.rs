//! The way of spans to who sends them: whoever ends a span never waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_sdk::trace::SpanData;

use crate::recording::count_lost;
use ostler_model::limits::{TRACE_BATCH_MAX, TRACE_BATCH_WAIT, TRACE_QUEUE_MAX};

/// That of this process.
static QUEUE: Queue = Queue::new();

/// That of this process.
pub(super) fn of_process() -> &'static Queue {
    &QUEUE
}

/// Spans that wait to be sent.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    spans: VecDeque<SpanData>,
    /// Some are taken out and not sent yet.
    busy: bool,
    /// The program ends: nothing more is waited for.
    ends: bool,
}

impl Queue {
    const fn new() -> Self {
        let waiting = Waiting { spans: VecDeque::new(), busy: false, ends: false };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A span has ended.
    pub(super) fn put(&self, span: SpanData) {
        let mut waiting = self.lock();
        if waiting.spans.len() >= TRACE_QUEUE_MAX {
            drop(waiting);
            return count_lost(1);
        }
        waiting.spans.push_back(span);
        let count = waiting.spans.len();
        drop(waiting);
        // In between nobody is woken: the first one is waited on for a while.
        if count == 1 || count >= TRACE_BATCH_MAX {
            self.changed.notify_all();
        }
    }

    /// The next ones, once there are some and they have waited for others.
    pub(super) fn take(&self) -> Vec<SpanData> {
        let mut waiting = self.lock();
        waiting.busy = false;
        self.changed.notify_all();
        while waiting.spans.is_empty() {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let few = |waiting: &mut Waiting| waiting.spans.len() < TRACE_BATCH_MAX && !waiting.ends;
        let waited = self.changed.wait_timeout_while(waiting, TRACE_BATCH_WAIT, few);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.busy = true;
        let count = waiting.spans.len().min(TRACE_BATCH_MAX);
        waiting.spans.drain(..count).collect()
    }

    /// Wait until all are sent, for a while; how many are not.
    pub(super) fn end(&self, wait: Duration) -> usize {
        let mut waiting = self.lock();
        waiting.ends = true;
        self.changed.notify_all();
        let unsent = |waiting: &mut Waiting| waiting.busy || !waiting.spans.is_empty();
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
        let queue = Queue::new();
        for _ in 0..TRACE_QUEUE_MAX + 7 {
            queue.put(span());
        }
        assert_eq!(queue.lock().spans.len(), TRACE_QUEUE_MAX);
        assert_eq!(queue.take().len(), TRACE_BATCH_MAX);
        // A collector that does not answer: one request is under way, the others wait.
        let left = queue.end(Duration::from_millis(1));
        assert_eq!(left, TRACE_QUEUE_MAX - TRACE_BATCH_MAX + 1);
    }

    #[test]
    fn spans_wait_for_others_and_at_the_end_for_none() {
        let queue = Queue::new();
        queue.put(span());
        assert_eq!(queue.take().len(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(queue.end(Duration::from_secs(20)), 0));
            // Sent: the thread asks for more.
            scope.spawn(|| {
                queue.put(span());
                drop(queue.take());
                queue.lock().busy = false;
                queue.changed.notify_all();
            });
        });
    }
}
