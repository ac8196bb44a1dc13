//! The state of a task and how it ended.

use serde::{Deserialize, Serialize};

use super::event::TaskEvent;
use super::time::Timestamp;
use crate::limits::{MIB, TASK_EVENTS_MAX};

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

/// What a signal's number is added to for an exit code, as shells and container runtimes have it.
const SIGNALLED: i32 = 128;
/// Signal number of a kill, also where the system killed for memory.
const KILL: i32 = 9;
/// Exit code of a task that trapped: that of an abort.
pub const EXIT_TRAPPED: i32 = SIGNALLED + 6;
/// Exit code of a task of which nobody can say how it ended.
pub const EXIT_UNKNOWN: i32 = 255;
/// Exit code of a task that its driver calls failed without a code.
const EXIT_FAILED: i32 = 1;

/// Why a task that was killed for its memory ended.
#[must_use]
pub fn out_of_memory(limit_bytes: u64) -> String {
    format!("out of memory at {} MiB", limit_bytes / MIB)
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

    /// The same, with a code that shows the failure where it shows 0: whatever failed never looks
    /// like success to who reads codes only. `raw` is what the host saw.
    #[must_use]
    pub fn coded(mut self, raw: &RawExit) -> Self {
        if self.exit_code == 0 && !self.successful() {
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

    /// What ended it, where that is more than its code: `killed by signal 9`, an error.
    #[must_use]
    pub fn cause(&self) -> Option<String> {
        let error = self.error.clone().filter(|text| !text.is_empty());
        if self.oom_killed && !self.successful() {
            return Some(error.unwrap_or_else(|| "out of memory".to_owned()));
        }
        match (self.signal, error) {
            (0, error) => error,
            (signal, None) => Some(format!("killed by signal {signal}")),
            (signal, Some(error)) => Some(format!("killed by signal {signal}: {error}")),
        }
    }
}

/// As the host saw it.
impl From<RawExit> for ExitResult {
    fn from(raw: RawExit) -> Self {
        let RawExit { exit_code, signal, oom_killed, error, .. } = raw.clone();
        let seen = Self {
            exit_code: exit_code.unwrap_or(0),
            signal: signal.unwrap_or(0),
            oom_killed,
            error,
        };
        seen.coded(&raw)
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

impl RawExit {
    /// The same, and an error where it says nothing at all: how the workload ended is then not known,
    /// which is no success to anybody who reads it.
    #[must_use]
    pub fn said(mut self) -> Self {
        let shown = self.exit_code.is_some() || self.signal.is_some();
        if !shown && self.error.is_none() {
            self.error = Some(match self.oom_killed {
                true => "out of memory".to_owned(),
                false => "the exit is not known".to_owned(),
            });
        }
        self
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(exit_code: Option<i32>, signal: Option<u32>, error: Option<&str>) -> RawExit {
        RawExit { exit_code, signal, error: error.map(str::to_owned), ..RawExit::default() }
    }

    /// What a driver says that only repeats what the host saw.
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
            (raw(None, None, None), 255, Some("the exit is not known")),
            (oom, 137, Some("out of memory")),
            (oom_by_signal, 137, Some("out of memory")),
        ] {
            let raw = raw.said();
            let unread = ExitResult::from(raw.clone());
            assert_eq!((unread.exit_code, unread.cause().as_deref()), (code, cause), "{raw:?}");
            assert_eq!(unread.successful(), code == 0, "{raw:?}");
            assert_eq!(repeated(&raw).coded(&raw), unread, "{raw:?}");
        }
    }

    #[test]
    fn what_a_driver_makes_of_an_exit_counts() {
        let seen = raw(Some(3), None, None);
        let forgiven = ExitResult::default();
        assert!(forgiven.clone().coded(&seen).successful());
        let condemned = ExitResult { error: Some("no".to_owned()), ..forgiven };
        assert_eq!(condemned.coded(&seen).exit_code, 3);
        let survivor = ExitResult { oom_killed: true, ..ExitResult::default() };
        let survivor = survivor.coded(&raw(Some(0), None, None));
        assert_eq!(
            (survivor.successful(), survivor.cause()),
            (true, None),
            "only a child of it was"
        );
    }
}
