//! Task events: what happened to a task, with Nomad's names and texts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

/// Key of the detail, in an event of a stop, that says that the driver sends no signals, so the
/// task is not told.
pub const NO_SIGNALS: &str = "no_signals";

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// Kind of a task event. The texts are Nomad's, so that its tools show them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum EventKind {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl EventKind {
            /// Text of the kind that people see.
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
    /// The artifacts of the task are being fetched.
    DownloadingArtifacts = "Downloading Artifacts",
    /// An artifact could not be fetched.
    ArtifactDownloadFailed = "Failed Artifact Download",
    /// The task cannot run as written.
    FailedValidation = "Failed Validation",
    /// A step before the start failed.
    SetupFailure = "Setup Failure",
    /// A hook failed.
    HookFailed = "Task hook failed",
    /// The driver reported the event.
    Driver = "Driver",
    /// The driver failed a call.
    DriverFailure = "Driver Failure",
    /// The task runs.
    Started = "Started",
    /// The task ended.
    Terminated = "Terminated",
    /// The task will be started again.
    Restarting = "Restarting",
    /// The task will not be started again.
    NotRestarting = "Not Restarting",
    /// A restart was requested.
    RestartSignaled = "Restart Signaled",
    /// A signal was sent to the task.
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
    /// A template reads otherwise, or could not be rendered again.
    Template = "Template",
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
    /// Which kind of event it is.
    pub kind: EventKind,
    /// When the event happened.
    pub time: Timestamp,
    /// One sentence for people.
    pub message: String,
    /// The facts of the message as data, by Nomad's keys (`exit_code`, `restart_reason`,
    /// `kill_timeout` …).
    pub details: BTreeMap<String, String>,
    /// The task counts as failed from here on.
    pub fails_task: bool,
}

impl TaskEvent {
    /// Key of the detail that marks an event of a task which waits to be owned again after a
    /// restart of the agent.
    pub const RESTORED: &str = "restored";

    /// Whether the event only says that an agent was restarted and owns the task again, or waits
    /// for that. Nothing happened to the task then.
    #[must_use]
    pub fn is_of_restart(&self) -> bool {
        self.kind == EventKind::Recovered || self.details.contains_key(Self::RESTORED)
    }

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
    pub fn with_task_failure(mut self) -> Self {
        self.fails_task = true;
        self
    }
}

/// Kinds of events that say what went wrong with a run or its start.
const CAUSES: [EventKind; 7] = [
    EventKind::ArtifactDownloadFailed,
    EventKind::Terminated,
    EventKind::DriverFailure,
    EventKind::SetupFailure,
    EventKind::FailedValidation,
    EventKind::HookFailed,
    EventKind::FailedRestoring,
];

/// Index of the event that says why a task failed. `events` has the kind of each event and whether
/// it fails the task, oldest first. An event that the task is not started again gives no reason, so
/// the cause before it is chosen.
#[must_use]
pub fn index_of_reason(events: &[(&str, bool)]) -> Option<usize> {
    let last = events.iter().rposition(|(_, fails)| *fails)?;
    let is = |index: usize, kinds: &[EventKind]| {
        let kind = events.get(index).map(|(kind, _)| *kind);
        kinds.iter().any(|of| Some(of.as_str()) == kind)
    };
    let before = (0..last).rev().find(|index| is(*index, &CAUSES));
    before.filter(|_| is(last, &[EventKind::NotRestarting])).or(Some(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_failed_of_is_found_behind_that_it_is_not_started_again() {
        let at = |kinds: &[(EventKind, bool)]| {
            let events: Vec<_> =
                kinds.iter().map(|(kind, fails)| (kind.as_str(), *fails)).collect();
            index_of_reason(&events)
        };
        use EventKind::{
            DiskExceeded, Driver, DriverFailure, Killing, NotRestarting, Restarting, Started,
            Terminated,
        };
        let start = [(DriverFailure, false), (NotRestarting, true)];
        assert_eq!(at(&start), Some(0));
        let exits = [(Terminated, false), (Restarting, false), (Started, false)];
        let exits = [&exits[..], &[(Terminated, false), (NotRestarting, true)]].concat();
        assert_eq!(at(&exits), Some(3));
        let disk = [(Started, false), (DiskExceeded, true), (Killing, false), (Terminated, false)];
        assert_eq!(at(&disk), Some(1), "it was ended for that");
        assert_eq!(at(&[(Driver, false), (NotRestarting, true)]), Some(1), "nothing else is kept");
        assert_eq!(at(&[(Terminated, false)]), None);
    }
}
