#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod random;
mod restored;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::*;
use ostler_model::job::{JobKind, LifecycleHook, Task};
use ostler_model::rng::Rng;
use ostler_testing::fixtures;

fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

fn group(delay: Option<Duration>) -> TaskGroup {
    let task = |name| fixtures::task(name).unwrap();
    let tasks = vec![
        fixtures::lifecycle(task("pre"), LifecycleHook::Prestart, false),
        Task { leader: true, ..task("lead") },
        task("main"),
        fixtures::lifecycle(task("side"), LifecycleHook::Prestart, true),
        fixtures::lifecycle(task("last"), LifecycleHook::Poststop, false),
    ];
    let allocation = fixtures::allocation(JobKind::Batch, tasks, &Rng::from_seed(1)).unwrap();
    TaskGroup { shutdown_delay: delay, ..allocation.task_group().unwrap().clone() }
}

fn states(of: &[(&str, TaskStatus)]) -> BTreeMap<TaskName, CowArc<TaskState>> {
    of.iter()
        .map(|(task, status)| {
            (name(task), TaskState { status: *status, ..TaskState::default() }.into())
        })
        .collect()
}

fn all(group: &TaskGroup, status: TaskStatus) -> BTreeMap<TaskName, CowArc<TaskState>> {
    let state = CowArc::from(TaskState { status, ..TaskState::default() });
    group.tasks.iter().map(|t| (t.name.clone(), state.clone())).collect()
}

fn machine(delay: Option<Duration>) -> AllocMachine {
    let group = group(delay);
    let pending = all(&group, TaskStatus::Pending);
    let (machine, first) = AllocMachine::new(group, pending);
    assert_eq!(first, [AllocEffect::PreHooks]);
    machine
}

const NOW: Timestamp = Timestamp::from_nanos(1);

fn stop() -> AllocInput {
    AllocInput::Stop { reason: "enough".to_owned(), skip_shutdown_delay: false }
}

fn inputs(group: &TaskGroup) -> Vec<AllocInput> {
    vec![
        AllocInput::HooksDone,
        AllocInput::HooksFailed { error: "broken".to_owned(), blame: Blame::Alloc },
        AllocInput::Tasks(all(group, TaskStatus::Running)),
        AllocInput::Tasks(all(group, TaskStatus::Dead)),
        AllocInput::TasksGone,
        stop(),
        AllocInput::PreKilled,
        AllocInput::Force {
            status: ClientStatus::Complete,
            description: "long enough".to_owned(),
            event: None,
        },
        AllocInput::RestartAll { reason: "anew".to_owned() },
        AllocInput::RestartReady { ok: true },
        AllocInput::RestartAsked,
        AllocInput::Verdict { healthy: true, reasons: Vec::new() },
        AllocInput::HealthSaved,
        AllocInput::TimerFired,
        AllocInput::Shutdown,
        AllocInput::Cleaned,
        AllocInput::NotSaved,
        AllocInput::Waiting { what: Some("it".to_owned()) },
        AllocInput::Destroy,
        AllocInput::Destroyed,
    ]
}

#[test]
fn the_drawing_lists_the_same_edges_as_the_code() {
    let source = include_str!("../machine.rs");
    let lines = source.lines().skip_while(|l| l.trim() != "//! edges:").skip(1);
    let drawn: BTreeSet<String> = lines
        .take_while(|l| l.contains("->"))
        .flat_map(|line| {
            let (from, to) = line.trim_start_matches("//!").split_once("->").unwrap();
            let from = from.trim().to_owned();
            to.split_whitespace().map(|to| format!("{from} -> {to}")).collect::<Vec<_>>()
        })
        .collect();
    // Breadth first over what a machine may come to.
    let mut found = BTreeSet::new();
    let group = group(None);
    let mut seen = BTreeSet::new();
    let mut open = VecDeque::from([(machine(None), 0)]);
    while let Some((from, depth)) = open.pop_front() {
        for input in inputs(&group) {
            let mut to = from.clone();
            to.step(NOW, input);
            if to.phase() != from.phase() {
                found.insert(format!("{:?} -> {:?}", from.phase(), to.phase()));
            }
            if depth < 6 && seen.insert(format!("{to:?}")) {
                open.push_back((to, depth + 1));
            }
        }
    }
    assert_eq!(found, drawn);
}

fn killed(effects: &[AllocEffect]) -> Vec<Vec<String>> {
    effects
        .iter()
        .filter_map(|e| match e {
            AllocEffect::Kill { tasks, .. } => {
                Some(tasks.iter().map(ToString::to_string).collect())
            }
            _ => None,
        })
        .collect()
}

#[test]
fn a_stop_waits_for_each_stage_before_the_next() {
    use TaskStatus::{Dead, Pending, Running};
    let mut machine = machine(None);
    machine.step(NOW, AllocInput::HooksDone);
    let mut now = states(&[
        ("pre", Dead),
        ("lead", Running),
        ("main", Running),
        ("side", Running),
        ("last", Pending),
    ]);
    machine.step(NOW, AllocInput::Tasks(now.clone()));
    assert_eq!(machine.step(NOW, stop())[0], AllocEffect::PreKillHooks);
    assert_eq!(killed(&machine.step(NOW, AllocInput::PreKilled)), [["lead"]]);
    assert!(killed(&machine.step(NOW, AllocInput::Tasks(now.clone()))).is_empty());
    for (dead, next) in [("lead", Some("main")), ("main", Some("side")), ("side", None)] {
        now.get_mut(&name(dead)).unwrap().status = Dead;
        let kills = killed(&machine.step(NOW, AllocInput::Tasks(now.clone())));
        let expected: Vec<Vec<&str>> = next.map(|n| vec![n]).into_iter().collect();
        assert_eq!(kills, expected);
    }
}

#[test]
fn a_second_stop_ends_the_shutdown_delay() {
    let mut machine = machine(Some(Duration::from_secs(60)));
    machine.step(NOW, AllocInput::HooksDone);
    let group = group(None);
    machine.step(NOW, AllocInput::Tasks(all(&group, TaskStatus::Running)));
    assert!(killed(&machine.step(NOW, stop())).is_empty());
    let first = machine.step(NOW, AllocInput::PreKilled);
    assert!(first.contains(&AllocEffect::Timer(Duration::from_secs(60))), "{first:?}");
    assert!(killed(&first).is_empty());
    assert_eq!(killed(&machine.step(NOW, stop())), [["lead"]]);
}

#[test]
fn gates_stay_closed_when_the_pre_run_hooks_failed() {
    let mut machine = machine(None);
    let effects = machine
        .step(NOW, AllocInput::HooksFailed { error: "broken".to_owned(), blame: Blame::Alloc });
    assert_eq!(killed(&effects)[0].len(), 5, "poststop too");
    assert!(!effects.iter().any(|e| matches!(e, AllocEffect::Gates(_))));
}

#[test]
fn hooks_that_fail_for_want_of_something_of_the_node_are_tried_again() {
    let mut machine = machine(None);
    for pause in [1, 2, 4] {
        let short =
            AllocInput::HooksFailed { error: "no space is left".to_owned(), blame: Blame::Node };
        let effects = machine.step(NOW, short);
        assert!(killed(&effects).is_empty(), "{effects:?}");
        assert!(effects.contains(&AllocEffect::PreHooksAfter(Duration::from_secs(pause))));
    }
    machine.step(NOW, AllocInput::HooksDone);
    assert_eq!(machine.phase(), AllocPhase::Running);
}

#[test]
fn a_stop_does_not_kill_again_what_failed_hooks_killed_already() {
    let mut machine = machine(None);
    let only_poststop_lives = states(&[
        ("pre", TaskStatus::Dead),
        ("lead", TaskStatus::Dead),
        ("main", TaskStatus::Dead),
        ("side", TaskStatus::Dead),
        ("last", TaskStatus::Pending),
    ]);
    machine.step(NOW, AllocInput::Tasks(only_poststop_lives));
    let failed = machine
        .step(NOW, AllocInput::HooksFailed { error: "broken".to_owned(), blame: Blame::Alloc });
    assert_eq!(killed(&failed), [["last"]]);
    assert!(killed(&machine.step(NOW, stop())).is_empty());
}

/// A machine whose tasks run.
fn running() -> AllocMachine {
    let mut machine = machine(None);
    machine.step(NOW, AllocInput::HooksDone);
    machine.step(NOW, AllocInput::Tasks(all(&group(None), TaskStatus::Running)));
    machine
}

fn restarted(effects: &[AllocEffect]) -> bool {
    effects.iter().any(|e| matches!(e, AllocEffect::ForceRestart { .. }))
}

#[test]
fn a_restart_of_all_runs_its_hooks_closes_the_gates_and_begins_anew() {
    use TaskStatus::{Dead, Pending, Running};
    let mut machine = machine(None);
    machine.step(NOW, AllocInput::HooksDone);
    let open = |effects: &[AllocEffect]| -> Vec<String> {
        let changes = effects.iter().flat_map(|e| match e {
            AllocEffect::Gates(changes) => changes.clone(),
            _ => Vec::new(),
        });
        changes.filter(|(_, gate)| *gate == TaskGate::Open).map(|(t, _)| t.to_string()).collect()
    };
    let now =
        [("pre", Dead), ("lead", Running), ("main", Running), ("side", Running), ("last", Pending)];
    machine.step(NOW, AllocInput::Tasks(states(&now)));
    let asked = machine.step(NOW, AllocInput::RestartAll { reason: "anew".to_owned() });
    assert_eq!(asked, [AllocEffect::RestartHooks]);
    assert_eq!(machine.restart_refusal(), Some(RestartRefusal::Restarting));
    let ready = machine.step(NOW, AllocInput::RestartReady { ok: true });
    assert!(restarted(&ready), "{ready:?}");
    assert!(open(&ready).is_empty());
    // Old states, all dead but one: not the end, the tasks have not heard yet.
    let dead =
        states(&[("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Dead), ("last", Dead)]);
    assert!(machine.step(NOW, AllocInput::Tasks(dead)).is_empty());
    machine.step(NOW, AllocInput::Tasks(all(&group(None), Pending)));
    assert_eq!(open(&machine.step(NOW, AllocInput::RestartAsked)), ["pre", "side"]);
    assert_eq!(machine.restart_refusal(), None);
}

#[test]
fn a_restart_of_all_is_refused_once_it_ends_or_has_ended() {
    let mut stopping = running();
    stopping.step(NOW, stop());
    assert_eq!(stopping.restart_refusal(), Some(RestartRefusal::Ending));
    assert!(stopping.step(NOW, AllocInput::RestartAll { reason: String::new() }).is_empty());
    let mut ended = running();
    ended.step(NOW, AllocInput::Tasks(all(&group(None), TaskStatus::Dead)));
    assert_eq!(ended.restart_refusal(), Some(RestartRefusal::Ended));
}

#[test]
fn a_stop_takes_the_place_of_a_restart_whose_hooks_run() {
    let mut machine = running();
    machine.step(NOW, AllocInput::RestartAll { reason: String::new() });
    machine.step(NOW, stop());
    assert!(!restarted(&machine.step(NOW, AllocInput::RestartReady { ok: true })));
}

#[test]
fn a_task_that_a_restart_brings_back_during_a_stop_is_killed_too() {
    use TaskStatus::{Dead, Pending, Running};
    let mut machine = running();
    let one_dead =
        [("pre", Dead), ("lead", Running), ("main", Dead), ("side", Running), ("last", Pending)];
    machine.step(NOW, AllocInput::Tasks(states(&one_dead)));
    machine.step(NOW, AllocInput::RestartAll { reason: String::new() });
    machine.step(NOW, AllocInput::RestartReady { ok: true });
    machine.step(NOW, stop());
    machine.step(NOW, AllocInput::PreKilled);
    let lead_dead =
        [("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Running), ("last", Pending)];
    assert_eq!(killed(&machine.step(NOW, AllocInput::Tasks(states(&lead_dead)))), [["side"]]);
    // The request to run again came through after the states above were read.
    let back =
        [("pre", Pending), ("lead", Dead), ("main", Pending), ("side", Running), ("last", Pending)];
    let kills = killed(&machine.step(NOW, AllocInput::Tasks(states(&back))));
    assert_eq!(kills, [["main", "pre"]]);
}

#[test]
fn nothing_but_poststop_may_start_once_a_stop_is_under_way() {
    use TaskStatus::{Dead, Pending, Running};
    let mut machine = machine(None);
    machine.step(NOW, AllocInput::HooksDone);
    let prestart = [
        ("pre", Running),
        ("lead", Pending),
        ("main", Pending),
        ("side", Running),
        ("last", Pending),
    ];
    machine.step(NOW, AllocInput::Tasks(states(&prestart)));
    let effects = machine.step(NOW, stop());
    let closed = [("pre", TaskGate::Closed), ("side", TaskGate::Closed)].map(|(t, g)| (name(t), g));
    assert!(effects.contains(&AllocEffect::Gates(closed.to_vec())), "{effects:?}");
    machine.step(NOW, AllocInput::PreKilled);
    // A prestart task that was killed did not fail: the coordinator takes it as done.
    let dead =
        [("pre", Dead), ("lead", Dead), ("main", Pending), ("side", Running), ("last", Pending)];
    let effects = machine.step(NOW, AllocInput::Tasks(states(&dead)));
    assert!(!effects.iter().any(|e| matches!(e, AllocEffect::Gates(_))), "{effects:?}");
    let others = [("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Dead), ("last", Pending)];
    let effects = machine.step(NOW, AllocInput::Tasks(states(&others)));
    assert!(
        effects.contains(&AllocEffect::Gates(vec![(name("last"), TaskGate::Open)])),
        "{effects:?}"
    );
}

#[test]
fn a_forced_status_wins_over_the_tasks_and_ends_poststop_tasks_too() {
    let mut machine = running();
    let force = |status, text: &str| AllocInput::Force {
        status,
        description: text.to_owned(),
        event: None,
    };
    machine.step(NOW, force(ClientStatus::Failed, "disk full"));
    machine.step(NOW, AllocInput::PreKilled);
    // The first one stays.
    machine.step(NOW, force(ClientStatus::Complete, "too long"));
    let mut now = all(&group(None), TaskStatus::Dead);
    now.insert(name("last"), CowArc::default());
    assert_eq!(killed(&machine.step(NOW, AllocInput::Tasks(now))), [["last"]]);
    let public = machine.public();
    assert_eq!(public.client_status, ClientStatus::Failed);
    assert_eq!(public.client_description, "disk full");
}

#[test]
fn hooks_before_a_kill_run_once_and_the_tasks_are_told_of_the_end_afterwards() {
    let mut machine = running();
    let dead = AllocInput::Tasks(all(&group(None), TaskStatus::Dead));
    assert!(machine.step(NOW, dead.clone()).contains(&AllocEffect::PreKillHooks));
    assert!(machine.step(NOW, dead).is_empty());
    assert_eq!(machine.step(NOW, AllocInput::PreKilled), [AllocEffect::FinishTasks]);
    assert_eq!(machine.step(NOW, AllocInput::TasksGone), [AllocEffect::PostHooks]);
}

#[test]
fn pre_run_hooks_that_end_after_the_last_task_of_a_restored_one_open_no_gate() {
    use TaskStatus::{Dead, Running};
    let group = group(None);
    let mut tasks = all(&group, Dead);
    tasks.insert(name("lead"), TaskState { status: Running, ..TaskState::default() }.into());
    let known = RecordedAlloc { started: true, ..RecordedAlloc::default() };
    let (mut machine, _) = AllocMachine::restore(NOW, group.clone(), tasks, known);
    machine.step(NOW, AllocInput::Tasks(all(&group, Dead)));
    assert_eq!(machine.step(NOW, AllocInput::PreKilled), [AllocEffect::FinishTasks]);
    assert_eq!(machine.step(NOW, AllocInput::HooksDone), []);
}

#[test]
fn a_stop_while_all_are_told_to_run_again_opens_no_poststop_gate_by_what_was_known_before() {
    let mut machine = running();
    machine.step(NOW, AllocInput::RestartAll { reason: "anew".to_owned() });
    let mut dead = all(&group(None), TaskStatus::Dead);
    dead.insert(name("last"), CowArc::default());
    machine.step(NOW, AllocInput::Tasks(dead.clone()));
    machine.step(NOW, AllocInput::RestartReady { ok: true });
    let gates =
        |effects: &[AllocEffect]| effects.iter().any(|e| matches!(e, AllocEffect::Gates(_)));
    assert!(!gates(&machine.step(NOW, stop())));
    assert!(!gates(&machine.step(NOW, AllocInput::PreKilled)));
    // None of them was started.
    machine.step(NOW, AllocInput::Tasks(dead));
    let effects = machine.step(NOW, AllocInput::RestartAsked);
    assert!(
        effects.contains(&AllocEffect::Gates(vec![(name("last"), TaskGate::Open)])),
        "{effects:?}"
    );
}

#[test]
fn tasks_that_ended_and_were_told_to_finish_while_restart_hooks_ran_are_not_told_to_run_again() {
    let mut machine = running();
    machine.step(NOW, AllocInput::RestartAll { reason: "anew".to_owned() });
    machine.step(NOW, AllocInput::Tasks(all(&group(None), TaskStatus::Dead)));
    assert_eq!(machine.step(NOW, AllocInput::PreKilled), [AllocEffect::FinishTasks]);
    assert_eq!(machine.step(NOW, AllocInput::RestartReady { ok: true }), []);
}

#[test]
fn a_stop_that_skips_delays_ends_those_under_way() {
    let mut machine = machine(Some(Duration::from_secs(60)));
    machine.step(NOW, AllocInput::HooksDone);
    machine.step(NOW, AllocInput::Tasks(all(&group(None), TaskStatus::Running)));
    machine.step(NOW, stop());
    machine.step(NOW, AllocInput::PreKilled);
    machine.step(NOW, AllocInput::TimerFired);
    let skip = AllocInput::Stop { reason: "now".to_owned(), skip_shutdown_delay: true };
    let effects = machine.step(NOW, skip);
    assert!(
        matches!(&effects[..], [AllocEffect::Kill { tasks, skip_shutdown_delay: true, .. }] if *tasks == [name("lead")]),
        "the task in its own delay is told: {effects:?}"
    );
}

#[test]
fn a_verdict_is_told_when_it_is_durable_and_only_the_first_counts() {
    let mut machine = running();
    let verdict = |healthy| AllocInput::Verdict {
        healthy,
        reasons: vec![(name("main"), "restarted".to_owned())],
    };
    let saved = machine.step(NOW, verdict(false));
    assert!(matches!(&saved[..], [AllocEffect::SaveHealth(s)] if s.is_unhealthy()), "{saved:?}");
    assert_eq!(machine.public().health, None);
    assert!(machine.step(NOW, verdict(true)).is_empty());
    let told = machine.step(NOW, AllocInput::HealthSaved);
    assert!(matches!(&told[..], [AllocEffect::Notes(notes)] if notes.len() == 1), "{told:?}");
    assert!(machine.public().health.as_ref().unwrap().is_unhealthy());
    assert!(machine.step(NOW, verdict(true)).is_empty());
}

#[test]
fn a_verdict_counts_for_the_deployment_that_it_was_given_for() {
    let mut machine = running();
    let healthy = || AllocInput::Verdict { healthy: true, reasons: Vec::new() };
    let deployed = |name: &str| AllocInput::Deployed(Some(name.into()));
    machine.step(NOW, deployed("one"));
    machine.step(NOW, healthy());
    machine.step(NOW, AllocInput::HealthSaved);
    machine.step(NOW, deployed("one"));
    assert!(machine.public().health.as_ref().unwrap().is_healthy(), "the same");
    machine.step(NOW, deployed("two"));
    assert_eq!(machine.public().health, None);
    machine.step(NOW, healthy());
    machine.step(NOW, AllocInput::HealthSaved);
    assert_eq!(machine.public().health.clone().unwrap().deployment.as_deref(), Some("two"));
    // One on its way to the disk is told to nobody when it is of no use any more.
    machine.step(NOW, deployed("three"));
    machine.step(NOW, healthy());
    machine.step(NOW, deployed("four"));
    machine.step(NOW, AllocInput::HealthSaved);
    assert_eq!(machine.public().health, None);
}

#[test]
fn an_allocation_that_fails_unjudged_is_judged_and_one_judged_keeps_its_verdict() {
    let judged = TaskGroup { health: Some(Default::default()), ..group(None) };
    for (first, healthy) in [(None, false), (Some(true), true)] {
        let (mut machine, _) = AllocMachine::new(judged.clone(), all(&judged, TaskStatus::Pending));
        machine.step(NOW, AllocInput::HooksDone);
        if let Some(healthy) = first {
            machine.step(NOW, AllocInput::Verdict { healthy, reasons: Vec::new() });
            machine.step(NOW, AllocInput::HealthSaved);
        }
        let mut now = all(&judged, TaskStatus::Running);
        let failed = TaskState { status: TaskStatus::Dead, failed: true, ..TaskState::default() };
        now.insert(name("main"), failed.into());
        machine.step(NOW, AllocInput::Tasks(now));
        machine.step(NOW, AllocInput::PreKilled);
        machine.step(NOW, AllocInput::TasksGone);
        machine.step(NOW, AllocInput::Cleaned);
        if first.is_none() {
            assert_eq!(machine.phase(), AllocPhase::Cleaning, "not told before it is durable");
        }
        machine.step(NOW, AllocInput::HealthSaved);
        assert_eq!(machine.phase(), AllocPhase::Done);
        assert_eq!(machine.public().health.as_ref().unwrap().healthy, Some(healthy));
    }
}

#[test]
fn the_end_of_every_task_of_an_ended_allocation_is_dated_and_stays() {
    let mut machine = running();
    let dead = || AllocInput::Tasks(all(&group(None), TaskStatus::Dead));
    machine.step(Timestamp::from_nanos(7), dead());
    machine.step(Timestamp::from_nanos(9), dead());
    let tasks = &machine.public().tasks;
    assert!(tasks.values().all(|t| t.finished_at == Some(Timestamp::from_nanos(7))));
}

#[test]
fn an_update_changes_the_order_of_a_later_stop_and_runs_no_hooks_once_it_stops() {
    let mut machine = running();
    let mut group = group(None);
    for task in &mut group.tasks {
        task.leader = task.name.as_str() == "main";
    }
    let update = AllocInput::Update { group: Box::new(group), hooks: true };
    assert_eq!(machine.step(NOW, update.clone()), [AllocEffect::UpdateHooks]);
    machine.step(NOW, stop());
    assert_eq!(killed(&machine.step(NOW, AllocInput::PreKilled)), [["main"]]);
    assert!(machine.step(NOW, update).is_empty());
}

#[test]
fn what_a_hook_waits_for_is_shown_while_it_waits() {
    let mut machine = machine(None);
    let waits = "waiting for previous allocation 1".to_owned();
    machine.step(NOW, AllocInput::Waiting { what: Some(waits.clone()) });
    assert_eq!(machine.public().client_description, waits);
    machine.step(NOW, AllocInput::HooksDone);
    assert_eq!(machine.public().client_description, "No tasks have started");
}
