//! The owner of one task: takes requests, feeds the machine, does what it says.
//!
//! ```text
//!   requests ─┐                       ┌─► public state changed: watch, tick, background write
//!   gate ─────┤                       │
//!   timer ────┼─► TaskMachine::step ──┴─► effects: calls spawned on a JoinSet, timer set
//!   answers ──┤           ▲                              │
//!   notes ────┘           └──────────── answers ◄────────┘
//! ```
//! Answers carry the number of the run they belong to; those of an earlier run are dropped. The
//! public state is told at once and written beside: at most one write is on its way, the next one
//! takes the newest state. Events and starts share the commit of some later write; ends, failures
//! and restarts are durable at once (`save`). At the end the owner waits until the last state is
//! durable.

mod act;
mod answer;
mod save;
mod start;

use std::sync::{Arc, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::calls::{self, DriverNote, EndRequest, Run, StartError};
use super::events::Signals;
use super::handle::{Intent, LocalRecord};
use super::hooks::{HookError, Preparation};
use super::machine::{At, Rules, State, TaskEffect, TaskInput, TaskMachine};
use super::{ExecRequest, Request, RequestError, RestartHow, TaskScope};
use crate::alloc::coordinator::Gate;
use crate::fire;
use crate::kinds::Kinds;
use crate::queue;
use crate::watch;
use ostler_model::alloc::Allocation;
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::RunId;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::task::{TaskState, TaskStatus};

use self::answer::{Answer, Call};
use self::save::{Lasting, Plan};
pub(super) use self::start::{restore, spawn};

struct Runner {
    scope: Arc<TaskScope>,
    machine: TaskMachine,
    record: LocalRecord,
    /// Number of the present run; 0 before the first.
    number: u64,
    /// Of the first run, when it went with the record of the allocation.
    intent: Option<Intent>,
    preparation: Option<Preparation>,
    run: Option<Arc<Run>>,
    calls: JoinSet<(u64, Answer)>,
    kinds: Kinds<(u64, Call)>,
    timer: Option<BoxFuture<'static, ()>>,
    notes: queue::Sender<DriverNote>,
    published: watch::Publisher<HeldOnce<TaskState>>,
    tick: Arc<Notify>,
    writing: bool,
    dirty: bool,
    /// The run is to be forgotten when the state is written.
    forget_due: bool,
    /// The store went on refusing the last write; it is tried again.
    refused: bool,
    /// Cancelled when writes on their way are waited for without their pauses.
    closing: CancellationToken,
    /// What the handle reads the usage of.
    present: super::PresentRun,
    /// The run whose templates are followed.
    followed: Option<RunId>,
    /// What of the public state is known to be durable.
    lasting: Lasting,
    /// The first byte of its first run is waited for, or was.
    heard: bool,
}

/// Tells that the owner is gone, also when it was dropped or panicked: nobody waits for it in vain.
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
struct Inbox {
    requests: queue::Receiver<Box<Request>>,
    gate: watch::Subscriber<Gate>,
    notes: queue::Receiver<DriverNote>,
    newest: watch::Subscriber<Arc<Allocation>>,
}

impl Runner {
    async fn own(mut self: Box<Self>, first: Vec<TaskEffect>, mut inbox: Inbox) {
        for effect in first {
            self.act(effect);
        }
        self.write_if_due();
        let mut orphan = false;
        while !matches!(self.machine.state(), State::Dead | State::Detached) {
            let gated = self.machine.state() == State::Gated;
            tokio::select! {
                biased;
                // First, so that a request that comes after an update is handled by it.
                Ok(()) = inbox.newest.changed(), if !orphan => self.updated(&mut inbox.newest),
                request = inbox.requests.recv(), if !orphan => match request {
                    Some(request) => self.requested(*request),
                    // Nobody can ask any more: the allocation's owner is gone.
                    None => {
                        orphan = true;
                        self.feed(TaskInput::Shutdown);
                    }
                },
                Some(ended) = self.calls.join_next_with_id() => self.answered(ended),
                () = fire(&mut self.timer) => {
                    self.timer = None;
                    self.feed(TaskInput::TimerFired);
                }
                Some(note) = inbox.notes.recv() => {
                    self.feed(TaskInput::Note(note.event(self.scope.clock.now())));
                }
                () = open(&mut inbox.gate), if gated => self.feed(TaskInput::GateOpened),
            }
        }
        // Boxed: it is there for a moment, and the owner is there as long as its task.
        Box::pin(self.leave_durable()).await;
    }

    /// Finish the writes that are due, each within its bound; drop every other call. How the driver
    /// ends a task is no call to drop: one that hangs in it runs into its deadline, which counts
    /// against it.
    async fn leave_durable(&mut self) {
        // The last state of a dead task gets its tries, once.
        if self.refused || !matches!(self.machine.state(), State::Dead) {
            self.closing.cancel();
        }
        let stay = |call: Call| matches!(call, Call::Write | Call::Stop | Call::Kill);
        self.kinds.abort(|(_, call)| !stay(*call));
        while self.writing {
            match self.calls.join_next_with_id().await {
                Some(ended) => self.answered(ended),
                None => break,
            }
        }
        self.calls.detach_all();
        if self.run.is_none() {
            // What was being prepared is not begun any more.
            self.record.take_back(None).await;
        }
        // A dead task's state is durable by now; of one that runs on, the last events may lag.
        if !matches!(self.machine.state(), State::Dead) {
            save::flush(&self.scope).await;
        }
    }

    fn requested(&mut self, request: Request) {
        match request {
            Request::Kill(super::KillRequest { event, reason, skip_shutdown_delay }) => {
                self.feed(TaskInput::Kill { event, reason, skip_delay: skip_shutdown_delay });
            }
            Request::Note(event) => self.feed(TaskInput::Note(event)),
            Request::Finish => self.feed(TaskInput::Finish),
            Request::Shutdown => self.feed(TaskInput::Shutdown),
            Request::Restart { reason, how: RestartHow::Forced, reply } => {
                self.feed(TaskInput::ForceRestart { reason });
                let _gone = reply.send(Ok(()));
            }
            Request::Restart { reason, how, reply } => {
                let answer = self.when_running();
                if answer.is_ok() {
                    let failure = how == RestartHow::Unhealthy;
                    self.feed(TaskInput::Restart { reason, failure });
                }
                // An error means that the asker has left.
                let _gone = reply.send(answer);
            }
            Request::Signal { signal, reply } => self.signal(signal, reply),
            Request::Exec(request) => self.exec(request),
        }
    }

    /// A newer copy of the allocation: what is read at use is read from it from here on.
    fn updated(&mut self, newest: &mut watch::Subscriber<Arc<Allocation>>) {
        let allocation = Arc::clone(&newest.borrow_and_update());
        let name = &self.scope.task.name;
        let Some(task) = allocation.task_group().and_then(|group| group.task(name)).cloned() else {
            tracing::error!(task = %name, "the new version of the job has no such task; it is not taken");
            return;
        };
        let scope =
            TaskScope { allocation: Arc::clone(&allocation), task, ..(*self.scope).clone() };
        let kind = allocation.job.kind;
        let rules = Rules::of(&scope.task, kind, scope.kill_timeout_max, scope.restartable);
        self.scope = Arc::new(scope);
        self.feed(TaskInput::Rules(rules));
    }

    fn when_running(&self) -> Result<(), RequestError> {
        if matches!(self.machine.state(), State::Running | State::AwaitingRecovery) {
            Ok(())
        } else {
            Err(RequestError::NotRunning { task: self.scope.task.name.clone() })
        }
    }

    fn signal(&mut self, signal: String, reply: oneshot::Sender<Result<(), RequestError>>) {
        let (Ok(()), Some(run)) = (self.when_running(), self.run.clone()) else {
            let task = self.scope.task.name.clone();
            let _gone = reply.send(Err(RequestError::NotRunning { task }));
            return;
        };
        self.feed(TaskInput::Signaled { signal: signal.clone() });
        let scope = Arc::clone(&self.scope);
        self.call(Call::Signal, async move {
            let answer = calls::signal(&scope, &run, signal).await;
            let _gone = reply.send(answer.map_err(|error| of_driver(&scope, error)));
            Answer::Told
        });
    }

    /// Beside the owner: the session is the asker's, and ends with the run.
    fn exec(&mut self, ExecRequest { command, reply }: ExecRequest) {
        let (Ok(()), Some(run)) = (self.when_running(), self.run.clone()) else {
            let task = self.scope.task.name.clone();
            let _gone = reply.send(Err(RequestError::NotRunning { task }));
            return;
        };
        let scope = Arc::clone(&self.scope);
        self.call(Call::Exec, async move {
            let answer = calls::exec(&scope, &run, command).await;
            // Not taken by anybody, it ends.
            let _gone = reply.send(answer.map_err(|error| of_driver(&scope, error)));
            Answer::Told
        });
    }

    fn answered(&mut self, ended: Result<(Id, (u64, Answer)), JoinError>) {
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
                (number, call.panicked())
            }
        };
        if let Answer::Written(lasting) = answer {
            self.written(lasting);
            return;
        }
        if number != self.number {
            return;
        }
        let now = self.scope.clock.now();
        let input = match answer {
            Answer::Prepared(result) => match *result {
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
            Answer::Started(Ok(())) => {
                self.driver_known();
                TaskInput::Started
            }
            Answer::Started(Err(StartError { error, recoverable })) => {
                TaskInput::StartFailed { error, recoverable }
            }
            Answer::WorkloadEnded => TaskInput::WorkloadEnded,
            Answer::Stopped(Err(error)) => TaskInput::StopFailed { error },
            Answer::Killed(Err(error)) => TaskInput::KillFailed { error },
            Answer::ExitRead(exit, trouble) => {
                if let Some(trouble) = trouble {
                    self.feed(TaskInput::Note(super::events::driver_failure(now, &trouble)));
                }
                TaskInput::ExitRead(exit)
            }
            Answer::Forgotten => TaskInput::Forgotten,
            Answer::Recovered(recovery) => {
                self.driver_known();
                self.feed(recovery.into());
                self.follow_templates();
                return;
            }
            Answer::Templates(news) => return self.templates_changed(news),
            Answer::Cleared(true) => {
                self.run = None;
                TaskInput::Cleared
            }
            // The record of it stays.
            Answer::Cleared(false) => TaskInput::NotCleared,
            Answer::Undead(what) => TaskInput::Note(super::events::undead(now, &what)),
            Answer::GivenUp(error) => {
                self.abort(Call::Watch);
                TaskInput::GivenUp { error }
            }
            Answer::Ended => TaskInput::Ended,
            Answer::Stopped(Ok(EndRequest::Ended)) | Answer::Killed(Ok(EndRequest::Ended)) => {
                // The driver is not asked about the run any more.
                self.abort(Call::Watch);
                TaskInput::WorkloadEnded
            }
            Answer::Stopped(Ok(EndRequest::Taken)) | Answer::Killed(Ok(EndRequest::Taken)) => {
                return;
            }
            Answer::Told | Answer::Written(_) => return,
        };
        self.feed(input);
    }

    /// The driver of the present run is at hand.
    fn driver_known(&mut self) {
        let driver = self.run.as_ref().and_then(|run| run.driver());
        let Some(can) = driver.map(|driver| driver.capabilities()) else { return };
        let signals = if can.send_signals { Signals::Sent } else { Signals::None };
        self.feed(TaskInput::DriverKnown { signals });
    }

    /// A write ended. One that was refused is due again: a run must not be forgotten before what
    /// follows it is durable. Who leaves or is killed does not wait for that.
    fn written(&mut self, lasting: Option<Lasting>) {
        self.writing = false;
        self.refused = lasting.is_none();
        self.lasting = lasting.unwrap_or(self.lasting);
        let over = matches!(self.machine.state(), State::Dead | State::Detached);
        if self.refused && !over {
            self.dirty = true;
            self.feed(TaskInput::NotDurable);
        } else {
            self.write_if_due();
        }
    }

    /// One step of the machine: do what it says, tell and write what changed.
    fn feed(&mut self, input: TaskInput) {
        let at = At { now: self.scope.clock.now(), random: self.scope.rng.next_u64() };
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

    /// The run whose usage can be asked for.
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
        let plan = Plan {
            tracker: self.machine.tracker(),
            delayed_until: self.machine.delayed_until(),
            steps: self.record.steps(),
        };
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        let (known, again) = (self.lasting, self.refused);
        let closing = self.closing.clone();
        self.call(Call::Write, async move {
            if again {
                save::pause(save::REFUSED_PAUSE, &closing).await;
            }
            let write = save::write(&scope, &record, &public, plan, known, &closing);
            Answer::Written(write.await)
        });
    }
}

/// Why a driver did not do what somebody asked.
fn of_driver(scope: &TaskScope, error: PluginCallError) -> RequestError {
    match error {
        PluginCallError::CallFailed { call: "signal" | "exec", .. } => {
            RequestError::NoAnswer { task: scope.task.name.clone() }
        }
        error => RequestError::Driver(error),
    }
}

/// Wait until the gate is open; for ever when its owner is gone.
async fn open(gate: &mut watch::Subscriber<Gate>) {
    if gate.wait_for(|gate| *gate == Gate::Open).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
