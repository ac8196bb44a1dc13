//! Running a guest where its caller is, for as long as it is quick.
//!
//! ```text
//!  Pace of the plugin: quick so far? ─ no ──────────────────────────────► guest threads
//!        │ yes
//!  Turn of the sandbox: nobody else now, none was slow just before? ─ no ─► guest threads
//!        │ yes
//!  polled once on the caller's thread ─ ends ─► the answer, no thread was woken
//!        └─ does not: it waits, or the epoch tick made it yield ──────────► guest threads
//! ```
//! Waking a sleeping thread and being woken by it takes longer than most calls. The price is that a
//! guest keeps a thread of the agent: one thread at a time, until the next tick
//! ([`EPOCH_TICK`](limits::EPOCH_TICK)) at the latest, and after a slow one nobody for
//! [`INLINE_REST`](limits::INLINE_REST). Only for guests whose host functions do not block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::error::CallError;
use super::running::panic_text;
use ostler_model::clock::Stopwatch;
use ostler_model::limits;

/// Whether the guests of one plugin were quick: only then they may run on their caller's thread.
#[derive(Debug)]
pub struct Pace {
    /// Calls that still have to be quick on a guest thread.
    trial: AtomicU32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { trial: AtomicU32::new(1) }
    }
}

impl Pace {
    fn quick(&self) -> bool {
        self.trial.load(Ordering::Relaxed) == 0
    }

    /// A guest ended on a guest thread, or was given up there, and had used this processor time.
    pub fn ended(&self, used: Duration) {
        if used > limits::INLINE_TIME_MAX {
            self.slow();
        } else {
            let less = |trial: u32| Some(trial.saturating_sub(1));
            let _was = self.trial.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    fn slow(&self) {
        self.trial.store(limits::INLINE_TRIAL_CALLS, Ordering::Relaxed);
    }
}

/// Lets one guest at a time run on a caller's thread.
#[derive(Debug)]
pub(super) struct Turns {
    busy: AtomicBool,
    began: Stopwatch,
    /// After `began`, nanoseconds: until then nobody gets a turn.
    rest_until: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        let (busy, rest_until) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { busy, began: Stopwatch::start(), rest_until }
    }
}

impl Turns {
    /// A turn for a guest of this plugin, if it may have one now.
    pub(super) fn take<'a>(&'a self, pace: &'a Pace) -> Option<Turn<'a>> {
        if !pace.quick() || self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        let turn = Turn { turns: self, pace, began: self.nanos() };
        // The turn is given back by its destructor. That must not count as slow.
        (self.rest_until.load(Ordering::Relaxed) <= turn.began).then_some(turn)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// See [`Turns::take`]. Measures how long it is held.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    pace: &'a Pace,
    began: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let now = self.turns.nanos();
        if Duration::from_nanos(now.saturating_sub(self.began)) > limits::INLINE_TIME_MAX {
            self.pace.slow();
            let rest = u64::try_from(limits::INLINE_REST.as_nanos()).unwrap_or(u64::MAX);
            self.turns.rest_until.store(now.saturating_add(rest), Ordering::Relaxed);
        }
        self.turns.busy.store(false, Ordering::Release);
    }
}

/// Poll a guest once. `None`: it is not at its end and has to be polled again, elsewhere.
///
/// Nothing is woken when it could go on: whoever polls it next begins by polling.
pub(super) fn poll_once<T, F>(guest: &mut F) -> Option<Result<T, CallError>>
where
    F: Future<Output = Result<T, CallError>> + Unpin,
{
    let mut context = Context::from_waker(Waker::noop());
    // A guest that panicked is dropped, never polled again.
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(guest).poll(&mut context)));
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

    fn quick() -> Pace {
        let pace = Pace::default();
        pace.ended(Duration::ZERO);
        pace
    }

    /// Held for no time at all, whatever else this machine does.
    fn give_back(mut turn: Turn<'_>) {
        turn.began = u64::MAX;
    }

    #[test]
    fn the_first_guest_of_a_plugin_runs_on_a_guest_thread_and_the_next_may_have_a_turn() {
        let (turns, pace) = (Turns::default(), Pace::default());
        assert!(turns.take(&pace).is_none());
        pace.ended(limits::INLINE_TIME_MAX);
        give_back(turns.take(&pace).unwrap());
        assert!(turns.take(&pace).is_some(), "the turn was given back");
    }

    #[test]
    fn only_one_has_the_turn() {
        let (turns, pace, other) = (Turns::default(), quick(), quick());
        let turn = turns.take(&pace).unwrap();
        assert!(turns.take(&other).is_none());
        give_back(turn);
        assert!(turns.take(&other).is_some());
    }

    #[test]
    fn after_a_slow_turn_nobody_has_one_and_the_plugin_is_on_trial() {
        let (turns, pace, other) = (Turns::default(), quick(), quick());
        let turn = turns.take(&pace).unwrap();
        let began = Stopwatch::start();
        while began.elapsed() <= limits::INLINE_TIME_MAX {
            std::hint::spin_loop();
        }
        drop(turn);
        let rest_until = turns.rest_until.load(Ordering::Relaxed);
        assert!(u128::from(rest_until) > limits::INLINE_REST.as_nanos(), "a rest was set");
        let next = turns.take(&other);
        let rest_is_over = turns.nanos() > rest_until;
        assert!(next.is_none() || rest_is_over);
        drop(next);
        turns.rest_until.store(0, Ordering::Relaxed);
        for _ in 0..limits::INLINE_TRIAL_CALLS {
            assert!(turns.take(&pace).is_none());
            pace.ended(Duration::ZERO);
        }
        assert!(turns.take(&pace).is_some());
    }

    #[test]
    fn a_slow_call_on_a_guest_thread_begins_the_trial_again() {
        let (turns, pace) = (Turns::default(), quick());
        pace.ended(limits::INLINE_TIME_MAX + Duration::from_nanos(1));
        assert!(turns.take(&pace).is_none());
        (1..limits::INLINE_TRIAL_CALLS).for_each(|_| pace.ended(Duration::ZERO));
        assert!(turns.take(&pace).is_none());
        pace.ended(Duration::ZERO);
        assert!(turns.take(&pace).is_some());
    }
}
