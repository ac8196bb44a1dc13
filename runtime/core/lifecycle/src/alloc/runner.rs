//! The owner of one allocation. It starts the owners of the tasks, feeds the machine and carries
//! out its effects.
//!
//! ```text
//!   requests ─┐                        ┌─► AllocState, AllocPhase (watch), SavedAllocState (store)
//!   updates ──┤                        │
//!   tick ─────┤                        │
//!   news ─────┼─► AllocMachine::step ──┴─► effects: gates, kills, hooks (spawned on a JoinSet)
//!   timer ────┤
//!   answers ──┘
//! ```
//! A task that changes notifies the tick. The owner then reads all tasks, so no change is lost and
//! none queues up. Updates come by a watch, so only the newest counts. Hooks report by news.
//! Requests to tasks are sent beside the owner, so that a full queue holds up nobody.

mod act;
mod ask;
mod save;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::coordinator::TaskGate;
use super::hooks::background::CloseOnDrop;
use super::hooks::{AllocHookError, AllocScope, HookNews};
use super::machine::{AllocInput, AllocMachine, AllocPhase, Blame};
use super::phases::Phases;
use super::update::merge_in_place;
use super::{AllocOwnerRequest, Reply};
use crate::by_task::ByTask;
use crate::kinds::CallKinds;
use crate::queue;
use crate::task::{RequestError, TaskHandle};
use crate::wait_for_timer;
use crate::watch;
use ostler_model::alloc::{AllocState, Allocation, ClientStatus, DesiredStatus};
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::TaskName;
use ostler_model::ports::BoxFuture;
use ostler_model::saved::SavedAllocState;
use ostler_model::task::TaskState;

pub(super) use self::start::start;

/// Which call runs beside the owner. It is part of the answer too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllocCall {
    Pre,
    Update,
    RestartHooks,
    PreKill,
    Post,
    Destroy,
    /// Requests on their way to tasks.
    Request,
    /// A request for every task to run again.
    ForceRestart,
    /// The saved state, while the allocation lives: may lag.
    Save,
    /// The saved state at the end: durable before anybody hears of the end.
    SaveLast,
    /// The verdict on the health: durable before anybody hears of it.
    SaveHealth,
}

/// A call that has ended, and its result.
type AllocCallAnswer = (AllocCall, Result<(), AllocCallFailure>);

/// Why a call failed.
#[derive(Debug)]
struct AllocCallFailure {
    error: String,
    /// Whose fault it is.
    blame: Blame,
}

impl From<String> for AllocCallFailure {
    fn from(error: String) -> Self {
        Self { error, blame: Blame::Alloc }
    }
}

impl From<AllocHookError> for AllocCallFailure {
    fn from(error: AllocHookError) -> Self {
        Self { blame: error.failure.blame, error: error.to_string() }
    }
}

/// The state of hooks of which one call runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookTurn {
    Idle,
    Running,
    /// A call runs and a newer copy came meanwhile: call once more afterwards.
    Again,
}

struct AllocRunnerLoop {
    scope: AllocScope,
    machine: AllocMachine,
    /// The tasks. Handles of the allocation use them too, as long as the owner is there.
    tasks: Arc<ByTask<TaskHandle>>,
    gates: ByTask<watch::Publisher<TaskGate>>,
    tick: Arc<Notify>,
    timer: Option<BoxFuture<'static, ()>>,
    calls: JoinSet<AllocCallAnswer>,
    kinds: CallKinds<AllocCall>,
    tasks_gone: bool,
    update_hooks: HookTurn,
    /// Where a restart of all is answered to, until it is on its way to the tasks.
    restart: Option<Reply>,
    state: watch::Publisher<AllocState>,
    phase: Phases,
    /// The saved state handed to the store last.
    saved: Option<SavedAllocState>,
    saving: bool,
    /// The post-run hooks are done. The end is published when it is durable.
    cleaned: bool,
    /// The last write of the saved state has ended.
    last_saved: bool,
    /// Somebody asked for the removal of the allocation.
    removed: bool,
    /// Cancelled when writes are no longer repeated until they are durable: the agent leaves, or
    /// all records are to go.
    closing: CancellationToken,
    /// Ends what the hooks left running, also when the owner panics.
    _close: CloseOnDrop,
}

/// What the owner listens to beside its calls.
struct AllocInbox {
    requests: queue::QueueReceiver<Box<AllocOwnerRequest>>,
    updates: watch::Subscriber<Arc<Allocation>>,
    news: queue::QueueReceiver<Box<HookNews>>,
}

fn states_of(tasks: &ByTask<TaskHandle>) -> BTreeMap<TaskName, CowArc<TaskState>> {
    tasks.iter().map(|(name, task)| (name.clone(), task.state())).collect()
}

impl AllocRunnerLoop {
    async fn run_owner(mut self: Box<Self>, mut inbox: AllocInbox) {
        let mut leaving = false;
        loop {
            match self.machine.phase() {
                AllocPhase::Destroyed | AllocPhase::Left => break,
                // The allocation is finished, and nobody is left who could ask for more.
                AllocPhase::Done if leaving => break,
                _ => {}
            }
            tokio::select! {
                biased;
                request = inbox.requests.recv(), if !leaving => {
                    leaving = matches!(request.as_deref(), None | Some(AllocOwnerRequest::Shutdown));
                    self.take_request(request.map_or(AllocOwnerRequest::Shutdown, |request| *request));
                }
                // An error means that every handle is gone, and then the requests end too.
                Ok(()) = inbox.updates.changed(), if !leaving => {
                    let newer = Arc::clone(&inbox.updates.borrow_and_update());
                    // A stop by request is sent before its copy, and says more than the copy.
                    while let Some(request) = inbox.requests.try_recv() {
                        leaving |= matches!(*request, AllocOwnerRequest::Shutdown);
                        self.take_request(*request);
                    }
                    self.take_update(newer);
                }
                // News come before the answers, because a hook reports before it ends.
                Some(news) = inbox.news.recv() => self.take_news(*news),
                Some(ended) = self.calls.join_next_with_id() => self.take_answer(ended),
                () = wait_for_timer(&mut self.timer) => {
                    self.timer = None;
                    self.feed(AllocInput::TimerFired);
                }
                () = self.tick.notified() => self.read_tasks(),
            }
        }
    }

    fn take_request(&mut self, request: AllocOwnerRequest) {
        match request {
            AllocOwnerRequest::Stop { reason, skip_shutdown_delay } => {
                self.feed(AllocInput::Stop { reason, skip_shutdown_delay });
            }
            AllocOwnerRequest::Destroy => {
                self.removed = true;
                self.closing.cancel();
                self.feed(AllocInput::Destroy);
            }
            AllocOwnerRequest::Shutdown => {
                self.closing.cancel();
                self.feed(AllocInput::Shutdown);
            }
            AllocOwnerRequest::Restart { scope, reason, reply } => {
                self.restart(scope, reason, reply)
            }
            AllocOwnerRequest::Signal { task, signal, reply } => {
                self.ask_tasks(task.as_ref(), reply, move |handle| {
                    let signal = signal.clone();
                    Box::pin(async move { handle.signal(&signal).await })
                });
            }
            AllocOwnerRequest::Exec { task, request } => self.exec(&task, request),
            AllocOwnerRequest::Judge { healthy } => {
                self.feed(AllocInput::Verdict { healthy, reasons: Vec::new() });
            }
        }
    }

    /// Take a newer copy of the allocation.
    fn take_update(&mut self, newer: Arc<Allocation>) {
        let old = &self.scope.allocation;
        if newer.modify_index <= old.modify_index {
            return;
        }
        let Some(effective) = merge_in_place(old, &newer) else {
            tracing::error!(alloc = %old.id, group = %newer.group, "update names a group its job does not have; ignored");
            return;
        };
        let stops = |of: &Allocation| of.desired == DesiredStatus::Stop;
        let stop = stops(&effective) && !stops(old);
        let hooks = !stops(&effective);
        // The copy is shared with its sender, unless some part of it does not take effect.
        let effective = if effective == *newer { newer } else { Arc::new(effective) };
        for task in self.tasks.values() {
            task.update(Arc::clone(&effective));
        }
        let group = effective.task_group().cloned();
        let reason = start::stop_reason(&effective);
        let deployment = effective.deployment_id().map(Box::from);
        let redeployed = deployment.as_deref() != old.deployment_id();
        self.scope.allocation = effective;
        if redeployed {
            self.feed(AllocInput::Deployed(deployment));
        }
        if let Some(group) = group {
            self.feed(AllocInput::Update { group: Box::new(group), hooks });
        }
        // A stop by request may be followed by a copy that says stop: together they are one stop.
        if stop && !self.machine.is_ending() {
            self.feed(AllocInput::Stop { reason, skip_shutdown_delay: false });
        }
    }

    /// Take news from a hook.
    fn take_news(&mut self, news: HookNews) {
        match news {
            HookNews::Waiting(what) => self.feed(AllocInput::Waiting { what }),
            HookNews::Say(event) => {
                let told = self.tasks.keys().map(|task| (task.clone(), event.clone()));
                self.note(told.collect());
            }
            HookNews::Network(status) => self.feed(AllocInput::Network(status)),
            HookNews::SayTo(task, event) => self.note(vec![(task, event)]),
            HookNews::Force { status, description, event } => {
                self.feed(AllocInput::Force { status, description, event });
            }
            HookNews::Verdict { healthy, reasons } => {
                self.feed(AllocInput::Verdict { healthy, reasons });
            }
        }
    }

    /// Read the states of all tasks, because some task changed.
    fn read_tasks(&mut self) {
        // `gone` is read before the states, because an owner publishes its last state
        // before it goes.
        let gone = self.tasks.values().all(|task| task.is_gone());
        self.feed(AllocInput::Tasks(states_of(&self.tasks)));
        if gone && !self.tasks_gone {
            self.tasks_gone = true;
            self.feed(AllocInput::TasksGone);
        }
    }

    fn take_answer(&mut self, ended: Result<(Id, AllocCallAnswer), JoinError>) {
        let (call, result) = match ended {
            Ok((id, answer)) => {
                self.kinds.remove(id);
                answer
            }
            Err(error) => {
                let known = self.kinds.remove(error.id());
                let Some(call) = known.filter(|_| error.is_panic()) else {
                    return;
                };
                tracing::error!(alloc = %self.scope.allocation.id, ?call, "call of an allocation's owner panicked");
                let error = "internal error: a call of the allocation panicked".to_owned();
                (call, Err(AllocCallFailure::from(error)))
            }
        };
        match (call, result) {
            (AllocCall::Pre, Ok(())) => self.feed(AllocInput::HooksDone),
            (AllocCall::Pre, Err(AllocCallFailure { error, blame })) => {
                self.feed(AllocInput::HooksFailed { error, blame });
            }
            (AllocCall::Update, _) => {
                let again = self.update_hooks == HookTurn::Again;
                self.update_hooks = HookTurn::Idle;
                if again {
                    self.run_update_hooks();
                }
            }
            (AllocCall::RestartHooks, result) => self.restart_ready(result.map_err(|e| e.error)),
            (AllocCall::PreKill, _) => self.feed(AllocInput::PreKilled),
            (AllocCall::Post, _) => {
                self.cleaned = true;
                self.scope.background.close();
                self.save_if_due();
            }
            (AllocCall::Save, _) => {
                self.saving = false;
                self.save_if_due();
            }
            (AllocCall::SaveLast, saved) => {
                self.saving = false;
                self.last_saved = true;
                // An allocation that is removed needs no durable last state.
                let lasts = saved.is_ok() || self.removed;
                self.feed(if lasts { AllocInput::Cleaned } else { AllocInput::NotSaved });
            }
            (AllocCall::SaveHealth, saved) => {
                let lasts = saved.is_ok() || self.removed;
                self.feed(if lasts { AllocInput::HealthSaved } else { AllocInput::NotSaved });
            }
            (AllocCall::Destroy, _) => self.feed(AllocInput::Destroyed),
            (AllocCall::ForceRestart, _) => {
                // Read the present states first: the known ones are from before the restart.
                self.read_tasks();
                self.feed(AllocInput::RestartAsked);
            }
            (AllocCall::Request, _) => {}
        }
    }

    fn feed(&mut self, input: AllocInput) {
        for effect in self.machine.step(self.scope.node.clock.now(), input) {
            self.act(effect);
        }
        self.publish();
        self.save_if_due();
    }

    fn publish(&mut self) {
        self.state.send_if_modified(|state| {
            let differs = state != self.machine.public();
            if differs {
                state.clone_from(self.machine.public());
            }
            differs
        });
        self.phase.set(self.machine.phase());
        if let Some(trace) = &self.scope.context.trace {
            let now = self.machine.public();
            let failed = now.client_status == ClientStatus::Failed;
            if now.client_status != ClientStatus::Pending {
                let why = failed.then_some(now.client_description.as_str());
                trace.end_span(&now.client_status.to_string(), why);
            }
        }
    }
}

/// Answer a request. An asker that is gone is no error.
fn send_answer(reply: Reply, result: Result<(), RequestError>) {
    let _gone = reply.send(result);
}

#[cfg(test)]
mod tests;
