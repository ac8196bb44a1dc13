//! The owner of one allocation: starts the owners of its tasks, feeds the machine, does what it says.
//!
//! ```text
//!   requests ─┐                        ┌─► AllocState, AllocPhase (watch), SavedAllocState (store)
//!   updates ──┤                        │
//!   tick ─────┤                        │
//!   news ─────┼─► AllocMachine::step ──┴─► effects: gates, kills, hooks (spawned on a JoinSet)
//!   timer ────┤
//!   answers ──┘
//! ```
//! A task that changes rings the tick; the owner then reads all tasks, so no change is lost and
//! none queues up. Updates are a watch: only the newest is looked at. News is what hooks have to say.
//! Requests to tasks are sent beside the owner, so a full queue holds up nobody.

mod act;
mod ask;
mod save;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::coordinator::Gate;
use super::hooks::background::CloseOnDrop;
use super::hooks::{AllocHook, AllocHookError, AllocScope, News};
use super::machine::{AllocInput, AllocMachine, AllocPhase, Blame};
use super::phases::Phases;
use super::update::in_place;
use super::{Reply, Request};
use crate::by_task::ByTask;
use crate::fire;
use crate::kinds::Kinds;
use crate::queue;
use crate::task::{RequestError, TaskHandle};
use crate::watch;
use ostler_model::alloc::{AllocState, Allocation, ClientStatus, DesiredStatus};
use ostler_model::clock::Clock;
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::TaskName;
use ostler_model::ports::BoxFuture;
use ostler_model::saved::SavedAllocState;
use ostler_model::task::TaskState;
use ostler_state::StateStore;

pub use self::start::{restore, spawn};

/// What a call beside the owner is; also its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
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

/// A call and how it went.
type Answer = (Call, Result<(), Failed>);

/// What went wrong in a call.
#[derive(Debug)]
struct Failed {
    error: String,
    /// Whose fault it is.
    blame: Blame,
}

impl From<String> for Failed {
    fn from(error: String) -> Self {
        Self { error, blame: Blame::Alloc }
    }
}

impl From<AllocHookError> for Failed {
    fn from(error: AllocHookError) -> Self {
        Self { blame: error.failure.blame, error: error.to_string() }
    }
}

/// Hooks of which one call runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Idle,
    Running,
    /// And something came meanwhile: once more afterwards.
    Again,
}

struct Runner {
    scope: AllocScope,
    hooks: Vec<Arc<dyn AllocHook>>,
    machine: AllocMachine,
    /// Handles of the allocation look here too, as long as the owner is there.
    tasks: Arc<ByTask<TaskHandle>>,
    gates: ByTask<watch::Publisher<Gate>>,
    tick: Arc<Notify>,
    timer: Option<BoxFuture<'static, ()>>,
    calls: JoinSet<Answer>,
    kinds: Kinds<Call>,
    tasks_gone: bool,
    update_hooks: Turn,
    /// Who asked for the restart of all that is not on its way to the tasks yet.
    restart: Option<Reply>,
    state: watch::Publisher<AllocState>,
    phase: Phases,
    store: StateStore,
    /// The saved state handed to the store last.
    saved: Option<SavedAllocState>,
    saving: bool,
    /// Post-run hooks are done; the end is told when it is durable.
    cleaned: bool,
    /// It is.
    last_saved: bool,
    /// Somebody asked for its removal.
    removed: bool,
    /// What is written again until it is durable is tried no more: the agent leaves, or all records
    /// are to go.
    closing: CancellationToken,
    clock: Clock,
    /// Ends what hooks left running, also when the owner panics.
    _close: CloseOnDrop,
}

/// What the owner listens to beside its calls.
struct Inbox {
    requests: queue::Receiver<Box<Request>>,
    updates: watch::Subscriber<Arc<Allocation>>,
    news: queue::Receiver<Box<News>>,
}

fn states_of(tasks: &ByTask<TaskHandle>) -> BTreeMap<TaskName, HeldOnce<TaskState>> {
    tasks.iter().map(|(name, task)| (name.clone(), task.state())).collect()
}

impl Runner {
    async fn own(mut self: Box<Self>, mut inbox: Inbox) {
        let mut leaving = false;
        loop {
            match self.machine.phase() {
                AllocPhase::Destroyed | AllocPhase::Left => break,
                // Finished and nobody left to ask for more.
                AllocPhase::Done if leaving => break,
                _ => {}
            }
            tokio::select! {
                biased;
                request = inbox.requests.recv(), if !leaving => {
                    leaving = matches!(request.as_deref(), None | Some(Request::Shutdown));
                    self.requested(request.map_or(Request::Shutdown, |request| *request));
                }
                // An error means that every handle is gone, which the requests tell too.
                Ok(()) = inbox.updates.changed(), if !leaving => {
                    let newer = Arc::clone(&inbox.updates.borrow_and_update());
                    // A stop by request is sent before the copy that says so, and says more.
                    while let Some(request) = inbox.requests.try_recv() {
                        leaving |= matches!(*request, Request::Shutdown);
                        self.requested(*request);
                    }
                    self.updated(newer);
                }
                // Before the answers: what a hook said comes before its end.
                Some(news) = inbox.news.recv() => self.told(*news),
                Some(ended) = self.calls.join_next_with_id() => self.answered(ended),
                () = fire(&mut self.timer) => {
                    self.timer = None;
                    self.feed(AllocInput::TimerFired);
                }
                () = self.tick.notified() => self.ticked(),
            }
        }
    }

    fn requested(&mut self, request: Request) {
        match request {
            Request::Stop { reason, skip_shutdown_delay } => {
                self.feed(AllocInput::Stop { reason, skip_shutdown_delay });
            }
            Request::Destroy => {
                self.removed = true;
                self.closing.cancel();
                self.feed(AllocInput::Destroy);
            }
            Request::Shutdown => {
                self.closing.cancel();
                self.feed(AllocInput::Shutdown);
            }
            Request::Restart { scope, reason, reply } => self.restart(scope, reason, reply),
            Request::Signal { task, signal, reply } => {
                self.ask_tasks(task.as_ref(), reply, move |handle| {
                    let signal = signal.clone();
                    Box::pin(async move { handle.signal(&signal).await })
                });
            }
            Request::Exec { task, request } => self.exec(&task, request),
            Request::Judge { healthy } => {
                self.feed(AllocInput::Verdict { healthy, reasons: Vec::new() });
            }
        }
    }

    /// A newer copy of what is asked.
    fn updated(&mut self, newer: Arc<Allocation>) {
        let old = &self.scope.allocation;
        if newer.modify_index <= old.modify_index {
            return;
        }
        let Some(effective) = in_place(old, &newer) else {
            tracing::error!(alloc = %old.id, group = %newer.group, "update names a group its job does not have; ignored");
            return;
        };
        let stops = |of: &Allocation| of.desired == DesiredStatus::Stop;
        let stop = stops(&effective) && !stops(old);
        let hooks = !stops(&effective);
        // The copy is shared with whoever sent it, unless something of it does not count here.
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
        // Whoever stops it by a request may send the copy that says so as well: one stop.
        if stop && !self.machine.ending() {
            self.feed(AllocInput::Stop { reason, skip_shutdown_delay: false });
        }
    }

    /// A hook has something to say.
    fn told(&mut self, news: News) {
        match news {
            News::Waiting(what) => self.feed(AllocInput::Waiting { what }),
            News::Say(event) => {
                let told = self.tasks.keys().map(|task| (task.clone(), event.clone()));
                self.note(told.collect());
            }
            News::Network(status) => self.feed(AllocInput::Network(status)),
            News::SayTo(task, event) => self.note(vec![(task, event)]),
            News::Force { status, description, event } => {
                self.feed(AllocInput::Force { status, description, event });
            }
            News::Verdict { healthy, reasons } => {
                self.feed(AllocInput::Verdict { healthy, reasons });
            }
        }
    }

    /// Some task changed: read them all.
    fn ticked(&mut self) {
        // Gone is read before the states: an owner that is gone has told its last state.
        let gone = self.tasks.values().all(|task| task.is_gone());
        self.feed(AllocInput::Tasks(states_of(&self.tasks)));
        if gone && !self.tasks_gone {
            self.tasks_gone = true;
            self.feed(AllocInput::TasksGone);
        }
    }

    fn answered(&mut self, ended: Result<(Id, Answer), JoinError>) {
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
                (call, Err(Failed::from(error)))
            }
        };
        match (call, result) {
            (Call::Pre, Ok(())) => self.feed(AllocInput::HooksDone),
            (Call::Pre, Err(Failed { error, blame })) => {
                self.feed(AllocInput::HooksFailed { error, blame });
            }
            (Call::Update, _) => {
                let again = self.update_hooks == Turn::Again;
                self.update_hooks = Turn::Idle;
                if again {
                    self.run_update_hooks();
                }
            }
            (Call::RestartHooks, result) => self.restart_ready(result.map_err(|e| e.error)),
            (Call::PreKill, _) => self.feed(AllocInput::PreKilled),
            (Call::Post, _) => {
                self.cleaned = true;
                self.scope.background.close();
                self.save_if_due();
            }
            (Call::Save, _) => {
                self.saving = false;
                self.save_if_due();
            }
            (Call::SaveLast, saved) => {
                self.saving = false;
                self.last_saved = true;
                // What is removed has no last state.
                let lasts = saved.is_ok() || self.removed;
                self.feed(if lasts { AllocInput::Cleaned } else { AllocInput::NotSaved });
            }
            (Call::SaveHealth, saved) => {
                let lasts = saved.is_ok() || self.removed;
                self.feed(if lasts { AllocInput::HealthSaved } else { AllocInput::NotSaved });
            }
            (Call::Destroy, _) => self.feed(AllocInput::Destroyed),
            (Call::ForceRestart, _) => {
                // What the tasks are now, before anything is read off what they were.
                self.ticked();
                self.feed(AllocInput::RestartAsked);
            }
            (Call::Request, _) => {}
        }
    }

    fn feed(&mut self, input: AllocInput) {
        for effect in self.machine.step(self.clock.now(), input) {
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
        if let Some(trace) = &self.scope.trace {
            let now = self.machine.public();
            let failed = now.client_status == ClientStatus::Failed;
            if now.client_status != ClientStatus::Pending {
                let why = failed.then_some(now.client_description.as_str());
                trace.arrived(&now.client_status.to_string(), why);
            }
        }
    }
}

/// The asker may have gone; nothing to do about it.
fn answer(reply: Reply, result: Result<(), RequestError>) {
    let _gone = reply.send(result);
}

#[cfg(test)]
mod tests;
