#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;

const FAILED: Ending = Ending::Exited { success: false };
const ENDED_WELL: Ending = Ending::Exited { success: true };

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

fn policy(attempts: u32, mode: RestartMode) -> RestartPolicy {
    RestartPolicy {
        attempts,
        interval: Duration::from_secs(60),
        delay: Duration::from_secs(8),
        mode,
    }
}

fn is_restart(decision: &RestartDecision) -> bool {
    matches!(decision, RestartDecision::Restart { .. })
}

#[test]
fn exactly_the_allowed_attempts_are_granted_and_the_next_one_fails_the_task() {
    let policy = policy(2, RestartMode::Fail);
    let mut tracker = RestartTracker::new(at(100));
    for _ in 0..2 {
        let decision = tracker.decide(FAILED, &policy, true, at(101), 0);
        assert_eq!(
            decision,
            RestartDecision::Restart {
                delay: Duration::from_secs(8),
                reason: "Restart within policy".to_owned(),
                counted: true
            }
        );
    }
    assert_eq!(
        tracker.decide(FAILED, &policy, true, at(102), 0),
        RestartDecision::NotRestarting {
            reason: "Exceeded allowed attempts 2 in interval 1m0s and mode is \"fail\"".to_owned()
        }
    );
}

#[test]
fn mode_delay_waits_for_the_rest_of_the_interval_and_then_counts_anew() {
    let policy = policy(1, RestartMode::Delay);
    let mut tracker = RestartTracker::new(at(0));
    assert!(is_restart(&tracker.decide(FAILED, &policy, true, at(10), 0)));
    assert_eq!(
        tracker.decide(FAILED, &policy, true, at(20), u64::MAX),
        RestartDecision::Restart {
            delay: Duration::from_secs(40),
            reason: "Exceeded allowed attempts, applying a delay".to_owned(),
            counted: true
        }
    );
    let later = tracker.decide(FAILED, &policy, true, at(61), 0);
    assert!(
        matches!(later, RestartDecision::Restart { reason, .. } if reason == "Restart within policy")
    );
    assert_eq!(tracker.count(), 1);
    assert_eq!(tracker.window_start(), at(61));
}

#[test]
fn a_kill_wins_and_leaves_the_budget_alone() {
    let mut tracker = RestartTracker::new(at(0));
    let before = tracker;
    let policy = policy(0, RestartMode::Fail);
    assert_eq!(
        tracker.decide(Ending::Killed, &policy, true, at(9_999), 1),
        RestartDecision::Killed
    );
    assert_eq!(tracker, before);
}

#[test]
fn a_restart_a_person_asked_for_is_immediate_and_free_even_without_attempts() {
    let mut tracker = RestartTracker::new(at(0));
    let policy = policy(0, RestartMode::Fail);
    let asked = Ending::RestartTriggered { failure: false };
    assert_eq!(
        tracker.decide(asked, &policy, false, at(1), u64::MAX),
        RestartDecision::Restart { delay: Duration::ZERO, reason: String::new(), counted: false }
    );
    assert_eq!(tracker.count(), 0);
}

#[test]
fn a_restart_asked_for_by_a_failed_check_uses_up_an_attempt() {
    let mut tracker = RestartTracker::new(at(0));
    let policy = policy(1, RestartMode::Fail);
    let check = Ending::RestartTriggered { failure: true };
    assert!(is_restart(&tracker.decide(check, &policy, false, at(1), 0)));
    assert!(matches!(
        tracker.decide(check, &policy, false, at(1), 0),
        RestartDecision::NotRestarting { .. }
    ));
}

#[test]
fn without_attempts_a_good_end_is_no_failure_and_a_bad_one_is() {
    let mut tracker = RestartTracker::new(at(0));
    let policy = policy(0, RestartMode::Delay);
    let reason = "Policy allows no restarts".to_owned();
    assert_eq!(
        tracker.decide(ENDED_WELL, &policy, false, at(1), 0),
        RestartDecision::Terminated { reason: reason.clone() }
    );
    for (ending, on_success) in [(ENDED_WELL, true), (FAILED, false), (FAILED, true)] {
        assert_eq!(
            tracker.decide(ending, &policy, on_success, at(1), 0),
            RestartDecision::NotRestarting { reason: reason.clone() }
        );
    }
}

#[test]
fn an_unrecoverable_start_error_fails_the_task_and_a_recoverable_one_is_tried_again() {
    let policy = policy(3, RestartMode::Fail);
    let mut tracker = RestartTracker::new(at(0));
    let recoverable = Ending::StartFailed { recoverable: true };
    assert!(is_restart(&tracker.decide(recoverable, &policy, false, at(1), 0)));
    assert_eq!(
        tracker.decide(Ending::StartFailed { recoverable: false }, &policy, true, at(1), 0),
        RestartDecision::NotRestarting { reason: "Error was unrecoverable".to_owned() }
    );
}

#[test]
fn a_service_that_ends_well_is_started_again_and_uses_up_an_attempt() {
    let policy = policy(1, RestartMode::Fail);
    let mut tracker = RestartTracker::new(at(0));
    assert!(is_restart(&tracker.decide(ENDED_WELL, &policy, true, at(1), 0)));
    assert!(matches!(
        tracker.decide(ENDED_WELL, &policy, true, at(1), 0),
        RestartDecision::NotRestarting { .. }
    ));
}

#[test]
fn a_clock_set_back_does_not_freeze_the_budget() {
    let policy = policy(1, RestartMode::Delay);
    let mut tracker = RestartTracker::new(at(1_000_000));
    assert!(is_restart(&tracker.decide(FAILED, &policy, true, at(5), 0)));
    let RestartDecision::Restart { delay, .. } = tracker.decide(FAILED, &policy, true, at(6), 0)
    else {
        panic!("mode delay always restarts");
    };
    assert_eq!(delay, Duration::from_secs(59));
    tracker.decide(FAILED, &policy, true, at(70), 0);
    assert_eq!(tracker.count(), 1, "the window that began after the jump is over");
}

#[test]
fn only_long_running_work_restarts_after_a_good_end() {
    use LifecycleHook::{Poststart, Poststop, Prestart};
    let of = |hook, sidecar| Some(Lifecycle { hook, sidecar });
    let restarting = [None, of(Prestart, true), of(Poststart, true)];
    let once = [of(Prestart, false), of(Poststart, false), of(Poststop, false), of(Poststop, true)];
    for kind in [JobKind::Service, JobKind::System] {
        assert!(restarting.iter().all(|l| restarts_on_success(kind, *l)));
        assert!(once.iter().all(|l| !restarts_on_success(kind, *l)));
    }
    for kind in [JobKind::Batch, JobKind::Sysbatch] {
        assert!(restarting.iter().chain(&once).all(|l| !restarts_on_success(kind, *l)));
    }
}

#[test]
fn a_stored_tracker_goes_on_where_it_was() {
    let policy = policy(1, RestartMode::Fail);
    let mut tracker = RestartTracker::new(at(0));
    tracker.decide(FAILED, &policy, true, at(1), 0);
    let bytes = postcard::to_allocvec(&tracker).unwrap();
    let mut restored: RestartTracker = postcard::from_bytes(&bytes).unwrap();
    assert!(matches!(
        restored.decide(FAILED, &policy, true, at(2), 0),
        RestartDecision::NotRestarting { .. }
    ));
}

/// The reference: keeps every counted ending and counts those of the current window.
struct Model {
    window: u128,
    counted: Vec<u128>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Now,
    Wait { at_least: u128, at_most: u128 },
    Fails,
    EndsWell,
    Killed,
}

impl Model {
    fn decide(
        &mut self,
        ending: Ending,
        p: &RestartPolicy,
        on_success: bool,
        now: u128,
    ) -> Verdict {
        let final_success = ending == ENDED_WELL && !on_success;
        match ending {
            Ending::Killed => return Verdict::Killed,
            Ending::RestartTriggered { failure: false } => return Verdict::Now,
            _ if p.attempts == 0 && final_success => return Verdict::EndsWell,
            _ if p.attempts == 0 => return Verdict::Fails,
            _ => {}
        }
        if now > self.window + p.interval.as_nanos() {
            self.window = now;
            self.counted.clear();
        }
        self.counted.push(now);
        if ending == (Ending::StartFailed { recoverable: false }) {
            return Verdict::Fails;
        }
        if final_success {
            return Verdict::EndsWell;
        }
        if self.counted.len() <= p.attempts as usize {
            let delay = p.delay.as_nanos();
            return Verdict::Wait { at_least: delay.max(1), at_most: (delay + delay / 4).max(1) };
        }
        match p.mode {
            RestartMode::Fail => Verdict::Fails,
            RestartMode::Delay => {
                let rest = (self.window + p.interval.as_nanos()).saturating_sub(now).max(1);
                Verdict::Wait { at_least: rest, at_most: rest }
            }
        }
    }
}

fn endings() -> impl Strategy<Value = Ending> {
    prop_oneof![
        Just(Ending::Killed),
        any::<bool>().prop_map(|recoverable| Ending::StartFailed { recoverable }),
        any::<bool>().prop_map(|success| Ending::Exited { success }),
        any::<bool>().prop_map(|failure| Ending::RestartTriggered { failure }),
    ]
}

fn modes() -> impl Strategy<Value = RestartMode> {
    prop_oneof![Just(RestartMode::Fail), Just(RestartMode::Delay)]
}

proptest! {
    #[test]
    fn the_tracker_decides_as_the_reference_model_does(
        attempts in 0_u32..5,
        interval in 5_u64..100,
        delay in 0_u64..30,
        mode in modes(),
        on_success in any::<bool>(),
        steps in prop::collection::vec((endings(), 0_u64..40, any::<u64>()), 1..60),
    ) {
        let policy = RestartPolicy {
            attempts,
            interval: Duration::from_secs(interval),
            delay: Duration::from_secs(delay),
            mode,
        };
        let mut now = at(1_000);
        let mut tracker = RestartTracker::new(now);
        let mut model = Model { window: u128::from(now.nanos()), counted: Vec::new() };
        for (ending, pause, jitter) in steps {
            now = now.plus(Duration::from_secs(pause));
            let expected = model.decide(ending, &policy, on_success, u128::from(now.nanos()));
            let got = tracker.decide(ending, &policy, on_success, now, jitter);
            match (&got, &expected) {
                (RestartDecision::Killed, Verdict::Killed)
                | (RestartDecision::Terminated { .. }, Verdict::EndsWell)
                | (RestartDecision::NotRestarting { .. }, Verdict::Fails) => {}
                (RestartDecision::Restart { delay, counted: false, .. }, Verdict::Now) => {
                    prop_assert!(delay.is_zero());
                }
                (RestartDecision::Restart { delay, counted: true, .. }, Verdict::Wait { at_least, at_most }) => {
                    prop_assert!((*at_least..=*at_most).contains(&delay.as_nanos()));
                }
                _ => prop_assert!(false, "{ending:?}: got {got:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn no_extreme_overflows_and_a_counted_restart_always_waits(
        count in prop_oneof![Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()],
        window in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        now in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        attempts in prop_oneof![Just(0), Just(u32::MAX), any::<u32>()],
        interval in prop_oneof![Just(Duration::MAX), Just(Duration::ZERO), any::<u64>().prop_map(Duration::from_nanos)],
        delay in prop_oneof![Just(Duration::MAX), Just(Duration::ZERO), any::<u64>().prop_map(Duration::from_nanos)],
        mode in modes(),
        ending in endings(),
        jitter in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
    ) {
        let mut tracker = RestartTracker { count, window_start: Timestamp::from_nanos(window) };
        let policy = RestartPolicy { attempts, interval, delay, mode };
        let decision = tracker.decide(ending, &policy, true, Timestamp::from_nanos(now), jitter);
        if let RestartDecision::Restart { delay: waited, counted: true, reason } = decision {
            prop_assert!(waited >= DELAY_MIN);
            if reason == "Restart within policy" {
                prop_assert!(waited >= delay);
                prop_assert!(waited <= delay.saturating_add(delay / 4).max(DELAY_MIN));
            } else {
                prop_assert!(waited <= interval.max(DELAY_MIN));
            }
        }
    }
}
