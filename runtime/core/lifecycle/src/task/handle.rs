//! The record that must survive a crash of the agent, so that the next agent can own
//! the task again.
//!
//! ```text
//!   driver whose starts are held (of a new task that waits for nothing: with its allocation's record):
//!   intent (run id) ─► on its way ──────────────────────────────► durable ─┐
//!          └─► hooks ─► driver.start ─► held, identities collected         ├─► Workloads::release
//!                            └─► handle + identities: lag, kept by a note ─┘    ─► their code runs
//!   any other driver, or a host that keeps no note:
//!   intent ─► durable ─► driver.start ─► handle, workload + identities ─► durable ─► released
//!   a process started later, by a run that was let go: identity ─► durable ─► its code runs
//!   exit ─► what follows ─► durable ─► driver.destroy ─► record without a run ─► durable ─► forget_run
//! ```
//! At any moment of a crash, the record says which run there may be, and the record or the note
//! beside the run's exit says which processes the run may have. There is at most one run per task,
//! so nothing is orphaned and nothing is started twice. A run that was held and not released ends
//! with its agent. A note is not synced, because a crash of the machine ends the run too; the next
//! agent takes an intent of another boot for a run that may have been.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::restart::RestartTracker;
use ostler_model::clock;
use ostler_model::ids::{AllocId, RunId, TaskName};
use ostler_model::limits::STATE_WRITE_WALL_MAX;
use ostler_model::network::DriverNetwork;
use ostler_model::planted::planted;
use ostler_model::ports::{ProcessIdentity, StartedTask};
use ostler_model::task::{DriverHandle, Workload};
use ostler_model::time::Timestamp;
use ostler_state::records::{Record, TaskLocalKey};
use ostler_state::{KeyPrefix, PutOutcome, RecordKey, StateError, StateStore, WriteAhead};

/// How long the identities of a run wait for those of other starts before they are committed alone.
/// Tasks that start together are ready about a millisecond apart.
const STARTS_LINGER: Duration = Duration::from_millis(8);

/// What is recorded of one start of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The id of the run. It is durable before anything of the run can have an effect.
    pub id: RunId,
    /// The processes of the run. Each is durable, or in the note of the run, before it runs
    /// its first instruction.
    pub identities: Vec<ProcessIdentity>,
    /// What the driver answered; it is durable, or in the note, just as early.
    pub started: Option<StartedRecord>,
}

/// What the driver answered to a start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRecord {
    /// The driver's own handle of the run.
    pub handle: DriverHandle,
    /// Who runs the task: a process, a WASM task, or the driver itself.
    pub workload: Workload,
    /// The network that the driver made for the run, where it made one.
    #[serde(default)]
    pub network: Option<Arc<DriverNetwork>>,
}

impl From<StartedTask> for StartedRecord {
    fn from(started: StartedTask) -> Self {
        let StartedTask { handle, workload, network } = started;
        Self { handle, workload, network }
    }
}

/// The private record of a task, under [`RecordKey::TaskLocal`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalState {
    /// The run there may be.
    pub run: Option<RunRecord>,
    /// Restarts used, so that a new agent does not hand out a fresh budget.
    pub tracker: RestartTracker,
    /// The task ended for good and its stop hooks ran.
    pub run_complete: bool,
    /// The next start waits until then (restart delay).
    pub delayed_until: Option<Timestamp>,
}

impl Record for LocalState {
    type Key = TaskLocalKey;
}

/// Why a record was not written.
#[derive(Debug, thiserror::Error)]
pub enum TaskRecordError {
    /// The store refused.
    #[error("the record of task {task} could not be written; look at the data directory")]
    State {
        /// Name of the task whose record was not written.
        task: TaskName,
        /// The error of the store.
        #[source]
        source: Box<StateError>,
    },
    /// The allocation is being removed: nothing of it is written any more.
    #[error("task {task} is not started: its allocation is being removed")]
    Removed {
        /// Name of the task that is not started.
        task: TaskName,
    },
    /// The disk did not answer.
    #[error(
        "the record of task {task} was not written within {STATE_WRITE_WALL_MAX:?}; look at the data directory's disk"
    )]
    TimedOut {
        /// Name of the task whose record was not written.
        task: TaskName,
    },
}

impl TaskRecordError {
    /// The whole chain in one line, for an event.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::State { source, .. } => format!("{self}: {source}"),
            Self::Removed { .. } | Self::TimedOut { .. } => self.to_string(),
        }
    }
}

/// The record of one task, and the store that it is written to. Clones share the record.
#[derive(Clone)]
pub struct LocalRecord {
    alloc: AllocId,
    task: TaskName,
    store: StateStore,
    value: Arc<Mutex<LocalState>>,
    /// Number of steps of starts that were recorded. A plan from before a step does not
    /// hold after it.
    steps: Arc<AtomicU64>,
}

impl LocalRecord {
    /// A record that is not written yet.
    #[must_use]
    pub fn new(alloc: AllocId, task: TaskName, store: StateStore, value: LocalState) -> Self {
        Self { alloc, task, store, value: Arc::new(Mutex::new(value)), steps: Arc::default() }
    }

    /// Change the record; durable when this returns. Changes of one task are written in order.
    ///
    /// # Errors
    /// When the store refuses or does not answer in time. The change stays in memory and goes with
    /// the next one.
    pub async fn update(
        &self,
        change: impl FnOnce(&mut LocalState) + Send,
    ) -> Result<(), TaskRecordError> {
        self.write(WriteTiming::AtOnce, always_write(change)).await
    }

    /// Change the record for a start; durable when this returns.
    ///
    /// # Errors
    /// As [`LocalRecord::update`], and when the allocation is being removed: without a record
    /// nobody would own the started run.
    pub async fn update_for_start(
        &self,
        change: impl FnOnce(&mut LocalState) + Send,
    ) -> Result<(), TaskRecordError> {
        self.write(WriteTiming::Start, always_write(change)).await
    }

    /// Put the intent of a run on its way to the disk; [`RunIntent::wait_durable`] waits for it.
    ///
    /// # Errors
    /// As [`LocalRecord::update_for_start`].
    pub async fn intend(&self, run: RunId) -> Result<RunIntent, TaskRecordError> {
        let write = async {
            let mut value = self.value.lock().await;
            value.run = Some(RunRecord { id: run.clone(), identities: Vec::new(), started: None });
            value.delayed_until = None;
            self.count_step();
            let key = TaskLocalKey::of(self.alloc, self.task.clone());
            self.store.put_ahead(&key, &*value).await
        };
        match await_write(write).await {
            None => Err(TaskRecordError::TimedOut { task: self.task.clone() }),
            Some(Err(source)) => Err(self.store_error(source)),
            Some(Ok(ahead)) => Ok(RunIntent { run, record: self.clone(), ahead }),
        }
    }

    /// As [`LocalRecord::intend`] for a task that is new: the intent goes with the record of its
    /// allocation, in one commit. `None`: the store has no room now, or takes nothing.
    pub(super) fn intend_at_once(&self, run: RunId) -> Option<RunIntent> {
        let mut value = self.value.try_lock().ok()?;
        let known = RunRecord { id: run.clone(), identities: Vec::new(), started: None };
        let next = LocalState { run: Some(known), ..value.clone() };
        let key = TaskLocalKey::of(self.alloc, self.task.clone());
        let ahead = self.store.try_put_ahead(&key, &next).ok()??;
        *value = next;
        self.count_step();
        drop(value);
        Some(RunIntent { run, record: self.clone(), ahead })
    }

    /// How many steps of starts were recorded, for [`LocalRecord::set_plan`].
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::SeqCst)
    }

    /// Count a step of a start. Whoever changes the record for a start calls this.
    pub(super) fn count_step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    /// Take back the intent of a run that was not begun. The write may lag.
    pub async fn take_back(&self, run: Option<&RunId>) {
        let taken = self.write(WriteTiming::Later, |local| {
            let begun = local.run.as_ref().filter(|known| known.started.is_none());
            let taken = begun.is_some_and(|known| run.is_none_or(|run| known.id == *run));
            if taken {
                local.run = None;
            }
            taken
        });
        if let Err(error) = taken.await {
            tracing::warn!(task = %self.task, error = %error.text(), "an intent stays on record");
        }
    }

    /// Change the record for a start; durable when this returns. It shares the commit of other tasks that are
    /// being started, when they come within `STARTS_LINGER`.
    ///
    /// # Errors
    /// As [`LocalRecord::update_for_start`].
    pub async fn update_with_other_starts(
        &self,
        change: impl FnOnce(&mut LocalState) + Send,
    ) -> Result<(), TaskRecordError> {
        self.write(WriteTiming::WithOtherStarts, always_write(change)).await
    }

    /// Change the record; the change may lag, but never behind a later one.
    ///
    /// # Errors
    /// As [`LocalRecord::update`].
    pub async fn update_later(
        &self,
        change: impl FnOnce(&mut LocalState) + Send,
    ) -> Result<(), TaskRecordError> {
        self.write(WriteTiming::Later, always_write(change)).await
    }

    /// Keep the restarts used and when the next start may come. Nothing is written when both are
    /// unchanged, or when a delay is only over: a task that was never restarted gets its first
    /// record with its first run. A delay that was planned before the latest of `steps`, or beside
    /// an intent, is not kept: together with a run it would mean that the run is over.
    ///
    /// # Errors
    /// As [`LocalRecord::update`].
    pub async fn set_plan(
        &self,
        tracker: RestartTracker,
        delayed_until: Option<Timestamp>,
        steps: u64,
    ) -> Result<(), TaskRecordError> {
        self.write(WriteTiming::AtOnce, |local| {
            let counted = std::mem::replace(&mut local.tracker, tracker) != tracker;
            let intended = local.run.as_ref().is_some_and(|run| run.started.is_none());
            let holds = !intended && self.steps() == steps;
            let delayed = holds && delayed_until.is_some() && local.delayed_until != delayed_until;
            if delayed {
                local.delayed_until = delayed_until;
            }
            counted || delayed
        })
        .await
    }

    /// The run on record.
    pub async fn run(&self) -> Option<RunRecord> {
        self.value.lock().await.run.clone()
    }

    /// Change the record, and write it when `change` returns true.
    async fn write(
        &self,
        how: WriteTiming,
        change: impl FnOnce(&mut LocalState) -> bool + Send,
    ) -> Result<(), TaskRecordError> {
        let write = async {
            let mut value = self.value.lock().await;
            if !change(&mut value) {
                return Ok(false);
            }
            let key = TaskLocalKey::of(self.alloc, self.task.clone());
            let put = match how {
                WriteTiming::AtOnce | WriteTiming::Start => self.store.put(&key, &*value).await,
                WriteTiming::WithOtherStarts => {
                    self.store.put_with_expected(&key, &*value, STARTS_LINGER).await
                }
                WriteTiming::Later => self.store.put_later(&key, &*value).await,
            };
            put.map(|put| put == PutOutcome::Destroyed && how.is_start())
        };
        self.check_write(await_write(write).await)
    }

    fn store_error(&self, source: StateError) -> TaskRecordError {
        TaskRecordError::State { task: self.task.clone(), source: Box::new(source) }
    }

    /// The result of a write. `written` is true for a start in an allocation that is being removed.
    fn check_write(
        &self,
        written: Option<Result<bool, StateError>>,
    ) -> Result<(), TaskRecordError> {
        match written {
            None => Err(TaskRecordError::TimedOut { task: self.task.clone() }),
            Some(Err(source)) => Err(self.store_error(source)),
            Some(Ok(true)) => Err(TaskRecordError::Removed { task: self.task.clone() }),
            Some(Ok(false)) => Ok(()),
        }
    }
}

/// The intent of a run, on its way to the disk.
pub struct RunIntent {
    /// The id of the run that is to be started.
    pub run: RunId,
    record: LocalRecord,
    ahead: WriteAhead,
}

impl RunIntent {
    /// Wait until the intent is durable. Everything that was queued before it is durable then too,
    /// such as the allocation itself.
    ///
    /// # Errors
    /// As [`LocalRecord::update_for_start`].
    pub async fn wait_durable(self) -> Result<(), TaskRecordError> {
        if planted("intent-not-durable") {
            return Ok(());
        }
        let written = await_write(self.ahead.wait_durable()).await;
        self.record.check_write(written.map(|put| put.map(|put| put == PutOutcome::Destroyed)))
    }
}

/// When a change of a record is durable.
#[derive(Clone, Copy, Debug)]
enum WriteTiming {
    /// When the write returns.
    AtOnce,
    /// When the write returns; a start depends on it.
    Start,
    /// When the write returns; it shares a commit with other starts.
    WithOtherStarts,
    /// Together with some later write.
    Later,
}

impl WriteTiming {
    /// Does a start depend on the write?
    const fn is_start(self) -> bool {
        matches!(self, Self::Start | Self::WithOtherStarts)
    }
}

/// Make a change that is always written.
fn always_write(
    change: impl FnOnce(&mut LocalState) + Send,
) -> impl FnOnce(&mut LocalState) -> bool + Send {
    |local| {
        change(local);
        true
    }
}

/// Wait for a state write. The wait is bounded; `None`: the disk did not answer in time.
pub(crate) async fn await_write<T>(write: impl Future<Output = T>) -> Option<T> {
    #[cfg(test)]
    let _hold = hold_virtual_time();
    clock::timeout(STATE_WRITE_WALL_MAX, write).await
}

/// The store commits on a thread that tokio's paused clock does not see: without this, virtual time
/// would run on to the bound while the commit is made. Blocking tasks hold the clock.
#[cfg(test)]
fn hold_virtual_time() -> std::sync::mpsc::Sender<()> {
    let (hold, released) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || released.recv());
    hold
}

/// Processes a former agent may have left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverRun {
    /// The allocation of the run.
    pub alloc: AllocId,
    /// The task of the run.
    pub task: TaskName,
    /// The id of the run.
    pub run: RunId,
    /// Processes that may be alive. Compare start time and boot id before touching them.
    pub identities: Vec<ProcessIdentity>,
}

/// The runs that earlier agents may have left, for the start of the agent. A record that cannot be
/// read is logged and skipped: one bad record must not keep the others from being ended.
///
/// # Errors
/// When the state file cannot be read at all.
pub fn find_leftovers(store: &StateStore) -> Result<Vec<LeftoverRun>, StateError> {
    let mut found = Vec::new();
    for record in store.scan(&KeyPrefix::All)? {
        let RecordKey::TaskLocal(alloc, task) = &record.key else {
            continue;
        };
        match record.decode::<LocalState>() {
            Ok(LocalState { run: Some(run), .. }) if !run.identities.is_empty() => {
                found.push(LeftoverRun {
                    alloc: *alloc,
                    task: task.clone(),
                    run: run.id,
                    identities: run.identities,
                });
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%alloc, %task, %error, "task record unreadable, its processes are unknown");
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test]
    async fn a_delay_that_was_planned_before_a_start_does_not_say_that_the_run_is_over() {
        let store = StateStore::in_memory().unwrap();
        let alloc = AllocId::new(ostler_model::rng::Rng::from_seed(1).uuid());
        let task = TaskName::new("t").unwrap();
        let tracker = RestartTracker::new(Timestamp::from_nanos(1));
        let local = LocalState { run: None, tracker, run_complete: false, delayed_until: None };
        let record = LocalRecord::new(alloc, task.clone(), store, local);
        let until = Some(Timestamp::from_nanos(9));
        let before = record.steps();
        record.set_plan(tracker, until, before).await.unwrap();
        assert_eq!(record.value.lock().await.delayed_until, until);
        record.intend(RunId::new(alloc, &task, 1)).await.unwrap();
        // Of the machine that is not told yet that the run is prepared.
        record.set_plan(tracker, until, record.steps()).await.unwrap();
        assert_eq!(record.value.lock().await.delayed_until, None);
        // Of a write that was begun before and took its time.
        record.value.lock().await.run = None;
        record.set_plan(tracker, until, before).await.unwrap();
        assert_eq!(record.value.lock().await.delayed_until, None);
    }

    #[tokio::test]
    async fn what_is_being_removed_is_not_started_without_a_record() {
        let store = StateStore::in_memory().unwrap();
        let alloc = ostler_model::rng::Rng::from_seed(1).uuid();
        let alloc = AllocId::new(alloc);
        let local = LocalState {
            run: None,
            tracker: RestartTracker::new(Timestamp::from_nanos(1)),
            run_complete: false,
            delayed_until: None,
        };
        let task = TaskName::new("t").unwrap();
        let record = LocalRecord::new(alloc, task, store.clone(), local);
        record.update_for_start(|_| {}).await.unwrap();
        store.destroy_alloc(alloc).await.unwrap();
        let started = record.update_for_start(|local| local.delayed_until = None).await;
        assert!(matches!(started, Err(TaskRecordError::Removed { .. })), "{started:?}");
        let released = record.update_with_other_starts(|_| {}).await;
        assert!(matches!(released, Err(TaskRecordError::Removed { .. })), "{released:?}");
        // Its end needs no record.
        record.update(|local| local.run_complete = true).await.unwrap();
    }
}
