//! The queue of writes to the writer thread. Pure, except that it wakes the thread.
//!
//! ```text
//!            push, replace                              take (STATE_BATCH_MAX)
//! handles ───────────────────► [ ticket n … oldest ] ───────────────────────────► one transaction
//!                                       ▲  put back: writes that may lag, after a failed commit
//!                                       └──────────────────────────────────────────────┘
//! ```
//!
//! A batch is due when somebody waits for one of its writes, when it is full, when the oldest write
//! that may lag has waited long enough, or when the store is closed. The length of the queue is
//! bounded by the permits that the handles take before they push.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::backend::Op;
use super::dedup::ValueDigest;
use super::error::BackendError;
use ostler_model::clock::Stopwatch;
use ostler_model::limits::STATE_BATCH_MAX;

/// The result of a batch, sent to each of its waiters.
pub type CommitResult = Result<(), Arc<BackendError>>;

/// One write on its way.
pub struct WriteRequest {
    /// The change; `None` if the request only waits for the writes before it.
    pub op: Option<Op>,
    /// The digest of the record, for a put.
    pub digest: Option<ValueDigest>,
    /// The channel that gets the result of the batch; the waiter may be gone. `None` means that the
    /// write may lag.
    pub done: Option<oneshot::Sender<CommitResult>>,
}

/// The time at which the next batch is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchDue {
    /// The batch is due at once.
    Now,
    /// The batch is due after this time, unless something comes before.
    In(Duration),
    /// No batch is due until something comes.
    Never,
    /// The queue is closed and empty.
    Ended,
}

/// The writes, in the order in which they are committed.
#[derive(Default)]
pub struct WriteQueue {
    waiting: VecDeque<WriteRequest>,
    /// The ticket of the first request in `waiting`. The tickets of the others follow without gaps.
    first: u64,
    /// The number of requests in `waiting` that somebody waits for.
    urgent: usize,
    /// The time since which the oldest write that may lag waits.
    lagging: Option<Stopwatch>,
    closed: bool,
}

impl WriteQueue {
    /// Append a request. Returns its ticket.
    pub fn push(&mut self, request: WriteRequest) -> u64 {
        match request.done {
            Some(_) => self.urgent = self.urgent.saturating_add(1),
            None if self.lagging.is_none() => self.lagging = Some(Stopwatch::start()),
            None => {}
        }
        let ticket = self.next_ticket();
        self.waiting.push_back(request);
        ticket
    }

    /// Give the write that waits at `ticket` another content. Returns `false` if it is not here
    /// any more.
    pub fn replace(&mut self, ticket: u64, record: &[u8], new: ValueDigest) -> bool {
        let Some(place) = ticket.checked_sub(self.first).and_then(|n| usize::try_from(n).ok())
        else {
            return false;
        };
        let Some(WriteRequest { op: Some(Op::Put { value, .. }), digest, .. }) =
            self.waiting.get_mut(place)
        else {
            return false;
        };
        *value = record.into();
        *digest = Some(new);
        true
    }

    /// Whether the write at `ticket` still waits here.
    #[must_use]
    pub fn is_waiting(&self, ticket: u64) -> bool {
        ticket >= self.first
    }

    /// The ticket of the oldest write here, or of the next one if the queue is empty.
    #[must_use]
    pub fn first_ticket(&self) -> u64 {
        self.first
    }

    /// The ticket of the next write.
    #[must_use]
    pub fn next_ticket(&self) -> u64 {
        self.first.saturating_add(u64::try_from(self.waiting.len()).unwrap_or(0))
    }

    /// Put a write that may lag back before all others, after a failed commit. Returns its ticket.
    pub fn put_back(&mut self, request: WriteRequest) -> u64 {
        self.waiting.push_front(request);
        // This does not go below zero, because the write was taken before.
        self.first = self.first.saturating_sub(1);
        self.lagging = Some(Stopwatch::start());
        self.first
    }

    /// Whether a write that may lag waits.
    #[must_use]
    pub fn has_lagging(&self) -> bool {
        self.lagging.is_some()
    }

    /// Whether the writes that wait fill a batch.
    #[must_use]
    pub fn is_full_batch(&self) -> bool {
        self.waiting.len() >= STATE_BATCH_MAX
    }

    /// The time at which the next batch is due, if writes may lag by `lag`.
    #[must_use]
    pub fn batch_due(&self, lag: Duration) -> BatchDue {
        if self.urgent > 0 || self.is_full_batch() {
            return BatchDue::Now;
        }
        match (&self.lagging, self.closed) {
            (None, false) => BatchDue::Never,
            (None, true) => BatchDue::Ended,
            (Some(_), true) => BatchDue::Now,
            (Some(since), false) => match lag.checked_sub(since.elapsed()) {
                Some(left) if !left.is_zero() => BatchDue::In(left),
                _ => BatchDue::Now,
            },
        }
    }

    /// Move the oldest writes into `batch`, at most one batch. Returns their number.
    pub fn take_batch(&mut self, batch: &mut Vec<WriteRequest>) -> usize {
        let count = self.waiting.len().min(STATE_BATCH_MAX);
        for request in self.waiting.drain(..count) {
            if request.done.is_some() {
                self.urgent = self.urgent.saturating_sub(1);
            }
            batch.push(request);
        }
        self.first = self.first.saturating_add(u64::try_from(count).unwrap_or(0));
        if self.waiting.len() == self.urgent {
            self.lagging = None;
        }
        count
    }

    /// Accept no more writes.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether the queue accepts no more writes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The number of writes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no write waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn put(n: u8, done: Option<oneshot::Sender<CommitResult>>) -> WriteRequest {
        let op = Op::Put { key: [n].into(), value: [n].into() };
        WriteRequest { op: Some(op), digest: Some(ValueDigest::from_unsealed(&[n])), done }
    }

    fn values(batch: &[WriteRequest]) -> Vec<u8> {
        let value = |request: &WriteRequest| match &request.op {
            Some(Op::Put { value, .. }) => value[0],
            _ => panic!("not a put"),
        };
        batch.iter().map(value).collect()
    }

    #[test]
    fn what_may_lag_is_due_after_its_time_and_what_is_waited_for_at_once() {
        let mut queue = WriteQueue::default();
        assert_eq!(queue.batch_due(LONG), BatchDue::Never);
        queue.push(put(1, None));
        assert!(matches!(queue.batch_due(LONG), BatchDue::In(left) if left <= LONG));
        assert_eq!(queue.batch_due(Duration::ZERO), BatchDue::Now);
        queue.push(put(2, Some(oneshot::channel().0)));
        assert_eq!(queue.batch_due(LONG), BatchDue::Now);
        let mut batch = Vec::new();
        assert_eq!(queue.take_batch(&mut batch), 2);
        assert_eq!(values(&batch), [1, 2]);
        assert_eq!(queue.batch_due(LONG), BatchDue::Never);
    }

    #[test]
    fn a_full_batch_is_due_and_the_rest_stays_in_order() {
        let mut queue = WriteQueue::default();
        for _ in 0..STATE_BATCH_MAX {
            assert_ne!(queue.batch_due(LONG), BatchDue::Now);
            queue.push(put(1, None));
        }
        queue.push(put(2, None));
        assert_eq!(queue.batch_due(LONG), BatchDue::Now);
        let mut batch = Vec::new();
        assert_eq!(queue.take_batch(&mut batch), STATE_BATCH_MAX);
        assert!(matches!(queue.batch_due(LONG), BatchDue::In(_)));
        batch.clear();
        queue.take_batch(&mut batch);
        assert_eq!(values(&batch), [2]);
    }

    #[test]
    fn a_closed_queue_is_emptied_and_then_ended() {
        let mut queue = WriteQueue::default();
        queue.push(put(1, None));
        queue.close();
        assert_eq!(queue.batch_due(LONG), BatchDue::Now);
        queue.take_batch(&mut Vec::new());
        assert_eq!(queue.batch_due(LONG), BatchDue::Ended);
    }

    #[test]
    fn only_what_still_waits_is_replaced_whatever_was_taken_or_put_back() {
        let mut queue = WriteQueue::default();
        let (first, second) = (queue.push(put(1, None)), queue.push(put(2, None)));
        assert!(
            queue.is_waiting(first)
                && queue.replace(first, &[11], ValueDigest::from_unsealed(&[11]))
        );
        let mut batch = Vec::new();
        queue.take_batch(&mut batch);
        assert_eq!(values(&batch), [11, 2]);
        assert_eq!(batch[0].digest, Some(ValueDigest::from_unsealed(&[11])));
        assert!(
            !queue.is_waiting(second)
                && !queue.replace(second, &[9], ValueDigest::from_unsealed(&[9]))
        );
        let third = queue.push(put(3, None));
        let back: Vec<u64> = batch.drain(..).rev().map(|put| queue.put_back(put)).collect();
        assert!(queue.replace(back[0], &[22], ValueDigest::from_unsealed(&[22])));
        assert!(queue.replace(third, &[33], ValueDigest::from_unsealed(&[33])));
        queue.take_batch(&mut batch);
        assert_eq!(values(&batch), [11, 22, 33]);
    }
}
