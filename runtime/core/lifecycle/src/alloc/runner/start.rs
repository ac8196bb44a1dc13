//! Starts the owner of a new allocation, or of one of an earlier agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{AllocInbox, AllocRunnerLoop, HookTurn};
use crate::alloc::coordinator::TaskGate;
use crate::alloc::hooks::background::CloseOnDrop;
use crate::alloc::hooks::{AllocScope, Background, FirstRun, HookTimes};
use crate::alloc::machine::{AllocEffect, AllocInput, AllocMachine, RecordedAlloc};
use crate::alloc::phases::Phases;
use crate::alloc::services::AllocServices;
use crate::alloc::{AllocHandle, AllocRunnerError, AllocStart, AllocWay, RestoredAlloc};
use crate::by_task::ByTask;
use crate::context::{AllocContext, NodeContext};
use crate::kinds::CallKinds;
use crate::queue;
use crate::task::hooks::FetchedArtifacts;
use crate::task::late_dirs::{self, LateDirs};
use crate::task::{LogSlot, MadeDirs, RestoredTask, TaskHandle, TaskScope};
use crate::watch;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::TaskName;
use ostler_model::job::{Lifecycle, LifecycleHook, TaskGroup};
use ostler_model::limits::RUNNER_QUEUE_MAX;
use ostler_model::planted::planted;
use ostler_model::ports::Adoption;
use ostler_model::task::{TaskState, TaskStatus, Workload};
use ostler_model::template::TaskTemplate;
use ostler_model::time::Timestamp;

/// The reason of an allocation that is to stop.
pub(super) fn stop_reason(allocation: &Allocation) -> String {
    match allocation.desired_description.as_str() {
        "" => "allocation stopped".to_owned(),
        reason => reason.to_owned(),
    }
}

/// Start the owner of a new allocation, or of one that an earlier agent had.
pub(in crate::alloc) fn start(
    start: AllocStart,
    restored: Option<RestoredAlloc>,
) -> Result<AllocHandle, AllocRunnerError> {
    let AllocStart { node, context, allocation } = start;
    let context = Arc::new(context);
    let Some(group) = allocation.task_group().cloned() else {
        return Err(AllocRunnerError::UnknownGroup {
            alloc: allocation.id,
            group: allocation.group.clone(),
            job: allocation.job.id.clone(),
        });
    };
    let members = Members::start(&node, &context, &allocation, &group, restored.as_ref());
    let saved = restored.as_ref().and_then(|restored| restored.saved.clone());
    let started_before = restored.as_ref().is_some_and(was_started);
    let lives = liveness_check(&node, restored.as_ref());
    let (machine, first) = build_machine(node.clock.now(), &allocation, group, &members, restored);
    let (requests, requests_inbox) = queue::channel(RUNNER_QUEUE_MAX);
    let (owner, news) = queue::channel(RUNNER_QUEUE_MAX);
    let (newest, updates) = watch::channel(Arc::clone(&allocation));
    let (state, state_seen) = watch::channel(machine.public().clone());
    let (phase, phase_seen) = Phases::new(machine.phase());
    let background = Background::default();
    let times = HookTimes::default();
    let dir_removed = Arc::<AtomicBool>::default();
    let services = AllocServices::new(Arc::clone(&node), Arc::clone(&allocation));
    let handle = AllocHandle(Arc::new(AllocWay {
        id: allocation.id,
        dir: node.alloc_root.join(allocation.id.to_string()),
        newest,
        requests,
        state: state_seen.clone(),
        phase: phase_seen,
        tasks: Arc::downgrade(&members.tasks),
        logs: Arc::new(members.logs),
        logs_changed: members.logs_changed,
        times: times.clone(),
        dir_removed: Arc::clone(&dir_removed),
        checks: services.results.subscribe(),
    }));
    let close = CloseOnDrop(background.clone());
    let scope = AllocScope {
        node,
        context,
        allocation,
        started_before,
        lives,
        state: state_seen,
        owner,
        background,
        times,
        disk: Arc::default(),
        dir_removed,
        first: members.first.into(),
        services,
        tasks: Arc::downgrade(&members.tasks),
    };
    let runner = Box::new(AllocRunnerLoop {
        scope,
        machine,
        tasks: members.tasks,
        gates: members.gates,
        tick: members.tick,
        timer: None,
        calls: JoinSet::new(),
        kinds: CallKinds::default(),
        tasks_gone: false,
        update_hooks: HookTurn::Idle,
        restart: None,
        state,
        phase,
        saved,
        saving: false,
        cleaned: false,
        last_saved: false,
        removed: false,
        closing: CancellationToken::new(),
        _close: close,
    });
    runner.spawn_owner(first, AllocInbox { requests: requests_inbox, updates, news });
    Ok(handle)
}

impl AllocRunnerLoop {
    fn spawn_owner(mut self: Box<Self>, first: Vec<AllocEffect>, inbox: AllocInbox) {
        for effect in first {
            self.act(effect);
        }
        self.save_if_due();
        tokio::spawn(self.run_owner(inbox));
    }
}

/// The handles of the tasks' owners, and what the allocation shares with them.
struct Members {
    tasks: Arc<ByTask<TaskHandle>>,
    /// The states of all tasks, also of those that need no owner any more.
    states: BTreeMap<TaskName, CowArc<TaskState>>,
    gates: ByTask<watch::Publisher<TaskGate>>,
    logs: ByTask<LogSlot>,
    logs_changed: watch::Subscriber<u64>,
    /// What the allocation makes for their first runs.
    first: Vec<FirstRun>,
    tick: Arc<Notify>,
}

impl Members {
    fn start(
        node: &Arc<NodeContext>,
        context: &Arc<AllocContext>,
        allocation: &Arc<Allocation>,
        group: &TaskGroup,
        restored: Option<&RestoredAlloc>,
    ) -> Self {
        let tick = Arc::new(Notify::new());
        let (logs_tick, logs_changed) = watch::channel(0);
        let finished = restored.and_then(|r| r.saved.as_ref()).is_some_and(|saved| saved.finished);
        let (mut tasks, mut states) = (ByTask::default(), BTreeMap::new());
        let (mut gates, mut logs) = (ByTask::default(), ByTask::default());
        let mut first = Vec::new();
        let prestart = |cycle: Lifecycle| cycle.hook == LifecycleHook::Prestart;
        let at_once = allocation.desired == DesiredStatus::Run
            && context.previous.is_empty()
            && !group.tasks.iter().any(|task| task.lifecycle.is_some_and(prestart));
        for task in &group.tasks {
            let name = &task.name;
            let slot = LogSlot::new(logs_tick.clone());
            logs.insert(name.clone(), slot.clone());
            let known = restored.map(|r| r.tasks.get(name).cloned().unwrap_or_default());
            if finished {
                let state = known.and_then(|known| known.state).unwrap_or_default();
                states.insert(name.clone(), state.into());
                continue;
            }
            let made = MadeDirs::default();
            let late = restored.is_none() && late_dirs::may_be_late(node, allocation, task);
            let dirs = LateDirs::new(node, allocation.id, task, late);
            first.push(FirstRun {
                task: name.clone(),
                made: Arc::clone(&made),
                dirs: Arc::clone(&dirs),
                logs: slot.clone(),
            });
            let (gate, gate_seen) = watch::channel(TaskGate::Closed);
            let scope = TaskScope {
                node: Arc::clone(node),
                context: Arc::clone(context),
                allocation: Arc::clone(allocation),
                task: task.clone(),
                fetched: FetchedArtifacts::default(),
                logs: slot,
                made,
                dirs,
                at_once: at_once
                    && task.lifecycle.is_none()
                    && task.artifacts.is_empty()
                    && !task.templates.iter().any(TaskTemplate::may_wait),
                restartable: true,
            };
            let handle = match known {
                Some(known) => TaskHandle::restore(scope, gate_seen, Arc::clone(&tick), known),
                None => TaskHandle::spawn(scope, gate_seen, Arc::clone(&tick)),
            };
            states.insert(name.clone(), handle.state());
            tasks.insert(name.clone(), handle);
            gates.insert(name.clone(), gate);
        }
        Self { tasks: Arc::new(tasks), states, gates, logs, logs_changed, first, tick }
    }
}

fn build_machine(
    now: Timestamp,
    allocation: &Allocation,
    group: TaskGroup,
    members: &Members,
    restored: Option<RestoredAlloc>,
) -> (AllocMachine, Vec<AllocEffect>) {
    let states = members.states.clone();
    let stops = allocation.desired == DesiredStatus::Stop;
    let stops = stops && !(restored.is_some() && planted("stop-lost-at-restart"));
    let stop = stops.then(|| stop_reason(allocation));
    let deployment: Option<Box<str>> = allocation.deployment_id().map(Box::from);
    let (mut machine, mut first) = match restored {
        None => {
            let (mut machine, mut first) = AllocMachine::new(group, states);
            if let Some(reason) = stop {
                let stop = AllocInput::Stop { reason, skip_shutdown_delay: false };
                first.extend(machine.step(now, stop));
            }
            (machine, first)
        }
        Some(restored) => {
            let started = was_started(&restored);
            let RestoredAlloc { saved, health, trouble, .. } = restored;
            let known = RecordedAlloc { saved, health, started, stop, trouble };
            AllocMachine::restore(now, group, states, known)
        }
    };
    if deployment.is_some() {
        first.extend(machine.step(now, AllocInput::Deployed(deployment)));
    }
    (machine, first)
}

/// A function that asks the host whether one of the runs on record lives.
fn liveness_check(
    node: &NodeContext,
    restored: Option<&RestoredAlloc>,
) -> Arc<dyn Fn() -> bool + Send + Sync> {
    let tasks = restored.into_iter().flat_map(|restored| restored.tasks.values());
    let runs = tasks.filter_map(|task| task.local.as_ref()?.run.clone());
    let runs: Vec<_> = runs.filter(|run| run.started.is_some()).collect();
    let workloads = Arc::clone(&node.workloads);
    Arc::new(move || {
        runs.iter().any(|run| {
            let Some(workload) = run.started.as_ref().map(|started| &started.workload) else {
                return false;
            };
            match workloads.adopt(&run.id, &run.identities, workload) {
                Adoption::Running | Adoption::NotNow(_) => true,
                // The host does not run a polled workload, so only its driver knows.
                Adoption::Unknown => matches!(workload, Workload::Poll(_)),
                _ => false,
            }
        })
    })
}

/// Was some task of the allocation started, or may one have been?
fn was_started(restored: &RestoredAlloc) -> bool {
    restored.tasks.values().any(|RestoredTask { state, local }| {
        let begun = |s: &TaskState| s.status == TaskStatus::Running || s.started_at.is_some();
        state.as_ref().is_some_and(begun) || local.as_ref().is_some_and(|l| l.run.is_some())
    })
}
