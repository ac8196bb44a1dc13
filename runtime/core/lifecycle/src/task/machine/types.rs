//! The states, inputs and effects of the machine.

use std::time::Duration;

use crate::task::events::Signals;
use crate::task::restart::restarts_on_success;
use ostler_model::event::TaskEvent;
use ostler_model::job::{JobKind, LifecycleHook, RestartPolicy, Task};
use ostler_model::task::ExitResult;
use ostler_model::time::Timestamp;

/// Where the owner of a task is; drawn in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MachineState {
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

/// An input of the machine: what happened.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskInput {
    /// The coordinator lets the task start.
    GateOpened,
    /// Prestart hooks are done and the driver is at hand.
    Prepared,
    /// A prestart hook failed because the node is short of something, or its disk fails.
    NodeNotReady {
        /// What the node is short of, or what its disk said.
        reason: String,
    },
    /// The driver exists but cannot be used now.
    DriverNotReady {
        /// The health text of the driver.
        reason: String,
    },
    /// A prestart hook failed.
    PrepareFailed {
        /// The event that reports the failure.
        event: TaskEvent,
        /// A later try may succeed.
        recoverable: bool,
    },
    /// The driver of the run is known.
    DriverKnown {
        /// Whether the driver sends signals to its tasks.
        signals: Signals,
    },
    /// The driver started the task.
    Started,
    /// The driver did not start the task; nothing of the attempt is left.
    StartFailed {
        /// The text for the event.
        error: String,
        /// A later start may succeed.
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
        /// The run ended while no agent watched it; its exit is known.
        ended: bool,
    },
    /// The run of an earlier agent cannot be owned again now: driver or host cannot tell.
    RecoveryNotReady {
        /// The driver's health text, or why the host cannot tell.
        reason: String,
        /// The host has the run: the run goes on, and the host sees its end.
        held: bool,
    },
    /// The run was never released: not one instruction of it ran. It also comes instead of
    /// `ExitRead`, for a run that the agent before this one was about to release.
    NeverRan,
    /// Nobody can tell that the run ends, and no run is to follow it: it counts as over.
    GivenUp {
        /// The text for the event.
        error: String,
    },
    /// The run of an earlier agent cannot be owned again.
    RecoveryFailed {
        /// The text for the event.
        reason: String,
    },
    /// Nothing is left of the run.
    Cleared,
    /// The run did not end, and parts of it may still run.
    NotCleared,
    /// The driver's `stop` failed.
    StopFailed {
        /// The text for the event.
        error: String,
    },
    /// The driver's `kill` failed.
    KillFailed {
        /// The text for the event.
        error: String,
    },
    /// The timer set last ran out.
    TimerFired,
    /// End the task for good.
    Kill {
        /// An event before `Killing`: sibling failed, leader dead … It may mark the task as failed.
        event: Option<TaskEvent>,
        /// `kill_reason` of the `Killing` event.
        reason: String,
        /// Do not wait for `shutdown_delay`; a wait under way ends.
        skip_delay: bool,
    },
    /// End this run and start another one.
    Restart {
        /// Why the task is restarted.
        reason: String,
        /// The restart counts as a failure: the restart policy decides what follows.
        failure: bool,
    },
    /// Start the task anew, whatever its state, even a dead one.
    ForceRestart {
        /// Why the task is restarted.
        reason: String,
    },
    /// The allocation is over, so a dead task waits no longer.
    Finish,
    /// The job changed in place.
    Rules(TaskRules),
    /// A signal was passed on.
    Signaled {
        /// Name of the signal, such as `SIGHUP`.
        signal: String,
    },
    /// The driver or a hook reports this event.
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
    /// Begin a new run: write the intent, call `start`; answer `Started` or `StartFailed`.
    Start,
    /// Drop the start on its way, refuse what it may still spawn, kill what it has spawned.
    AbandonStart,
    /// Wait for the end of the workload; answer `WorkloadEnded`.
    Watch,
    /// Call `stop` with this timeout; answer `StopFailed`, or `WorkloadEnded` when the driver says
    /// that it ended.
    Stop(Duration),
    /// Call `kill`; answer `KillFailed`, or `WorkloadEnded` when the driver says that it ended.
    Kill,
    /// Kill the run by the host's own means.
    KillRun,
    /// Read the exit and run the exited hooks; answer `ExitRead` or `NeverRan`.
    ReadExit,
    /// Find out which parts of the run do not end although they were killed; answer `Note`.
    ReportUndead,
    /// When the public state is durable, make driver and host forget the run; answer `Forgotten`.
    Forget,
    /// Own the run of an earlier agent again; answer `Recovered`, `RecoveryNotReady`,
    /// `NeverRan` or `RecoveryFailed`.
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
    /// End the owner without touching the task.
    Leave,
}

/// The rules of the job for ending and restarting the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRules {
    /// The restart policy of the task.
    pub policy: RestartPolicy,
    /// The task starts again even after success.
    pub restart_on_success: bool,
    /// Time from stop to kill; the agent's maximum already limits it.
    pub kill_timeout: Duration,
    /// Time from the request to end a run, for good or for a restart, to the stop;
    /// `None`: no delay.
    pub shutdown_delay: Option<Duration>,
    /// A task that ended by itself waits, dead, to be started again with its allocation.
    pub restartable: bool,
}

impl TaskRules {
    /// The rules of a task.
    #[must_use]
    pub fn from_task(
        task: &Task,
        kind: JobKind,
        kill_timeout_max: Duration,
        restartable: bool,
    ) -> Self {
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

/// Time and chance of one step: the machine itself reads no clock and draws no random numbers.
#[derive(Clone, Copy, Debug)]
pub struct StepContext {
    /// The time at which the input is taken.
    pub now: Timestamp,
    /// A random number, for the jitter of restarts.
    pub random: u64,
}
