//! Starts the owner of a new allocation, or of one of an earlier agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{AllocInbox, AllocRunnerLoop, HookTurn};
use crate::alloc::coordinator::TaskGate;
use crate::alloc::hooks::background::CloseOnDrop;
use crate::alloc::hooks::{AllocHook, AllocScope, Background, FirstRun, HookTimes};
use crate::alloc::machine::{AllocEffect, AllocInput, AllocMachine, RecordedAlloc};
use crate::alloc::phases::Phases;
use crate::alloc::services::AllocServices;
use crate::alloc::{AllocHandle, AllocRunnerConfig, AllocRunnerError, AllocWay, RestoredAlloc};
use crate::by_task::ByTask;
use crate::kinds::CallKinds;
use crate::queue;
use crate::task::hooks::{FetchedArtifacts, TaskHook};
use crate::task::{LogSlot, MadeDirs, NetworkSlot, RestoredTask, TaskHandle, TaskScope};
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

/// Start the owner of a new allocation with these hooks.
///
/// # Errors
/// When the allocation's group is not in its job.
pub fn spawn(
    config: AllocRunnerConfig,
    alloc_hooks: Vec<Arc<dyn AllocHook>>,
    task_hooks: &[Arc<dyn TaskHook>],
) -> Result<AllocHandle, AllocRunnerError> {
    start(config, None, alloc_hooks, task_hooks)
}

/// Start the owner of an allocation of an earlier agent.
///
/// # Errors
/// As [`spawn`].
pub fn restore(
    config: AllocRunnerConfig,
    restored: RestoredAlloc,
    alloc_hooks: Vec<Arc<dyn AllocHook>>,
    task_hooks: &[Arc<dyn TaskHook>],
) -> Result<AllocHandle, AllocRunnerError> {
    start(config, Some(restored), alloc_hooks, task_hooks)
}

/// The reason of an allocation that is to stop.
pub(super) fn stop_reason(allocation: &Allocation) -> String {
    match allocation.desired_description.as_str() {
        "" => "allocation stopped".to_owned(),
        reason => reason.to_owned(),
    }
}

fn start(
    config: AllocRunnerConfig,
    restored: Option<RestoredAlloc>,
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
    let members = Members::start(&config, &group, restored.as_ref(), task_hooks);
    let saved = restored.as_ref().and_then(|restored| restored.saved.clone());
    let started_before = restored.as_ref().is_some_and(was_started);
    let lives = liveness_check(&config, restored.as_ref());
    let (machine, first) = build_machine(&config, group, &members, restored);
    let (requests, requests_inbox) = queue::channel(RUNNER_QUEUE_MAX);
    let (owner, news) = queue::channel(RUNNER_QUEUE_MAX);
    let (newest, updates) = watch::channel(Arc::clone(&allocation));
    let (state, state_seen) = watch::channel(machine.public().clone());
    let (phase, phase_seen) = Phases::new(machine.phase());
    let background = Background::default();
    let times = HookTimes::default();
    let node_services = config.services.clone();
    let services =
        AllocServices::new(node_services, Arc::clone(&config.host_ip), Arc::clone(&allocation));
    let handle = AllocHandle(Arc::new(AllocWay {
        id: allocation.id,
        dir: config.alloc_root.join(allocation.id.to_string()),
        newest,
        requests,
        state: state_seen.clone(),
        phase: phase_seen,
        tasks: Arc::downgrade(&members.tasks),
        logs: Arc::new(members.logs),
        logs_changed: members.logs_changed,
        times: times.clone(),
        checks: services.results.subscribe(),
    }));
    let close = CloseOnDrop(background.clone());
    let scope = AllocScope {
        allocation,
        alloc_root: config.alloc_root,
        clock: config.clock.clone(),
        previous: config.previous,
        started_before,
        lives,
        state: state_seen,
        owner,
        background,
        times,
        disk: Arc::default(),
        store: config.state.clone(),
        disk_watch: config.disk_watch,
        first: members.first.into(),
        services,
        node: config.node,
        drivers: config.drivers,
        tasks: Arc::downgrade(&members.tasks),
        rng: config.rng,
        other_nodes: config.other_nodes,
        networks: config.networks,
        network: members.network,
        trace: config.trace,
    };
    let runner = Box::new(AllocRunnerLoop {
        scope,
        hooks: alloc_hooks,
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
        store: config.state,
        saved,
        saving: false,
        cleaned: false,
        last_saved: false,
        removed: false,
        closing: CancellationToken::new(),
        clock: config.clock,
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
    /// The network that the tasks will be in.
    network: NetworkSlot,
    tick: Arc<Notify>,
}

impl Members {
    fn start(
        config: &AllocRunnerConfig,
        group: &TaskGroup,
        restored: Option<&RestoredAlloc>,
        hooks: &[Arc<dyn TaskHook>],
    ) -> Self {
        let tick = Arc::new(Notify::new());
        let (logs_tick, logs_changed) = watch::channel(0);
        let finished = restored.and_then(|r| r.saved.as_ref()).is_some_and(|saved| saved.finished);
        let (mut tasks, mut states) = (ByTask::default(), BTreeMap::new());
        let (mut gates, mut logs) = (ByTask::default(), ByTask::default());
        let mut first = Vec::new();
        let network = NetworkSlot::default();
        let prestart = |cycle: Lifecycle| cycle.hook == LifecycleHook::Prestart;
        let at_once = config.allocation.desired == DesiredStatus::Run
            && config.previous.is_empty()
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
            first.push(FirstRun {
                task: name.clone(),
                made: Arc::clone(&made),
                logs: slot.clone(),
                secrets_in_memory: config.secrets_in_memory,
            });
            let (gate, gate_seen) = watch::channel(TaskGate::Closed);
            let scope = TaskScope {
                allocation: Arc::clone(&config.allocation),
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
                secrets_in_memory: config.secrets_in_memory,
                users: config.users.clone(),
                services: Arc::new(config.services.clone()),
                variables: Arc::clone(&config.variables),
                hooks: hooks.to_vec(),
                artifacts: config.artifacts.clone(),
                fetched: FetchedArtifacts::default(),
                logs: slot,
                made,
                at_once: at_once
                    && task.lifecycle.is_none()
                    && task.artifacts.is_empty()
                    && !task.templates.iter().any(TaskTemplate::may_wait),
                restartable: true,
                network: network.clone(),
                trace: config.trace.clone(),
            };
            let handle = match known {
                Some(known) => TaskHandle::restore(scope, gate_seen, Arc::clone(&tick), known),
                None => TaskHandle::spawn(scope, gate_seen, Arc::clone(&tick)),
            };
            states.insert(name.clone(), handle.state());
            tasks.insert(name.clone(), handle);
            gates.insert(name.clone(), gate);
        }
        Self { tasks: Arc::new(tasks), states, gates, logs, logs_changed, first, network, tick }
    }
}

fn build_machine(
    config: &AllocRunnerConfig,
    group: TaskGroup,
    members: &Members,
    restored: Option<RestoredAlloc>,
) -> (AllocMachine, Vec<AllocEffect>) {
    let now = config.clock.now();
    let states = members.states.clone();
    let stops = config.allocation.desired == DesiredStatus::Stop;
    let stops = stops && !(restored.is_some() && planted("stop-lost-at-restart"));
    let stop = stops.then(|| stop_reason(&config.allocation));
    let deployment: Option<Box<str>> = config.allocation.deployment_id().map(Box::from);
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
    config: &AllocRunnerConfig,
    restored: Option<&RestoredAlloc>,
) -> Arc<dyn Fn() -> bool + Send + Sync> {
    let tasks = restored.into_iter().flat_map(|restored| restored.tasks.values());
    let runs = tasks.filter_map(|task| task.local.as_ref()?.run.clone());
    let runs: Vec<_> = runs.filter(|run| run.started.is_some()).collect();
    let workloads = Arc::clone(&config.workloads);
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
