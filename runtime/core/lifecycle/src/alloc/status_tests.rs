#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use LifecycleHook::{Poststart, Poststop, Prestart};
use ostler_testing::fixtures;

fn task(name: &str, lifecycle: Option<(LifecycleHook, bool)>) -> Task {
    fixtures::task_at(name, lifecycle).unwrap()
}

fn group(tasks: Vec<Task>) -> TaskGroup {
    fixtures::group("g", tasks).unwrap()
}

fn leader(name: &str) -> Task {
    Task { leader: true, ..task(name, None) }
}

fn state(status: TaskStatus, failed: bool) -> TaskState {
    TaskState { status, failed, ..TaskState::default() }
}

const PENDING: (TaskStatus, bool) = (TaskStatus::Pending, false);
const RUNNING: (TaskStatus, bool) = (TaskStatus::Running, false);
const DEAD: (TaskStatus, bool) = (TaskStatus::Dead, false);
const FAILED: (TaskStatus, bool) = (TaskStatus::Dead, true);

fn states(all: &[(&str, (TaskStatus, bool))]) -> BTreeMap<TaskName, CowArc<TaskState>> {
    all.iter()
        .map(|(name, (status, failed))| {
            (TaskName::new(*name).unwrap(), state(*status, *failed).into())
        })
        .collect()
}

fn reason(tasks: Vec<Task>, all: &[(&str, (TaskStatus, bool))]) -> Option<KillReason> {
    kill_reason(&group(tasks), &states(all))
}

fn names(stages: &[&[&str]]) -> Vec<Vec<TaskName>> {
    stages.iter().map(|s| s.iter().map(|n| TaskName::new(*n).unwrap()).collect()).collect()
}

#[test]
fn a_failed_task_outweighs_running_outweighs_pending_outweighs_complete() {
    let status = |all| client_status(&states(all));
    let failed = (ClientStatus::Failed, "Failed tasks");
    assert_eq!(status(&[("a", FAILED), ("b", RUNNING), ("c", PENDING)]), failed);
    let running = (ClientStatus::Running, "Tasks are running");
    assert_eq!(status(&[("a", DEAD), ("b", RUNNING), ("c", PENDING)]), running);
    let pending = (ClientStatus::Pending, "No tasks have started");
    assert_eq!(status(&[("a", DEAD), ("b", PENDING)]), pending);
    let complete = (ClientStatus::Complete, "All tasks have completed");
    assert_eq!(status(&[("a", DEAD), ("b", DEAD)]), complete);
    assert_eq!(status(&[]), (ClientStatus::Pending, ""));
}

#[test]
fn what_has_run_before_is_not_called_never_started() {
    let ran =
        |status| TaskState { started_at: Some(Timestamp::from_nanos(1)), ..state(status, false) };
    let of = |all: [TaskState; 2]| {
        let names = ["a", "b"].map(|name| TaskName::new(name).unwrap());
        client_status(&names.into_iter().zip(all.map(CowArc::from)).collect())
    };
    let waits = |text| (ClientStatus::Pending, text);
    let never = || state(TaskStatus::Pending, false);
    let between = [ran(TaskStatus::Pending), never()];
    assert_eq!(of(between), waits("Tasks wait to be started again"));
    let after_prestart = [ran(TaskStatus::Dead), never()];
    assert_eq!(of(after_prestart), waits("Not all tasks have started"));
    assert_eq!(of([never(), never()]), waits("No tasks have started"));
}

#[test]
fn a_failed_flag_counts_only_once_the_task_is_dead() {
    let all = states(&[("a", (TaskStatus::Running, true))]);
    assert_eq!(client_status(&all).0, ClientStatus::Running);
}

#[test]
fn a_failed_task_takes_its_living_siblings_with_it() {
    let tasks = vec![task("a", None), task("b", None)];
    let got = reason(tasks, &[("a", FAILED), ("b", RUNNING)]).unwrap();
    assert_eq!(got, KillReason::SiblingFailed { sibling: TaskName::new("a").unwrap() });
    let event = got.event(Timestamp::from_nanos(7));
    assert_eq!(event.kind, EventKind::SiblingFailed);
    assert_eq!(event.message, "Task's sibling \"a\" failed");
    assert_eq!(event.details.get("failed_sibling").map(String::as_str), Some("a"));
    assert!(!event.fails_task, "the siblings did nothing wrong");
}

#[test]
fn a_dead_leader_wins_over_a_failed_sibling() {
    let tasks = vec![task("a", None), leader("l"), task("b", None)];
    let got = reason(tasks, &[("a", FAILED), ("l", DEAD), ("b", RUNNING)]);
    assert_eq!(got, Some(KillReason::LeaderDead { leader: TaskName::new("l").unwrap() }));
}

#[test]
fn sidecars_end_when_no_main_task_lives() {
    let tasks = || vec![task("m", None), task("s", Some((Prestart, true)))];
    let mains_dead = Some(KillReason::MainTasksDead);
    assert_eq!(reason(tasks(), &[("m", DEAD), ("s", RUNNING)]), mains_dead);
    assert_eq!(reason(tasks(), &[("m", RUNNING), ("s", RUNNING)]), None);
    assert_eq!(reason(tasks(), &[("m", PENDING), ("s", RUNNING)]), None);
}

#[test]
fn a_one_shot_poststart_task_still_gets_its_turn_when_the_mains_are_dead() {
    let tasks = vec![task("m", None), task("p", Some((Poststart, false)))];
    assert_eq!(reason(tasks, &[("m", DEAD), ("p", PENDING)]), None);
}

#[test]
fn poststop_tasks_neither_cause_a_kill_nor_keep_one_alive() {
    let tasks = || vec![task("m", None), task("p", Some((Poststop, false)))];
    assert_eq!(reason(tasks(), &[("m", RUNNING), ("p", FAILED)]), None);
    assert_eq!(reason(tasks(), &[("m", FAILED), ("p", RUNNING)]), None);
}

#[test]
fn nothing_is_killed_when_nothing_lives() {
    let tasks = vec![leader("l"), task("a", None)];
    assert_eq!(reason(tasks, &[("l", DEAD), ("a", FAILED)]), None);
}

#[test]
fn a_task_without_a_state_counts_as_alive() {
    let tasks = vec![leader("l"), task("a", None)];
    assert!(reason(tasks, &[("l", DEAD)]).is_some());
}

#[test]
fn the_leader_goes_first_then_the_mains_then_the_sidecars_and_never_poststop() {
    let group = group(vec![
        task("poststop", Some((Poststop, false))),
        task("side-pre", Some((Prestart, true))),
        task("main", None),
        task("pre", Some((Prestart, false))),
        leader("lead"),
        task("side-post", Some((Poststart, true))),
        leader("second"),
        task("post", Some((Poststart, false))),
    ]);
    assert_eq!(
        kill_order(&group),
        names(&[&["lead"], &["main", "pre", "second", "post"], &["side-pre", "side-post"]])
    );
    assert_eq!(poststop_tasks(&group), names(&[&["poststop"]]).concat());
}

#[test]
fn stages_without_tasks_are_left_out() {
    let group = group(vec![task("s", Some((Prestart, true))), task("p", Some((Poststop, true)))]);
    assert_eq!(kill_order(&group), names(&[&["s"]]));
}
