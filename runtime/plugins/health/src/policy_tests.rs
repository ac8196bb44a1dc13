#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;
use ostler_model::ids::{GroupName, JobId, TaskName};
use ostler_model::limits::PLUGIN_STRIKES_KEPT_MAX;
use ostler_model::printable::REST_BYTES_MAX;

fn at(secs: u64) -> Timestamp {
    Timestamp::from_nanos(secs * 1_000_000_000)
}

fn failed() -> PluginEvent {
    PluginEvent::FingerprintFailed("no".to_owned())
}

fn strike(reason: &str) -> PluginEvent {
    PluginEvent::Strike { task: None, config: None, reason: reason.to_owned() }
}

fn task(name: &str) -> TaskKey {
    TaskKey {
        job: JobId::new("j").unwrap(),
        group: GroupName::new("g").unwrap(),
        task: TaskName::new(name).unwrap(),
    }
}

/// A start of that task with that configuration trapped.
fn poison(name: &str, config: u64) -> PluginEvent {
    PluginEvent::Strike {
        task: Some(task(name)),
        config: Some(config),
        reason: format!("start: trapped on {name}"),
    }
}

fn three_strikes(quarantine: QuarantineFor) -> FailurePolicy {
    FailurePolicy { strikes_max: 3, quarantine, ..FailurePolicy::default() }
}

const TEN_MINUTES: QuarantineFor = QuarantineFor::Time(Duration::from_secs(600));

#[test]
fn the_wait_doubles_with_each_failure_in_a_row_up_to_its_bound_and_an_answer_ends_the_row() {
    let policy = FailurePolicy::default();
    let mut health = PluginHealth::default();
    let mut wait = |event| health.step(&policy, at(1), event).retry_after;
    let row: Vec<_> = (0..9).map(|_| wait(failed()).unwrap().as_secs()).collect();
    assert_eq!(row, [1, 2, 4, 8, 16, 32, 64, 120, 120]);
    assert_eq!(wait(PluginEvent::Fingerprinted), None);
    assert_eq!(wait(failed()), Some(Duration::from_secs(1)));
}

#[test]
fn a_plugin_turns_once_to_backing_off_and_once_back() {
    let policy = FailurePolicy::default();
    let mut health = PluginHealth::default();
    let mut turned = |event| health.step(&policy, at(1), event).turned;
    assert_eq!(turned(PluginEvent::Fingerprinted), Some(PluginState::Running));
    assert_eq!(turned(PluginEvent::Fingerprinted), None);
    assert_eq!(turned(strike("start")), None, "it still answers");
    assert_eq!(turned(failed()), Some(PluginState::BackingOff));
    assert_eq!(turned(failed()), None);
    assert_eq!(turned(PluginEvent::Fingerprinted), Some(PluginState::Running));
}

#[test]
fn a_strike_is_forgotten_after_its_time_and_the_last_error_is_not() {
    let window = Duration::from_secs(600);
    let policy = FailurePolicy { strike_window: window, ..FailurePolicy::default() };
    let mut health = PluginHealth::default();
    health.step(&policy, at(100), strike("trap"));
    health.step(&policy, at(400), strike("hang"));
    assert_eq!(health.strikes(&policy, at(500)), 2);
    assert_eq!(health.strikes(&policy, at(700)), 1);
    assert_eq!(health.strikes(&policy, at(1_000)), 0);
    assert_eq!(health.strikes(&policy, at(0)), 2, "the clock was set back");
    let error = health.last_error.unwrap();
    assert_eq!((error.at, &*error.reason), (at(400), "hang"));
}

#[test]
fn strikes_are_counted_up_to_a_bound() {
    let policy = FailurePolicy { strikes_max: u32::MAX, ..FailurePolicy::default() };
    let mut health = PluginHealth::default();
    for _ in 0..2 * PLUGIN_STRIKES_KEPT_MAX {
        health.step(&policy, at(1), strike("trap"));
    }
    assert_eq!(health.strikes(&policy, at(1)), PLUGIN_STRIKES_KEPT_MAX);
}

proptest! {
    #[test]
    fn no_history_makes_a_plugin_wait_beyond_its_bound_or_grow(
        events in prop::collection::vec((0u8..3, 0u64..100_000), 0..200),
        first in 1u64..100, max in 1u64..1_000
    ) {
        let policy = FailurePolicy {
            retry_first: Duration::from_secs(first),
            retry_max: Duration::from_secs(max),
            strikes_max: u32::MAX,
            ..FailurePolicy::default()
        };
        let mut health = PluginHealth::default();
        let mut strikes = 0;
        for (kind, time) in events {
            let event = match kind {
                0 => PluginEvent::Fingerprinted,
                1 => failed(),
                _ => strike(&"ä".repeat(PLUGIN_MESSAGE_BYTES_MAX)),
            };
            strikes += usize::from(kind == 2);
            let answered = event == PluginEvent::Fingerprinted;
            let effect = health.step(&policy, at(time), event);
            if let Some(wait) = effect.retry_after {
                prop_assert!(wait >= Duration::from_secs(first));
                prop_assert!(wait <= Duration::from_secs(max.max(first)));
            }
            prop_assert_eq!(health.state == PluginState::Running, answered
                || (kind == 2 && health.failures == 0 && health.state == PluginState::Running));
            prop_assert!(health.strikes(&policy, at(time)) <= strikes.min(PLUGIN_STRIKES_KEPT_MAX));
            if let Some(error) = &health.last_error {
                prop_assert!(error.reason.len() <= PLUGIN_MESSAGE_BYTES_MAX + REST_BYTES_MAX);
            }
        }
    }

    #[test]
    fn jitter_stays_between_half_the_wait_and_the_whole(millis in 0u64..200_000, random: u64) {
        let wait = Duration::from_millis(millis);
        let jittered = jitter_wait(wait, random);
        prop_assert!(jittered >= wait / 2 && jittered <= wait, "{jittered:?} of {wait:?}");
    }
}

#[test]
fn the_whole_range_of_the_jitter_is_used() {
    let wait = Duration::from_secs(2);
    assert_eq!(jitter_wait(wait, 0), Duration::from_secs(1));
    assert_eq!(jitter_wait(wait, u64::MAX), wait);
}

#[test]
fn the_last_strike_of_too_many_puts_a_plugin_into_quarantine_and_says_why() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    health.step(&policy, at(1), PluginEvent::Fingerprinted);
    assert_eq!(health.step(&policy, at(10), strike("trap")).turned, None);
    assert_eq!(health.step(&policy, at(20), strike("trap")).turned, None);
    let effect = health.step(&policy, at(30), strike("stats: hang"));
    assert_eq!(effect.turned, Some(PluginState::Quarantined));
    let quarantine = health.quarantine.clone().unwrap();
    assert_eq!((quarantine.since, quarantine.until), (at(30), Some(at(630))));
    assert!(quarantine.reason.contains("3 strikes within 10m"), "{}", quarantine.reason);
    assert!(quarantine.reason.contains("stats: hang"), "{}", quarantine.reason);
    // A fingerprint that was on its way before changes nothing.
    let late = health.step(&policy, at(40), PluginEvent::Fingerprinted);
    assert_eq!((late.turned, late.retry_after), (None, Some(Duration::from_secs(590))));
    let late = health.step(&policy, at(50), failed());
    assert_eq!((late.turned, late.retry_after), (None, Some(Duration::from_secs(580))));
    assert_eq!(health.step(&policy, at(60), strike("kill: trap")).turned, None);
    assert_eq!(health.quarantine, Some(quarantine), "not longer");
}

#[test]
fn strikes_that_are_forgotten_bring_no_plugin_into_quarantine() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    for second in (0..100_000).step_by(301) {
        health.step(&policy, at(second), strike("now and then"));
        assert_eq!(health.quarantine, None, "at {second}");
    }
}

#[test]
fn an_answered_probe_lifts_the_quarantine_and_a_relapse_doubles_it_up_to_its_bound() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    let mut now = 0;
    let mut lengths = Vec::new();
    for _ in 0..10 {
        for _ in 0..3 {
            health.step(&policy, at(now), strike("trap"));
        }
        let until = health.quarantine.as_ref().unwrap().until.unwrap();
        lengths.push(until.since(at(now)).as_secs());
        now = until.nanos() / 1_000_000_000;
        let effect = health.step(&policy, at(now), PluginEvent::Fingerprinted);
        assert_eq!(effect.turned, Some(PluginState::Running));
        assert_eq!(health.strikes(&policy, at(now)), 0, "it begins anew");
        now += 60;
    }
    assert_eq!(&lengths[..4], [600, 1_200, 2_400, 4_800]);
    assert_eq!(lengths.last(), Some(&QUARANTINE_MAX.as_secs()));
    // After a long time without failures, it is as if nothing had happened.
    now += 2 * QUARANTINE_MAX.as_secs();
    for _ in 0..3 {
        health.step(&policy, at(now), strike("trap"));
    }
    let until = health.quarantine.as_ref().unwrap().until.unwrap();
    assert_eq!(until.since(at(now)).as_secs(), 600);
}

#[test]
fn a_probe_that_fails_keeps_a_plugin_in_quarantine_twice_as_long() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    for _ in 0..3 {
        health.step(&policy, at(0), strike("trap"));
    }
    health.step(&policy, at(600), strike("fingerprint: trap"));
    let effect = health.step(&policy, at(600), failed());
    assert_eq!((effect.turned, effect.retry_after), (None, Some(Duration::from_secs(1_200))));
    let quarantine = health.quarantine.unwrap();
    assert_eq!((quarantine.until, quarantine.relapses), (Some(at(1_800)), 1));
    assert!(quarantine.reason.contains("tried again"), "{}", quarantine.reason);
}

#[test]
fn a_quarantine_without_time_lasts_until_a_person_lifts_it() {
    let policy = three_strikes(QuarantineFor::Manual);
    let mut health = PluginHealth::default();
    for _ in 0..3 {
        health.step(&policy, at(0), strike("trap"));
    }
    let years = at(100_000_000);
    assert_eq!(health.step(&policy, years, PluginEvent::Fingerprinted), PolicyEffect::default());
    assert_eq!(health.step(&policy, years, failed()), PolicyEffect::default());
    assert_eq!(health.state, PluginState::Quarantined);
    let effect = health.step(&policy, years, PluginEvent::Lifted);
    assert_eq!(effect.turned, Some(PluginState::Starting));
    assert_eq!((&health.quarantine, health.strikes(&policy, years)), (&None, 0));
    assert_eq!(health.quarantines, 1);
}

#[test]
fn a_clock_that_was_set_back_between_two_agents_makes_no_quarantine_longer_than_it_is() {
    let policy = three_strikes(TEN_MINUTES);
    let mut before = PluginHealth::default();
    for _ in 0..3 {
        before.step(&policy, at(1_000_000), strike("trap"));
    }
    let mut health = PluginHealth::default();
    let kept = PluginEvent::Restored(before.quarantine.unwrap());
    assert_eq!(health.step(&policy, at(10), kept).retry_after, Some(Duration::from_secs(600)));
    let effect = health.step(&policy, at(10), failed());
    assert_eq!(effect.retry_after, Some(Duration::from_secs(600)));
    let effect = health.step(&policy, at(610), PluginEvent::Fingerprinted);
    assert_eq!(effect.turned, Some(PluginState::Running));
}

#[test]
fn one_task_that_poisons_its_driver_a_thousand_times_never_puts_it_into_quarantine() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    for n in 0..1_000 {
        assert_eq!(health.step(&policy, at(n), poison("a", 7)).turned, None, "start {n}");
    }
    assert_eq!(health.weight(&policy, at(1_000)), 0);
    assert!(health.poisoned_task(&policy, at(1_000), &task("a"), 7).is_some(), "it is not started");
    assert_eq!(
        health.poisoned_task(&policy, at(1_000), &task("a"), 8),
        None,
        "its job was changed"
    );
    assert_eq!(health.poisoned_task(&policy, at(1_000), &task("b"), 7), None, "another task");
}

#[test]
fn three_tasks_that_make_their_driver_trap_do() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    for _ in 0..10 {
        assert_eq!(health.step(&policy, at(1), poison("a", 1)).turned, None);
        assert_eq!(health.step(&policy, at(1), poison("b", 1)).turned, None);
    }
    let effect = health.step(&policy, at(2), poison("c", 1));
    assert_eq!(effect.turned, Some(PluginState::Quarantined));
}

#[test]
fn a_task_counts_when_the_driver_fails_without_a_task_too() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    for _ in 0..9 {
        health.step(&policy, at(1), poison("a", 1));
    }
    health.step(&policy, at(1), strike("fingerprint"));
    assert_eq!((health.weight(&policy, at(1)), health.state), (2, PluginState::Starting));
    let effect = health.step(&policy, at(1), strike("fingerprint"));
    assert_eq!(effect.turned, Some(PluginState::Quarantined));
}

#[test]
fn a_poisonous_configuration_is_tried_again_when_enough_of_its_strikes_are_forgotten() {
    let policy = three_strikes(TEN_MINUTES);
    let mut health = PluginHealth::default();
    for second in [0, 100, 200] {
        assert_eq!(health.poisoned_task(&policy, at(second), &task("a"), 1), None);
        health.step(&policy, at(second), poison("a", 1));
    }
    let poisoned = health.poisoned_task(&policy, at(300), &task("a"), 1).unwrap();
    assert_eq!((poisoned.strikes, poisoned.until), (3, at(600)));
    assert_eq!(&*poisoned.reason, "start: trapped on a");
    assert!(health.poisoned_task(&policy, at(599), &task("a"), 1).is_some());
    assert_eq!(health.poisoned_task(&policy, at(600), &task("a"), 1), None);
}

/// A random event, about one of `tasks` tasks or none.
fn happens(tasks: usize) -> impl Strategy<Value = (PluginEventKind, u64)> {
    let kind = prop_oneof![
        3 => (0..tasks.max(1), 0u64..3).prop_map(|(t, c)| PluginEventKind::Poison(t, c)),
        1 => Just(PluginEventKind::Answered),
        1 => Just(PluginEventKind::Refused),
        1 => Just(PluginEventKind::Lifted),
    ];
    (kind, 0u64..400)
}

#[derive(Clone, Copy, Debug)]
enum PluginEventKind {
    Poison(usize, u64),
    Answered,
    /// A fingerprint that failed with the refusal that the interface has for it.
    Refused,
    Lifted,
}

proptest! {
    #[test]
    fn whatever_one_task_does_in_whatever_history_no_driver_is_taken_from_the_others(
        events in prop::collection::vec(happens(1), 0..300), most in 1u32..6
    ) {
        let policy = FailurePolicy { strikes_max: most, ..FailurePolicy::default() };
        let (mut health, mut now) = (PluginHealth::default(), 0);
        for (kind, passed) in events {
            now += passed;
            let event = match kind {
                PluginEventKind::Poison(n, config) => poison(&format!("t{n}"), config),
                PluginEventKind::Answered => PluginEvent::Fingerprinted,
                PluginEventKind::Refused => failed(),
                PluginEventKind::Lifted => PluginEvent::Lifted,
            };
            health.step(&policy, at(now), event);
            prop_assert_eq!(&health.quarantine, &None);
            prop_assert_eq!(health.poisoned_task(&policy, at(now), &task("other"), 0), None);
        }
    }

    #[test]
    fn as_many_tasks_as_there_may_be_strikes_put_a_driver_into_quarantine_in_any_order(
        most in 2u32..8, order in prop::collection::vec(0usize..8, 1..200)
    ) {
        let policy = FailurePolicy { strikes_max: most, ..FailurePolicy::default() };
        let mut health = PluginHealth::default();
        let mut struck = std::collections::BTreeSet::new();
        for n in order {
            struck.insert(n);
            health.step(&policy, at(1), poison(&format!("t{n}"), 0));
            prop_assert_eq!(health.quarantine.is_some(), struck.len() >= most as usize);
            if health.quarantine.is_some() {
                break;
            }
        }
    }

    #[test]
    fn a_quarantine_begins_once_ends_once_and_is_never_longer_than_its_bound(
        events in prop::collection::vec((0u8..5, 0u64..2_000), 0..300),
        first in 1u64..100_000, manual: bool
    ) {
        let quarantine = if manual {
            QuarantineFor::Manual
        } else {
            QuarantineFor::Time(Duration::from_secs(first))
        };
        let policy = three_strikes(quarantine);
        let (mut health, mut now, mut entered) = (PluginHealth::default(), 1, 0);
        let longest = QUARANTINE_MAX.as_secs().max(first);
        for (kind, passed) in events {
            now += passed;
            let before = health.quarantine.clone();
            let event = match kind {
                0 => PluginEvent::Fingerprinted,
                1 => failed(),
                2 => strike("fingerprint"),
                3 => poison(&format!("t{}", now % 5), now % 3),
                _ => PluginEvent::Lifted,
            };
            let effect = health.step(&policy, at(now), event.clone());
            entered += u64::from(effect.turned == Some(PluginState::Quarantined));
            prop_assert_eq!(health.quarantines, entered);
            let inside = health.state == PluginState::Quarantined;
            prop_assert_eq!(inside, health.quarantine.is_some());
            if let Some(quarantine) = &health.quarantine {
                prop_assert_eq!(quarantine.until.is_none(), manual);
                let until = quarantine.until.unwrap_or(quarantine.since);
                prop_assert!(until.since(quarantine.since).as_secs() <= longest);
            }
            if let (Some(before), false) = (before, inside) {
                // A quarantine is ended by a person, or by an answer when its time is over, and
                // never otherwise.
                let over = before.is_over(at(now)) && event == PluginEvent::Fingerprinted;
                prop_assert!(event == PluginEvent::Lifted || over);
            }
        }
    }
}
