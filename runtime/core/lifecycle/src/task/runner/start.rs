//! Starts the owner of a new task, or of one of an earlier agent.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::calls::{TaskRun, new_id};
use super::super::handle::{LocalRecord, LocalState, RunIntent};
use super::super::machine::{KnownRun, RecordedTask, TaskEffect, TaskMachine, TaskRules};
use super::super::{PresentRun, RestoredTask, TaskHandle, TaskScope};
use super::save::LastingState;
use super::{GoneGuard, TaskInbox, TaskRunner};
use crate::alloc::coordinator::TaskGate;
use crate::kinds::CallKinds;
use crate::queue;
use crate::watch;
use ostler_model::limits::{DRIVER_EVENTS_QUEUE_MAX, RUNNER_QUEUE_MAX};

/// Start the owner of a new task.
pub(in super::super) fn spawn(
    scope: TaskScope,
    gate: watch::Subscriber<TaskGate>,
    tick: Arc<Notify>,
) -> TaskHandle {
    let machine = TaskMachine::new(rules(&scope), scope.node.clock.now());
    let local = LocalState {
        run: None,
        tracker: machine.tracker(),
        run_complete: false,
        delayed_until: None,
    };
    let new = NewOwner { machine, first: Vec::new(), local, run: None, known: None, new: true };
    start(scope, gate, tick, new)
}

/// Start the owner of a task an earlier agent had.
pub(in super::super) fn restore(
    scope: TaskScope,
    gate: watch::Subscriber<TaskGate>,
    tick: Arc<Notify>,
    restored: RestoredTask,
) -> TaskHandle {
    let RestoredTask { state, local } = restored;
    let record = local.as_ref().and_then(|local| local.run.clone());
    let known = match &record {
        None => KnownRun::None,
        Some(run) if run.started.is_some() => KnownRun::Started,
        Some(_) => KnownRun::Unfinished,
    };
    let lasting = state.as_ref().map(LastingState::from_state);
    let what = RecordedTask {
        state,
        tracker: local.as_ref().map(|local| local.tracker),
        run: known,
        complete: local.as_ref().is_some_and(|local| local.run_complete),
        delayed_until: local.as_ref().and_then(|local| local.delayed_until),
    };
    let (machine, first) = TaskMachine::restore(rules(&scope), scope.node.clock.now(), what);
    let local = local.unwrap_or_else(|| LocalState {
        run: None,
        tracker: machine.tracker(),
        run_complete: false,
        delayed_until: None,
    });
    let run = record.map(|record| Arc::new(TaskRun::from_record(record)));
    start(scope, gate, tick, NewOwner { machine, first, local, run, known: lasting, new: false })
}

fn rules(scope: &TaskScope) -> TaskRules {
    let kind = scope.allocation.job.kind;
    TaskRules::from_task(&scope.task, kind, scope.node.kill_timeout_max, scope.restartable)
}

/// What a new owner of a task begins with.
struct NewOwner {
    machine: TaskMachine,
    first: Vec<TaskEffect>,
    local: LocalState,
    run: Option<Arc<TaskRun>>,
    known: Option<LastingState>,
    new: bool,
}

/// Send the intent of the first run to the store together with the record of the allocation. This
/// is for a task that waits for nothing but its directories, and for a driver that holds its
/// starts, so that a crash before the start leaves nothing behind.
fn intend(scope: &TaskScope, record: &LocalRecord) -> Option<RunIntent> {
    let driver = scope.node.drivers.dispense(&scope.task.driver).ok()?;
    let held = scope.at_once && driver.holds_starts();
    held.then(|| record.intend_at_once(new_id(scope))).flatten()
}

fn start(
    scope: TaskScope,
    gate: watch::Subscriber<TaskGate>,
    tick: Arc<Notify>,
    new: NewOwner,
) -> TaskHandle {
    let NewOwner { machine, first, local, run, known, new } = new;
    let (requests, inbox) = queue::channel(RUNNER_QUEUE_MAX);
    let (notes, notes_inbox) = queue::channel(DRIVER_EVENTS_QUEUE_MAX);
    let (published, state) = watch::channel(machine.public().clone());
    let gone = CancellationToken::new();
    let task = scope.task.name.clone();
    let logs = scope.logs.clone();
    let newest = watch::Publisher::new(Arc::clone(&scope.allocation));
    let newer = newest.subscribe();
    let present = PresentRun::default();
    let workloads = Arc::clone(&scope.node.workloads);
    let record =
        LocalRecord::new(scope.allocation.id, task.clone(), scope.node.state.clone(), local);
    let intent = new.then(|| intend(&scope, &record)).flatten();
    let runner = Box::new(TaskRunner {
        scope: Arc::new(scope),
        machine,
        record,
        number: 0,
        intent,
        preparation: None,
        run,
        calls: JoinSet::new(),
        kinds: CallKinds::default(),
        timer: None,
        notes,
        published,
        tick,
        writing: false,
        dirty: true,
        forget_due: false,
        refused: false,
        closing: CancellationToken::new(),
        present: Arc::clone(&present),
        followed: None,
        lasting: known.unwrap_or_default(),
        heard: false,
    });
    let gone_guard = GoneGuard { gone: gone.clone(), tick: Arc::clone(&runner.tick) };
    let inbox = TaskInbox { requests: inbox, gate, notes: notes_inbox, newest: newer };
    let owner = tokio::spawn(async move {
        runner.run_owner(first, inbox).await;
        drop(gone_guard);
    });
    #[cfg(not(test))]
    drop(owner);
    TaskHandle {
        task,
        requests,
        newest,
        state,
        logs,
        gone,
        present,
        workloads,
        #[cfg(test)]
        owner: owner.abort_handle(),
    }
}
