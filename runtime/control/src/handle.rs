//! The way to the owner of a node: requests, and what is read of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::change_log::ChangesSeen;
use super::deployments::DeploymentAsk;
use super::error::{AllocError, SubmitError};
use super::gc::choice::GcPolicy;
use super::machine::{Answer, Ask, Change, ControlEvent, JobAction, LEAVE_WALL_MAX, RestoredNode};
use super::owner::{Message, Shared};
use super::tables::{AllocEntry, JobEntry, PlacedBy, Tables};
use super::views::{
    AllocRef, AllocView, Assigned, BlockedPlacement, Collected, Deployed, JobView, Plan,
    RegisterOptions, Registered, Stage, StopOptions, Stopped,
};
use ostler_device::ledger::{DeviceLedger, InstanceHolder};
use ostler_device::manager::LedgerBook;
use ostler_lifecycle::alloc::{AllocHandle, RestoredAlloc};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::clock;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::job::Job;
use ostler_model::limits::STATE_WRITE_WALL_MAX;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::rollout::Deployment;
use ostler_model::saved::{JobOrigin, JobRecord, SavedAllocState};
use ostler_model::words::counted;
use ostler_state::StateError;

/// The way to the owner of a node. Clones share it; when the last one goes, the owner ends.
#[derive(Clone)]
pub struct ControlHandle {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Message>,
}

impl ControlHandle {
    pub(crate) const fn new(shared: Arc<Shared>, queue: mpsc::Sender<Message>) -> Self {
        Self { shared, queue }
    }

    /// The index of the last visible change. Grows with each, and over restarts of the agent.
    #[must_use]
    pub fn index(&self) -> u64 {
        *self.shared.index.borrow()
    }

    /// The index as it grows, for blocking queries: wait until it is above the last one seen, then
    /// look again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.index.subscribe()
    }

    /// Where to begin with [`ControlHandle::changes_from`] so that the first is one after this index, or
    /// the oldest that is kept.
    #[must_use]
    pub fn change_position(&self, index: u64) -> u64 {
        self.shared.changes().position_after(index)
    }

    /// At most `most` visible changes from a position on; more come when [`ControlHandle::changes`]
    /// grows.
    #[must_use]
    pub fn changes_from(&self, position: u64, most: usize) -> ChangesSeen {
        self.shared.changes().after(position, most)
    }

    /// How far the agent is.
    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.shared.stage.borrow()
    }

    /// The same, as it changes.
    #[must_use]
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.shared.stage.subscribe()
    }

    /// Look at what the node knows. The owner waits meanwhile: be short.
    pub fn look<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(self.shared.now().machine.tables())
    }

    /// Every registered job, by id.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobView> {
        let now = self.shared.now();
        let status = |entry: &AllocEntry| status_of(&now.owners, entry);
        let tables = now.machine.tables();
        tables.jobs().filter_map(|(id, _)| tables.job_view(id, &status)).collect()
    }

    /// One registered job.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<JobView> {
        let now = self.shared.now();
        now.machine.tables().job_view(id, &|entry| status_of(&now.owners, entry))
    }

    /// Every allocation that has an owner, by id; those that are over until they are collected.
    #[must_use]
    pub fn allocs(&self) -> Vec<AllocView> {
        // Their states are copied without the lock: the owner would wait for ten thousand copies.
        self.alloc_refs(|_| true).into_iter().map(AllocRef::view).collect()
    }

    /// Those of them that are `wanted`.
    #[must_use]
    pub fn alloc_refs(&self, wanted: impl Fn(&Allocation) -> bool) -> Vec<AllocRef> {
        let now = self.shared.now();
        let tables = now.machine.tables();
        let all = tables.allocs().filter(|entry| wanted(&entry.allocation));
        all.filter_map(|entry| Some(found(tables, entry, now.owners.get(&entry.allocation.id)?)))
            .collect()
    }

    /// Allocations that servers placed, whatever became of them.
    #[must_use]
    pub fn assigned(&self) -> Vec<AllocRef> {
        let now = self.shared.now();
        let tables = now.machine.tables();
        let all = tables.allocs().filter(|entry| entry.placed_by == PlacedBy::Server);
        all.filter_map(|entry| Some(found(tables, entry, now.owners.get(&entry.allocation.id)?)))
            .collect()
    }

    /// The index at which one of them went last; 0: none did.
    #[must_use]
    pub fn allocs_forgot(&self) -> u64 {
        self.look(Tables::forgot)
    }

    /// The ids of all of them.
    #[must_use]
    pub fn alloc_ids(&self) -> BTreeSet<AllocId> {
        self.shared.now().owners.keys().copied().collect()
    }

    /// One allocation; absent too while its record is on the way to the disk.
    #[must_use]
    pub fn alloc(&self, id: AllocId) -> Option<AllocView> {
        let now = self.shared.now();
        let tables = now.machine.tables();
        Some(found(tables, tables.alloc(id)?, now.owners.get(&id)?).view())
    }

    /// Is the record of an allocation on the way to the disk?
    #[must_use]
    pub fn is_entering(&self, id: AllocId) -> bool {
        let now = self.shared.now();
        now.machine.tables().alloc(id).is_some() && !now.owners.contains_key(&id)
    }

    /// An allocation with its owner, also when it is only being entered: its job tells its id by then.
    pub async fn entered(&self, id: AllocId) -> Option<AllocView> {
        let mut changes = self.changes();
        let there = async {
            loop {
                changes.borrow_and_update();
                if let Some(view) = self.alloc(id) {
                    return Some(view);
                }
                self.look(|tables| tables.alloc(id).map(drop))?;
                changes.changed().await.ok()?;
            }
        };
        clock::timeout(STATE_WRITE_WALL_MAX, there).await.flatten()
    }

    /// Make a job run as it says: start what is missing, change what differs, stop what is too
    /// much. A job equal to the present version changes nothing. What does not fit on this node
    /// now waits, and what it would replace runs on until it does. What is told is durable.
    ///
    /// # Errors
    /// When the index is not the expected one, somebody else gave the job, another change of it takes too
    /// long, or it cannot be made durable; then nothing is changed. With [`SubmitError::Unanswered`] that is
    /// not known yet.
    pub async fn register(
        &self,
        job: Arc<Job>,
        options: RegisterOptions,
    ) -> Result<Registered, SubmitError> {
        let id = job.id.clone();
        let change = self.change(id, JobAction::Version(job, options), false).await?;
        Ok(registered(change))
    }

    /// Run allocations that a server placed, all of one job: new ones, and newer copies of known ones. What
    /// is older than what is known is left aside; what cannot be entered now is in
    /// [`Assigned::refused`]. What is told is durable.
    ///
    /// # Errors
    /// When another change of the job takes too long, or they cannot be made durable; then none of them is
    /// entered. With [`SubmitError::Unanswered`] that is not known yet.
    pub async fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> Result<Assigned, SubmitError> {
        let change = self.change(job, JobAction::Assign(allocs), false).await?;
        Ok(Assigned {
            placed: change.placed.iter().map(|alloc| alloc.id).collect(),
            updated: change.updated(),
            refused: change.refused,
        })
    }

    /// Stop a job, by whoever gave it. Returns the index of the stop, which is durable; the allocations
    /// end later.
    ///
    /// # Errors
    /// When there is no such job, somebody else gave it, or the stop cannot be made durable.
    pub async fn deregister(
        &self,
        id: &JobId,
        options: StopOptions,
        origin: JobOrigin,
    ) -> Result<Stopped, SubmitError> {
        let StopOptions { purge, skip_shutdown_delay, reason } = options;
        let asked = JobAction::Stop { origin, reason, purge };
        let change = self.change(id.clone(), asked, skip_shutdown_delay).await?;
        if change.before.is_none() {
            return Err(SubmitError::Unknown { job: id.clone() });
        }
        Ok(Stopped { index: change.index, unwritten: change.unwritten })
    }

    /// Stop one allocation of a job. Its registered job puts a new one in its place.
    ///
    /// # Errors
    /// When the stop cannot be made durable.
    pub async fn stop_alloc(
        &self,
        job: JobId,
        alloc: AllocId,
        reason: &str,
        skip_shutdown_delay: bool,
    ) -> Result<Stopped, AllocError> {
        let asked = JobAction::StopAlloc { alloc, reason: reason.to_owned() };
        let change = self.change(job, asked, skip_shutdown_delay).await?;
        Ok(Stopped { index: change.index, unwritten: change.unwritten })
    }

    /// Go back to an earlier version of a job: it is the newest one then. `enforce`: only when the
    /// present version is this one.
    ///
    /// # Errors
    /// When there is no such job or version, or it is the present one, and as
    /// [`ControlHandle::register`].
    pub async fn revert(
        &self,
        id: &JobId,
        version: u64,
        enforce: Option<u64>,
    ) -> Result<Registered, SubmitError> {
        let asked = JobAction::Revert { version, enforce, origin: JobOrigin::Api };
        self.known(id)?;
        let change = self.change(id.clone(), asked, false).await?;
        Ok(registered(change))
    }

    /// Say whether a version of a job is stable: what a deployment that fails may go back to. The index
    /// of the change.
    ///
    /// # Errors
    /// When there is no such job or version, or it cannot be made durable.
    pub async fn set_stable(
        &self,
        id: &JobId,
        version: u64,
        stable: bool,
    ) -> Result<u64, SubmitError> {
        self.known(id)?;
        let asked = JobAction::Stable { version, stable };
        Ok(self.change(id.clone(), asked, false).await?.index)
    }

    /// Ask something of the newest deployment of a job.
    ///
    /// # Errors
    /// When there is no such deployment, it is over, or has nothing to promote; when it cannot be made
    /// durable.
    pub async fn deployment(
        &self,
        job: JobId,
        id: &str,
        ask: DeploymentAsk,
    ) -> Result<Deployed, SubmitError> {
        let change = self.change(job, JobAction::Deployment(id.into(), ask), false).await?;
        let before = change.before.as_ref().map_or(0, |before| before.version);
        let version = change.record.as_ref().map(|record| record.version);
        let reverted = version.filter(|version| *version > before).and_then(|_| {
            let stable = change.history.as_ref()?.now.stable()?;
            Some(stable.version)
        });
        Ok(Deployed { index: change.index, reverted })
    }

    /// Every deployment, with the job it is of.
    #[must_use]
    pub fn deployments(&self) -> Vec<(Arc<Job>, Arc<Deployment>)> {
        self.look(|tables| {
            let of_job = |entry: &JobEntry| {
                let job = Arc::clone(&entry.record.job);
                let all = entry.history.deployments.clone();
                all.into_iter().map(move |one| (Arc::clone(&job), one)).collect::<Vec<_>>()
            };
            tables.jobs().flat_map(|(_, entry)| of_job(entry)).collect()
        })
    }

    /// Earlier versions of a job, oldest first; the present one is its record.
    #[must_use]
    pub fn versions(&self, id: &JobId) -> Vec<Arc<JobRecord>> {
        self.look(|tables| {
            tables.job(id).map(|entry| entry.history.versions.clone()).unwrap_or_default()
        })
    }

    fn known(&self, id: &JobId) -> Result<(), SubmitError> {
        let known = self.look(|tables| tables.job(id).is_some());
        known.then_some(()).ok_or_else(|| SubmitError::Unknown { job: id.clone() })
    }

    async fn change(
        &self,
        job: JobId,
        asked: JobAction,
        skip_shutdown_delay: bool,
    ) -> Result<Change, SubmitError> {
        match self.ask(Ask::Change { job, asked, skip_shutdown_delay }).await {
            Some(Answer::Changed(result)) => result,
            _ => Err(SubmitError::Leaving),
        }
    }

    /// Remove directory and records of one allocation that is over, or of all of them.
    ///
    /// # Errors
    /// When there is no such allocation, it is not over, another one waits for its data, or the one
    /// that was named could not be removed. Of all of them those that stay are in
    /// [`Collected::failed`].
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<Collected, AllocError> {
        match self.ask(Ask::Collect(alloc)).await {
            Some(Answer::Collected(result)) => result,
            _ => Err(AllocError::Leaving),
        }
    }

    /// Take over what an earlier agent left. `allocs`: what their owners need. Once, and before any
    /// change.
    ///
    /// # Errors
    /// When records cannot be queued.
    pub async fn restore(
        &self,
        restored: RestoredNode,
        allocs: BTreeMap<AllocId, RestoredAlloc>,
    ) -> Result<(), StateError> {
        let services = &self.shared.options.services;
        // Before the first of them runs: it may ask for another's.
        services.expect(with_services(&restored));
        let ask = Ask::Restore(Box::new(restored));
        let told = self.send(|reply| Message::Restore { ask, allocs, reply }).await;
        match told {
            Some(Answer::Written(result)) => result,
            _ => Ok(()),
        }
    }

    /// Changes are taken from now on; with a policy, allocations are collected.
    pub async fn ready(&self, policy: Option<GcPolicy>) {
        self.ask(Ask::Ready(policy)).await;
    }

    /// Collect allocations by another policy from now on, where they are collected.
    pub async fn collect_by(&self, policy: GcPolicy) {
        self.ask(Ask::CollectBy(policy)).await;
    }

    /// Returns when the owner answers, with whether it did: it has not ended.
    pub async fn answers(&self) -> bool {
        self.ask(Ask::Probe).await.is_some()
    }

    /// A run that nobody owned has ended.
    pub async fn run_ended(&self, name: String) {
        self.tell(ControlEvent::RunEnded { name }).await;
    }

    /// Servers know how these allocations have ended: they may be collected.
    pub async fn ends_told(&self, allocs: Vec<AllocId>) {
        self.tell(ControlEvent::EndsTold(allocs)).await;
    }

    /// Stop every allocation in order; kill what is left at the deadline. Returns when all are over.
    pub async fn drain(&self, deadline: Duration) {
        self.ask(Ask::Drain(deadline)).await;
    }

    /// Take no more changes. Returns when those under way have ended, or have had their time.
    pub async fn leave(&self) {
        self.ask(Ask::Leave).await;
    }

    /// Every owner of an allocation ends, side by side; native tasks run on.
    pub async fn leave_allocs(&self) {
        // What runs goes on, and its services with it.
        self.shared.options.services.freeze();
        let owners = std::mem::take(&mut self.shared.now().owners);
        let mut leaving: JoinSet<()> =
            owners.into_values().map(|owner| async move { owner.shutdown().await }).collect();
        let all = async { while leaving.join_next().await.is_some() {} };
        if clock::timeout(LEAVE_WALL_MAX, all).await.is_none() {
            tracing::error!(left = leaving.len(), "owners of allocations did not end in time");
        }
    }

    /// End the owner. Requests are refused from then on.
    pub async fn close(&self) {
        // An error means that it has ended already.
        let _ended = self.queue.send(Message::Close).await;
        self.queue.closed().await;
    }

    async fn ask(&self, ask: Ask) -> Option<Answer> {
        self.send(|reply| Message::Ask { ask, reply }).await
    }

    /// `None`: the owner has ended.
    async fn send(
        &self,
        message: impl FnOnce(oneshot::Sender<Answer>) -> Message,
    ) -> Option<Answer> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(message(reply)).await.ok()?;
        answer.await.ok()
    }

    async fn tell(&self, event: ControlEvent) {
        // An error means that the owner has ended.
        let _ended = self.queue.send(Message::ControlEvent(event)).await;
    }

    /// Who holds which device instance: running allocations, and those that are over while a
    /// plugin was not told of it yet.
    #[must_use]
    pub fn device_holders(&self) -> DeviceLedger {
        self.look(|tables| tables.admission().devices().clone())
    }

    /// Where it is written who holds which device, for the device manager.
    #[must_use]
    pub fn ledger_book(&self) -> Arc<dyn LedgerBook> {
        Arc::new(Book(self.queue.downgrade()))
    }
}

#[path = "handle_node.rs"]
mod node;
#[path = "handle_plan.rs"]
mod plan;

pub use plan::Planning;

fn registered(change: Change) -> Registered {
    let record = change.record.as_ref().or(change.before.as_ref());
    Registered {
        job_modify_index: record.map_or(change.index, |record| record.job_modify_index),
        version: record.map_or(0, |record| record.version),
        index: change.done_at(),
        placed: change.placed.iter().map(|alloc| alloc.id).collect(),
        updated: change.updated(),
        stopped: change.stopped(),
        warnings: waits(&change.blocked),
    }
}

/// The node's ledger, as the device manager writes it. Keeps the owner from ending no longer than it is
/// asked.
struct Book(mpsc::WeakSender<Message>);

impl Book {
    async fn keep_entry(&self, holder: &InstanceHolder) -> Result<(), String> {
        let Some(queue) = self.0.upgrade() else { return Err("the agent ends".to_owned()) };
        let (reply, answer) = oneshot::channel();
        let ask = Ask::KeepDevices(holder.clone());
        let kept = async {
            queue.send(Message::Ask { ask, reply }).await.ok()?;
            answer.await.ok()
        };
        match clock::timeout(STATE_WRITE_WALL_MAX, kept).await {
            Some(Some(Answer::Written(Ok(())))) => Ok(()),
            Some(Some(Answer::Written(Err(error)))) => {
                Err(format!("who holds the devices could not be written: {error}"))
            }
            Some(_) => Err("the agent ends".to_owned()),
            None => Err("who holds the devices was not written in time".to_owned()),
        }
    }
}

impl LedgerBook for Book {
    fn keep<'a>(
        &'a self,
        holder: &'a InstanceHolder,
    ) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async move { self.keep_entry(holder).await.map_err(PluginCallError::Recoverable) })
    }

    fn released<'a>(&'a self, holder: &'a InstanceHolder) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(queue) = self.0.upgrade() {
                let released = Message::ControlEvent(ControlEvent::DevicesReleased(holder.clone()));
                // An error means that the owner has ended; the next agent releases once more.
                let _ended = queue.send(released).await;
            }
        })
    }
}

fn status_of(owners: &BTreeMap<AllocId, AllocHandle>, entry: &AllocEntry) -> ClientStatus {
    let said = || owners.get(&entry.allocation.id).map(|o| o.state().borrow().client_status);
    entry.ended_before.or_else(said).unwrap_or_else(|| entry.client_status())
}

fn found(tables: &Tables, entry: &AllocEntry, owner: &AllocHandle) -> AllocRef {
    let alloc = &entry.allocation;
    let job = tables.job(&alloc.job.id).filter(|_| entry.registered());
    AllocRef {
        successor_at: job.and_then(|job| job.later.get(&alloc.id).copied()),
        canary: tables.is_canary(alloc),
        allocation: Arc::clone(&entry.allocation),
        modify_index: entry.modify_index,
        modify_time: entry.modify_time,
        handle: owner.clone(),
    }
}

impl Plan {
    /// What would wait and why, a sentence for each group.
    #[must_use]
    pub fn waits(&self) -> Vec<String> {
        waits(&self.waiting)
    }
}

/// What of a job waits, a sentence for each group.
fn waits(blocked: &[BlockedPlacement]) -> Vec<String> {
    let mut said = Vec::new();
    let soon = blocked.iter().filter(|place| place.soon).count();
    if soon > 0 {
        let they = if soon == 1 { "it replaces" } else { "they replace" };
        let waiting = allocations(soon, "waits", "wait");
        said.push(format!("{waiting} until what {they} is over: there is no room beside it"));
    }
    let mut groups: BTreeMap<&GroupName, Vec<&BlockedPlacement>> = BTreeMap::new();
    for place in blocked.iter().filter(|place| !place.soon) {
        groups.entry(&place.group).or_default().push(place);
    }
    for (group, places) in groups {
        let waiting = allocations(places.len(), "waits", "wait");
        // Places of a group are alike: the first one's reason is that of all.
        let Some(refusal) = places.first().map(|place| &place.refusal) else { continue };
        let until = if refusal.waits_for_room() { " until there is room" } else { "" };
        said.push(format!("group {group}: {waiting}{until}: {}", refusal.problems()));
    }
    said
}

/// Allocations that run on and will say what they offer.
fn with_services(restored: &RestoredNode) -> impl Iterator<Item = AllocId> {
    let ran = |saved: &Option<SavedAllocState>| {
        saved.as_ref().is_some_and(|saved| saved.client_status == ClientStatus::Running)
    };
    let all = restored.allocs.iter().filter(|_| restored.own);
    let running = all.filter(move |(alloc, saved)| {
        let group = alloc.task_group();
        let offers = group.is_some_and(|group| !group.services.is_empty());
        offers && alloc.desired == DesiredStatus::Run && ran(saved)
    });
    running.map(|(alloc, _)| alloc.id)
}

fn allocations(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", counted(count, "allocation"), if count == 1 { one } else { many })
}
