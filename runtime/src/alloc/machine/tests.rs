#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;
use crate::model::job::{JobKind, LifecycleHook, Task};
use crate::rng::Rng;
use crate::testing::fixtures;

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
    let allocation = fixtures::allocation(JobKind::Batch, tasks, &Rng::seeded(1)).unwrap();
    TaskGroup { shutdown_delay: delay, ..allocation.task_group().unwrap().clone() }
}

fn states(of: &[(&str, TaskStatus)]) -> BTreeMap<TaskName, TaskState> {
    of.iter()
        .map(|(task, status)| (name(task), TaskState { status: *status, ..TaskState::default() }))
        .collect()
}

fn all(group: &TaskGroup, status: TaskStatus) -> BTreeMap<TaskName, TaskState> {
    let state = TaskState { status, ..TaskState::default() };
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

fn inputs(group: &TaskGroup) -> Vec<AllocInput> {
    vec![
        AllocInput::HooksDone,
        AllocInput::HooksFailed { error: "broken".to_owned() },
        AllocInput::Tasks(all(group, TaskStatus::Running)),
        AllocInput::Tasks(all(group, TaskStatus::Dead)),
        AllocInput::TasksGone,
        AllocInput::Stop { reason: "enough".to_owned() },
        AllocInput::TimerFired,
        AllocInput::Shutdown,
        AllocInput::Cleaned,
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
    // Breadth first over sequences of inputs; five reach every phase.
    let mut found = BTreeSet::new();
    let group = group(None);
    let mut paths: Vec<Vec<AllocInput>> = vec![Vec::new()];
    for _ in 0..5 {
        let mut longer = Vec::new();
        for path in &paths {
            for input in inputs(&group) {
                let mut machine = machine(None);
                path.iter().for_each(|i| drop(machine.step(NOW, i.clone())));
                let before = machine.phase();
                machine.step(NOW, input.clone());
                if machine.phase() != before {
                    found.insert(format!("{before:?} -> {:?}", machine.phase()));
                    longer.push([path.clone(), vec![input]].concat());
                } else if matches!(input, AllocInput::Destroy) && path.len() < 3 {
                    longer.push([path.clone(), vec![input]].concat());
                }
            }
        }
        paths = longer;
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
    let stop = AllocInput::Stop { reason: "enough".to_owned() };
    assert_eq!(killed(&machine.step(NOW, stop)), [["lead"]]);
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
    let stop = || AllocInput::Stop { reason: "enough".to_owned() };
    let first = machine.step(NOW, stop());
    assert!(first.contains(&AllocEffect::Timer(Duration::from_secs(60))), "{first:?}");
    assert!(killed(&first).is_empty());
    assert_eq!(killed(&machine.step(NOW, stop())), [["lead"]]);
}

#[test]
fn gates_stay_closed_when_the_pre_run_hooks_failed() {
    let mut machine = machine(None);
    let effects = machine.step(NOW, AllocInput::HooksFailed { error: "broken".to_owned() });
    assert_eq!(killed(&effects)[0].len(), 5, "poststop too");
    assert!(!effects.iter().any(|e| matches!(e, AllocEffect::Gates(_))));
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
    let failed = machine.step(NOW, AllocInput::HooksFailed { error: "broken".to_owned() });
    assert_eq!(killed(&failed), [["last"]]);
    let stop = AllocInput::Stop { reason: "enough".to_owned() };
    assert!(killed(&machine.step(NOW, stop)).is_empty());
}

proptest! {
    #[test]
    fn hooks_run_once_each_and_in_order_and_nothing_is_killed_twice_by_one_plan(
        picks in proptest::collection::vec((0..11_usize, 0..243_u32), 1..60),
    ) {
        let group = group(Some(Duration::from_secs(1)));
        let mut machine = machine(Some(Duration::from_secs(1)));
        let mut order = Vec::new();
        let mut kills: BTreeMap<String, usize> = BTreeMap::new();
        // Tasks only ever move on: pending, running, dead.
        let mut at = all(&group, TaskStatus::Pending);
        for (pick, mix) in picks {
            let mut input = inputs(&group).swap_remove(pick);
            if matches!(input, AllocInput::Tasks(_)) {
                for (index, state) in at.values_mut().enumerate() {
                    state.status = match (state.status, mix / 3_u32.pow(u32::try_from(index).unwrap()) % 3) {
                        (TaskStatus::Pending, 1) => TaskStatus::Running,
                        (TaskStatus::Pending | TaskStatus::Running, 2) => TaskStatus::Dead,
                        (same, _) => same,
                    };
                }
                input = AllocInput::Tasks(at.clone());
            }
            let before = machine.phase();
            for effect in machine.step(NOW, input) {
                match &effect {
                    AllocEffect::Kill { tasks, .. } => {
                        prop_assert!(!before.finished(), "kill in {before:?}");
                        for task in tasks {
                            *kills.entry(task.to_string()).or_default() += 1;
                        }
                    }
                    AllocEffect::PostHooks => order.push("post"),
                    AllocEffect::DestroyHooks => order.push("destroy"),
                    AllocEffect::LeaveTasks => order.push("leave"),
                    _ => {}
                }
            }
            prop_assert!(!before.finished() || machine.phase() >= before || before == AllocPhase::Left);
        }
        prop_assert!(
            [&["post", "destroy"][..], &["post"], &["leave"], &[]].contains(&&order[..]),
            "{order:?}"
        );
        prop_assert!(kills.values().all(|count| *count == 1), "{kills:?}");
    }
}
