//! The writes on their way to the writer thread. Pure but for the waking of the thread.
//!
//! ```text
//!            push, replace                              take (STATE_BATCH_MAX)
//! handles ───────────────────► [ ticket n … oldest ] ───────────────────────────► one transaction
//!                                       ▲  put back: writes that may lag, after a failed commit
//!                                       └──────────────────────────────────────────────┘
//! ```
//!
//! A batch is due when somebody waits for one of its writes, when it is full, when the oldest write
//! that may lag has waited long enough, or when the store is closed. Its length is bounded by the
//! permits the handles take before they push.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::backend::Op;
use super::dedup::ValueDigest;
use super::error::BackendError;
use ostler_model::clock::Stopwatch;
use ostler_model::limits::STATE_BATCH_MAX;

/// How a batch ended, told to each of its waiters.
pub type CommitResult = Result<(), Arc<BackendError>>;

/// One write on its way.
pub struct Request {
    /// The change; none when only the ones before it are waited for.
    pub op: Option<Op>,
    /// Digest of the record of a put.
    pub digest: Option<ValueDigest>,
    /// Told when the batch ended; the waiter may be gone. None: the write may lag.
    pub done: Option<oneshot::Sender<CommitResult>>,
}

/// When the next batch is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// After this time, unless something comes.
    In(Duration),
    /// When something comes.
    Never,
    /// The queue is closed and empty.
    Ended,
}

/// Writes in the order in which they are committed.
#[derive(Default)]
pub struct Queue {
    waiting: VecDeque<Request>,
    /// Ticket of the first in `waiting`; the others follow without gaps.
    first: u64,
    /// Requests in `waiting` that somebody waits for.
    urgent: usize,
    /// Since the oldest write that may lag waits.
    lagging: Option<Stopwatch>,
    closed: bool,
}

impl Queue {
    /// Append; returns the request's ticket.
    pub fn push(&mut self, request: Request) -> u64 {
        match request.done {
            Some(_) => self.urgent = self.urgent.saturating_add(1),
            None if self.lagging.is_none() => self.lagging = Some(Stopwatch::start()),
            None => {}
        }
        let ticket = self.next();
        self.waiting.push_back(request);
        ticket
    }

    /// Give the write that waits at `ticket` another content. `false`: it is not here any more.
    pub fn replace(&mut self, ticket: u64, record: &[u8], new: ValueDigest) -> bool {
        let Some(place) = ticket.checked_sub(self.first).and_then(|n| usize::try_from(n).ok())
        else {
            return false;
        };
        let Some(Request { op: Some(Op::Put { value, .. }), digest, .. }) =
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
    pub fn holds(&self, ticket: u64) -> bool {
        ticket >= self.first
    }

    /// Ticket of the oldest write here, or of the next one where there is none.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Ticket of the next write.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first.saturating_add(u64::try_from(self.waiting.len()).unwrap_or(0))
    }

    /// Put a write that may lag back before all others, after a failed commit. Returns its ticket.
    pub fn put_back(&mut self, request: Request) -> u64 {
        self.waiting.push_front(request);
        // Not below zero: it was taken before.
        self.first = self.first.saturating_sub(1);
        self.lagging = Some(Stopwatch::start());
        self.first
    }

    /// When the next batch is due, if writes may lag by `lag`.
    #[must_use]
    pub fn due(&self, lag: Duration) -> Due {
        if self.urgent > 0 || self.waiting.len() >= STATE_BATCH_MAX {
            return Due::Now;
        }
        match (&self.lagging, self.closed) {
            (None, false) => Due::Never,
            (None, true) => Due::Ended,
            (Some(_), true) => Due::Now,
            (Some(since), false) => match lag.checked_sub(since.elapsed()) {
                Some(left) if !left.is_zero() => Due::In(left),
                _ => Due::Now,
            },
        }
    }

    /// Move the oldest writes into `batch`, at most one batch. Returns how many.
    pub fn take(&mut self, batch: &mut Vec<Request>) -> usize {
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

    /// Take no more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Nothing is taken any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Nothing waits.
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

    fn put(n: u8, done: Option<oneshot::Sender<CommitResult>>) -> Request {
        let op = Op::Put { key: [n].into(), value: [n].into() };
        Request { op: Some(op), digest: Some(ValueDigest::of(&[n])), done }
    }

    fn values(batch: &[Request]) -> Vec<u8> {
        let value = |request: &Request| match &request.op {
            Some(Op::Put { value, .. }) => value[0],
            _ => panic!("not a put"),
        };
        batch.iter().map(value).collect()
    }

    #[test]
    fn what_may_lag_is_due_after_its_time_and_what_is_waited_for_at_once() {
        let mut queue = Queue::default();
        assert_eq!(queue.due(LONG), Due::Never);
        queue.push(put(1, None));
        assert!(matches!(queue.due(LONG), Due::In(left) if left <= LONG));
        assert_eq!(queue.due(Duration::ZERO), Due::Now);
        queue.push(put(2, Some(oneshot::channel().0)));
        assert_eq!(queue.due(LONG), Due::Now);
        let mut batch = Vec::new();
        assert_eq!(queue.take(&mut batch), 2);
        assert_eq!(values(&batch), [1, 2]);
        assert_eq!(queue.due(LONG), Due::Never);
    }

    #[test]
    fn a_full_batch_is_due_and_the_rest_stays_in_order() {
        let mut queue = Queue::default();
        for _ in 0..STATE_BATCH_MAX {
            assert_ne!(queue.due(LONG), Due::Now);
            queue.push(put(1, None));
        }
        queue.push(put(2, None));
        assert_eq!(queue.due(LONG), Due::Now);
        let mut batch = Vec::new();
        assert_eq!(queue.take(&mut batch), STATE_BATCH_MAX);
        assert!(matches!(queue.due(LONG), Due::In(_)));
        batch.clear();
        queue.take(&mut batch);
        assert_eq!(values(&batch), [2]);
    }

    #[test]
    fn a_closed_queue_is_emptied_and_then_ended() {
        let mut queue = Queue::default();
        queue.push(put(1, None));
        queue.close();
        assert_eq!(queue.due(LONG), Due::Now);
        queue.take(&mut Vec::new());
        assert_eq!(queue.due(LONG), Due::Ended);
    }

    #[test]
    fn only_what_still_waits_is_replaced_whatever_was_taken_or_put_back() {
        let mut queue = Queue::default();
        let (first, second) = (queue.push(put(1, None)), queue.push(put(2, None)));
        assert!(queue.holds(first) && queue.replace(first, &[11], ValueDigest::of(&[11])));
        let mut batch = Vec::new();
        queue.take(&mut batch);
        assert_eq!(values(&batch), [11, 2]);
        assert_eq!(batch[0].digest, Some(ValueDigest::of(&[11])));
        assert!(!queue.holds(second) && !queue.replace(second, &[9], ValueDigest::of(&[9])));
        let third = queue.push(put(3, None));
        let back: Vec<u64> = batch.drain(..).rev().map(|put| queue.put_back(put)).collect();
        assert!(queue.replace(back[0], &[22], ValueDigest::of(&[22])));
        assert!(queue.replace(third, &[33], ValueDigest::of(&[33])));
        queue.take(&mut batch);
        assert_eq!(values(&batch), [11, 22, 33]);
    }
}
