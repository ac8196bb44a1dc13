//! The owner of one task. It takes requests, feeds the machine and carries out its effects.
//!
//! ```text
//!   requests ─┐                       ┌─► public state changed: watch, tick, background write
//!   gate ─────┤                       │
//!   timer ────┼─► TaskMachine::step ──┴─► effects: calls spawned on a JoinSet, timer set
//!   answers ──┤           ▲                              │
//!   notes ────┘           └──────────── answers ◄────────┘
//! ```
//! Answers carry the number of the run that they belong to; answers of an earlier run are dropped.
//! The public state is published at once and written beside the owner. At most one write is on its
//! way, and the next one takes the newest state. Events and starts share the commit of some later
//! write; ends, failures and restarts are durable at once (`save`). At the end the owner waits
//! until the last state is durable.

mod act;
mod answer;
mod save;
mod start;

use std::sync::{Arc, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::calls::{self, DriverNote, EndRequest, TaskRun, TaskStartError};
use super::events::Signals;
use super::handle::{LocalRecord, RunIntent};
use super::hooks::{HookError, Preparation};
use super::machine::{MachineState, StepContext, TaskEffect, TaskInput, TaskMachine, TaskRules};
use super::{ExecRequest, RequestError, RestartHow, TaskOwnerRequest, TaskScope};
use crate::alloc::coordinator::TaskGate;
use crate::kinds::CallKinds;
use crate::queue;
use crate::wait_for_timer;
use crate::watch;
use ostler_model::alloc::Allocation;
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::RunId;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::task::{TaskState, TaskStatus};

use self::answer::{TaskCall, TaskCallAnswer};
use self::save::{LastingState, StartPlan};
pub(super) use self::start::{restore, spawn};

struct TaskRunner {
    scope: Arc<TaskScope>,
    machine: TaskMachine,
    record: LocalRecord,
    /// Number of the present run; 0 before the first.
    number: u64,
    /// The intent of the first run, when it went to the store with the record of the allocation.
    intent: Option<RunIntent>,
    preparation: Option<Preparation>,
    run: Option<Arc<TaskRun>>,
    calls: JoinSet<(u64, TaskCallAnswer)>,
    kinds: CallKinds<(u64, TaskCall)>,
    timer: Option<BoxFuture<'static, ()>>,
    notes: queue::QueueSender<DriverNote>,
    published: watch::Publisher<CowArc<TaskState>>,
    tick: Arc<Notify>,
    writing: bool,
    dirty: bool,
    /// The run is to be forgotten when the state is written.
    forget_due: bool,
    /// The store went on refusing the last write, which is tried again.
    refused: bool,
    /// Cancelled when the pauses of writes on their way are to end.
    closing: CancellationToken,
    /// The present run, for the handle to read its usage.
    present: super::PresentRun,
    /// The run whose templates are followed.
    followed: Option<RunId>,
    /// The part of the public state that is known to be durable.
    lasting: LastingState,
    /// The wait for the first byte of the first run has begun.
    heard: bool,
}

/// Signals that the owner is gone, also when it was dropped or panicked, so that nobody waits for
/// it in vain.
struct GoneGuard {
    gone: CancellationToken,
    tick: Arc<Notify>,
}

impl Drop for GoneGuard {
    fn drop(&mut self) {
        self.gone.cancel();
        self.tick.notify_one();
    }
}

/// What the owner listens to beside its calls.
struct TaskInbox {
    requests: queue::QueueReceiver<Box<TaskOwnerRequest>>,
    gate: watch::Subscriber<TaskGate>,
    notes: queue::QueueReceiver<DriverNote>,
    newest: watch::Subscriber<Arc<Allocation>>,
}

impl TaskRunner {
    async fn run_owner(mut self: Box<Self>, first: Vec<TaskEffect>, mut inbox: TaskInbox) {
        for effect in first {
            self.act(effect);
        }
        self.write_if_due();
        let mut orphan = false;
        while !matches!(self.machine.state(), MachineState::Dead | MachineState::Detached) {
            let gated = self.machine.state() == MachineState::Gated;
            tokio::select! {
                biased;
                // Updates come first, so that a request after an update sees it.
                Ok(()) = inbox.newest.changed(), if !orphan => self.take_update(&mut inbox.newest),
                request = inbox.requests.recv(), if !orphan => match request {
                    Some(request) => self.take_request(*request),
                    // Nobody can ask any more: the allocation's owner is gone.
                    None => {
                        orphan = true;
                        self.feed(TaskInput::Shutdown);
                    }
                },
                Some(ended) = self.calls.join_next_with_id() => self.take_answer(ended),
                () = wait_for_timer(&mut self.timer) => {
                    self.timer = None;
                    self.feed(TaskInput::TimerFired);
                }
                Some(note) = inbox.notes.recv() => {
                    self.feed(TaskInput::Note(note.event(self.scope.node.clock.now())));
                }
                () = wait_open(&mut inbox.gate), if gated => self.feed(TaskInput::GateOpened),
            }
        }
        // Boxed, because it lives for a moment, and the owner lives as long as its task.
        Box::pin(self.leave_durable()).await;
    }

    /// Finish the writes that are due, each within its bound, and drop other calls. Calls of the
    /// driver that stop or kill the task are not dropped: a call that hangs runs into its deadline,
    /// which counts against the driver.
    async fn leave_durable(&mut self) {
        // The last state of a dead task gets all its tries, unless the store refused before.
        if self.refused || !matches!(self.machine.state(), MachineState::Dead) {
            self.closing.cancel();
        }
        let stay =
            |call: TaskCall| matches!(call, TaskCall::Write | TaskCall::Stop | TaskCall::Kill);
        self.kinds.abort(|(_, call)| !stay(*call));
        while self.writing {
            match self.calls.join_next_with_id().await {
                Some(ended) => self.take_answer(ended),
                None => break,
            }
        }
        self.calls.detach_all();
        if self.run.is_none() {
            // A run that was being prepared does not begin any more.
            self.record.take_back(None).await;
        }
        // A dead task's state is durable by now; of one that runs on, the last events may lag.
        if !matches!(self.machine.state(), MachineState::Dead) {
            save::flush(&self.scope).await;
        }
    }

    fn take_request(&mut self, request: TaskOwnerRequest) {
        match request {
            TaskOwnerRequest::Kill(super::KillRequest { event, reason, skip_shutdown_delay }) => {
                self.feed(TaskInput::Kill { event, reason, skip_delay: skip_shutdown_delay });
            }
            TaskOwnerRequest::Note(event) => self.feed(TaskInput::Note(event)),
            TaskOwnerRequest::Finish => self.feed(TaskInput::Finish),
            TaskOwnerRequest::Shutdown => self.feed(TaskInput::Shutdown),
            TaskOwnerRequest::Restart { reason, how: RestartHow::Forced, reply } => {
                self.feed(TaskInput::ForceRestart { reason });
                let _gone = reply.send(Ok(()));
            }
            TaskOwnerRequest::Restart { reason, how, reply } => {
                let answer = self.check_running();
                if answer.is_ok() {
                    let failure = how == RestartHow::Unhealthy;
                    self.feed(TaskInput::Restart { reason, failure });
                }
                // An error means that the asker has left.
                let _gone = reply.send(answer);
            }
            TaskOwnerRequest::Signal { signal, reply } => self.signal(signal, reply),
            TaskOwnerRequest::Exec(request) => self.exec(request),
        }
    }

    /// Take a newer copy of the allocation. From now on everything is read from it.
    fn take_update(&mut self, newest: &mut watch::Subscriber<Arc<Allocation>>) {
        let allocation = Arc::clone(&newest.borrow_and_update());
        let name = &self.scope.task.name;
        let Some(task) = allocation.task_group().and_then(|group| group.task(name)).cloned() else {
            tracing::error!(task = %name, "the new version of the job has no such task; it is not taken");
            return;
        };
        let scope =
            TaskScope { allocation: Arc::clone(&allocation), task, ..(*self.scope).clone() };
        let kind = allocation.job.kind;
        let rules =
            TaskRules::from_task(&scope.task, kind, scope.node.kill_timeout_max, scope.restartable);
        self.scope = Arc::new(scope);
        self.feed(TaskInput::Rules(rules));
    }

    fn check_running(&self) -> Result<(), RequestError> {
        if matches!(self.machine.state(), MachineState::Running | MachineState::AwaitingRecovery) {
            Ok(())
        } else {
            Err(RequestError::NotRunning { task: self.scope.task.name.clone() })
        }
    }

    fn signal(&mut self, signal: String, reply: oneshot::Sender<Result<(), RequestError>>) {
        let (Ok(()), Some(run)) = (self.check_running(), self.run.clone()) else {
            let task = self.scope.task.name.clone();
            let _gone = reply.send(Err(RequestError::NotRunning { task }));
            return;
        };
        self.feed(TaskInput::Signaled { signal: signal.clone() });
        let scope = Arc::clone(&self.scope);
        self.call(TaskCall::Signal, async move {
            let answer = calls::signal(&scope, &run, signal).await;
            let _gone = reply.send(answer.map_err(|error| driver_error(&scope, error)));
            TaskCallAnswer::Handled
        });
    }

    /// Run a command inside the task, beside the owner. The session belongs to the asker and ends
    /// with the run.
    fn exec(&mut self, ExecRequest { command, reply }: ExecRequest) {
        let (Ok(()), Some(run)) = (self.check_running(), self.run.clone()) else {
            let task = self.scope.task.name.clone();
            let _gone = reply.send(Err(RequestError::NotRunning { task }));
            return;
        };
        let scope = Arc::clone(&self.scope);
        self.call(TaskCall::Exec, async move {
            let answer = calls::exec(&scope, &run, command).await;
            // A session that nobody takes ends.
            let _gone = reply.send(answer.map_err(|error| driver_error(&scope, error)));
            TaskCallAnswer::Handled
        });
    }

    fn take_answer(&mut self, ended: Result<(Id, (u64, TaskCallAnswer)), JoinError>) {
        let (number, answer) = match ended {
            Ok((id, answer)) => {
                self.kinds.remove(id);
                answer
            }
            Err(error) => {
                let known = self.kinds.remove(error.id());
                let Some((number, call)) = known.filter(|_| error.is_panic()) else {
                    return;
                };
                tracing::error!(task = %self.scope.task.name, ?call, "call of a task runner panicked");
                (number, call.panic_answer())
            }
        };
        if let TaskCallAnswer::Written(lasting) = answer {
            self.take_written(lasting);
            return;
        }
        if number != self.number {
            return;
        }
        let now = self.scope.node.clock.now();
        let input = match answer {
            TaskCallAnswer::Prepared(result) => match *result {
                Ok(preparation) => {
                    self.preparation = Some(preparation);
                    TaskInput::Prepared
                }
                Err(HookError::DriverNotReady { reason }) => TaskInput::DriverNotReady { reason },
                Err(HookError::Node { error }) => TaskInput::NodeNotReady { reason: error },
                Err(error) => TaskInput::PrepareFailed {
                    event: error.event(now),
                    recoverable: error.recoverable(),
                },
            },
            TaskCallAnswer::Started(Ok(())) => {
                self.feed_signals();
                TaskInput::Started
            }
            TaskCallAnswer::Started(Err(TaskStartError { error, recoverable })) => {
                TaskInput::StartFailed { error, recoverable }
            }
            TaskCallAnswer::WorkloadEnded => TaskInput::WorkloadEnded,
            TaskCallAnswer::Stopped(Err(error)) => TaskInput::StopFailed { error },
            TaskCallAnswer::Killed(Err(error)) => TaskInput::KillFailed { error },
            TaskCallAnswer::ExitRead(exit, trouble) => {
                if let Some(trouble) = trouble {
                    self.feed(TaskInput::Note(super::events::driver_failure(now, &trouble)));
                }
                TaskInput::ExitRead(exit)
            }
            TaskCallAnswer::Forgotten => TaskInput::Forgotten,
            TaskCallAnswer::Recovered(recovery) => {
                self.feed_signals();
                self.feed(recovery.into());
                self.follow_templates();
                return;
            }
            TaskCallAnswer::Templates(news) => return self.take_template_news(news),
            TaskCallAnswer::Cleared(true) => {
                self.run = None;
                TaskInput::Cleared
            }
            // The record of the run stays.
            TaskCallAnswer::Cleared(false) => TaskInput::NotCleared,
            TaskCallAnswer::Undead(what) => {
                TaskInput::Note(super::events::undead_event(now, &what))
            }
            TaskCallAnswer::GivenUp(error) => {
                self.abort(TaskCall::Watch);
                TaskInput::GivenUp { error }
            }
            TaskCallAnswer::Ended => TaskInput::Ended,
            TaskCallAnswer::Stopped(Ok(EndRequest::Ended))
            | TaskCallAnswer::Killed(Ok(EndRequest::Ended)) => {
                // The driver is not asked about the run any more.
                self.abort(TaskCall::Watch);
                TaskInput::WorkloadEnded
            }
            TaskCallAnswer::Stopped(Ok(EndRequest::Taken))
            | TaskCallAnswer::Killed(Ok(EndRequest::Taken)) => {
                return;
            }
            TaskCallAnswer::Handled | TaskCallAnswer::Written(_) => return,
        };
        self.feed(input);
    }

    /// Tell the machine whether the driver of the present run sends signals.
    fn feed_signals(&mut self) {
        let driver = self.run.as_ref().and_then(|run| run.driver());
        let Some(can) = driver.map(|driver| driver.capabilities()) else { return };
        let signals = if can.send_signals { Signals::Sent } else { Signals::None };
        self.feed(TaskInput::DriverKnown { signals });
    }

    /// Take the end of a write. A write that was refused is due again, because a run must not be
    /// forgotten before what follows it is durable. An owner that leaves, or whose task is killed,
    /// does not wait for that.
    fn take_written(&mut self, lasting: Option<LastingState>) {
        self.writing = false;
        self.refused = lasting.is_none();
        self.lasting = lasting.unwrap_or(self.lasting);
        let over = matches!(self.machine.state(), MachineState::Dead | MachineState::Detached);
        if self.refused && !over {
            self.dirty = true;
            self.feed(TaskInput::NotDurable);
        } else {
            self.write_if_due();
        }
    }

    /// Make one step of the machine: carry out its effects, publish and write what changed.
    fn feed(&mut self, input: TaskInput) {
        let at = StepContext {
            now: self.scope.node.clock.now(),
            random: self.scope.node.rng.next_u64(),
        };
        let effects = self.machine.step(at, input);
        for effect in effects {
            self.act(effect);
        }
        self.tell_present();
        let public = self.machine.public();
        let changed = self.published.send_if_modified(|published| {
            let differs = published != public;
            if differs {
                published.clone_from(public);
            }
            differs
        });
        if changed {
            self.dirty = true;
            self.tick.notify_one();
        }
        self.write_if_due();
    }

    /// Publish the run whose usage can be asked for.
    fn tell_present(&self) {
        let alive = self.machine.public().status == TaskStatus::Running;
        let run = self.run.as_ref().filter(|_| alive);
        let present = run.and_then(|run| Some((run.id.clone(), run.workload()?)));
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = present;
    }

    /// Write the newest state unless a write is on its way.
    fn write_if_due(&mut self) {
        self.forget_if_due();
        if self.writing || !self.dirty {
            return;
        }
        self.dirty = false;
        self.writing = true;
        let public = self.machine.public().clone();
        let plan = StartPlan {
            tracker: self.machine.tracker(),
            delayed_until: self.machine.delayed_until(),
            steps: self.record.steps(),
        };
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        let (known, again) = (self.lasting, self.refused);
        let closing = self.closing.clone();
        self.call(TaskCall::Write, async move {
            if again {
                save::pause(save::REFUSED_PAUSE, &closing).await;
            }
            let write = save::write(&scope, &record, &public, plan, known, &closing);
            TaskCallAnswer::Written(write.await)
        });
    }
}

/// The error for an asker when a driver did not do what was asked.
fn driver_error(scope: &TaskScope, error: PluginCallError) -> RequestError {
    match error {
        PluginCallError::CallFailed { call: "signal" | "exec", .. } => {
            RequestError::NoAnswer { task: scope.task.name.clone() }
        }
        error => RequestError::Driver(error),
    }
}

/// Wait until the gate is open; for ever when its owner is gone.
async fn wait_open(gate: &mut watch::Subscriber<TaskGate>) {
    if gate.wait_for(|gate| *gate == TaskGate::Open).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
