//! The state of a task and how it ended.

use serde::{Deserialize, Serialize};

use super::event::TaskEvent;
use super::time::Timestamp;
use crate::limits::{MIB, TASK_EVENTS_MAX};

/// Stage of a task's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// Not started yet, or waiting to start again.
    #[default]
    Pending,
    /// The task was started and has not ended.
    Running,
    /// The task has ended for good.
    Dead,
}

/// The public, dynamic state of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// Stage of the task's life.
    pub status: TaskStatus,
    /// The task counts as failed. Once set, this stays set.
    pub failed: bool,
    /// Number of restarts so far.
    pub restarts: u64,
    /// When the task was last restarted.
    pub last_restart: Option<Timestamp>,
    /// When the task was first started.
    pub started_at: Option<Timestamp>,
    /// When the task ended for good; set only when it is dead.
    pub finished_at: Option<Timestamp>,
    /// The last exit, while the task is dead or waiting.
    pub last_exit: Option<ExitResult>,
    /// The last [`TASK_EVENTS_MAX`] events, newest last.
    pub events: Vec<TaskEvent>,
    /// Number of all events so far. Older events than those in `events` are not kept, so a listener
    /// can notice a gap by this number.
    pub events_total: u64,
}

impl TaskState {
    /// Append an event. The oldest one is dropped when there are too many.
    pub fn push_event(&mut self, event: TaskEvent) {
        self.failed |= event.fails_task;
        if self.events.len() >= TASK_EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
        self.events_total = self.events_total.saturating_add(1);
    }

    /// Whether the task is dead and has not failed.
    #[must_use]
    pub fn is_successful(&self) -> bool {
        self.status == TaskStatus::Dead && !self.failed
    }
}

/// Added to a signal's number to make an exit code, as shells and container runtimes do.
const SIGNALLED: i32 = 128;
/// Signal number of a kill, also where the system killed for memory.
const KILL: i32 = 9;
/// Exit code of a task that trapped: that of an abort.
pub const EXIT_TRAPPED: i32 = SIGNALLED + 6;
/// Exit code of a task of which nobody can say how it ended.
pub const EXIT_UNKNOWN: i32 = 255;
/// Exit code of a task that its driver calls failed without a code.
const EXIT_FAILED: i32 = 1;

/// A text for people about a task that was killed for its memory.
#[must_use]
pub fn out_of_memory(limit_bytes: u64) -> String {
    format!("out of memory at {} MiB", limit_bytes / MIB)
}

/// How a task ended, as its driver reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitResult {
    /// Exit code of the task.
    pub exit_code: i32,
    /// Number of the signal that killed the task; 0 for none.
    pub signal: u32,
    /// The task was killed for using too much memory.
    pub oom_killed: bool,
    /// A trap, or a failure that is not an exit.
    pub error: Option<String>,
}

impl ExitResult {
    /// Whether the task ended with code 0, no signal and no error.
    #[must_use]
    pub fn is_successful(&self) -> bool {
        self.exit_code == 0 && self.signal == 0 && self.error.is_none()
    }

    /// This result, with a code other than 0 where the task failed, so that a failure never looks
    /// like success to programs that read only the code. `raw` is what the host saw.
    #[must_use]
    pub fn with_failure_code(mut self, raw: &RawExit) -> Self {
        if self.exit_code == 0 && !self.is_successful() {
            let signal = i32::try_from(self.signal).unwrap_or(0);
            self.exit_code = match raw.exit_code {
                _ if signal != 0 => SIGNALLED.saturating_add(signal),
                _ if self.oom_killed => SIGNALLED + KILL,
                Some(0) => EXIT_FAILED,
                Some(code) => code,
                None => EXIT_UNKNOWN,
            };
        }
        self
    }

    /// What ended the task beyond its exit code: `killed by signal 9`, an error. `None` for a
    /// plain exit.
    #[must_use]
    pub fn cause(&self) -> Option<String> {
        let error = self.error.clone().filter(|text| !text.is_empty());
        if self.oom_killed && !self.is_successful() {
            return Some(error.unwrap_or_else(|| "out of memory".to_owned()));
        }
        match (self.signal, error) {
            (0, error) => error,
            (signal, None) => Some(format!("killed by signal {signal}")),
            (signal, Some(error)) => Some(format!("killed by signal {signal}: {error}")),
        }
    }
}

/// The result as the host saw it, without a driver.
impl From<RawExit> for ExitResult {
    fn from(raw: RawExit) -> Self {
        let RawExit { exit_code, signal, oom_killed, error, .. } = raw.clone();
        let seen = Self {
            exit_code: exit_code.unwrap_or(0),
            signal: signal.unwrap_or(0),
            oom_killed,
            error,
        };
        seen.with_failure_code(&raw)
    }
}

/// How a workload ended, as the host saw it; the driver makes an [`ExitResult`] of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawExit {
    /// Exit code of a workload that ended by itself.
    pub exit_code: Option<i32>,
    /// Number of the signal that killed the workload.
    pub signal: Option<u32>,
    /// The workload was killed for using too much memory.
    pub oom_killed: bool,
    /// A trap or a failure of the host.
    pub error: Option<String>,
    /// When the host saw the end.
    pub finished_at: Timestamp,
}

impl RawExit {
    /// This exit, with an error text where it has neither code nor signal nor error. How the
    /// workload ended is then not known, and no reader may take that for success.
    #[must_use]
    pub fn fill_missing_error(mut self) -> Self {
        let shown = self.exit_code.is_some() || self.signal.is_some();
        if !shown && self.error.is_none() {
            let error =
                if self.oom_killed { "out of memory" } else { "the exit status is unknown" };
            self.error = Some(error.to_owned());
        }
        self
    }
}

/// What a running task uses now, as the host measures it. An absent value is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the start.
    pub cpu_time: Option<std::time::Duration>,
    /// Memory in use now, bytes.
    pub memory_bytes: Option<u64>,
    /// When the numbers were measured.
    pub taken_at: Timestamp,
}

/// Data that a driver needs for later calls about a task. The host does not look into it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverHandle {
    /// Name of the plugin that made the handle. No other plugin gets it.
    pub plugin: String,
    /// Version of the data, which the driver counts itself.
    pub version: u32,
    /// The data, at most [`crate::limits::HANDLE_BYTES_MAX`] bytes.
    pub data: Vec<u8>,
}

/// What runs a task, from the host's point of view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workload {
    /// A process, by the host's id.
    Process(String),
    /// A WASM task, by the host's id.
    WasmTask(String),
    /// Nothing that the host owns: the driver is asked at this interval, milliseconds.
    Poll(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(exit_code: Option<i32>, signal: Option<u32>, error: Option<&str>) -> RawExit {
        RawExit { exit_code, signal, error: error.map(str::to_owned), ..RawExit::default() }
    }

    /// The result of a driver that only repeats what the host saw.
    fn repeated(raw: &RawExit) -> ExitResult {
        ExitResult {
            exit_code: raw.exit_code.unwrap_or(0),
            signal: raw.signal.unwrap_or(0),
            oom_killed: raw.oom_killed,
            error: raw.error.clone(),
        }
    }

    #[test]
    fn nothing_that_failed_shows_code_0_whether_a_driver_reads_it_or_nobody_can() {
        let oom = RawExit { oom_killed: true, ..RawExit::default() };
        let oom_by_signal = RawExit { oom_killed: true, ..raw(None, Some(9), None) };
        for (raw, code, cause) in [
            (raw(Some(0), None, None), 0, None),
            (raw(Some(3), None, None), 3, None),
            (raw(Some(-1), None, None), -1, None),
            (raw(None, Some(9), None), 137, Some("killed by signal 9")),
            (raw(None, Some(6), None), 134, Some("killed by signal 6")),
            (raw(None, Some(15), Some("late")), 143, Some("killed by signal 15: late")),
            (raw(Some(134), None, Some("trapped: unreachable")), 134, Some("trapped: unreachable")),
            (raw(Some(0), None, Some("it broke")), 1, Some("it broke")),
            (raw(None, None, Some("lost")), 255, Some("lost")),
            (raw(None, None, None), 255, Some("the exit status is unknown")),
            (oom, 137, Some("out of memory")),
            (oom_by_signal, 137, Some("out of memory")),
        ] {
            let raw = raw.fill_missing_error();
            let unread = ExitResult::from(raw.clone());
            assert_eq!((unread.exit_code, unread.cause().as_deref()), (code, cause), "{raw:?}");
            assert_eq!(unread.is_successful(), code == 0, "{raw:?}");
            assert_eq!(repeated(&raw).with_failure_code(&raw), unread, "{raw:?}");
        }
    }

    #[test]
    fn what_a_driver_makes_of_an_exit_counts() {
        let seen = raw(Some(3), None, None);
        let forgiven = ExitResult::default();
        assert!(forgiven.clone().with_failure_code(&seen).is_successful());
        let condemned = ExitResult { error: Some("no".to_owned()), ..forgiven };
        assert_eq!(condemned.with_failure_code(&seen).exit_code, 3);
        let survivor = ExitResult { oom_killed: true, ..ExitResult::default() };
        let survivor = survivor.with_failure_code(&raw(Some(0), None, None));
        assert_eq!(
            (survivor.is_successful(), survivor.cause()),
            (true, None),
            "only a child of it was"
        );
    }
}
