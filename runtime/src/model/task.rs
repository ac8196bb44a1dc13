//! The state of a task and how it ended.

use serde::{Deserialize, Serialize};

use super::event::TaskEvent;
use super::time::Timestamp;
use crate::limits::TASK_EVENTS_MAX;

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// Not started yet, or waiting to start again.
    #[default]
    Pending,
    /// Started.
    Running,
    /// Ended for good.
    Dead,
}

/// The public, dynamic state of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// Where it is.
    pub status: TaskStatus,
    /// Counts as failed; sticky.
    pub failed: bool,
    /// Restarts so far.
    pub restarts: u64,
    /// When it was last restarted.
    pub last_restart: Option<Timestamp>,
    /// First start.
    pub started_at: Option<Timestamp>,
    /// Set when dead.
    pub finished_at: Option<Timestamp>,
    /// The last exit, while the task is dead or waiting.
    pub last_exit: Option<ExitResult>,
    /// At most [`TASK_EVENTS_MAX`], newest last.
    pub events: Vec<TaskEvent>,
    /// Events that ever happened. Those beyond the ones in `events` are no longer kept, so whoever
    /// listens can tell a gap.
    pub events_total: u64,
}

impl TaskState {
    /// Append an event; the oldest goes when there are too many.
    pub fn push_event(&mut self, event: TaskEvent) {
        self.failed |= event.fails_task;
        if self.events.len() >= TASK_EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
        self.events_total = self.events_total.saturating_add(1);
    }

    /// Dead and not failed.
    #[must_use]
    pub fn successful(&self) -> bool {
        self.status == TaskStatus::Dead && !self.failed
    }
}

/// How a task ended, as its driver reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitResult {
    /// Exit code.
    pub exit_code: i32,
    /// Signal number, 0 when none.
    pub signal: u32,
    /// Killed for using too much memory.
    pub oom_killed: bool,
    /// A trap or a failure that is not an exit.
    pub error: Option<String>,
}

impl ExitResult {
    /// Code 0, no signal, no error.
    #[must_use]
    pub fn successful(&self) -> bool {
        self.exit_code == 0 && self.signal == 0 && self.error.is_none()
    }
}

/// How a workload ended, as the host saw it; the driver makes an [`ExitResult`] of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawExit {
    /// Exit code of one that ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<u32>,
    /// Killed for using too much memory.
    pub oom_killed: bool,
    /// Trap or host-side failure.
    pub error: Option<String>,
    /// When the host saw it.
    pub finished_at: Timestamp,
}

/// What a running task uses now, as the host measures it. Unset is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the start.
    pub cpu_time: Option<std::time::Duration>,
    /// Memory held now.
    pub memory_bytes: Option<u64>,
    /// When it was measured.
    pub taken_at: Timestamp,
}

/// What a driver must remember of a task, opaque to the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverHandle {
    /// The plugin that made it; never given to another.
    pub plugin: String,
    /// Version of the data, the driver's own.
    pub version: u32,
    /// At most [`crate::limits::HANDLE_BYTES_MAX`].
    pub data: Vec<u8>,
}

/// Who runs a task, in the host's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workload {
    /// A process, by the host's id.
    Process(String),
    /// A WASM task, by the host's id.
    WasmTask(String),
    /// Not the host's: ask the driver on this interval, milliseconds.
    Poll(u64),
}
