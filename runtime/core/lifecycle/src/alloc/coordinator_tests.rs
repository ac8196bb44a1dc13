#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;
use LifecycleHook::{Poststart, Poststop, Prestart};
use ostler_model::job::Task;
use ostler_testing::fixtures;

fn task(name: &str, lifecycle: Option<(LifecycleHook, bool)>) -> Task {
    fixtures::task_at(name, lifecycle).unwrap()
}

fn group(tasks: Vec<Task>) -> TaskGroup {
    fixtures::group("g", tasks).unwrap()
}

fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

fn every_kind() -> TaskGroup {
    group(vec![
        task("pre", Some((Prestart, false))),
        task("pre-side", Some((Prestart, true))),
        task("main", None),
        task("post", Some((Poststart, false))),
        task("post-side", Some((Poststart, true))),
        task("stop", Some((Poststop, false))),
    ])
}

/// The states of a life, changed one by one.
#[derive(Default)]
struct Life(BTreeMap<TaskName, CowArc<TaskState>>);

impl Life {
    fn of(group: &TaskGroup) -> Self {
        Self(group.tasks.iter().map(|t| (t.name.clone(), CowArc::default())).collect())
    }

    fn set(&mut self, task: &str, status: TaskStatus) -> &mut Self {
        self.0.entry(name(task)).or_default().status = status;
        self
    }

    fn fail(&mut self, task: &str) -> &mut Self {
        self.set(task, TaskStatus::Dead).0.get_mut(task).unwrap().failed = true;
        self
    }
}

fn open(coordinator: &Coordinator, group: &TaskGroup) -> Vec<String> {
    let gates = group.tasks.iter().map(|t| &t.name);
    gates.filter(|n| coordinator.gate(n) == TaskGate::Open).map(ToString::to_string).collect()
}

#[test]
fn the_phases_follow_one_another_through_a_whole_life() {
    use TaskStatus::{Dead, Running};
    let group = every_kind();
    let mut life = Life::of(&group);
    let mut c = Coordinator::new(&group);
    assert!(open(&c, &group).is_empty());

    let changes = c.step(&life.0);
    assert_eq!(changes, [(name("pre"), TaskGate::Open), (name("pre-side"), TaskGate::Open)]);
    assert_eq!(c.phase(), TaskPhase::Prestart);

    c.step(&life.set("pre", Running).set("pre-side", Running).0);
    assert_eq!(c.phase(), TaskPhase::Prestart, "the one-shot has not succeeded yet");

    let changes = c.step(&life.set("pre", Dead).0);
    assert_eq!(changes, [(name("main"), TaskGate::Open), (name("pre"), TaskGate::Closed)]);

    c.step(&life.set("main", Running).0);
    assert_eq!(open(&c, &group), ["pre-side", "main", "post", "post-side"]);

    c.step(&life.set("post", Dead).set("post-side", Running).0);
    assert_eq!(c.phase(), TaskPhase::WaitAlloc);
    assert_eq!(open(&c, &group), ["pre-side", "main", "post-side"]);

    c.step(&life.set("main", Dead).set("pre-side", Dead).0);
    assert_eq!(c.phase(), TaskPhase::WaitAlloc, "a sidecar lives");
    c.step(&life.set("post-side", Dead).0);
    assert_eq!(open(&c, &group), ["stop"]);
    assert!(c.step(&life.set("stop", Dead).0).is_empty());
}

#[test]
fn a_failed_prestart_task_keeps_the_mains_closed_and_poststop_opens_when_all_are_dead() {
    let group = every_kind();
    let mut life = Life::of(&group);
    let mut c = Coordinator::new(&group);
    c.step(&life.0);
    c.step(&life.set("pre-side", TaskStatus::Running).fail("pre").0);
    assert_eq!(c.gate(&name("main")), TaskGate::Closed);
    for task in ["pre-side", "main", "post", "post-side"] {
        life.set(task, TaskStatus::Dead);
    }
    c.step(&life.0);
    assert_eq!(open(&c, &group), ["stop"]);
}

#[test]
fn a_sidecar_that_ended_well_does_not_hold_up_the_mains_for_ever() {
    let group = every_kind();
    let mut life = Life::of(&group);
    let mut c = Coordinator::new(&group);
    c.step(&life.0);
    c.step(&life.set("pre", TaskStatus::Dead).set("pre-side", TaskStatus::Dead).0);
    assert_eq!(c.gate(&name("main")), TaskGate::Open);
}

#[test]
fn a_restored_allocation_goes_forward_to_where_it_was() {
    use TaskStatus::{Dead, Running};
    let group = every_kind();
    let mut life = Life::of(&group);
    life.set("pre", Dead).set("pre-side", Running).set("main", Running);
    let mut c = Coordinator::new_restored(&group);
    c.step(&life.0);
    assert_eq!(c.phase(), TaskPhase::Poststart);
    assert_eq!(open(&c, &group), ["pre-side", "main", "post", "post-side"]);

    let mut fresh = Coordinator::new(&group);
    fresh.step(&life.0);
    assert_eq!(fresh.phase(), TaskPhase::Init, "leftovers keep a new life from beginning");
}

#[test]
fn a_restarted_allocation_waits_until_every_task_is_pending_again() {
    let group = group(vec![task("main", None)]);
    let mut life = Life::of(&group);
    let mut c = Coordinator::new(&group);
    c.step(&life.set("main", TaskStatus::Pending).0);
    c.step(&life.set("main", TaskStatus::Running).0);
    assert_eq!(c.reset(), [(name("main"), TaskGate::Closed)]);
    assert!(c.step(&life.0).is_empty());
    assert_eq!(c.step(&life.set("main", TaskStatus::Pending).0), [(name("main"), TaskGate::Open)]);
}

#[test]
fn without_lifecycle_tasks_the_mains_open_at_once() {
    let group = group(vec![task("a", None), task("b", None)]);
    let mut c = Coordinator::new(&group);
    assert_eq!(c.step(&BTreeMap::new()).len(), 2);
    assert_eq!(open(&c, &group), ["a", "b"]);
}

#[test]
fn the_gate_of_a_stranger_is_closed() {
    assert_eq!(Coordinator::new(&every_kind()).gate(&name("stranger")), TaskGate::Closed);
}

fn kinds() -> impl Strategy<Value = Option<(LifecycleHook, bool)>> {
    prop_oneof![
        2 => Just(None),
        1 => prop_oneof![Just(Prestart), Just(Poststart), Just(Poststop)]
            .prop_flat_map(|hook| any::<bool>().prop_map(move |sidecar| Some((hook, sidecar)))),
    ]
}

/// A task moves as runners let it: it starts only through an open gate; it may end, fail or wait
/// to start again at any time; it may be killed at its gate.
fn advance(state: &mut TaskState, gate: TaskGate, choice: u8) {
    match (state.status, choice % 4) {
        (TaskStatus::Pending, 0 | 1) if gate == TaskGate::Open => {
            state.status = TaskStatus::Running
        }
        (TaskStatus::Pending, 3) => state.status = TaskStatus::Dead,
        (TaskStatus::Running, 0) => state.status = TaskStatus::Pending,
        (TaskStatus::Running, 1) => state.status = TaskStatus::Dead,
        (TaskStatus::Running, 2) => {
            state.status = TaskStatus::Dead;
            state.failed = true;
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn on_every_timeline_gates_open_only_when_what_they_wait_for_is_done(
        kinds in prop::collection::vec(kinds(), 1..7),
        moves in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..80),
    ) {
        let tasks: Vec<_> = kinds.iter().enumerate()
            .map(|(i, kind)| task(&format!("t{i}"), *kind)).collect();
        let group = group(tasks);
        let mut life = Life::of(&group);
        let mut c = Coordinator::new(&group);
        c.step(&life.0);
        for (which, choice) in moves {
            let moved = &which.get(&group.tasks).name;
            let gate = c.gate(moved);
            advance(life.0.get_mut(moved).unwrap(), gate, choice);
            let before = c.phase();
            let changes = c.step(&life.0);
            prop_assert!(c.phase() >= before, "a life goes forward");
            for (name, gate) in &changes {
                prop_assert_eq!(c.gate(name), *gate);
            }
            prop_assert!(c.step(&life.0).is_empty(), "a second step with the same states is idle");
            for (name, gate) in changes {
                if gate != TaskGate::Open {
                    continue;
                }
                let opened = group.task(&name).unwrap();
                let of = |hook, sidecar| group.tasks.iter()
                    .filter(move |t| t.lifecycle == Some(Lifecycle { hook, sidecar }))
                    .map(|t| &life.0[&t.name]);
                match opened.lifecycle {
                    None => {
                        prop_assert!(of(Prestart, false).all(|s| s.is_successful()));
                        prop_assert!(of(Prestart, true)
                            .all(|s| s.status == TaskStatus::Running || s.is_successful()));
                    }
                    Some(Lifecycle { hook: Poststop, .. }) => {
                        let others = group.tasks.iter()
                            .filter(|t| t.lifecycle.is_none_or(|l| l.hook != Poststop));
                        for other in others {
                            prop_assert_eq!(life.0[&other.name].status, TaskStatus::Dead);
                        }
                    }
                    Some(Lifecycle { hook: Poststart, .. }) => {
                        let mut mains = group.tasks.iter().filter(|t| t.lifecycle.is_none());
                        prop_assert!(mains.all(|t| life.0[&t.name].status != TaskStatus::Pending));
                    }
                    Some(Lifecycle { hook: Prestart, .. }) => {}
                }
            }
        }
    }

    #[test]
    fn when_every_task_but_poststop_is_dead_poststop_is_open_in_any_phase(
        kinds in prop::collection::vec(kinds(), 1..7),
        restored in any::<bool>(),
    ) {
        let tasks: Vec<_> = kinds.iter().enumerate()
            .map(|(i, kind)| task(&format!("t{i}"), *kind)).collect();
        let group = group(tasks);
        let mut life = Life::of(&group);
        for state in life.0.values_mut() {
            state.status = TaskStatus::Dead;
        }
        let mut c = if restored { Coordinator::new_restored(&group) } else { Coordinator::new(&group) };
        c.step(&life.0);
        prop_assert_eq!(c.phase(), TaskPhase::Poststop);
    }
}
