//! One task that Nomad started here.

use std::sync::Arc;

use prost_types::Timestamp as WireTime;
use tokio::sync::{broadcast, watch};

use super::record::{RunKept, Spawned};
use crate::proto::driver as wire;
use ostler_model::clock::Clock;
use ostler_model::limits::NOMAD_EVENTS_MAX;
use ostler_model::ports::{DriverEventSink, TaskContext};
use ostler_model::task::ExitResult;
use ostler_model::time::Timestamp;

/// How a task ended, and when.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskEnd {
    /// As its driver reads it.
    pub result: ExitResult,
    /// When the host saw it.
    pub at: Timestamp,
}

impl TaskEnd {
    /// In Nomad's words.
    pub(crate) fn said(&self) -> wire::ExitResult {
        wire::ExitResult {
            exit_code: self.result.exit_code,
            signal: i32::try_from(self.result.signal).unwrap_or_default(),
            oom_killed: self.result.oom_killed,
        }
    }
}

/// A task from its start until Nomad destroys it.
pub(crate) struct Task {
    /// Nomad's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What its driver is told.
    pub context: Arc<TaskContext>,
    /// What is kept of it.
    pub kept: RunKept,
    /// What it spawned, and what it may spawn later.
    _spawned: Arc<Spawned>,
    ended: watch::Sender<Option<TaskEnd>>,
}

impl Task {
    /// One that runs.
    pub(crate) fn new(
        (id, name): (String, String),
        context: Arc<TaskContext>,
        kept: RunKept,
        spawned: Arc<Spawned>,
    ) -> Self {
        Self { id, name, context, kept, _spawned: spawned, ended: watch::Sender::new(None) }
    }

    /// It ended; the first end stays.
    pub(crate) fn end(&self, how: TaskEnd) {
        self.ended.send_if_modified(|ended| {
            let news = ended.is_none();
            ended.get_or_insert(how);
            news
        });
    }

    /// Its end, once there is one.
    pub(crate) fn end_seen(&self) -> Option<TaskEnd> {
        self.ended.borrow().clone()
    }

    /// Wait for it.
    pub(crate) async fn ended(&self) -> TaskEnd {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(end) = ended.borrow_and_update().clone() {
                return end;
            }
            if ended.changed().await.is_err() {
                // Its sender is here.
                std::future::pending::<()>().await;
            }
        }
    }

    /// As Nomad inspects it.
    pub(crate) fn status(&self) -> wire::TaskStatus {
        let end = self.end_seen();
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
            result: end.as_ref().map(TaskEnd::said),
        }
    }
}

/// A time on the wire.
pub(crate) fn wire_time(at: Timestamp) -> WireTime {
    const NANOS: u64 = 1_000_000_000;
    WireTime {
        seconds: i64::try_from(at.nanos() / NANOS).unwrap_or(i64::MAX),
        nanos: i32::try_from(at.nanos() % NANOS).unwrap_or_default(),
    }
}

/// Where drivers say things of tasks.
#[derive(Clone)]
pub(crate) struct EventSender(broadcast::Sender<wire::DriverTaskEvent>, Clock);

impl EventSender {
    /// Nobody hears yet.
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(NOMAD_EVENTS_MAX), Clock::system())
    }

    /// Hear what is said from here on.
    pub(crate) fn hear(&self) -> broadcast::Receiver<wire::DriverTaskEvent> {
        self.0.subscribe()
    }

    /// Where the driver of one task says things.
    pub(crate) fn of(&self, task: &wire::TaskConfig) -> DriverEventSink {
        let (sender, clock) = (self.0.clone(), self.1.clone());
        let (task_id, alloc_id) = (task.id.clone(), task.alloc_id.clone());
        let task_name = task.name.clone();
        Arc::new(move |message, details| {
            // Without anybody who hears it is lost.
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
