//! One task that Nomad started here.

use std::sync::Arc;

use prost_types::Timestamp as WireTime;
use tokio::sync::{broadcast, watch};

use super::record::{NomadRunRecord, RunIdentities};
use crate::proto::driver as wire;
use ostler_model::clock::Clock;
use ostler_model::limits::NOMAD_EVENTS_MAX;
use ostler_model::ports::{DriverEventSink, TaskContext};
use ostler_model::task::ExitResult;
use ostler_model::time::Timestamp;

/// How a task ended, and when.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskEnd {
    /// The exit as the driver reads it.
    pub result: ExitResult,
    /// When the host saw the end.
    pub at: Timestamp,
}

impl TaskEnd {
    /// The exit in Nomad's format.
    pub(crate) fn to_wire(&self) -> wire::ExitResult {
        wire::ExitResult {
            exit_code: self.result.exit_code,
            signal: i32::try_from(self.result.signal).unwrap_or_default(),
            oom_killed: self.result.oom_killed,
        }
    }
}

/// A task from its start until Nomad destroys it.
pub(crate) struct NomadTask {
    /// The id that Nomad gave the task.
    pub id: String,
    /// The task's name in its group.
    pub name: String,
    /// What the host and the driver know of the task.
    pub context: Arc<TaskContext>,
    /// The record of the task's run.
    pub kept: NomadRunRecord,
    /// Records the processes that the run spawned, and those that it spawns later.
    _spawned: Arc<RunIdentities>,
    ended: watch::Sender<Option<TaskEnd>>,
}

impl NomadTask {
    /// A task that runs.
    pub(crate) fn new(
        (id, name): (String, String),
        context: Arc<TaskContext>,
        kept: NomadRunRecord,
        spawned: Arc<RunIdentities>,
    ) -> Self {
        Self { id, name, context, kept, _spawned: spawned, ended: watch::Sender::new(None) }
    }

    /// Record the end of the task. Only the first end is kept.
    pub(crate) fn end(&self, how: TaskEnd) {
        self.ended.send_if_modified(|ended| {
            let news = ended.is_none();
            ended.get_or_insert(how);
            news
        });
    }

    /// How the task ended; `None` while it runs.
    pub(crate) fn known_end(&self) -> Option<TaskEnd> {
        self.ended.borrow().clone()
    }

    /// Wait for the end of the task.
    pub(crate) async fn wait_end(&self) -> TaskEnd {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(end) = ended.borrow_and_update().clone() {
                return end;
            }
            if ended.changed().await.is_err() {
                // Never reached: the sender lives in this task.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The state of the task, as Nomad inspects it.
    pub(crate) fn status(&self) -> wire::TaskStatus {
        let end = self.known_end();
        let state = match end {
            None => wire::TaskState::Running,
            Some(_) => wire::TaskState::Exited,
        };
        wire::TaskStatus {
            id: self.id.clone(),
            name: self.name.clone(),
            state: state.into(),
            started_at: Some(wire_time(self.kept.started_at)),
            completed_at: end.as_ref().map(|end| wire_time(end.at)),
            result: end.as_ref().map(TaskEnd::to_wire),
        }
    }
}

/// A time in the format of the wire.
pub(crate) fn wire_time(at: Timestamp) -> WireTime {
    const NANOS: u64 = 1_000_000_000;
    WireTime {
        seconds: i64::try_from(at.nanos() / NANOS).unwrap_or(i64::MAX),
        nanos: i32::try_from(at.nanos() % NANOS).unwrap_or_default(),
    }
}

/// Sends the events of tasks to whoever subscribes.
#[derive(Clone)]
pub(crate) struct EventSender(broadcast::Sender<wire::DriverTaskEvent>, Clock);

impl EventSender {
    /// A sender without subscribers.
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(NOMAD_EVENTS_MAX), Clock::system())
    }

    /// Receive the events from here on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<wire::DriverTaskEvent> {
        self.0.subscribe()
    }

    /// The sink for the events of one task.
    pub(crate) fn event_sink(&self, task: &wire::TaskConfig) -> DriverEventSink {
        let (sender, clock) = (self.0.clone(), self.1.clone());
        let (task_id, alloc_id) = (task.id.clone(), task.alloc_id.clone());
        let task_name = task.name.clone();
        Arc::new(move |message, details| {
            // Without a subscriber the event is lost.
            let _heard = sender.send(wire::DriverTaskEvent {
                task_id: task_id.clone(),
                alloc_id: alloc_id.clone(),
                task_name: task_name.clone(),
                timestamp: Some(wire_time(clock.now())),
                message,
                annotations: details.into_iter().collect(),
            });
        })
    }
}
