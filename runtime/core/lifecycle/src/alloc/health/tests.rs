#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "reference_tests.rs"]
mod reference;

use std::path::Path;

use super::*;
use ostler_model::event::TaskEvent;
use ostler_model::limits::{HEALTH_REASON_BYTES_MAX, HEALTH_TEXT_BYTES_MAX};

fn group(body: &str) -> TaskGroup {
    let text = format!("job \"j\" {{\ngroup \"g\" {{\n{body}\n}}\n}}");
    let parsed = ostler_jobspec::parse(text.as_bytes(), Path::new("-"), None);
    parsed.unwrap_or_else(|found| panic!("{}", found.render(&text, false))).groups.remove(0)
}

/// Two main tasks, one of which offers a service with a check, as does the group.
fn two_tasks() -> TaskGroup {
    let check = |name| {
        format!(
            "check {{\nname = \"{name}\"\ntype = \"tcp\"\ninterval = \"1s\"\ntimeout = \"1s\"\n}}"
        )
    };
    group(&format!(
        "network {{\nport \"p\" {{}}\n}}
        service {{\nname = \"all\"\nport = \"p\"\n{}\n}}
        task \"a\" {{
          driver = \"mock\"
          service {{\nname = \"own\"\nport = \"p\"\n{}\n}}
        }}
        task \"b\" {{ driver = \"mock\" }}",
        check("front"),
        check("back"),
    ))
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

fn task(name: &str) -> TaskName {
    TaskName::new(name).unwrap()
}

fn running(since: u64) -> TaskState {
    let mut state = TaskState {
        status: TaskStatus::Running,
        started_at: Some(at(since)),
        ..TaskState::default()
    };
    state.push_event(TaskEvent::new(EventKind::Started, at(since), "Task started by client"));
    state
}

fn dead() -> TaskState {
    TaskState { status: TaskStatus::Dead, ..TaskState::default() }
}

fn failed(message: &str) -> TaskState {
    let mut state = dead();
    state.push_event(TaskEvent::new(EventKind::NotRestarting, at(1), message).with_task_failure());
    state
}

fn states(states: &[(&str, TaskState)]) -> BTreeMap<TaskName, CowArc<TaskState>> {
    states.iter().map(|(name, state)| (task(name), state.clone().into())).collect()
}

fn result(id: &CheckId, passing: bool, output: &str, since: u64) -> CheckResult {
    CheckResult {
        id: id.clone(),
        service: id.service.clone(),
        name: id.check.clone(),
        status: if passing { CheckStatus::Passing } else { CheckStatus::Critical },
        passing,
        code: None,
        output: output.to_owned(),
        since: at(since),
        answered: Some(at(since)),
    }
}

fn policy(check: HealthCheck) -> HealthPolicy {
    HealthPolicy {
        check,
        min_healthy_time: Duration::from_secs(10),
        healthy_deadline: Duration::from_secs(60),
    }
}

fn machine(check: HealthCheck, group: &TaskGroup) -> HealthMachine {
    HealthMachine::new(policy(check), group, at(0))
}

fn timer(seconds: u64) -> Vec<HealthEffect> {
    vec![HealthEffect::Timer(Duration::from_secs(seconds))]
}

fn verdict(effects: Vec<HealthEffect>) -> HealthVerdict {
    match effects.as_slice() {
        [HealthEffect::Verdict(verdict)] => verdict.clone(),
        other => panic!("no verdict: {other:?}"),
    }
}

/// The tasks that are told something, with what.
fn told(verdict: &HealthVerdict) -> Vec<(&str, &str)> {
    verdict.tasks.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
}

#[test]
fn tasks_that_run_long_enough_are_healthy() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let both = states(&[("a", running(3)), ("b", running(5))]);
    assert_eq!(health.step(at(3), HealthInput::Tasks(&states(&[("a", running(3))]))), timer(57));
    assert_eq!(health.step(at(5), HealthInput::Tasks(&both)), timer(10));
    assert_eq!(health.step(at(6), HealthInput::Tasks(&both)), []);
    let verdict = verdict(health.step(at(15), HealthInput::TimerFired));
    assert!(verdict.healthy && verdict.tasks.is_empty());
    assert_eq!(verdict.text, "all tasks have run for 10s");
}

#[test]
fn there_is_one_verdict_whatever_happens_afterwards() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let both = states(&[("a", running(0)), ("b", running(0))]);
    assert!(verdict(health.step(at(10), HealthInput::Tasks(&both))).healthy);
    assert!(health.is_judged());
    let failed = states(&[("a", failed("gone")), ("b", running(0))]);
    assert_eq!(health.step(at(11), HealthInput::Tasks(&failed)), []);
    assert_eq!(health.step(at(60), HealthInput::TimerFired), []);
    assert_eq!(health.step(at(61), HealthInput::Requested(false)), []);
}

#[test]
fn a_restart_begins_the_time_anew_even_if_nobody_saw_the_task_down() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let both = states(&[("a", running(0)), ("b", running(0))]);
    assert_eq!(health.step(at(1), HealthInput::Tasks(&both)), timer(9));
    // Restarted at 7, started again at 8: only the newest state is seen.
    let mut again = running(0);
    (again.restarts, again.last_restart) = (1, Some(at(7)));
    again.push_event(TaskEvent::new(EventKind::Started, at(8), "Task started by client"));
    let both = states(&[("a", again), ("b", running(0))]);
    assert_eq!(health.step(at(9), HealthInput::Tasks(&both)), timer(9));
    assert!(verdict(health.step(at(18), HealthInput::TimerFired)).healthy);
}

#[test]
fn a_failed_task_is_unhealthy_at_once_and_only_it_is_blamed() {
    let mut health = machine(HealthCheck::Checks, &two_tasks());
    let states = states(&[("a", running(0)), ("b", failed("Exceeded allowed attempts 2"))]);
    let verdict = verdict(health.step(at(1), HealthInput::Tasks(&states)));
    assert!(!verdict.healthy);
    let why = "the task failed (last: Not Restarting: Exceeded allowed attempts 2)";
    assert_eq!(told(&verdict), [("b", why)]);
    assert_eq!(verdict.text, format!("task \"b\": {why}"));
}

#[test]
fn a_task_that_ended_but_should_run_is_unhealthy_at_once() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let states = states(&[("a", dead()), ("b", running(0))]);
    let verdict = verdict(health.step(at(1), HealthInput::Tasks(&states)));
    assert_eq!(told(&verdict), [("a", "the task ended but should run")]);
}

#[test]
fn a_pending_task_is_not_healthy_and_alone_is_blamed_at_the_deadline() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let mut waiting = TaskState::default();
    waiting.push_event(TaskEvent::new(EventKind::Driver, at(1), "Waiting for driver: x"));
    let states = states(&[("a", waiting), ("b", running(0))]);
    assert_eq!(health.step(at(20), HealthInput::Tasks(&states)), timer(40));
    assert_eq!(health.step(at(59), HealthInput::TimerFired), timer(1));
    let verdict = verdict(health.step(at(60), HealthInput::TimerFired));
    let why = "the task does not run at the healthy_deadline of 1m0s (last: Driver: Waiting for driver: x)";
    assert_eq!(told(&verdict), [("a", why)]);
}

#[test]
fn a_task_that_started_too_late_is_told_so_and_not_that_it_does_not_run() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let states = states(&[("a", running(55)), ("b", running(0))]);
    assert_eq!(health.step(at(55), HealthInput::Tasks(&states)), timer(5));
    let verdict = verdict(health.step(at(60), HealthInput::TimerFired));
    let why = "the task had run for 5s at the healthy_deadline of 1m0s; min_healthy_time is 10s";
    assert_eq!(told(&verdict), [("a", why)]);
}

#[test]
fn a_check_that_never_spoke_is_not_passing() {
    let group = two_tasks();
    let mut health = machine(HealthCheck::Checks, &group);
    let both = states(&[("a", running(0)), ("b", running(0))]);
    let ids = expected_checks(&group);
    assert_eq!(health.step(at(0), HealthInput::Tasks(&both)), timer(60));
    assert_eq!(health.step(at(20), HealthInput::Checks(&[result(&ids[0], true, "", 1)])), []);
    let verdict = verdict(health.step(at(60), HealthInput::TimerFired));
    assert_eq!(told(&verdict), [("a", "check \"back\" of service \"own\" was not answered yet")]);
}

#[test]
fn a_failing_check_is_blamed_with_its_output_and_the_tasks_are_not() {
    let group = two_tasks();
    let mut health = machine(HealthCheck::Checks, &group);
    let both = states(&[("a", running(0)), ("b", running(0))]);
    let ids = expected_checks(&group);
    health.step(at(0), HealthInput::Tasks(&both));
    let results =
        [result(&ids[0], false, "status 503: overloaded\n", 18), result(&ids[1], true, "", 1)];
    assert_eq!(health.step(at(20), HealthInput::Checks(&results)), []);
    let verdict = verdict(health.step(at(60), HealthInput::TimerFired));
    let why = "check \"front\" of service \"all\" fails (for 42s): status 503: overloaded";
    // A check of the group concerns all main tasks; the text names the check.
    assert_eq!(told(&verdict), [("a", why), ("b", why)]);
    assert_eq!(verdict.text, why);
}

#[test]
fn checks_have_to_pass_without_a_break() {
    let group = two_tasks();
    let mut health = machine(HealthCheck::Checks, &group);
    let both = states(&[("a", running(0)), ("b", running(0))]);
    let ids = expected_checks(&group);
    let all = |since| [result(&ids[0], true, "", 2), result(&ids[1], true, "", since)];
    health.step(at(0), HealthInput::Tasks(&both));
    assert_eq!(health.step(at(4), HealthInput::Checks(&all(4))), timer(10));
    // It failed in between; only its return was seen.
    assert_eq!(health.step(at(9), HealthInput::Checks(&all(9))), timer(10));
    assert_eq!(health.step(at(14), HealthInput::TimerFired), timer(5));
    let verdict = verdict(health.step(at(19), HealthInput::TimerFired));
    assert_eq!(verdict.text, "all tasks have run and all 2 checks have passed for 10s");
}

#[test]
fn results_of_checks_do_not_matter_where_only_task_states_are_asked_for() {
    let group = two_tasks();
    let mut health = machine(HealthCheck::TaskStates, &group);
    assert!(!health.wants_checks());
    health.step(at(0), HealthInput::Checks(&[result(&expected_checks(&group)[0], false, "", 0)]));
    let both = states(&[("a", running(0)), ("b", running(0))]);
    assert!(verdict(health.step(at(10), HealthInput::Tasks(&both))).healthy);
}

#[test]
fn a_manual_allocation_waits_for_a_word() {
    let mut health = machine(HealthCheck::Manual, &two_tasks());
    let failed = states(&[("a", failed("x")), ("b", dead())]);
    assert_eq!(health.step(at(0), HealthInput::Tasks(&failed)), []);
    assert_eq!(health.step(at(99), HealthInput::TimerFired), []);
    let mut other = health.clone();
    assert!(verdict(health.step(at(100), HealthInput::Requested(true))).healthy);
    let verdict = verdict(other.step(at(100), HealthInput::Requested(false)));
    let why = "set unhealthy by request";
    assert_eq!((verdict.healthy, told(&verdict)), (false, vec![("a", why), ("b", why)]));
}

#[test]
fn the_deadline_counts_from_the_placing_and_a_late_look_is_just() {
    // The agent was away from 1 to 300; all was well in time.
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let both = states(&[("a", running(0)), ("b", running(50))]);
    assert!(verdict(health.step(at(300), HealthInput::Tasks(&both))).healthy);
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let both = states(&[("a", running(0)), ("b", running(51))]);
    assert!(!verdict(health.step(at(300), HealthInput::Tasks(&both))).healthy);
}

#[test]
fn no_timer_is_asked_for_that_is_over_at_once() {
    let mut health = machine(HealthCheck::TaskStates, &two_tasks());
    let both = states(&[("a", running(0)), ("b", running(0))]);
    let almost = Timestamp::from_nanos(at(10).nanos() - 1);
    let effects = health.step(almost, HealthInput::Tasks(&both));
    assert_eq!(effects, [HealthEffect::Timer(Duration::from_nanos(1))]);
}

#[test]
fn texts_are_bounded_and_whole() {
    let many: String =
        (0..40).map(|i| format!("task \"t{i}\" {{ driver = \"mock\" }}\n")).collect();
    let group = group(&many);
    let mut health = machine(HealthCheck::TaskStates, &group);
    let long = "ä".repeat(5_000);
    let states = group.tasks.iter().map(|task| (task.name.clone(), failed(&long).into())).collect();
    let verdict = verdict(health.step(at(1), HealthInput::Tasks(&states)));
    assert_eq!(verdict.tasks.len(), 40);
    assert!(verdict.tasks.iter().all(|(_, text)| text.len() <= HEALTH_REASON_BYTES_MAX));
    assert!(verdict.text.len() <= HEALTH_TEXT_BYTES_MAX && verdict.text.ends_with('…'));
    assert!(verdict.tasks[0].1.ends_with("ä…)"), "{}", verdict.tasks[0].1);
}
