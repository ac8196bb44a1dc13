//! Runs a guest on its caller's thread, as long as the guest is quick.
//!
//! ```text
//!  Pace of the plugin: quick so far? ─ no ──────────────────────────────► guest threads
//!        │ yes
//!  InlinePermit of the sandbox: nobody else now, none was slow just before? ─ no ─► guest threads
//!        │ yes
//!  polled once on the caller's thread ─ ends ─► the answer, no thread was woken
//!        └─ does not: it waits, or the epoch tick made it yield ──────────► guest threads
//! ```
//! Waking a sleeping thread and being woken by it takes longer than most calls. The price is that a
//! guest keeps a thread of the agent: one thread at a time, until the next tick
//! ([`EPOCH_TICK`](limits::EPOCH_TICK)) at the latest. After a slow guest nobody runs here for
//! [`INLINE_REST`](limits::INLINE_REST). This is only for guests whose host functions do not block,
//! or [leave](leave_caller) before they do.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::error::CallError;
use super::running::{panic_text, yield_once};
use ostler_model::clock::Stopwatch;
use ostler_model::limits;

/// Whether the guests of one plugin were quick. Only quick guests may run on their caller's thread.
#[derive(Debug)]
pub struct CallPace {
    /// How many more calls have to be quick on a guest thread.
    trial: AtomicU32,
}

impl Default for CallPace {
    fn default() -> Self {
        Self { trial: AtomicU32::new(1) }
    }
}

impl CallPace {
    fn is_quick(&self) -> bool {
        self.trial.load(Ordering::Relaxed) == 0
    }

    /// Record that a guest ended on a guest thread, or was given up there, and had used
    /// this processor time.
    pub fn record_end(&self, used: Duration) {
        if used > limits::INLINE_TIME_MAX {
            self.start_trial();
        } else {
            let less = |trial: u32| Some(trial.saturating_sub(1));
            let _was = self.trial.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    fn start_trial(&self) {
        self.trial.store(limits::INLINE_TRIAL_CALLS, Ordering::Relaxed);
    }
}

/// Lets one guest at a time run on a caller's thread.
#[derive(Debug)]
pub(super) struct InlineGate {
    busy: AtomicBool,
    began: Stopwatch,
    /// Until this time nobody gets a permit, nanoseconds after `began`.
    rest_until: AtomicU64,
}

impl Default for InlineGate {
    fn default() -> Self {
        let (busy, rest_until) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { busy, began: Stopwatch::start(), rest_until }
    }
}

impl InlineGate {
    /// Take a permit for a guest of this plugin, if it may have one now.
    pub(super) fn take<'a>(&'a self, pace: &'a CallPace) -> Option<InlinePermit<'a>> {
        if !pace.is_quick() || self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        let permit = InlinePermit { gate: self, pace };
        // A permit that is not returned is given back by its destructor.
        (self.rest_until.load(Ordering::Relaxed) <= self.nanos()).then_some(permit)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Permission to run one guest on its caller's thread; see [`InlineGate::take`].
pub(super) struct InlinePermit<'a> {
    gate: &'a InlineGate,
    pace: &'a CallPace,
}

impl InlinePermit<'_> {
    /// The guest had its turn and used this processor time. The time that passed does not count: it
    /// is not the guest's fault when its thread lost the core to others. If it counted, whoever
    /// keeps the cores busy could send all calls to the guest threads, and so slow down all calls
    /// of the node.
    pub(super) fn finish(self, used: Duration) {
        if used > limits::INLINE_TIME_MAX {
            self.pace.start_trial();
            let rest = u64::try_from(limits::INLINE_REST.as_nanos()).unwrap_or(u64::MAX);
            self.gate.rest_until.store(self.gate.nanos().saturating_add(rest), Ordering::Relaxed);
        }
    }
}

impl Drop for InlinePermit<'_> {
    fn drop(&mut self) {
        self.gate.busy.store(false, Ordering::Release);
    }
}

thread_local! {
    /// A guest runs on this thread of its caller.
    static NEAR: Cell<bool> = const { Cell::new(false) };
}

/// Move a guest that runs on its caller's thread to a guest thread. A host function awaits this
/// before it does what may block.
pub async fn leave_caller() {
    if NEAR.get() {
        yield_once().await;
    }
}

/// Poll a guest once. `None`: the guest has not ended and has to be polled again, elsewhere.
///
/// No waker is called when the guest could go on, so whoever takes it next has to begin by polling.
pub(super) fn poll_once<T, F>(guest: &mut F) -> Option<Result<T, CallError>>
where
    F: Future<Output = Result<T, CallError>> + Unpin,
{
    let mut context = Context::from_waker(Waker::noop());
    NEAR.set(true);
    // A guest that panicked is dropped, never polled again.
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(guest).poll(&mut context)));
    NEAR.set(false);
    match polled {
        Ok(Poll::Pending) => None,
        Ok(Poll::Ready(result)) => Some(result),
        Err(panic) => Some(Err(CallError::HostPanic { message: panic_text(panic.as_ref()) })),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn quick() -> CallPace {
        let pace = CallPace::default();
        pace.record_end(Duration::ZERO);
        pace
    }

    #[test]
    fn the_first_guest_of_a_plugin_runs_on_a_guest_thread_and_the_next_may_have_a_turn() {
        let (gate, pace) = (InlineGate::default(), CallPace::default());
        assert!(gate.take(&pace).is_none());
        pace.record_end(limits::INLINE_TIME_MAX);
        gate.take(&pace).unwrap().finish(limits::INLINE_TIME_MAX);
        assert!(gate.take(&pace).is_some(), "the permit was given back");
    }

    #[test]
    fn only_one_has_the_turn() {
        let (gate, pace, other) = (InlineGate::default(), quick(), quick());
        let permit = gate.take(&pace).unwrap();
        assert!(gate.take(&other).is_none());
        drop(permit);
        assert!(gate.take(&other).is_some());
    }

    #[test]
    fn after_a_slow_turn_nobody_has_one_and_the_plugin_is_on_trial() {
        let (gate, pace, other) = (InlineGate::default(), quick(), quick());
        gate.take(&pace).unwrap().finish(limits::INLINE_TIME_MAX + Duration::from_nanos(1));
        let rest_until = gate.rest_until.load(Ordering::Relaxed);
        assert!(u128::from(rest_until) > limits::INLINE_REST.as_nanos(), "a rest was set");
        let next = gate.take(&other);
        let rest_is_over = gate.nanos() > rest_until;
        assert!(next.is_none() || rest_is_over);
        drop(next);
        gate.rest_until.store(0, Ordering::Relaxed);
        for _ in 0..limits::INLINE_TRIAL_CALLS {
            assert!(gate.take(&pace).is_none());
            pace.record_end(Duration::ZERO);
        }
        assert!(gate.take(&pace).is_some());
    }

    #[test]
    fn a_slow_call_on_a_guest_thread_begins_the_trial_again() {
        let (gate, pace) = (InlineGate::default(), quick());
        pace.record_end(limits::INLINE_TIME_MAX + Duration::from_nanos(1));
        assert!(gate.take(&pace).is_none());
        (1..limits::INLINE_TRIAL_CALLS).for_each(|_| pace.record_end(Duration::ZERO));
        assert!(gate.take(&pace).is_none());
        pace.record_end(Duration::ZERO);
        assert!(gate.take(&pace).is_some());
    }
}
