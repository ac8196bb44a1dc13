//! The one task that owns the node: it feeds events to the machine and carries its effects out.
//!
//! ```text
//! requests (bounded queue) ─┐                          ┌─► answers
//! owners of allocations ────┤                          ├─► records: one batch after the other
//! commits, removals ────────┼─► Machine::step ─► effect┼─► owners of allocations
//! node, alarm ──────────────┘                          └─► devices, measuring, removals
//! ```
//! Whatever takes time is a future of this task, so all of it ends with the task. The node is read
//! from the machine's tables, under a lock that is held for a step and never over a wait.

mod carry;
mod lane;
mod traces;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::ControlHandle;
use crate::change_log::ChangeLog;
use crate::gc::gauge::DiskGauge;
use crate::ledger_book::ControlLedgerBook;
use crate::machine::{
    ControlAnswer, ControlEvent, ControlRequest, JobAction, Machine, RequestId, World,
};
use crate::tables::{AllocReport, NodeTables};
use crate::unowned_runs::UnownedRuns;
use crate::views::AgentStage;
use ostler_device::manager::{DeviceManager, LedgerBook};
use ostler_lifecycle::alloc::{AllocHandle, AllocPhase, PhaseWatch, RestoredAlloc};
use ostler_lifecycle::context::NodeContext;
use ostler_lifecycle::task::env::NodeFacts;
use ostler_model::alloc::AllocState;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::CONTROL_QUEUE_MAX;
use ostler_model::ports::BoxFuture;
use ostler_node::{NodeChanges, NodePublisher, NodeView};
use ostler_trace::TraceContext;

/// After so many events in a row an alarm that is due comes before further events.
const EVENTS_BEFORE_ALARM: u32 = 64;

/// What the owner of a node needs to start.
pub struct ControlOptions {
    /// The node, as its allocations share it.
    pub node: Arc<NodeContext>,
    /// Publishes the view of the node.
    pub publisher: NodePublisher,
    /// The manager of the node's devices.
    pub devices: DeviceManager,
    /// Measures how full the file system of the allocations is.
    pub gauge: Arc<dyn DiskGauge>,
    /// Does a program that is not ours listen on this port? Usually [`crate::ports::port_in_use`].
    pub port_in_use: Arc<dyn Fn(u16) -> bool + Send + Sync>,
    /// Kills every task of the node at once.
    pub kill_tasks: Arc<dyn Fn() + Send + Sync>,
    /// The highest index on record.
    pub recorded_index: u64,
    /// Runs that live and that nobody owns.
    pub holds: UnownedRuns,
}

/// The state that the owner and its handles share.
pub(crate) struct OwnerState {
    now: Mutex<NodeState>,
    pub(crate) index: watch::Sender<u64>,
    pub(crate) changes: Mutex<ChangeLog>,
    pub(crate) stage: watch::Sender<AgentStage>,
    pub(crate) options: ControlOptions,
    began: Stopwatch,
}

/// The machine, and the owners of allocations.
pub(crate) struct NodeState {
    pub(crate) machine: Machine,
    pub(crate) owners: BTreeMap<AllocId, AllocHandle>,
}

impl OwnerState {
    pub(crate) fn lock_node(&self) -> MutexGuard<'_, NodeState> {
        // A step that panicked has ended the owner, but the tables can still be read.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last visible changes.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ChangeLog> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Read the world for a step.
    pub(crate) fn with_world<T>(&self, look: impl FnOnce(&World<'_>) -> T) -> T {
        let view = self.options.publisher.current();
        look(&World {
            now: self.options.node.clock.now(),
            uptime: self.began.elapsed(),
            node: &view,
            rng: &self.options.node.rng,
            port_in_use: &*self.options.port_in_use,
        })
    }
}

/// A message to the owner.
pub(crate) enum Message {
    Ask {
        ask: ControlRequest,
        reply: oneshot::Sender<ControlAnswer>,
    },
    /// A request to restore, with what the owners of restored allocations need.
    Restore {
        ask: ControlRequest,
        allocs: BTreeMap<AllocId, RestoredAlloc>,
        reply: oneshot::Sender<ControlAnswer>,
    },
    ControlEvent(ControlEvent),
    /// Later placements of the job belong to this trace, or to none.
    Trace {
        job: JobId,
        trace: Option<TraceContext>,
    },
    Close,
}

/// The queue of a node's owner, before the owner starts.
pub struct ControlQueue {
    sender: mpsc::Sender<Message>,
    inbox: mpsc::Receiver<Message>,
}

impl ControlQueue {
    /// A queue with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        let (sender, inbox) = mpsc::channel(CONTROL_QUEUE_MAX);
        Self { sender, inbox }
    }

    /// The record of who holds which device, for the device manager. It keeps the owner alive only
    /// during a call.
    #[must_use]
    pub fn ledger_book(&self) -> Arc<dyn LedgerBook> {
        Arc::new(ControlLedgerBook(self.sender.downgrade()))
    }
}

impl Default for ControlQueue {
    fn default() -> Self {
        Self::new()
    }
}

/// Start the owner of a node, which serves this queue. It ends with [`ControlHandle::close`], or
/// when all handles are gone. It needs a tokio runtime.
#[must_use]
pub fn spawn(options: ControlOptions, queue: ControlQueue) -> (ControlHandle, JoinHandle<()>) {
    let now = options.node.clock.now();
    let tables = NodeTables::new(options.recorded_index, now, options.holds.clone());
    let (index, stage) = (watch::Sender::new(tables.index()), watch::Sender::new(tables.stage()));
    let machine = Machine::new(tables);
    let changes = options.publisher.changes();
    let now = Mutex::new(NodeState { machine, owners: BTreeMap::new() });
    let shared = Arc::new(OwnerState {
        now,
        index,
        changes: Mutex::default(),
        stage,
        options,
        began: Stopwatch::start(),
    });
    let owner = NodeOwner {
        shared: Arc::clone(&shared),
        replies: BTreeMap::new(),
        last_request: 0,
        events: VecDeque::new(),
        lane: lane::BatchLane::default(),
        restored: BTreeMap::new(),
        facts: None,
        traces: traces::JobTraces::default(),
        running: FuturesUnordered::new(),
    };
    let task = tokio::spawn(owner.run(queue.inbox, changes));
    (ControlHandle::new(shared, queue.sender), task)
}

/// The result of one of the owner's futures.
enum FutureOutcome {
    Nothing,
    ControlEvent(ControlEvent),
    /// Something takes long: this event is fed now, and the future goes on to its end.
    Slow(ControlEvent, BoxFuture<'static, FutureOutcome>),
    Queued(lane::QueuedBatch),
    Changed(AllocWatch, bool),
    Node(NodeChanges, bool),
}

/// The state and phase of an allocation, which are followed.
struct AllocWatch {
    alloc: AllocId,
    state: ostler_lifecycle::watch::Subscriber<AllocState>,
    phase: PhaseWatch,
}

struct NodeOwner {
    shared: Arc<OwnerState>,
    replies: BTreeMap<RequestId, oneshot::Sender<ControlAnswer>>,
    last_request: RequestId,
    /// Events that follow from effects; they come before anything else.
    events: VecDeque<ControlEvent>,
    lane: lane::BatchLane,
    /// What the owners of restored allocations need, by allocation.
    restored: BTreeMap<AllocId, RestoredAlloc>,
    /// The node as its allocations see it, and the view that it was made from.
    facts: Option<(Arc<NodeView>, Arc<NodeFacts>)>,
    traces: traces::JobTraces,
    running: FuturesUnordered<BoxFuture<'static, FutureOutcome>>,
}

impl NodeOwner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, changes: NodeChanges) {
        self.follow_node(changes);
        let mut events = 0_u32;
        loop {
            let alarm = self.shared.lock_node().machine.next_alarm();
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
                Some(done) = self.running.next() => self.handle_outcome(done),
                message = inbox.recv() => match message {
                    Some(Message::Close) | None => return,
                    Some(message) => self.handle_message(message),
                },
                () = time => {
                    events = 0;
                    self.feed(ControlEvent::Alarm);
                }
            }
        }
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Ask { ask, reply } => self.handle_request(ask, reply),
            Message::Restore { ask, allocs, reply } => {
                self.restored.extend(allocs);
                self.handle_request(ask, reply);
            }
            Message::ControlEvent(event) => self.feed(event),
            Message::Trace { job, trace } => {
                self.traces.note_registration(&job, trace, self.shared.options.node.clock.now())
            }
            Message::Close => {}
        }
    }

    fn handle_request(&mut self, ask: ControlRequest, reply: oneshot::Sender<ControlAnswer>) {
        if matches!(ask, ControlRequest::Collect(_)) {
            self.drop_gone_askers();
        }
        if let ControlRequest::Change { job, asked: JobAction::Version(_, options), .. } = &ask {
            self.traces.note_registration(job, options.trace, self.shared.options.node.clock.now());
        }
        self.last_request = self.last_request.saturating_add(1);
        self.replies.insert(self.last_request, reply);
        self.feed(ControlEvent::Asked { request: self.last_request, ask });
    }

    /// Drop the requests that nobody waits for, because the number of requests to
    /// collect is bounded.
    fn drop_gone_askers(&mut self) {
        let gone = self.replies.extract_if(.., |_, reply| reply.is_closed());
        let gone: Vec<RequestId> = gone.map(|(request, _)| request).collect();
        gone.into_iter().for_each(|request| self.feed(ControlEvent::AskerGone(request)));
    }

    fn handle_outcome(&mut self, done: FutureOutcome) {
        match done {
            FutureOutcome::Nothing => {}
            FutureOutcome::ControlEvent(event) => self.feed(event),
            FutureOutcome::Slow(event, rest) => {
                self.running.push(rest);
                self.feed(event);
            }
            FutureOutcome::Queued(queued) => self.finish_queue(queued),
            FutureOutcome::Changed(follow, gone) => self.report_alloc(follow, gone),
            FutureOutcome::Node(changes, gone) => {
                self.feed(ControlEvent::NodeChanged);
                if !gone {
                    self.follow_node(changes);
                }
            }
        }
    }

    /// Feed an event to the machine, and the events that follow from it at once.
    fn feed(&mut self, event: ControlEvent) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let removed = match &event {
                ControlEvent::Removed { alloc, .. } => Some(*alloc),
                _ => None,
            };
            let effects = {
                let mut now = self.shared.lock_node();
                let effects = self.shared.with_world(|world| now.machine.step(world, event));
                self.shared.lock_changes().add(now.machine.take_changes());
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
            let now = self.shared.lock_node();
            (now.machine.tables().index(), now.machine.tables().stage())
        };
        let newer = |seen: &mut u64| std::mem::replace(seen, index) != index;
        self.shared.index.send_if_modified(newer);
        let other = |seen: &mut AgentStage| std::mem::replace(seen, stage) != stage;
        self.shared.stage.send_if_modified(other);
    }

    fn follow_node(&self, mut changes: NodeChanges) {
        self.running.push(Box::pin(async move {
            let gone = changes.next().await.is_err();
            FutureOutcome::Node(changes, gone)
        }));
    }

    /// Follow the owner of an allocation, beginning with its present state.
    fn follow(&mut self, handle: &AllocHandle) {
        let follow =
            AllocWatch { alloc: handle.id(), state: handle.state(), phase: handle.phase() };
        self.report_alloc(follow, false);
    }

    fn report_alloc(&mut self, mut follow: AllocWatch, gone: bool) {
        let ended = matches!(
            *follow.phase.borrow_and_update(),
            // `Left` is not among them, because the next agent goes on with such an allocation.
            AllocPhase::Done | AllocPhase::Destroying | AllocPhase::Destroyed
        );
        let report = AllocReport::from_state(&follow.state.borrow_and_update(), ended);
        let alloc = follow.alloc;
        if !gone {
            self.running.push(Box::pin(async move {
                let (state, phase) = (&mut follow.state, &mut follow.phase);
                let gone = tokio::select! {
                    biased;
                    changed = phase.changed() => changed.is_err(),
                    changed = state.changed() => changed.is_err(),
                };
                FutureOutcome::Changed(follow, gone)
            }));
        }
        self.feed(ControlEvent::Reported { alloc, report });
    }
}
