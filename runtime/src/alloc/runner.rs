//! The owner of one allocation: starts the owners of its tasks, feeds the machine, does what it says.
//!
//! ```text
//!   requests ─┐                        ┌─► AllocState, AllocPhase (watch), SavedAllocState (store)
//!   tick ─────┤                        │
//!   timer ────┼─► AllocMachine::step ──┴─► effects: gates, kills, hooks (spawned on a JoinSet)
//!   answers ──┘
//! ```
//! A task that changes rings the tick; the owner then reads all tasks, so no change is lost and
//! none queues up. Requests to tasks are sent beside the owner, so a full queue holds up nobody.

mod save;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::coordinator::Gate;
use super::hooks::{self, AllocHook, AllocScope};
use super::machine::{AllocEffect, AllocInput, AllocMachine, AllocPhase};
use super::{AllocHandle, AllocRunnerConfig, AllocRunnerError, Reply, Request};
use crate::clock::{self, Clock};
use crate::driver::api::BoxFuture;
use crate::limits::RUNNER_QUEUE_MAX;
use crate::model::alloc::AllocState;
use crate::model::ids::TaskName;
use crate::model::saved::SavedAllocState;
use crate::model::task::{TaskState, TaskStatus};
use crate::state::StateStore;
use crate::task::handle::durable;
use crate::task::hooks::TaskHook;
use crate::task::{LogSlot, RequestError, TaskHandle, TaskScope};

/// What a call beside the owner is; also its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Pre,
    Post,
    Destroy,
    /// Requests on their way to tasks.
    Request,
    /// The saved state, while the allocation lives: may lag.
    Save,
    /// The saved state at the end: durable before anybody hears of the end.
    SaveLast,
}

/// A call and how it went.
type Answer = (Call, Result<(), String>);

struct Member {
    handle: TaskHandle,
    gate: watch::Sender<Gate>,
}

struct Runner {
    scope: AllocScope,
    hooks: Vec<Arc<dyn AllocHook>>,
    machine: AllocMachine,
    members: BTreeMap<TaskName, Member>,
    tick: Arc<Notify>,
    timer: Option<BoxFuture<'static, ()>>,
    calls: JoinSet<Answer>,
    kinds: BTreeMap<Id, (Call, AbortHandle)>,
    tasks_gone: bool,
    state: watch::Sender<AllocState>,
    phase: watch::Sender<AllocPhase>,
    store: StateStore,
    /// The saved state handed to the store last.
    saved: Option<SavedAllocState>,
    saving: bool,
    /// Post-run hooks are done; the end is told when it is durable.
    cleaned: bool,
    clock: Clock,
}

/// Start the owner of an allocation with these hooks.
///
/// # Errors
/// When the allocation's group is not in its job.
pub fn spawn(
    config: AllocRunnerConfig,
    alloc_hooks: Vec<Arc<dyn AllocHook>>,
    task_hooks: &[Arc<dyn TaskHook>],
) -> Result<AllocHandle, AllocRunnerError> {
    let allocation = Arc::clone(&config.allocation);
    let Some(group) = allocation.task_group().cloned() else {
        return Err(AllocRunnerError::UnknownGroup {
            alloc: allocation.id,
            group: allocation.group.clone(),
            job: allocation.job.id.clone(),
        });
    };
    let tick = Arc::new(Notify::new());
    let (logs_tick, logs_changed) = watch::channel(0);
    let mut members = BTreeMap::new();
    let mut logs = BTreeMap::new();
    for task in &group.tasks {
        let slot = LogSlot::new(logs_tick.clone());
        logs.insert(task.name.clone(), slot.clone());
        let (gate, gate_seen) = watch::channel(Gate::Closed);
        let scope = TaskScope {
            allocation: Arc::clone(&allocation),
            task: task.clone(),
            node: Arc::clone(&config.node),
            alloc_root: config.alloc_root.clone(),
            drivers: Arc::clone(&config.drivers),
            workloads: Arc::clone(&config.workloads),
            devices: Arc::clone(&config.devices),
            state: config.state.clone(),
            clock: config.clock.clone(),
            rng: config.rng.clone(),
            kill_timeout_max: config.kill_timeout_max,
            hooks: task_hooks.to_vec(),
            logs: slot,
            restartable: false,
        };
        let handle = TaskHandle::spawn(scope, gate_seen, Arc::clone(&tick));
        members.insert(task.name.clone(), Member { handle, gate });
    }
    let states = states_of(&members);
    let (machine, first) = AllocMachine::new(group, states);
    let (requests, inbox) = mpsc::channel(RUNNER_QUEUE_MAX);
    let (state, state_seen) = watch::channel(machine.public().clone());
    let (phase, phase_seen) = watch::channel(machine.phase());
    let handle = AllocHandle {
        dir: config.alloc_root.join(allocation.id.to_string()),
        allocation: Arc::clone(&allocation),
        requests,
        state: state_seen,
        phase: phase_seen,
        logs: Arc::new(logs),
        logs_changed,
    };
    let mut runner = Runner {
        scope: AllocScope { allocation, alloc_root: config.alloc_root },
        hooks: alloc_hooks,
        machine,
        members,
        tick,
        timer: None,
        calls: JoinSet::new(),
        kinds: BTreeMap::new(),
        tasks_gone: false,
        state,
        phase,
        store: config.state,
        saved: None,
        saving: false,
        cleaned: false,
        clock: config.clock,
    };
    for effect in first {
        runner.act(effect);
    }
    tokio::spawn(runner.own(inbox));
    Ok(handle)
}

fn states_of(members: &BTreeMap<TaskName, Member>) -> BTreeMap<TaskName, TaskState> {
    members.iter().map(|(name, member)| (name.clone(), member.handle.state())).collect()
}

impl Runner {
    async fn own(mut self, mut inbox: mpsc::Receiver<Request>) {
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
                request = inbox.recv(), if !leaving => {
                    leaving = matches!(request, None | Some(Request::Shutdown));
                    self.requested(request.unwrap_or(Request::Shutdown));
                }
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
            Request::Stop { reason } => self.feed(AllocInput::Stop { reason }),
            Request::Destroy => self.feed(AllocInput::Destroy),
            Request::Shutdown => self.feed(AllocInput::Shutdown),
            Request::Restart { task, reason, reply } => {
                self.ask_tasks(task, reply, move |handle| {
                    let reason = reason.clone();
                    Box::pin(async move { handle.restart(&reason).await })
                });
            }
            Request::Signal { task, signal, reply } => {
                self.ask_tasks(task, reply, move |handle| {
                    let signal = signal.clone();
                    Box::pin(async move { handle.signal(&signal).await })
                });
            }
        }
    }

    /// Ask one task, or every running one, beside the owner.
    fn ask_tasks(
        &mut self,
        task: Option<TaskName>,
        reply: Reply,
        ask: impl Fn(TaskHandle) -> BoxFuture<'static, Result<(), RequestError>> + Send + 'static,
    ) {
        let targets: Vec<TaskHandle> = match &task {
            Some(name) => match self.members.get(name) {
                Some(member) => vec![member.handle.clone()],
                None => {
                    let unknown = RequestError::UnknownTask { task: name.clone() };
                    // The asker may have gone; nothing to do about it.
                    let _gone = reply.send(Err(unknown));
                    return;
                }
            },
            None => self
                .members
                .values()
                .filter(|m| m.handle.state().status == TaskStatus::Running)
                .map(|m| m.handle.clone())
                .collect(),
        };
        self.call(Call::Request, async move {
            let mut first_error = Ok(());
            for target in targets {
                let answer = ask(target).await;
                first_error = first_error.and(answer);
            }
            let _gone = reply.send(first_error);
            Ok(())
        });
    }

    /// Some task changed: read them all.
    fn ticked(&mut self) {
        // Gone is read before the states: an owner that is gone has told its last state.
        let gone = self.members.values().all(|m| m.handle.is_gone());
        self.feed(AllocInput::Tasks(states_of(&self.members)));
        if gone && !self.tasks_gone {
            self.tasks_gone = true;
            self.feed(AllocInput::TasksGone);
        }
    }

    fn answered(&mut self, ended: Result<(Id, Answer), JoinError>) {
        let (call, result) = match ended {
            Ok((id, answer)) => {
                self.kinds.remove(&id);
                answer
            }
            Err(error) => {
                let known = self.kinds.remove(&error.id());
                let Some((call, _)) = known.filter(|_| error.is_panic()) else {
                    return;
                };
                tracing::error!(alloc = %self.scope.allocation.id, ?call, "call of an allocation's owner panicked");
                (call, Err("internal error: a hook panicked".to_owned()))
            }
        };
        match (call, result) {
            (Call::Pre, Ok(())) => self.feed(AllocInput::HooksDone),
            (Call::Pre, Err(error)) => self.feed(AllocInput::HooksFailed { error }),
            (Call::Post, _) => {
                self.cleaned = true;
                self.save_if_due();
            }
            (Call::Save, _) => {
                self.saving = false;
                self.save_if_due();
            }
            (Call::SaveLast, _) => {
                self.saving = false;
                self.feed(AllocInput::Cleaned);
            }
            (Call::Destroy, _) => self.feed(AllocInput::Destroyed),
            (Call::Request, _) => {}
        }
    }

    fn feed(&mut self, input: AllocInput) {
        for effect in self.machine.step(self.clock.now(), input) {
            self.act(effect);
        }
        self.state.send_if_modified(|state| {
            let differs = state != self.machine.public();
            if differs {
                state.clone_from(self.machine.public());
            }
            differs
        });
        self.phase.send_if_modified(|phase| {
            let differs = *phase != self.machine.phase();
            *phase = self.machine.phase();
            differs
        });
        self.save_if_due();
    }

    fn act(&mut self, effect: AllocEffect) {
        let (hooks, scope) = (self.hooks.clone(), self.scope.clone());
        match effect {
            AllocEffect::PreHooks => self.call(Call::Pre, async move {
                hooks::prerun(&hooks, &scope).await.map_err(|e| e.to_string())
            }),
            AllocEffect::AbandonPreHooks => self.abort(Call::Pre),
            AllocEffect::PostHooks => self.call(Call::Post, async move {
                hooks::postrun(&hooks, &scope).await;
                Ok(())
            }),
            AllocEffect::DestroyHooks => {
                let store = self.store.clone();
                self.call(Call::Destroy, async move {
                    destroy(&hooks, &scope, &store).await;
                    Ok(())
                });
            }
            AllocEffect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
            AllocEffect::Gates(changes) => {
                for (task, gate) in changes {
                    if let Some(member) = self.members.get(&task) {
                        member.gate.send_replace(gate);
                    }
                }
            }
            AllocEffect::Kill { tasks, event, reason } => {
                let known = tasks.iter().filter_map(|t| self.members.get(t));
                let handles: Vec<TaskHandle> = known.map(|m| m.handle.clone()).collect();
                for handle in handles {
                    let (event, reason) = (event.clone(), reason.clone());
                    self.call(Call::Request, async move {
                        handle.kill(event, &reason).await;
                        Ok(())
                    });
                }
            }
            AllocEffect::LeaveTasks => {
                let handles: Vec<_> = self.members.values().map(|m| m.handle.clone()).collect();
                self.call(Call::Request, async move {
                    for handle in handles {
                        handle.shutdown().await;
                    }
                    Ok(())
                });
            }
        }
    }

    fn call(
        &mut self,
        call: Call,
        future: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        let abort = self.calls.spawn(async move { (call, future.await) });
        self.kinds.insert(abort.id(), (call, abort));
    }

    fn abort(&mut self, call: Call) {
        for (known, abort) in self.kinds.values() {
            if *known == call {
                abort.abort();
            }
        }
    }
}

/// Remove what is left of an allocation: directory, then records. The records go last, so that a
/// crash in between leaves something to find the directory by.
async fn destroy(hooks: &[Arc<dyn AllocHook>], scope: &AllocScope, store: &StateStore) {
    hooks::destroy(hooks, scope).await;
    let id = scope.allocation.id;
    match durable(store.destroy_alloc(id)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::error!(alloc = %id, %error, "records not removed"),
        None => tracing::error!(alloc = %id, "records not removed in time"),
    }
}

async fn fire(timer: &mut Option<BoxFuture<'static, ()>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
