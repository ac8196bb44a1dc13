//! The words of the machine: phases, inputs, effects.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::alloc::coordinator::Gate;
use ostler_model::alloc::ClientStatus;
use ostler_model::event::TaskEvent;
use ostler_model::held_once::HeldOnce;
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
    /// The agent left; tasks run on, or what was left to do is the next agent's.
    Left,
}

impl AllocPhase {
    /// Has the run ended, one way or another?
    #[must_use]
    pub fn ended(self) -> bool {
        matches!(self, Self::Done | Self::Destroying | Self::Destroyed | Self::Left)
    }
}

/// What is known of an allocation of an earlier agent, beside the states of its tasks.
#[derive(Clone, Debug, Default)]
pub struct RecordedAlloc {
    /// Its state as written last.
    pub saved: Option<SavedAllocState>,
    /// The verdict on its health.
    pub health: Option<DeploymentStatus>,
    /// Some task of it was started, or may have been.
    pub started: bool,
    /// It is to be stopped, for this reason.
    pub stop: Option<String>,
    /// What could not be read of its records.
    pub trouble: Option<String>,
}

/// Whose fault it is that a hook failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The allocation's, or that of what it asks for.
    Alloc,
    /// The node's: short of descriptors, memory or space, a disk that fails. A later try may work.
    Node,
    /// Nobody knows: it did not end in its time.
    Nobody,
}

impl Blame {
    /// The node's, or else the allocation's.
    #[must_use]
    pub const fn of_the_node(node: bool) -> Self {
        if node { Self::Node } else { Self::Alloc }
    }
}

/// What happened.
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
        /// For people.
        what: Option<String>,
    },
    /// It has a network of its own.
    Network(NetworkStatus),
    /// States of all tasks, newest.
    Tasks(BTreeMap<TaskName, HeldOnce<TaskState>>),
    /// The owners of all tasks have ended.
    TasksGone,
    /// A newer copy of the group, differing in what may change in place.
    Update {
        /// The newest.
        group: Box<TaskGroup>,
        /// Update hooks are to hear of it: it is not also a stop.
        hooks: bool,
    },
    /// Somebody wants it to end.
    Stop {
        /// `kill_reason` of the tasks' events.
        reason: String,
        /// Wait for no `shutdown_delay`.
        skip_shutdown_delay: bool,
    },
    /// It ends with this status, whatever its tasks say; poststop tasks do not run.
    Force {
        /// The status.
        status: ClientStatus,
        /// A sentence on it; `kill_reason` of the tasks' events too.
        description: String,
        /// Said to each task first.
        event: Option<TaskEvent>,
    },
    /// Pre-kill hooks are done.
    PreKilled,
    /// Every task is to run again, from the first prestart task on. Ask
    /// [`super::AllocMachine::restart_refusal`] first.
    RestartAll {
        /// For the tasks' events.
        reason: String,
    },
    /// Hooks before a restart are done, or one of them failed.
    RestartReady {
        /// None failed.
        ok: bool,
    },
    /// Every task has been told to run again, and what they are since was given.
    RestartAsked,
    /// It belongs to this deployment of servers from now on: it is judged for it.
    Deployed(Option<Box<str>>),
    /// The allocation was judged.
    Verdict {
        /// The verdict.
        healthy: bool,
        /// Why not, by task.
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
    /// Remove it; stops it first when needed.
    Destroy,
    /// Destroy hooks are done.
    Destroyed,
}

/// What the runner must do.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocEffect {
    /// Run the pre-run hooks; answer `HooksDone` or `HooksFailed`.
    PreHooks,
    /// The same after this time: they failed.
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
    Gates(Vec<(TaskName, Gate)>),
    /// Kill these tasks.
    Kill {
        /// All at once.
        tasks: Vec<TaskName>,
        /// Said to each first.
        event: Option<TaskEvent>,
        /// `kill_reason` of the `Killing` event.
        reason: String,
        /// Wait for no `shutdown_delay`; one under way ends.
        skip_shutdown_delay: bool,
    },
    /// Tell every task to run again; answer `RestartAsked`.
    ForceRestart {
        /// For the tasks' events.
        reason: String,
    },
    /// Tell every task that it need not wait for a restart any more.
    FinishTasks,
    /// Tell tasks these events.
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
    /// It has ended.
    Ended,
    /// It is being ended.
    Ending,
    /// It is being restarted.
    Restarting,
}
