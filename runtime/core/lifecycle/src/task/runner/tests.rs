//! One task, its owner and the owners after it, on a scripted node and virtual time.
//!
//! The ledger of `nomad-client.md` §1.14 and the defects of its §11, as far as one task goes; the
//! test that would see each, here unless a module is named:
//!
//! | item | what went wrong | here |
//! |---|---|---|
//! | A1 | restored dead tasks were started again | `truth::a_task_of_an_earlier_agent_ends_up_where_it_belongs` (dead rows), `force::a_task_that_waited_dead_is_still_dead_after_a_restart_of_the_agent_and_can_be_started` |
//! | A2 | completed tasks ran again | `truth::…` (dead rows), `crash::whatever_the_moment_of_a_crash_…` |
//! | A5 | a failed recovery was taken for a good one | `truth::…` (stale): a new run, never the old one shown as running |
//! | A9 | absent state of an older version crashed the restore | `truth::a_task_with_nothing_recorded_is_a_new_one` |
//! | A10 | a recovered task lacked what its start had allocated | `replay::…`: everything a run needs is made anew by hooks for each run; there is no pool in memory |
//! | A15, L2 | a hook was marked done and its effect lost | `replay::a_restart_after_a_recovery_gives_the_driver_what_the_first_start_gave_it` |
//! | A17 | after a reboot, hooks thought they were done | `truth::…` (rebooted): hooks run before each run, there is no mark |
//! | A18 | a reused pid was taken for the task | `host::process::tests`: identities carry start time and boot id; here `truth::…` (rebooted, unknown) touch nothing |
//! | B21 | a failing prerun left the task pending for ever | `alloc::runner::tests::hooks`; of a task: `task::machine::tests` (`PrepareFailed`) |
//! | B22 | a request on an ended task ran it again | `force::a_task_that_is_over_takes_no_request` |
//! | B25 | started although killed during prestart | `force::a_kill_while_the_hooks_run_starts_nothing` |
//! | B26 | a dead task's live handle was not cleaned at restart | `truth::…` (dead rows: nothing lives) |
//! | B27 | a finished task was shown as killed | `truth::…` (ended, killed), `machine::tests::a_task_that_had_ended_by_itself_is_not_shown_as_killed` |
//! | B30 | a restart between runs killed the task | `force::…` (delaying, exited): requests are inputs of one machine, there is no channel of a run to race with |
//! | B31 | a call with no handle crashed | `force::a_task_that_does_not_run_says_so_to_signals_and_restarts` |
//! | D39 | attempts off by one, zero timers | `task::restart::tests`; over a restart: `delay::…` |
//! | D40 | recoverable start errors were not retried | `alloc::runner::tests::faults` |
//! | L8 | "not found" became opaque, kills were retried for minutes | errors are typed: `task::calls::end_after_error`, `polled::…`; `update::a_kill_is_over_in_bounded_time_when_the_driver_never_answers_but_not_before_the_task` |
//! | L17 | restart budget not persisted | `delay::a_restart_of_the_agent_gives_no_fresh_attempts` |
//! | L25 | crash between start and record | `crash::…`: processes are held until the record is durable |
//! | L29 | `pending` during shutdown_delay | `update::a_task_reads_running_while_its_kill_waits` |
//! | L30 | a driver call without deadline | `update::a_kill_is_over_in_bounded_time_…` |
//! | L32 | a driver not ready at restore failed the task | `truth::…` (missing, broken), `truth::a_driver_that_comes_back_has_its_run_again_without_a_restart` |
//! | L31 | a reserve without reservation crashed | cannot be said: `reserve` answers a `Reservation` or an error |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod artifacts;
mod crash;
mod deadlines;
mod delay;
mod exits;
mod force;
mod notes;
mod polled;
mod refused;
mod replay;
mod templates;
mod truth;
mod update;

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::alloc::dir::AllocDir;
use crate::context::NodeContext;
use crate::task::handle::{LocalState, RunRecord, StartedRecord, await_write};
use crate::task::late_dirs::LateDirs;
use crate::task::{KillRequest, LogSlot, RestoredTask, TaskHandle};
use ostler_model::clock::{self, Clock};
use ostler_model::ids::{RunId, TaskName};
use ostler_model::job::{JobKind, Task};
use ostler_model::rng::Rng;
use ostler_model::task::{DriverHandle, Workload};
use ostler_model::time::Timestamp;
use ostler_state::mem_store::MemBackend;
use ostler_state::records::{TaskLocalKey, TaskStateKey};
use ostler_state::{Backend, StateStore};
use ostler_testing::fake_driver::{FakeNode, Script};
use ostler_testing::fixtures;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A node, a disk, a clock: everything a task needs, for one agent after the other.
pub(super) struct Bench {
    pub node: FakeNode,
    pub disk: Arc<MemBackend>,
    pub store: StateStore,
    pub clock: Clock,
    pub gate: watch::Publisher<TaskGate>,
    pub allocation: Arc<Allocation>,
    pub restartable: bool,
    root: Arc<tempfile::TempDir>,
    rng: Rng,
}

impl Bench {
    /// Of a batch job with one task `web`.
    pub fn new(task: Task) -> Self {
        Self::of(JobKind::Batch, task)
    }

    pub fn of(kind: JobKind, task: Task) -> Self {
        let disk = Arc::new(MemBackend::default());
        let store = store(Arc::clone(&disk) as _);
        let allocation = fixtures::allocation(kind, vec![task], &Rng::from_seed(7)).unwrap();
        let root = tempfile::tempdir().unwrap();
        AllocDir::create(root.path(), allocation.id).unwrap();
        Self {
            node: FakeNode::new(),
            disk,
            store,
            clock: Clock::fixed(Timestamp::from_nanos(1_000_000_000)),
            gate: watch::Publisher::new(TaskGate::Open),
            allocation: Arc::new(allocation),
            restartable: false,
            root: Arc::new(root),
            rng: Rng::from_seed(1),
        }
    }

    /// The same node, disk and time under another allocation's copy.
    pub fn changed(&self, change: impl FnOnce(&mut Task), index: u64) -> Arc<Allocation> {
        let mut allocation = (*self.allocation).clone();
        let mut job = (*allocation.job).clone();
        change(&mut job.groups[0].tasks[0]);
        allocation.job = Arc::new(job);
        allocation.modify_index = index;
        Arc::new(allocation)
    }

    pub fn context(&self) -> NodeContext {
        let (root, store) = (self.root.path(), self.store.clone());
        let context = NodeContext::with_doubles(root, &self.node, store, self.clock.clone());
        NodeContext { rng: self.rng.clone(), ..context }
    }

    pub fn scope(&self) -> TaskScope {
        self.scope_on(self.context())
    }

    pub fn scope_on(&self, node: NodeContext) -> TaskScope {
        let task = self.allocation.job.groups[0].tasks[0].clone();
        TaskScope {
            dirs: LateDirs::new(&node, self.allocation.id, &task, false),
            node: Arc::new(node),
            context: Arc::default(),
            allocation: Arc::clone(&self.allocation),
            task,
            fetched: Default::default(),
            logs: LogSlot::new(watch::Publisher::new(0)),
            made: Arc::default(),
            at_once: false,
            restartable: self.restartable,
        }
    }

    pub fn spawn(&self) -> TaskHandle {
        TaskHandle::spawn(self.scope(), self.gate.subscribe(), Arc::default())
    }

    pub fn restore(&self, restored: RestoredTask) -> TaskHandle {
        TaskHandle::restore(self.scope(), self.gate.subscribe(), Arc::default(), restored)
    }

    /// What is durable of the task, completed by the note of its run.
    pub fn recorded(&self) -> RestoredTask {
        let (id, task) = (self.allocation.id, name("web"));
        let mut local: Option<LocalState> =
            self.store.get(&TaskLocalKey::of(id, task.clone())).unwrap();
        let run = local.as_mut().and_then(|local| local.run.as_mut());
        if let Some(run) = run.filter(|run| run.started.is_none())
            && let Some(note) = self.node.noted(&run.id)
        {
            *run = serde_json::from_value(note.record).unwrap();
        }
        RestoredTask { state: self.store.get(&TaskStateKey::of(id, task)).unwrap(), local }
    }

    /// The agent leaves in order, another one comes.
    pub async fn next_agent(&mut self, handle: &TaskHandle) -> TaskHandle {
        handle.shutdown().await;
        handle.wait_gone().await;
        self.reopen();
        self.restore(self.recorded())
    }

    /// The agent's process is gone; its store has what was durable.
    pub fn reopen(&mut self) {
        self.node.agent_died();
        self.store = store(Arc::clone(&self.disk) as _);
    }

    /// Let time pass, on both clocks.
    pub async fn pass(&self, time: Duration) {
        // What is due now is done first, also by an owner whose write is in the file and who has not
        // heard of it yet: it hears before a later write is told, and virtual time moves only when
        // nobody has anything left to do.
        let _refused = await_write(self.store.flush()).await;
        let last = Duration::from_millis(1);
        clock::sleep(last).await;
        self.clock.advance(time);
        clock::sleep(time.saturating_sub(last)).await;
    }

    pub fn run_id(&self) -> RunId {
        RunId::new(self.allocation.id, &name("web"), 0xabcd)
    }

    /// How often something was called.
    pub fn count(&self, what: &str) -> usize {
        self.node.calls().iter().filter(|call| *call == what).count()
    }
}

pub(super) fn store(backend: Arc<dyn Backend>) -> StateStore {
    StateStore::with_backend(Path::new("(test)"), backend).unwrap()
}

pub(super) fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

pub(super) fn web() -> Task {
    fixtures::task("web").unwrap()
}

/// A process with a pid, so that the host can own it again.
pub(super) fn native(script: Script) -> Script {
    Script { pid: Some(77), ..script }
}

/// Wait until the task looks like this.
pub(super) async fn until(
    handle: &TaskHandle,
    like: impl Fn(&TaskState) -> bool,
) -> CowArc<TaskState> {
    let mut state = handle.watch();
    let found = clock::timeout(Duration::from_secs(86_400), state.wait_for(|s| like(s))).await;
    match found {
        Some(found) => found.unwrap().clone(),
        None => panic!("the state never came: {:?}", handle.state()),
    }
}

pub(super) async fn until_running(handle: &TaskHandle) -> CowArc<TaskState> {
    until(handle, |s| s.status == TaskStatus::Running).await
}

pub(super) fn kinds(state: &TaskState) -> Vec<&'static str> {
    state.events.iter().map(|e| e.kind.as_str()).collect()
}

pub(super) fn has(state: &TaskState, kind: &str) -> bool {
    kinds(state).contains(&kind)
}

/// A kill without further words.
pub(super) fn kill(skip_shutdown_delay: bool) -> KillRequest {
    KillRequest { event: None, reason: "wanted".to_owned(), skip_shutdown_delay }
}
