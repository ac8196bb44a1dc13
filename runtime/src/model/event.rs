//! Task events: what happened to a task, with Nomad's names and texts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// Kind of a task event. The texts are Nomad's, so that its tools show them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum EventKind {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl EventKind {
            /// The text people see.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

kinds! {
    /// The task runner was created for the first time.
    Received = "Received",
    /// The task directory is being built.
    TaskSetup = "Task Setup",
    /// The task cannot run as written.
    FailedValidation = "Failed Validation",
    /// Something before the start failed.
    SetupFailure = "Setup Failure",
    /// A hook failed.
    HookFailed = "Task hook failed",
    /// Said by the driver.
    Driver = "Driver",
    /// The driver failed a call.
    DriverFailure = "Driver Failure",
    /// The task runs.
    Started = "Started",
    /// The task ended.
    Terminated = "Terminated",
    /// It will be started again.
    Restarting = "Restarting",
    /// It will not be started again.
    NotRestarting = "Not Restarting",
    /// Somebody asked for a restart.
    RestartSignaled = "Restart Signaled",
    /// Somebody sent a signal.
    Signaling = "Signaling",
    /// The task is being stopped.
    Killing = "Killing",
    /// The task was stopped.
    Killed = "Killed",
    /// Another task of the group failed.
    SiblingFailed = "Sibling Task Failed",
    /// The leader ended.
    LeaderDead = "Leader Task Dead",
    /// Only sidecars are left.
    MainTasksDead = "Main Tasks Dead",
    /// The driver could not own the task again.
    FailedRestoring = "Failed Restoring Task",
    /// Stop waits for `shutdown_delay`.
    WaitingShutdownDelay = "Waiting for shutdown delay",
    /// Stop does not wait for `shutdown_delay`, or no longer.
    SkippingShutdownDelay = "Skipping shutdown delay",
    /// The allocation was judged unhealthy.
    AllocUnhealthy = "Alloc Unhealthy",
    /// The allocation's directory is larger than it may be.
    DiskExceeded = "Disk Resources Exceeded",
    /// A hook has something to tell.
    HookMessage = "Task hook message",
    /// A restarted agent owns the running task again.
    Recovered = "Recovered",
}

impl std::fmt::Display for EventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// What kind.
    pub kind: EventKind,
    /// When.
    pub time: Timestamp,
    /// One sentence for people.
    pub message: String,
    /// The same as data: Nomad's keys (`exit_code`, `restart_reason`, `kill_timeout` …).
    pub details: BTreeMap<String, String>,
    /// The task counts as failed from here on.
    pub fails_task: bool,
}

impl TaskEvent {
    /// An event without details.
    #[must_use]
    pub fn new(kind: EventKind, time: Timestamp, message: impl Into<String>) -> Self {
        Self { kind, time, message: message.into(), details: BTreeMap::new(), fails_task: false }
    }

    /// Add a detail.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl ToString) -> Self {
        self.details.insert(key.to_owned(), value.to_string());
        self
    }

    /// Mark that the task counts as failed from here on.
    #[must_use]
    pub fn failing(mut self) -> Self {
        self.fails_task = true;
        self
    }
}
