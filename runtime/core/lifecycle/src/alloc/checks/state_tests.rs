#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use ostler_model::job::CheckKind;

const START: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

fn at(seconds: u64) -> Timestamp {
    START.plus(Duration::from_secs(seconds))
}

fn check(counts: [u32; 3], restart: Option<CheckRestart>) -> Check {
    let second = Duration::from_secs(1);
    let [success_before_passing, failures_before_critical, failures_before_warning] = counts;
    Check {
        success_before_passing,
        failures_before_critical,
        failures_before_warning,
        restart,
        ..Check::new("c".to_owned(), CheckKind::Tcp, second, second)
    }
}

const GOOD: CheckStatus = CheckStatus::Passing;
const WARNS: CheckStatus = CheckStatus::Warning;
const BAD: CheckStatus = CheckStatus::Critical;
const NONE: CheckStatus = CheckStatus::Pending;

/// What is said after each answer, one a second.
fn said(check: &Check, answers: &[CheckStatus]) -> Vec<CheckStatus> {
    let mut machine = CheckMachine::new(check, START);
    let step = |(second, answer): (u64, &CheckStatus)| {
        machine.step(at(second), *answer);
        machine.status()
    };
    (1..).zip(answers).map(step).collect()
}

#[test]
fn without_thresholds_each_answer_is_what_is_said() {
    let all = [GOOD, BAD, WARNS, GOOD, BAD];
    assert_eq!(said(&check([0; 3], None), &all), all);
    assert_eq!(said(&check([1; 3], None), &all), all);
}

#[test]
fn thresholds_count_answers_in_a_row() {
    let check = check([2, 3, 0], None);
    let answers = [GOOD, GOOD, BAD, BAD, GOOD, BAD, BAD, BAD, GOOD, GOOD];
    let expected = [NONE, GOOD, GOOD, GOOD, GOOD, GOOD, GOOD, BAD, BAD, GOOD];
    assert_eq!(said(&check, &answers), expected);
}

#[test]
fn bad_answers_warn_before_they_are_critical() {
    let expected = [GOOD, GOOD, WARNS, WARNS, BAD];
    assert_eq!(said(&check([0, 4, 2], None), &[GOOD, BAD, BAD, BAD, BAD]), expected);
}

#[test]
fn before_the_first_answer_it_says_what_the_job_says() {
    let mut check = check([0, 2, 0], None);
    check.initial = GOOD;
    assert_eq!(CheckMachine::new(&check, START).status(), GOOD);
    assert_eq!(said(&check, &[BAD, BAD]), [GOOD, BAD]);
}

/// The seconds in which a restart is asked for.
fn restarts(restart: CheckRestart, answers: &[CheckStatus]) -> Vec<u64> {
    let mut machine = CheckMachine::new(&check([0; 3], Some(restart)), START);
    let all = (1..).zip(answers);
    all.filter_map(|(second, answer)| machine.step(at(second), *answer).then_some(second)).collect()
}

#[test]
fn a_restart_comes_after_so_many_unhealthy_answers_in_a_row() {
    let restart = CheckRestart { limit: 3, grace: Duration::from_secs(2), ignore_warnings: false };
    assert_eq!(restarts(restart, &[BAD, BAD, BAD, BAD]), [4], "those in the grace do not count");
    assert_eq!(restarts(restart, &[BAD, WARNS, BAD, WARNS]), [4], "a warning is unhealthy");
    assert_eq!(restarts(restart, &[BAD, BAD, BAD, GOOD, BAD, BAD, BAD]), [7]);
    let ignores = CheckRestart { ignore_warnings: true, ..restart };
    assert_eq!(restarts(ignores, &[BAD, BAD, BAD, WARNS, BAD, BAD, BAD]), [7]);
    let at_once = CheckRestart { limit: 1, grace: Duration::ZERO, ignore_warnings: false };
    assert_eq!(restarts(at_once, &[GOOD, BAD]), [2]);
}

#[test]
fn a_restart_that_did_not_come_is_asked_for_again_in_time() {
    let restart = CheckRestart { limit: 2, grace: Duration::from_secs(3), ignore_warnings: false };
    assert_eq!(restarts(restart, &[BAD; 12]), [4, 8, 12]);
}

fn answer() -> impl Strategy<Value = CheckStatus> {
    prop::sample::select(vec![GOOD, GOOD, WARNS, BAD, BAD])
}

fn history() -> impl Strategy<Value = Vec<(u64, CheckStatus)>> {
    prop::collection::vec((0..4_u64, answer()), 0..60)
}

/// The same, said by looking at the whole history each time.
fn by_history(check: &Check, answers: &[CheckStatus]) -> CheckStatus {
    let mut says = check.initial;
    for end in 1..=answers.len() {
        let so_far = answers.get(..end).unwrap();
        let last = so_far.last().unwrap();
        let row = |such: fn(&CheckStatus) -> bool| {
            u32::try_from(so_far.iter().rev().take_while(|answer| such(answer)).count()).unwrap()
        };
        if *last == BAD {
            let bad = row(|answer| *answer == BAD);
            if bad >= check.failures_before_critical {
                says = BAD;
            } else if check.failures_before_warning > 0 && bad >= check.failures_before_warning {
                says = WARNS;
            }
        } else if row(|answer| *answer != BAD) >= check.success_before_passing {
            says = *last;
        }
    }
    says
}

proptest! {
    #[test]
    fn what_is_said_follows_from_the_history(
        counts in [0..5_u32, 0..5_u32, 0..5_u32],
        answers in prop::collection::vec(answer(), 0..40),
    ) {
        let check = check(counts, None);
        let stepped = said(&check, &answers).last().copied().unwrap_or(NONE);
        prop_assert_eq!(stepped, by_history(&check, &answers));
    }

    #[test]
    fn restarts_follow_from_what_was_said(
        counts in [0..3_u32, 0..3_u32, 0..3_u32],
        limit in 1..5_u32,
        grace in 0..20_u64,
        ignore_warnings: bool,
        history in history(),
    ) {
        let restart =
            CheckRestart { limit, grace: Duration::from_secs(grace), ignore_warnings };
        let check = check(counts, Some(restart));
        let mut machine = CheckMachine::new(&check, START);
        let (mut now, mut answers) = (0, Vec::new());
        // What was said after the end of the last grace, each since the last restart.
        let (mut row, mut grace_until) = (0, grace);
        for (pause, answer) in history {
            now += pause;
            answers.push(answer);
            let restarts = machine.step(at(now), answer);
            let unhealthy = match by_history(&check, &answers) {
                CheckStatus::Critical => true,
                CheckStatus::Warning => !ignore_warnings,
                _ => false,
            };
            row = match (unhealthy, now < grace_until) {
                (false, _) => 0,
                (true, true) => row,
                (true, false) => row + 1,
            };
            prop_assert_eq!(restarts, row >= limit, "at {}", now);
            if restarts {
                (row, grace_until) = (0, now + grace);
            }
        }
    }
}
