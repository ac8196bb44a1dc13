//! The phases, inputs and effects of the machine.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::alloc::coordinator::TaskGate;
use ostler_model::alloc::ClientStatus;
use ostler_model::cow_arc::CowArc;
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;
use ostler_model::job::TaskGroup;
use ostler_model::saved::{DeploymentStatus, NetworkStatus, SavedAllocState};
use ostler_model::task::TaskState;

/// Where the owner of an allocation is; drawn in the documentation of [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocPhase {
    /// Pre-run hooks run.
    Preparing,
    /// Tasks run, wait, or are being stopped.
    Running,
    /// Every task ended; post-run hooks run.
    Cleaning,
    /// Finished; directory and records are kept.
    Done,
    /// Directory and records are being removed.
    Destroying,
    /// Nothing is left.
    Destroyed,
    /// The agent leaves; the owners of the tasks are ending.
    Leaving,
    /// The agent left. Tasks run on, or the next agent does what was left to do.
    Left,
}

impl AllocPhase {
    /// Has the run ended, one way or another?
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Destroying | Self::Destroyed | Self::Left)
    }
}

/// What is known of an allocation of an earlier agent, beside the states of its tasks.
#[derive(Clone, Debug, Default)]
pub struct RecordedAlloc {
    /// The state of the allocation as it was written last.
    pub saved: Option<SavedAllocState>,
    /// The verdict on the health.
    pub health: Option<DeploymentStatus>,
    /// Some task was started, or may have been.
    pub started: bool,
    /// The allocation is to be stopped, for this reason.
    pub stop: Option<String>,
    /// What could not be read of the records.
    pub trouble: Option<String>,
}

/// Whose fault it is that a hook failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The fault of the allocation, or of what it asks for.
    Alloc,
    /// The fault of the node: it is short of descriptors, memory or space, or its disk fails. A
    /// later try may work.
    Node,
    /// The fault is not known: the hook did not end in its time.
    Nobody,
}

impl Blame {
    /// [`Blame::Node`] where `node` is true, else [`Blame::Alloc`].
    #[must_use]
    pub const fn of_the_node(node: bool) -> Self {
        if node { Self::Node } else { Self::Alloc }
    }
}

/// An input of the machine: what happened.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocInput {
    /// Pre-run hooks are done.
    HooksDone,
    /// A pre-run hook failed.
    HooksFailed {
        /// For the tasks' events.
        error: String,
        /// Whose fault it is.
        blame: Blame,
    },
    /// A hook, before the first task or after the last, waits for something outside, or no longer.
    Waiting {
        /// What the hook waits for, for people; `None` when it waits no longer.
        what: Option<String>,
    },
    /// The allocation has this network of its own.
    Network(NetworkStatus),
    /// The newest states of all tasks.
    Tasks(BTreeMap<TaskName, CowArc<TaskState>>),
    /// The owners of all tasks have ended.
    TasksGone,
    /// A newer copy of the group, differing in what may change in place.
    Update {
        /// The newest copy of the group.
        group: Box<TaskGroup>,
        /// The update hooks are to run, because the update is not also a stop.
        hooks: bool,
    },
    /// The allocation is to stop.
    Stop {
        /// `kill_reason` of the tasks' events.
        reason: String,
        /// Wait for no `shutdown_delay`.
        skip_shutdown_delay: bool,
    },
    /// The allocation ends with this status, whatever its tasks say; poststop tasks do not run.
    Force {
        /// The client status that the allocation ends with.
        status: ClientStatus,
        /// A sentence on the status; it is the `kill_reason` of the tasks' events too.
        description: String,
        /// An event for each task before the end.
        event: Option<TaskEvent>,
    },
    /// Pre-kill hooks are done.
    PreKilled,
    /// Every task is to run again, from the first prestart task on.
    /// Ask [`super::AllocMachine::restart_refusal`] first.
    RestartAll {
        /// For the tasks' events.
        reason: String,
    },
    /// Hooks before a restart are done, or one of them failed.
    RestartReady {
        /// No hook failed.
        ok: bool,
    },
    /// Every task has been told to run again, and the machine has their states since.
    RestartAsked,
    /// The allocation belongs to this deployment of servers from now on, and verdicts are for it.
    Deployed(Option<Box<str>>),
    /// There is a verdict on the health.
    Verdict {
        /// The allocation is healthy.
        healthy: bool,
        /// Why the allocation is not healthy, by task.
        reasons: Vec<(TaskName, String)>,
    },
    /// The verdict is durable.
    HealthSaved,
    /// The timer set last ran out.
    TimerFired,
    /// The agent leaves.
    Shutdown,
    /// Post-run hooks are done, and the end is durable.
    Cleaned,
    /// Post-run hooks are done, and the agent leaves before the end could be made durable.
    NotSaved,
    /// The allocation is to be removed; it is stopped first when it runs.
    Destroy,
    /// Destroy hooks are done.
    Destroyed,
}

/// What the runner must do.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocEffect {
    /// Run the pre-run hooks; answer `HooksDone` or `HooksFailed`.
    PreHooks,
    /// Run the pre-run hooks after this time, because they failed; answers as for `PreHooks`.
    PreHooksAfter(Duration),
    /// Drop the pre-run hooks that run.
    AbandonPreHooks,
    /// Drop the post-run hooks that run.
    AbandonPostHooks,
    /// Run the update hooks.
    UpdateHooks,
    /// Run the hooks before a restart; answer `RestartReady`.
    RestartHooks,
    /// Run the pre-kill hooks; answer `PreKilled`.
    PreKillHooks,
    /// Open or close gates.
    Gates(Vec<(TaskName, TaskGate)>),
    /// Kill these tasks.
    Kill {
        /// The tasks to kill, all at once.
        tasks: Vec<TaskName>,
        /// An event for each task before it is killed.
        event: Option<TaskEvent>,
        /// `kill_reason` of the `Killing` event.
        reason: String,
        /// Wait for no `shutdown_delay`; a delay that runs already ends.
        skip_shutdown_delay: bool,
    },
    /// Tell every task to run again; answer `RestartAsked`.
    ForceRestart {
        /// For the tasks' events.
        reason: String,
    },
    /// Tell every task that it need not wait for a restart any more.
    FinishTasks,
    /// Add these events to tasks.
    Notes(Vec<(TaskName, TaskEvent)>),
    /// Write the verdict; answer `HealthSaved` when it is durable.
    SaveHealth(DeploymentStatus),
    /// Set the one timer; answer `TimerFired`.
    Timer(Duration),
    /// End every task's owner without touching the task.
    LeaveTasks,
    /// Run the post-run hooks; answer `Cleaned`.
    PostHooks,
    /// Run the destroy hooks; answer `Destroyed`.
    DestroyHooks,
}

/// Why the allocation cannot be restarted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartRefusal {
    /// The allocation has ended.
    Ended,
    /// The allocation is being ended.
    Ending,
    /// The allocation is being restarted.
    Restarting,
}
