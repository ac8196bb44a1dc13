//! The one task that owns the node: feeds the machine, carries its effects out.
//!
//! ```text
//!   requests (bounded queue) ─┐                          ┌─► answers
//!   owners of allocations ────┤                          ├─► records: one batch after the other
//!   commits, removals ────────┼─► Machine::step ─► Effect┼─► owners of allocations
//!   node, alarm ──────────────┘                          └─► devices, measuring, removals
//! ```
//! Whatever takes time is a future of this task, so all of it ends with the task. What is read of the
//! node is read off the machine's tables, under a lock that is held for a step and never over a wait.

mod carry;
mod lane;
mod traces;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::ControlHandle;
use crate::change_log::ChangeLog;
use crate::gc::gauge::Gauge;
use crate::held::Holds;
use crate::machine::{Answer, Ask, ControlEvent, JobAction, Machine, RequestId, World};
use crate::tables::{AllocReport, Tables};
use crate::variables::NodeVariables;
use crate::views::Stage;
use ostler_device::manager::DeviceManager;
use ostler_lifecycle::alloc::users::AllocUsers;
use ostler_lifecycle::alloc::{
    AllocHandle, AllocPhase, DiskMeter, DiskWatch, PhaseWatch, RestoredAlloc,
};
use ostler_lifecycle::services::NodeServices;
use ostler_lifecycle::task::env::NodeFacts;
use ostler_model::alloc::AllocState;
use ostler_model::artifact::Artifacts;
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::CONTROL_QUEUE_MAX;
use ostler_model::network::Networks;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::{BoxFuture, Drivers, Workloads};
use ostler_model::rng::Rng;
use ostler_node::{Node, NodeChanges, NodeView};
use ostler_state::StateStore;
use ostler_trace::TraceContext;

/// Events in a row after which an alarm that is due comes before further ones.
const EVENTS_BEFORE_ALARM: u32 = 64;

/// What the node consists of beside its tables.
pub struct ControlOptions {
    /// Allocations live below `allocs` in it.
    pub data_dir: PathBuf,
    /// The node.
    pub node: Node,
    /// The drivers.
    pub drivers: Arc<dyn Drivers>,
    /// What the host runs.
    pub workloads: Arc<dyn Workloads>,
    /// The node's devices.
    pub devices: DeviceManager,
    /// Those who fetch what tasks bring along.
    pub artifacts: Option<Arc<dyn Artifacts>>,
    /// Where records are.
    pub state: StateStore,
    /// Tells how full the file system of the allocations is.
    pub gauge: Arc<dyn Gauge>,
    /// Does a program that is not ours listen on this port? Usually [`crate::ports::port_in_use`].
    pub port_in_use: Arc<dyn Fn(u16) -> bool + Send + Sync>,
    /// Kills every task of the node at once.
    pub kill_tasks: Arc<dyn Fn() + Send + Sync>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
    /// Secrets of tasks are kept in memory, where a file system can be mounted there.
    pub secrets_in_memory: bool,
    /// Gives allocations user ids of their own.
    pub users: AllocUsers,
    /// The highest index on record.
    pub recorded_index: u64,
    /// Runs that live and that nobody owns.
    pub holds: Holds,
    /// Longest `kill_timeout` that is waited for.
    pub kill_timeout_max: Duration,
    /// Which services run.
    pub services: NodeServices,
    /// What is kept for tasks.
    pub variables: NodeVariables,
    /// The other nodes of the cluster that this is a node of.
    pub other_nodes: Option<Arc<dyn OtherNodes>>,
    /// Makes networks of allocations.
    pub networks: Arc<dyn Networks>,
}

/// What the owner and its handles share.
pub(crate) struct Shared {
    now: Mutex<Now>,
    pub(crate) index: watch::Sender<u64>,
    pub(crate) changes: Mutex<ChangeLog>,
    pub(crate) stage: watch::Sender<Stage>,
    pub(crate) options: ControlOptions,
    began: Stopwatch,
}

/// The node as it is.
pub(crate) struct Now {
    pub(crate) machine: Machine,
    pub(crate) owners: BTreeMap<AllocId, AllocHandle>,
}

impl Shared {
    pub(crate) fn now(&self) -> MutexGuard<'_, Now> {
        // A step that panicked ended the owner; the tables can still be read.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last visible changes.
    pub(crate) fn changes(&self) -> MutexGuard<'_, ChangeLog> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at the world for a step.
    pub(crate) fn with_world<T>(&self, look: impl FnOnce(&World<'_>) -> T) -> T {
        let node = self.options.node.current();
        look(&World {
            now: self.options.clock.now(),
            uptime: self.began.elapsed(),
            node: &node,
            rng: &self.options.rng,
            port_in_use: &*self.options.port_in_use,
        })
    }
}

/// What the owner is told.
pub(crate) enum Message {
    Ask {
        ask: Ask,
        reply: oneshot::Sender<Answer>,
    },
    /// As a request, with what owners of restored allocations need.
    Restore {
        ask: Ask,
        allocs: BTreeMap<AllocId, RestoredAlloc>,
        reply: oneshot::Sender<Answer>,
    },
    ControlEvent(ControlEvent),
    /// What is placed of the job from now on belongs there in a trace, or in none.
    Trace {
        job: JobId,
        trace: Option<TraceContext>,
    },
    Close,
}

/// Start the owner of a node. It ends with [`ControlHandle::close`], or when all handles are gone. Needs
/// a tokio runtime.
#[must_use]
pub fn spawn(options: ControlOptions) -> (ControlHandle, JoinHandle<()>) {
    let now = options.clock.now();
    let tables = Tables::new(options.recorded_index, now, options.holds.clone());
    let (index, stage) = (watch::Sender::new(tables.index()), watch::Sender::new(tables.stage()));
    let machine = Machine::new(tables);
    let changes = options.node.changes();
    let now = Mutex::new(Now { machine, owners: BTreeMap::new() });
    let shared = Arc::new(Shared {
        now,
        index,
        changes: Mutex::default(),
        stage,
        options,
        began: Stopwatch::start(),
    });
    let (queue, inbox) = mpsc::channel(CONTROL_QUEUE_MAX);
    let (options, meter) = (&shared.options, Arc::clone(&shared.options.gauge));
    let allocs = options.data_dir.join("allocs");
    let disk_watch = DiskWatch::new(allocs, meter as Arc<dyn DiskMeter>, options.clock.clone());
    let owner = Owner {
        shared: Arc::clone(&shared),
        replies: BTreeMap::new(),
        last_request: 0,
        events: VecDeque::new(),
        lane: lane::Lane::default(),
        restored: BTreeMap::new(),
        facts: None,
        traces: traces::JobTraces::default(),
        disk_watch,
        running: FuturesUnordered::new(),
    };
    let task = tokio::spawn(owner.run(inbox, changes));
    (ControlHandle::new(shared, queue), task)
}

/// What a future of the owner came to.
enum Done {
    Nothing,
    ControlEvent(ControlEvent),
    /// Something takes long: this is told now, and its end when it has one.
    Slow(ControlEvent, BoxFuture<'static, Done>),
    Queued(lane::Queued),
    Changed(Follow, bool),
    Node(NodeChanges, bool),
}

/// The state and phase of an allocation.
struct Follow {
    alloc: AllocId,
    state: ostler_lifecycle::watch::Subscriber<AllocState>,
    phase: PhaseWatch,
}

struct Owner {
    shared: Arc<Shared>,
    replies: BTreeMap<RequestId, oneshot::Sender<Answer>>,
    last_request: RequestId,
    /// What follows from effects, before anything else.
    events: VecDeque<ControlEvent>,
    lane: lane::Lane,
    /// What owners of restored allocations need.
    restored: BTreeMap<AllocId, RestoredAlloc>,
    /// The node as its allocations see it, and the view it was read off.
    facts: Option<(Arc<NodeView>, Arc<NodeFacts>)>,
    traces: traces::JobTraces,
    disk_watch: DiskWatch,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, changes: NodeChanges) {
        self.follow_node(changes);
        let mut events = 0_u32;
        loop {
            let alarm = self.shared.now().machine.next_alarm();
            let left = alarm.map(|at| at.saturating_sub(self.shared.began.elapsed()));
            let due = left.is_some_and(|left| left.is_zero());
            if due && events >= EVENTS_BEFORE_ALARM {
                events = 0;
                self.feed(ControlEvent::Alarm);
                continue;
            }
            events = events.saturating_add(1);
            let time = async {
                match left {
                    Some(left) => clock::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(done) = self.running.next() => self.done(done),
                message = inbox.recv() => match message {
                    Some(Message::Close) | None => return,
                    Some(message) => self.told(message),
                },
                () = time => {
                    events = 0;
                    self.feed(ControlEvent::Alarm);
                }
            }
        }
    }

    fn told(&mut self, message: Message) {
        match message {
            Message::Ask { ask, reply } => self.asked(ask, reply),
            Message::Restore { ask, allocs, reply } => {
                self.restored.extend(allocs);
                self.asked(ask, reply);
            }
            Message::ControlEvent(event) => self.feed(event),
            Message::Trace { job, trace } => {
                self.traces.registered(&job, trace, self.shared.options.clock.now())
            }
            Message::Close => {}
        }
    }

    fn asked(&mut self, ask: Ask, reply: oneshot::Sender<Answer>) {
        if matches!(ask, Ask::Collect(_)) {
            self.askers_gone();
        }
        if let Ask::Change { job, asked: JobAction::Version(_, options), .. } = &ask {
            self.traces.registered(job, options.trace, self.shared.options.clock.now());
        }
        self.last_request = self.last_request.saturating_add(1);
        self.replies.insert(self.last_request, reply);
        self.feed(ControlEvent::Asked { request: self.last_request, ask });
    }

    /// Requests to collect have places; those that nobody waits for give theirs back.
    fn askers_gone(&mut self) {
        let gone = self.replies.extract_if(.., |_, reply| reply.is_closed());
        let gone: Vec<RequestId> = gone.map(|(request, _)| request).collect();
        gone.into_iter().for_each(|request| self.feed(ControlEvent::AskerGone(request)));
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::ControlEvent(event) => self.feed(event),
            Done::Slow(event, rest) => {
                self.running.push(rest);
                self.feed(event);
            }
            Done::Queued(queued) => self.queued(queued),
            Done::Changed(follow, gone) => self.followed(follow, gone),
            Done::Node(changes, gone) => {
                self.feed(ControlEvent::NodeChanged);
                if !gone {
                    self.follow_node(changes);
                }
            }
        }
    }

    /// Take an event and what follows from it at once.
    fn feed(&mut self, event: ControlEvent) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let removed = match &event {
                ControlEvent::Removed { alloc, .. } => Some(*alloc),
                _ => None,
            };
            let effects = {
                let mut now = self.shared.now();
                let effects = self.shared.with_world(|world| now.machine.step(world, event));
                self.shared.changes().add(now.machine.take_noted());
                // The handle of a removed allocation goes with it.
                if let Some(id) = removed.filter(|id| now.machine.tables().alloc(*id).is_none()) {
                    now.owners.remove(&id);
                }
                effects
            };
            for effect in effects {
                self.carry_out(effect);
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let (index, stage) = {
            let now = self.shared.now();
            (now.machine.tables().index(), now.machine.tables().stage())
        };
        let newer = |seen: &mut u64| std::mem::replace(seen, index) != index;
        self.shared.index.send_if_modified(newer);
        let other = |seen: &mut Stage| std::mem::replace(seen, stage) != stage;
        self.shared.stage.send_if_modified(other);
    }

    fn follow_node(&self, mut changes: NodeChanges) {
        self.running.push(Box::pin(async move {
            let gone = changes.next().await.is_err();
            Done::Node(changes, gone)
        }));
    }

    /// Follow the owner of an allocation, beginning with what it says now.
    fn follow(&mut self, handle: &AllocHandle) {
        let follow = Follow { alloc: handle.id(), state: handle.state(), phase: handle.phase() };
        self.followed(follow, false);
    }

    fn followed(&mut self, mut follow: Follow, gone: bool) {
        let ended = matches!(
            *follow.phase.borrow_and_update(),
            // `Left` is not among them: the next agent goes on with it.
            AllocPhase::Done | AllocPhase::Destroying | AllocPhase::Destroyed
        );
        let report = AllocReport::of(&follow.state.borrow_and_update(), ended);
        let alloc = follow.alloc;
        if !gone {
            self.running.push(Box::pin(async move {
                let (state, phase) = (&mut follow.state, &mut follow.phase);
                let gone = tokio::select! {
                    biased;
                    changed = phase.changed() => changed.is_err(),
                    changed = state.changed() => changed.is_err(),
                };
                Done::Changed(follow, gone)
            }));
        }
        self.feed(ControlEvent::Reported { alloc, report });
    }
}
