#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "delay_tests.rs"]
mod delay;
#[path = "leaving_tests.rs"]
mod leaving;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use ostler_model::event::EventKind;
use ostler_model::job::{RestartMode, RestartPolicy};
use ostler_model::task::ExitResult;

const ALL: [MachineState; 20] = [
    MachineState::Gated,
    MachineState::Preparing,
    MachineState::AwaitingDriver,
    MachineState::Starting,
    MachineState::StoppingStart,
    MachineState::Running,
    MachineState::ShutdownDelay,
    MachineState::Stopping,
    MachineState::Killing,
    MachineState::Reaping,
    MachineState::Exited,
    MachineState::Forgetting,
    MachineState::Delaying,
    MachineState::Recovering,
    MachineState::AwaitingRecovery,
    MachineState::Clearing,
    MachineState::Idle,
    MachineState::Ending,
    MachineState::Dead,
    MachineState::Detached,
];

fn rules(attempts: u32, shutdown_delay: Option<Duration>) -> TaskRules {
    TaskRules {
        policy: RestartPolicy {
            attempts,
            interval: Duration::from_secs(60),
            delay: Duration::from_secs(15),
            mode: RestartMode::Fail,
        },
        restart_on_success: false,
        kill_timeout: Duration::from_secs(5),
        shutdown_delay,
        restartable: false,
    }
}

fn at() -> StepContext {
    StepContext { now: Timestamp::from_nanos(1_000), random: 0 }
}

fn kill() -> TaskInput {
    TaskInput::Kill { event: None, reason: "wanted".to_owned(), skip_delay: false }
}

fn inputs() -> Vec<TaskInput> {
    let error = || "broken".to_owned();
    let exit = |exit_code| TaskInput::ExitRead(ExitResult { exit_code, ..ExitResult::default() });
    let failed = events::setup_failure(at().now, "broken");
    vec![
        TaskInput::GateOpened,
        TaskInput::Prepared,
        TaskInput::DriverNotReady { reason: error() },
        TaskInput::NodeNotReady { reason: error() },
        TaskInput::PrepareFailed { event: failed.clone(), recoverable: true },
        TaskInput::PrepareFailed { event: failed, recoverable: false },
        TaskInput::DriverKnown { signals: Signals::None },
        TaskInput::Started,
        TaskInput::StartFailed { error: error(), recoverable: true },
        TaskInput::StartFailed { error: error(), recoverable: false },
        TaskInput::WorkloadEnded,
        exit(0),
        exit(1),
        TaskInput::StopFailed { error: error() },
        TaskInput::KillFailed { error: error() },
        TaskInput::TimerFired,
        kill(),
        TaskInput::Kill { event: None, reason: "wanted".to_owned(), skip_delay: true },
        TaskInput::Restart { reason: "wanted".to_owned(), failure: false },
        TaskInput::ForceRestart { reason: "wanted".to_owned() },
        TaskInput::Finish,
        TaskInput::Forgotten,
        TaskInput::Recovered { ended: false },
        TaskInput::Recovered { ended: true },
        TaskInput::RecoveryNotReady { reason: error(), held: true },
        TaskInput::RecoveryNotReady { reason: error(), held: false },
        TaskInput::NotDurable,
        TaskInput::NeverRan,
        TaskInput::RecoveryFailed { reason: error() },
        TaskInput::Cleared,
        TaskInput::NotCleared,
        TaskInput::Signaled { signal: "SIGHUP".to_owned() },
        TaskInput::Shutdown,
        TaskInput::Ended,
    ]
}

fn drawn(source: &str) -> BTreeSet<String> {
    let lines = source.lines().skip_while(|l| l.trim() != "//! edges:").skip(1);
    lines
        .take_while(|l| l.contains("->"))
        .flat_map(|line| {
            let (from, to) = line.trim_start_matches("//!").split_once("->").unwrap();
            let from = from.trim().to_owned();
            to.split_whitespace().map(|to| format!("{from} -> {to}")).collect::<Vec<_>>()
        })
        .collect()
}

/// Every machine reachable in a few inputs, by what decides about its next step.
fn explore(rules: TaskRules) -> BTreeSet<(MachineState, MachineState)> {
    let mut edges = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut todo = vec![TaskMachine::new(rules, at().now)];
    todo.extend(every_record().into_iter().map(|r| TaskMachine::restore(rules, at().now, r).0));
    while let Some(machine) = todo.pop() {
        for input in inputs() {
            let mut next = machine.clone();
            next.step(at(), input);
            if next.state != machine.state {
                edges.insert((machine.state, next.state));
            }
            let key = (
                next.state,
                format!(
                    "{:?}{}{}{}{}{}{:?}{}{:?}",
                    next.intent,
                    next.finished,
                    next.skip_delay,
                    next.leaving,
                    next.undead,
                    next.timer,
                    next.next,
                    next.watched,
                    next.public.status
                ),
                next.tracker.count().min(3),
            );
            if seen.insert(key) {
                todo.push(next);
            }
        }
    }
    edges
}

#[test]
fn the_drawing_lists_the_same_edges_as_the_code() {
    let mut edges = explore(rules(1, None));
    edges.extend(explore(rules(1, Some(Duration::from_secs(1)))));
    edges.extend(explore(TaskRules { restartable: true, ..rules(1, None) }));
    let found: BTreeSet<String> =
        edges.iter().map(|(from, to)| format!("{from:?} -> {to:?}")).collect();
    assert_eq!(found, drawn(include_str!("../machine.rs")));
    let named: BTreeSet<MachineState> = edges.iter().flat_map(|(a, b)| [*a, *b]).collect();
    assert_eq!(named, ALL.into_iter().collect());
}

/// One record of each kind an earlier agent may have left.
fn every_record() -> Vec<RecordedTask> {
    let mut records = Vec::new();
    for status in [TaskStatus::Pending, TaskStatus::Running, TaskStatus::Dead] {
        for run in [KnownRun::None, KnownRun::Unfinished, KnownRun::Started] {
            for complete in [false, true] {
                for delayed_until in [None, Some(Timestamp::from_nanos(1_000_000))] {
                    let mut state = TaskState { status, ..TaskState::default() };
                    state.push_event(events::received_event(at().now));
                    state.finished_at = (status == TaskStatus::Dead).then_some(at().now);
                    let (state, tracker) = (Some(state), None);
                    records.push(RecordedTask { state, tracker, run, complete, delayed_until });
                }
            }
        }
    }
    records
}

fn kinds(machine: &TaskMachine) -> Vec<&'static str> {
    machine.public().events.iter().map(|e| e.kind.as_str()).collect()
}

fn drive(
    machine: &mut TaskMachine,
    inputs: impl IntoIterator<Item = TaskInput>,
) -> Vec<TaskEffect> {
    inputs.into_iter().flat_map(|input| machine.step(at(), input)).collect()
}

fn to_running(machine: &mut TaskMachine) {
    drive(machine, [TaskInput::GateOpened, TaskInput::Prepared, TaskInput::Started]);
    assert_eq!(machine.state(), MachineState::Running);
}

#[test]
fn a_task_that_ends_well_is_dead_and_not_failed() {
    let mut machine = TaskMachine::new(rules(1, None), at().now);
    to_running(&mut machine);
    drive(
        &mut machine,
        [
            TaskInput::WorkloadEnded,
            TaskInput::ExitRead(ExitResult::default()),
            TaskInput::Forgotten,
            TaskInput::Ended,
        ],
    );
    assert_eq!(machine.state(), MachineState::Dead);
    assert!(machine.public().is_successful());
    assert_eq!(kinds(&machine), ["Received", "Task Setup", "Started", "Terminated"]);
}

#[test]
fn a_kill_while_the_start_is_on_its_way_stops_what_was_started() {
    let mut machine = TaskMachine::new(rules(1, None), at().now);
    drive(&mut machine, [TaskInput::GateOpened, TaskInput::Prepared]);
    assert_eq!(drive(&mut machine, [kill()]), [TaskEffect::Timer(Duration::from_secs(5))]);
    let effects = drive(&mut machine, [TaskInput::Started]);
    assert_eq!(
        effects,
        [
            TaskEffect::CancelTimer,
            TaskEffect::Stop(Duration::from_secs(5)),
            TaskEffect::Timer(Duration::from_secs(5)),
            TaskEffect::Watch,
        ]
    );
}

#[test]
fn a_start_that_never_answers_is_given_up_after_the_kill_timeout() {
    let mut machine = TaskMachine::new(rules(1, None), at().now);
    drive(&mut machine, [TaskInput::GateOpened, TaskInput::Prepared]);
    drive(&mut machine, [kill()]);
    assert_eq!(
        drive(&mut machine, [TaskInput::TimerFired]),
        [TaskEffect::AbandonStart, TaskEffect::End]
    );
    assert_eq!(machine.public().status, TaskStatus::Dead);
}

/// Killed by every means, and it does not end.
fn undead(machine: &mut TaskMachine, asked: TaskInput) -> Vec<TaskEffect> {
    assert_eq!(drive(machine, [asked])[0], TaskEffect::Stop(Duration::from_secs(5)));
    assert_eq!(drive(machine, [TaskInput::TimerFired])[0], TaskEffect::Kill);
    assert_eq!(drive(machine, [TaskInput::TimerFired])[0], TaskEffect::KillRun);
    drive(machine, [TaskInput::TimerFired])
}

#[test]
fn a_kill_escalates_from_stop_to_kill_to_the_host_and_is_not_over_until_the_run_is() {
    let mut machine = TaskMachine::new(rules(1, None), at().now);
    to_running(&mut machine);
    let again = |pause| {
        [TaskEffect::Kill, TaskEffect::KillRun, TaskEffect::Timer(Duration::from_secs(pause))]
    };
    let first = undead(&mut machine, kill());
    assert!(first.contains(&TaskEffect::ReportUndead), "{first:?}");
    for pause in [2, 4, 8, 16, 30, 30] {
        assert_eq!(drive(&mut machine, [TaskInput::TimerFired]), again(pause));
        assert_eq!(machine.public().status, TaskStatus::Running);
    }
    let exit = ExitResult { signal: 9, ..ExitResult::default() };
    drive(&mut machine, [TaskInput::WorkloadEnded, TaskInput::ExitRead(exit)]);
    assert_eq!(machine.public().status, TaskStatus::Dead);
    assert_eq!(machine.public().events.last().unwrap().kind, EventKind::Killed);
}

#[test]
fn a_run_that_does_not_end_gets_no_second_run_beside_it_and_one_when_it_has_ended() {
    let mut machine = TaskMachine::new(rules(5, None), at().now);
    to_running(&mut machine);
    undead(&mut machine, TaskInput::Restart { reason: "wanted".to_owned(), failure: false });
    for _ in 0..20 {
        let effects = drive(&mut machine, [TaskInput::TimerFired]);
        assert!(!effects.contains(&TaskEffect::Start) && !effects.contains(&TaskEffect::Prepare));
    }
    assert_eq!(machine.state(), MachineState::Reaping);
    drive(&mut machine, [TaskInput::WorkloadEnded, TaskInput::ExitRead(ExitResult::default())]);
    drive(&mut machine, [TaskInput::Forgotten]);
    assert_eq!(machine.state(), MachineState::Delaying);
    assert!(!machine.public().failed);
}

#[test]
fn what_is_left_of_a_lost_run_is_ended_before_the_task_counts_as_dead_or_is_started_again() {
    for (asked, attempts, after) in [
        (Some(kill()), 5, MachineState::Ending),
        (None, 5, MachineState::Gated),
        (None, 0, MachineState::Ending),
    ] {
        let state = TaskState { status: TaskStatus::Running, ..TaskState::default() };
        let run = KnownRun::Started;
        let found = RecordedTask {
            state: Some(state),
            tracker: None,
            run,
            complete: false,
            delayed_until: None,
        };
        let (mut machine, _) = TaskMachine::restore(rules(attempts, None), at().now, found);
        let gone = TaskInput::RecoveryFailed { reason: "gone".to_owned() };
        drive(&mut machine, asked.into_iter().chain([gone]));
        for _ in 0..3 {
            assert_eq!(machine.state(), MachineState::Clearing);
            drive(&mut machine, [TaskInput::NotCleared]);
            assert_eq!(machine.public().status, TaskStatus::Running);
            assert_eq!(drive(&mut machine, [TaskInput::TimerFired]), [TaskEffect::Clear]);
        }
        drive(&mut machine, [TaskInput::Cleared]);
        assert_eq!(machine.state(), after);
        assert_ne!(machine.public().status, TaskStatus::Running);
    }
}

#[test]
fn a_restart_that_was_decided_waits_for_what_is_left_of_the_run_before() {
    let state = TaskState { status: TaskStatus::Running, ..TaskState::default() };
    let delayed_until = Some(at().now.plus(Duration::from_secs(10)));
    let (state, run) = (Some(state), KnownRun::Started);
    let found = RecordedTask { state, tracker: None, run, complete: false, delayed_until };
    let (mut machine, first) = TaskMachine::restore(rules(5, None), at().now, found);
    assert_eq!(first, [TaskEffect::Clear]);
    drive(&mut machine, [TaskInput::NotCleared, TaskInput::TimerFired]);
    assert_eq!(machine.public().status, TaskStatus::Running);
    drive(&mut machine, [TaskInput::Cleared]);
    assert_eq!(
        (machine.state(), machine.public().status),
        (MachineState::Delaying, TaskStatus::Pending)
    );
}

#[test]
fn a_kill_during_a_restart_ends_the_task() {
    let mut machine = TaskMachine::new(rules(5, None), at().now);
    to_running(&mut machine);
    drive(
        &mut machine,
        [
            TaskInput::Restart { reason: "wanted".to_owned(), failure: false },
            kill(),
            TaskInput::WorkloadEnded,
            TaskInput::ExitRead(ExitResult::default()),
            TaskInput::Forgotten,
        ],
    );
    assert_eq!(machine.state(), MachineState::Ending);
}

#[test]
fn a_task_that_had_ended_by_itself_is_not_shown_as_killed() {
    let mut machine = TaskMachine::new(rules(5, None), at().now);
    to_running(&mut machine);
    drive(
        &mut machine,
        [TaskInput::WorkloadEnded, kill(), TaskInput::ExitRead(ExitResult::default())],
    );
    assert!(!kinds(&machine).contains(&"Killed"));
    assert!(!kinds(&machine).contains(&"Killing"));
    assert!(machine.public().is_successful());
}

/// What the outside world looks like to the effects: at most one of each thing at a time.
#[derive(Default)]
struct World {
    preparing: bool,
    starting: bool,
    run: bool,
    watched: bool,
    exited: bool,
    forgetting: bool,
    recovering: bool,
    clearing: bool,
    timer: bool,
    ended: bool,
    left: bool,
}

impl World {
    /// Something of a run may be there.
    fn busy(&self) -> bool {
        self.preparing
            || self.starting
            || self.run
            || self.exited
            || self.forgetting
            || self.recovering
            || self.clearing
    }

    fn apply(&mut self, effect: &TaskEffect) {
        assert!(!self.ended && !self.left, "{effect:?} after the end");
        match effect {
            TaskEffect::Prepare => {
                assert!(!self.busy());
                self.preparing = true;
            }
            TaskEffect::AbandonPrepare => assert!(std::mem::take(&mut self.preparing)),
            TaskEffect::Start => {
                assert!(!self.busy(), "two runs alive");
                self.starting = true;
            }
            TaskEffect::AbandonStart => assert!(std::mem::take(&mut self.starting)),
            TaskEffect::Watch => {
                assert!(self.run && !self.watched);
                self.watched = true;
            }
            TaskEffect::Stop(_) | TaskEffect::Kill | TaskEffect::KillRun => assert!(self.run),
            TaskEffect::ReportUndead => {}
            TaskEffect::ReadExit => {
                assert!(std::mem::take(&mut self.run));
                self.watched = false;
                self.exited = true;
            }
            TaskEffect::Forget => {
                assert!(!self.run && !self.exited);
                self.forgetting = true;
            }
            TaskEffect::Recover => {
                assert!(!self.recovering);
                self.recovering = true;
            }
            TaskEffect::AbandonRecover => assert!(std::mem::take(&mut self.recovering)),
            TaskEffect::Clear => {
                self.run = false;
                self.clearing = true;
            }
            TaskEffect::Timer(_) => self.timer = true,
            TaskEffect::CancelTimer => assert!(std::mem::take(&mut self.timer)),
            TaskEffect::End => {
                assert!(!self.busy());
                self.ended = true;
            }
            TaskEffect::Leave => self.left = true,
        }
    }

    /// Can this input come from such a world?
    fn possible(&self, input: &TaskInput) -> bool {
        match input {
            TaskInput::Prepared
            | TaskInput::DriverNotReady { .. }
            | TaskInput::NodeNotReady { .. }
            | TaskInput::PrepareFailed { .. } => self.preparing,
            TaskInput::Started | TaskInput::StartFailed { .. } => self.starting,
            TaskInput::WorkloadEnded => self.run && self.watched,
            TaskInput::Forgotten => self.forgetting,
            TaskInput::Cleared | TaskInput::NotCleared => self.clearing && !self.timer,
            TaskInput::Recovered { .. } | TaskInput::RecoveryNotReady { held: true, .. } => {
                self.recovering && self.run
            }
            TaskInput::NeverRan => self.recovering || self.exited,
            TaskInput::RecoveryNotReady { .. } | TaskInput::RecoveryFailed { .. } => {
                self.recovering
            }
            TaskInput::ExitRead(_) => self.exited,
            TaskInput::TimerFired => self.timer,
            TaskInput::Ended => self.ended,
            // Late answers of calls nobody waits for, and requests, come at any time.
            _ => true,
        }
    }

    fn happen(&mut self, input: &TaskInput) {
        match input {
            TaskInput::Prepared
            | TaskInput::DriverNotReady { .. }
            | TaskInput::NodeNotReady { .. }
            | TaskInput::PrepareFailed { .. } => self.preparing = false,
            TaskInput::Started => (self.starting, self.run) = (false, true),
            TaskInput::StartFailed { .. } => self.starting = false,
            TaskInput::Forgotten => self.forgetting = false,
            TaskInput::Cleared => self.clearing = false,
            TaskInput::NeverRan => (self.recovering, self.exited) = (false, false),
            TaskInput::Recovered { .. }
            | TaskInput::RecoveryNotReady { .. }
            | TaskInput::RecoveryFailed { .. } => self.recovering = false,
            TaskInput::ExitRead(_) => self.exited = false,
            TaskInput::TimerFired => self.timer = false,
            _ => {}
        }
    }
}

/// A new task, or one of an earlier agent.
fn begin(rules: TaskRules, record: Option<usize>) -> (TaskMachine, World) {
    let mut world = World::default();
    let Some(record) = record.map(|number| every_record().swap_remove(number)) else {
        return (TaskMachine::new(rules, at().now), world);
    };
    world.run = record.run == KnownRun::Started;
    let (machine, first) = TaskMachine::restore(rules, at().now, record);
    first.iter().for_each(|effect| world.apply(effect));
    world.ended |= machine.state() == MachineState::Dead;
    (machine, world)
}

proptest! {
    #[test]
    fn never_two_runs_dead_is_final_and_every_effect_is_legal(
        picks in proptest::collection::vec((0..inputs().len(), 0..40_u64), 1..120),
        delay in any::<bool>(),
        restartable in any::<bool>(),
        record in proptest::option::of(0..every_record().len()),
        attempts in 0..4_u32,
    ) {
        let delay = delay.then_some(Duration::from_secs(1));
        let rules = TaskRules { restartable, ..rules(attempts, delay) };
        let (mut machine, mut world) = begin(rules, record);
        let mut now = Timestamp::from_nanos(1_000);
        let mut failed = false;
        for (pick, seconds) in picks {
            let input = inputs().swap_remove(pick);
            if !world.possible(&input) {
                continue;
            }
            let (before, asked) = (machine.state(), machine.next == Some(AfterRun::Revive));
            let public = machine.public().clone();
            now = now.plus(Duration::from_secs(seconds));
            world.happen(&input);
            for effect in machine.step(StepContext { now, random: seconds }, input) {
                world.apply(&effect);
            }
            if matches!(before, MachineState::Dead | MachineState::Detached) {
                prop_assert_eq!(machine.state(), before);
                prop_assert_eq!(machine.public(), &public);
            }
            // Asked for while it was dead, or before its last run was forgotten.
            let revived = before == MachineState::Idle && machine.state() == MachineState::Gated
                || asked && matches!(machine.state(), MachineState::Gated | MachineState::Detached);
            prop_assert!(
                public.status != TaskStatus::Dead
                    || machine.public().status == TaskStatus::Dead
                    || revived
            );
            prop_assert!(!failed || machine.public().failed || revived, "failed is sticky");
            failed = machine.public().failed;
            prop_assert_eq!(machine.public().status == TaskStatus::Dead, machine.public().finished_at.is_some());
            let restoring = matches!(
                machine.state(),
                MachineState::Recovering | MachineState::AwaitingRecovery | MachineState::Clearing
            );
            if !restoring && machine.state() != MachineState::Detached && machine.state() != MachineState::Reaping {
                prop_assert_eq!(
                    machine.public().status == TaskStatus::Running,
                    world.run || world.exited
                );
            }
        }
    }

    #[test]
    fn a_killed_task_is_dead_after_at_most_five_timers(
        picks in proptest::collection::vec(0..inputs().len(), 0..60),
        record in proptest::option::of(0..every_record().len()),
    ) {
        let (mut machine, mut world) = begin(rules(3, Some(Duration::from_secs(1))), record);
        for pick in picks {
            let input = inputs().swap_remove(pick);
            if world.possible(&input) && input != TaskInput::Shutdown {
                world.happen(&input);
                machine.step(at(), input).iter().for_each(|e| world.apply(e));
            }
        }
        machine.step(at(), kill());
        for _ in 0..5 {
            machine.step(at(), TaskInput::TimerFired);
        }
        // Only the bounded calls of the runner are left: reading the exit, stop hooks.
        machine.step(at(), TaskInput::Recovered { ended: true });
        machine.step(at(), TaskInput::WorkloadEnded);
        machine.step(at(), TaskInput::ExitRead(ExitResult::default()));
        machine.step(at(), TaskInput::Forgotten);
        machine.step(at(), TaskInput::Cleared);
        machine.step(at(), TaskInput::Ended);
        prop_assert_eq!(machine.state(), MachineState::Dead);
    }
}
