//! The words of the machine: states, inputs, effects.

use std::time::Duration;

use crate::task::events::Signals;
use crate::task::restart::restarts_on_success;
use ostler_model::event::TaskEvent;
use ostler_model::job::{JobKind, LifecycleHook, RestartPolicy, Task};
use ostler_model::task::ExitResult;
use ostler_model::time::Timestamp;

/// Where the owner of a task is; drawn in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Waits for the coordinator's gate.
    Gated,
    /// Prestart hooks run.
    Preparing,
    /// The driver is not ready; asked again after a pause.
    AwaitingDriver,
    /// The driver's `start` is on its way.
    Starting,
    /// Killed while `start` is on its way: its answer decides.
    StoppingStart,
    /// The workload runs.
    Running,
    /// Killed, or to be started again; the stop signal waits for `shutdown_delay`.
    ShutdownDelay,
    /// The driver was asked to stop the task.
    Stopping,
    /// The driver was asked to kill the task.
    Killing,
    /// The host kills the workload itself, again and again until it ends.
    Reaping,
    /// The workload ended: the driver reads the exit.
    Exited,
    /// What follows is decided; once it is durable, driver and host forget the run.
    Forgetting,
    /// Waits before the next start.
    Delaying,
    /// A run of an earlier agent is being owned again.
    Recovering,
    /// The driver of such a run is not ready; asked again after a pause. The run goes on.
    AwaitingRecovery,
    /// What is left of a run that cannot be owned again is ended and forgotten; again and again
    /// until nothing is left.
    Clearing,
    /// Dead, and may be started again with its whole allocation.
    Idle,
    /// Ended for good; stop hooks run.
    Ending,
    /// Ended for good, nothing left to do.
    Dead,
    /// The agent left; the task runs on.
    Detached,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskInput {
    /// The coordinator lets the task start.
    GateOpened,
    /// Prestart hooks are done and the driver is at hand.
    Prepared,
    /// A prestart hook failed for want of something of the node.
    NodeNotReady {
        /// What the node is short of, or what its disk said.
        reason: String,
    },
    /// The driver exists and cannot be used now.
    DriverNotReady {
        /// Its health text.
        reason: String,
    },
    /// A prestart hook failed.
    PrepareFailed {
        /// What to show.
        event: TaskEvent,
        /// May it go better next time?
        recoverable: bool,
    },
    /// What the driver of the run can do.
    DriverKnown {
        /// Whether its tasks hear when they are to stop.
        signals: Signals,
    },
    /// The driver started the task.
    Started,
    /// The driver did not; nothing of the attempt is left.
    StartFailed {
        /// What to show.
        error: String,
        /// May it go better next time?
        recoverable: bool,
    },
    /// The workload is gone.
    WorkloadEnded,
    /// The exit is read.
    ExitRead(ExitResult),
    /// Driver and host have forgotten the run.
    Forgotten,
    /// The run of an earlier agent is owned again.
    Recovered {
        /// It ended while nobody looked; its exit is known.
        ended: bool,
    },
    /// It cannot be owned again now: driver or host cannot tell.
    RecoveryNotReady {
        /// The driver's health text, or why the host cannot tell.
        reason: String,
        /// The host has it: it runs, and its end is seen.
        held: bool,
    },
    /// It was never let go: not one instruction of it ran. Also instead of `ExitRead`, of a run that
    /// the agent before this one was about to let go.
    NeverRan,
    /// Nobody can tell that the run ends, and nothing is to follow it: it counts as over.
    GivenUp {
        /// What to show.
        error: String,
    },
    /// It cannot be owned again.
    RecoveryFailed {
        /// What to show.
        reason: String,
    },
    /// Nothing is left of it.
    Cleared,
    /// Something of it may still run: it did not end.
    NotCleared,
    /// The driver's `stop` did not work.
    StopFailed {
        /// What to show.
        error: String,
    },
    /// The driver's `kill` did not work.
    KillFailed {
        /// What to show.
        error: String,
    },
    /// The timer set last ran out.
    TimerFired,
    /// End the task for good.
    Kill {
        /// Said before `Killing`: sibling failed, leader dead … May mark the task as failed.
        event: Option<TaskEvent>,
        /// `kill_reason` of the `Killing` event.
        reason: String,
        /// Do not wait for `shutdown_delay`, or no longer.
        skip_delay: bool,
    },
    /// End this run and start another one.
    Restart {
        /// Who wants it.
        reason: String,
        /// It counts as a failure: the restart policy says what follows.
        failure: bool,
    },
    /// Start anew whatever the state: also a dead task.
    ForceRestart {
        /// Who wants it.
        reason: String,
    },
    /// The allocation is over: a dead task waits no longer.
    Finish,
    /// The job changed in place.
    Rules(Rules),
    /// A signal was passed on.
    Signaled {
        /// Its name.
        signal: String,
    },
    /// The driver or a hook has something to tell.
    Note(TaskEvent),
    /// The agent leaves.
    Shutdown,
    /// The store refuses the state that must be durable before the run is forgotten.
    NotDurable,
    /// Stop hooks are done.
    Ended,
}

/// What the runner must do. Calls run beside the machine and come back as inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEffect {
    /// Run the prestart hooks; answer `Prepared`, `DriverNotReady`, `NodeNotReady` or `PrepareFailed`.
    Prepare,
    /// Drop the preparation that runs.
    AbandonPrepare,
    /// New run: write the intent, call `start`; answer `Started` or `StartFailed`.
    Start,
    /// Drop the start on its way, refuse what it may still spawn, kill what it has spawned.
    AbandonStart,
    /// Wait for the workload; answer `WorkloadEnded`.
    Watch,
    /// Call `stop` with this timeout; answer `StopFailed`, or `WorkloadEnded` when that says it.
    Stop(Duration),
    /// Call `kill`; answer `KillFailed`, or `WorkloadEnded` when that says it.
    Kill,
    /// Kill by the host's own means.
    KillRun,
    /// Read the exit, exited hooks; answer `ExitRead` or `NeverRan`.
    ReadExit,
    /// Find out what of the run does not end although it was killed, and say it; answer `Note`.
    TellUndead,
    /// When the public state is durable: destroy, forget; answer `Forgotten`.
    Forget,
    /// Own the run of an earlier agent again; answer `Recovered`, `RecoveryNotReady`, `NeverRan` or
    /// `RecoveryFailed`.
    Recover,
    /// Drop the recovery that runs.
    AbandonRecover,
    /// End and forget what is left of a run; answer `Cleared`.
    Clear,
    /// Set the one timer; answer `TimerFired`.
    Timer(Duration),
    /// Forget the timer.
    CancelTimer,
    /// Run the stop hooks; answer `Ended`.
    End,
    /// Stop without touching the task.
    Leave,
}

/// What the job says about ending and restarting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// When to start again.
    pub policy: RestartPolicy,
    /// Start again even after success.
    pub restart_on_success: bool,
    /// From stop to kill; already limited by the agent's maximum.
    pub kill_timeout: Duration,
    /// From the request to end a run, for good or for a restart, to stop.
    pub shutdown_delay: Option<Duration>,
    /// A task that ended by itself waits, dead, to be started again with its allocation.
    pub restartable: bool,
}

impl Rules {
    /// The rules of a task.
    #[must_use]
    pub fn of(task: &Task, kind: JobKind, kill_timeout_max: Duration, restartable: bool) -> Self {
        let poststop = task.lifecycle.is_some_and(|l| l.hook == LifecycleHook::Poststop);
        Self {
            policy: task.restart,
            restart_on_success: restarts_on_success(kind, task.lifecycle),
            kill_timeout: task.kill_timeout.min(kill_timeout_max),
            shutdown_delay: task.shutdown_delay.filter(|d| !d.is_zero()),
            restartable: restartable && !poststop,
        }
    }
}

/// When an input is taken: the machine reads no clock and no dice.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Time of day.
    pub now: Timestamp,
    /// A random number, for the jitter of restarts.
    pub random: u64,
}
