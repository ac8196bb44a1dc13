//! Decides when a failed allocation gets a successor. Pure.
//!
//! ```text
//! failed ─ attempts of the interval left? ─► wait for the delay, grown with earlier ones ─► placed
//!             └─ none ─► it stays failed
//! ```
//! Everything is computed from the records (the time of the failure, the earlier attempts), so a
//! restart of the agent changes no time.

use std::time::Duration;

use ostler_model::ids::AllocId;
use ostler_model::limits::RESCHEDULE_EVENTS_MAX;
use ostler_model::planted::planted;
use ostler_model::rollout::{DelayFunction, RescheduleEvent, ReschedulePolicy};
use ostler_model::time::Timestamp;

/// The time when the successor is to be placed, and the wait until then. `None`: there is no
/// successor. `before`: the attempts before the failed one, oldest first.
#[must_use]
pub fn successor_time(
    policy: ReschedulePolicy,
    before: &[RescheduleEvent],
    failed_at: Timestamp,
) -> Option<(Timestamp, Duration)> {
    if !policy.is_enabled() {
        return None;
    }
    let delay = next_delay(policy, before, failed_at);
    if policy.attempts > 0 && !before.is_empty() {
        let counted = |event: &&RescheduleEvent| failed_at.since(event.time) < policy.interval;
        let attempted = before.iter().filter(counted).count();
        let left = u32::try_from(attempted).is_ok_and(|attempted| attempted < policy.attempts);
        if (!left || delay >= policy.interval) && !planted("successors-without-end") {
            return None;
        }
    }
    Some((failed_at.plus(delay), delay))
}

fn next_delay(
    policy: ReschedulePolicy,
    before: &[RescheduleEvent],
    failed_at: Timestamp,
) -> Duration {
    let Some(last) = before.last() else { return policy.delay };
    let delay = match (policy.delay_function, before.iter().rev().nth(1)) {
        (DelayFunction::Constant, _) | (DelayFunction::Fibonacci, None) => return policy.delay,
        (DelayFunction::Exponential, _) => last.delay.saturating_mul(2),
        // A new series begins after the longest wait.
        (DelayFunction::Fibonacci, Some(other))
            if other.delay == policy.max_delay && last.delay == policy.delay =>
        {
            last.delay
        }
        (DelayFunction::Fibonacci, Some(other)) => last.delay.saturating_add(other.delay),
    };
    if policy.max_delay.is_zero() || delay <= policy.max_delay {
        return delay;
    }
    // An allocation that lived longer than the longest wait begins a new series.
    if failed_at.since(last.time) > policy.max_delay { policy.delay } else { policy.max_delay }
}

/// The attempts that the record of a successor lists.
#[must_use]
pub fn successor_events(
    policy: ReschedulePolicy,
    before: &[RescheduleEvent],
    previous: AllocId,
    now: Timestamp,
    delay: Duration,
) -> Vec<RescheduleEvent> {
    let counts =
        |event: &&RescheduleEvent| policy.attempts == 0 || now.since(event.time) <= policy.interval;
    let mut events: Vec<RescheduleEvent> = before.iter().filter(counts).copied().collect();
    events.push(RescheduleEvent { time: now, previous, delay });
    if policy.attempts == 0 {
        let more = events.len().saturating_sub(RESCHEDULE_EVENTS_MAX);
        events.drain(..more);
    }
    events
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use ostler_model::job::JobKind;
    use proptest::prelude::{prop, prop_assert, proptest};

    const START: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn id(n: u128) -> AllocId {
        AllocId::new(uuid::Uuid::from_u128(n))
    }

    /// The waits before one successor after the other, each of which lives so long before it fails.
    fn waits(policy: ReschedulePolicy, lives: &[u64]) -> Vec<Option<u64>> {
        let (mut now, mut events, mut waits) = (START, Vec::new(), Vec::new());
        for (n, life) in (1..).zip(lives) {
            let failed_at = now.plus(secs(*life));
            let Some((at, delay)) = successor_time(policy, &events, failed_at) else {
                waits.push(None);
                break;
            };
            assert_eq!(at, failed_at.plus(delay));
            waits.push(Some(delay.as_secs()));
            events = successor_events(policy, &events, id(n), at, delay);
            assert_eq!(events.last().unwrap().previous, id(n));
            now = at;
        }
        waits
    }

    fn policy(function: DelayFunction, delay: u64, max: u64) -> ReschedulePolicy {
        ReschedulePolicy {
            delay: secs(delay),
            delay_function: function,
            max_delay: secs(max),
            unlimited: true,
            ..ReschedulePolicy::NEVER
        }
    }

    fn some(waits: &[u64]) -> Vec<Option<u64>> {
        waits.iter().copied().map(Some).collect()
    }

    #[test]
    fn waits_grow_as_the_function_says_up_to_the_longest() {
        let lives = [1; 7];
        let exponential = policy(DelayFunction::Exponential, 5, 60);
        assert_eq!(waits(exponential, &lives), some(&[5, 10, 20, 40, 60, 60, 60]));
        let fibonacci = policy(DelayFunction::Fibonacci, 5, 30);
        assert_eq!(waits(fibonacci, &lives), some(&[5, 5, 10, 15, 25, 30, 30]));
        let constant = policy(DelayFunction::Constant, 7, 0);
        assert_eq!(waits(constant, &lives), some(&[7; 7]));
    }

    #[test]
    fn one_that_lived_longer_than_the_longest_wait_begins_a_new_series() {
        let exponential = policy(DelayFunction::Exponential, 5, 20);
        let lives = [1, 1, 1, 1, 100, 1, 1];
        assert_eq!(waits(exponential, &lives), some(&[5, 10, 20, 20, 5, 10, 20]));
        let fibonacci = policy(DelayFunction::Fibonacci, 5, 12);
        assert_eq!(waits(fibonacci, &[1, 1, 1, 1, 100, 1]), some(&[5, 5, 10, 12, 5, 5]));
    }

    #[test]
    fn attempts_are_counted_within_the_interval() {
        let twice = ReschedulePolicy {
            attempts: 2,
            interval: secs(100),
            unlimited: false,
            ..policy(DelayFunction::Constant, 5, 0)
        };
        let none = |n: usize| [some(&vec![5; n]), vec![None]].concat();
        assert_eq!(waits(twice, &[1; 9]), none(2));
        assert_eq!(waits(twice, &[1, 1, 99, 1, 1]), none(4), "the first two are out of the window");
        assert_eq!(successor_time(ReschedulePolicy::NEVER, &[], START), None);
        for kind in [JobKind::System, JobKind::Sysbatch] {
            assert_eq!(successor_time(ReschedulePolicy::default_for(kind), &[], START), None);
        }
        let batch = ReschedulePolicy::default_for(JobKind::Batch);
        assert_eq!(waits(batch, &[1, 1]), none(1));
        assert_eq!(waits(batch, &[1, 24 * 3_600, 1]), none(2));
    }

    #[test]
    fn of_an_unlimited_line_the_newest_are_on_record() {
        let (mut events, endless) = (Vec::new(), policy(DelayFunction::Exponential, 5, 60));
        for n in 0..20 {
            events = successor_events(endless, &events, id(n), START.plus(secs(1)), secs(5));
        }
        assert_eq!(events.len(), RESCHEDULE_EVENTS_MAX);
        assert_eq!(events.last().unwrap().previous, id(19));
    }

    proptest! {
        #[test]
        fn no_window_has_more_successors_than_attempts(
            lives in prop::collection::vec(0_u64..300, 1..40),
            attempts in 1_u32..5,
            interval in 15_u64..400,
            delay in 5_u64..60,
            function in prop::sample::select(vec![
                DelayFunction::Constant, DelayFunction::Exponential, DelayFunction::Fibonacci,
            ]),
        ) {
            let limited = ReschedulePolicy {
                attempts,
                interval: secs(interval),
                unlimited: false,
                ..policy(function, delay, 120)
            };
            let (mut now, mut events, mut all) = (START, Vec::new(), Vec::new());
            for life in lives {
                let failed_at = now.plus(secs(life));
                let Some((at, wait)) = successor_time(limited, &events, failed_at) else { break };
                prop_assert!(wait <= secs(120).max(limited.delay));
                events = successor_events(limited, &events, id(1), at, wait);
                all.push(at);
                // Those within one interval before the failure that led to the newest.
                let counted = all.iter().filter(|time| failed_at.since(**time) < limited.interval);
                prop_assert!(counted.count() <= attempts as usize + 1);
                now = at;
            }
        }
    }
}
