//! The handle of a node's owner: requests to it, and what is read of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::change_log::ChangeBatch;
use super::deployments::DeploymentAsk;
use super::error::{AllocError, SubmitError};
use super::gc::choice::GcPolicy;
use super::machine::{
    ControlAnswer, ControlEvent, ControlRequest, DecidedChange, JobAction, LEAVE_WALL_MAX,
    RestoredNode,
};
use super::owner::{Message, OwnerState};
use super::tables::{AllocEntry, JobEntry, NodeTables, PlacedBy};
use super::views::{
    AgentStage, AllocRef, AllocView, AssignOutcome, BlockedPlacement, CollectOutcome,
    DeploymentOutcome, JobPlan, JobView, RegisterOptions, RegisterOutcome, StopOptions,
    StopOutcome,
};
use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::alloc::{AllocHandle, RestoredAlloc};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::clock;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::job::Job;
use ostler_model::limits::STATE_WRITE_WALL_MAX;
use ostler_model::rollout::Deployment;
use ostler_model::saved::{JobOrigin, JobRecord, SavedAllocState};
use ostler_model::words::count_noun;
use ostler_state::StateError;

/// The handle of a node's owner. Clones share it; when the last one goes, the owner ends.
#[derive(Clone)]
pub struct ControlHandle {
    shared: Arc<OwnerState>,
    queue: mpsc::Sender<Message>,
}

impl ControlHandle {
    pub(crate) const fn new(shared: Arc<OwnerState>, queue: mpsc::Sender<Message>) -> Self {
        Self { shared, queue }
    }

    /// The index of the last visible change. It grows with each, and over restarts of the agent.
    #[must_use]
    pub fn index(&self) -> u64 {
        *self.shared.index.borrow()
    }

    /// The index as it grows: wait until it is above the last one seen, then read again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.index.subscribe()
    }

    /// The position for [`ControlHandle::changes_from`] whose first change comes after this index,
    /// or is the oldest one kept.
    #[must_use]
    pub fn change_position(&self, index: u64) -> u64 {
        self.shared.lock_changes().position_after(index)
    }

    /// At most `most` visible changes from a position on; more come
    /// when [`ControlHandle::changes`] grows.
    #[must_use]
    pub fn changes_from(&self, position: u64, most: usize) -> ChangeBatch {
        self.shared.lock_changes().changes_after(position, most)
    }

    /// The stage of the agent.
    #[must_use]
    pub fn stage(&self) -> AgentStage {
        *self.shared.stage.borrow()
    }

    /// The stage of the agent, as it changes.
    #[must_use]
    pub fn stages(&self) -> watch::Receiver<AgentStage> {
        self.shared.stage.subscribe()
    }

    /// Read the tables. The owner waits meanwhile, so `look` must be short.
    pub fn read_tables<T>(&self, look: impl FnOnce(&NodeTables) -> T) -> T {
        look(self.shared.lock_node().machine.tables())
    }

    /// Every registered job, by id.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobView> {
        let now = self.shared.lock_node();
        let status = |entry: &AllocEntry| status_of(&now.owners, entry);
        let tables = now.machine.tables();
        tables.jobs().filter_map(|(id, _)| tables.job_view(id, &status)).collect()
    }

    /// A registered job by its id.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<JobView> {
        let now = self.shared.lock_node();
        now.machine.tables().job_view(id, &|entry| status_of(&now.owners, entry))
    }

    /// Every allocation that has an owner, by id, until it is collected.
    #[must_use]
    pub fn allocs(&self) -> Vec<AllocView> {
        // Their states are copied without the lock: the owner would wait for ten thousand copies.
        self.alloc_refs(|_| true).into_iter().map(AllocRef::view).collect()
    }

    /// The allocations with an owner that are `wanted`.
    #[must_use]
    pub fn alloc_refs(&self, wanted: impl Fn(&Allocation) -> bool) -> Vec<AllocRef> {
        let now = self.shared.lock_node();
        let tables = now.machine.tables();
        let all = tables.allocs().filter(|entry| wanted(&entry.allocation));
        all.filter_map(|entry| {
            Some(alloc_ref(tables, entry, now.owners.get(&entry.allocation.id)?))
        })
        .collect()
    }

    /// Allocations that servers placed, in any state.
    #[must_use]
    pub fn assigned_allocs(&self) -> Vec<AllocRef> {
        let now = self.shared.lock_node();
        let tables = now.machine.tables();
        let all = tables.allocs().filter(|entry| entry.placed_by == PlacedBy::Server);
        all.filter_map(|entry| {
            Some(alloc_ref(tables, entry, now.owners.get(&entry.allocation.id)?))
        })
        .collect()
    }

    /// The index at which the last allocation was forgotten; 0: none was.
    #[must_use]
    pub fn last_forget_index(&self) -> u64 {
        self.read_tables(NodeTables::last_forget_index)
    }

    /// The ids of all allocations that have an owner.
    #[must_use]
    pub fn alloc_ids(&self) -> BTreeSet<AllocId> {
        self.shared.lock_node().owners.keys().copied().collect()
    }

    /// An allocation by its id; absent while its record is on the way to the disk.
    #[must_use]
    pub fn alloc(&self, id: AllocId) -> Option<AllocView> {
        let now = self.shared.lock_node();
        let tables = now.machine.tables();
        Some(alloc_ref(tables, tables.alloc(id)?, now.owners.get(&id)?).view())
    }

    /// Is the record of an allocation on the way to the disk?
    #[must_use]
    pub fn is_entering(&self, id: AllocId) -> bool {
        let now = self.shared.lock_node();
        now.machine.tables().alloc(id).is_some() && !now.owners.contains_key(&id)
    }

    /// An allocation with its owner. Waits for the owner of one that is only being entered.
    pub async fn wait_for_alloc(&self, id: AllocId) -> Option<AllocView> {
        let mut changes = self.changes();
        let there = async {
            loop {
                changes.borrow_and_update();
                if let Some(view) = self.alloc(id) {
                    return Some(view);
                }
                self.read_tables(|tables| tables.alloc(id).map(drop))?;
                changes.changed().await.ok()?;
            }
        };
        clock::timeout(STATE_WRITE_WALL_MAX, there).await.flatten()
    }

    /// Make a job run as it says: start what is missing, change what differs, stop what is too
    /// much. A job equal to the present version changes nothing. What does not fit now waits, and
    /// what it would replace runs on until it fits. The result is durable.
    ///
    /// # Errors
    /// When the index is not the expected one, somebody else gave the job, another change of it
    /// takes too long, or it cannot be made durable; then nothing is changed. With
    /// [`SubmitError::Unanswered`] that is not known yet.
    pub async fn register(
        &self,
        job: Arc<Job>,
        options: RegisterOptions,
    ) -> Result<RegisterOutcome, SubmitError> {
        let id = job.id.clone();
        let change = self.change(id, JobAction::Version(job, options), false).await?;
        Ok(register_outcome(change))
    }

    /// Run allocations that a server placed, all of one job: new ones, and newer copies of known
    /// ones. Older copies are ignored; what cannot be entered now is in [`AssignOutcome::refused`]. The
    /// result is durable.
    ///
    /// # Errors
    /// When another change of the job takes too long, or they cannot be made durable; then none of them is
    /// entered. With [`SubmitError::Unanswered`] that is not known yet.
    pub async fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> Result<AssignOutcome, SubmitError> {
        let change = self.change(job, JobAction::Assign(allocs), false).await?;
        Ok(AssignOutcome {
            placed: change.placed.iter().map(|alloc| alloc.id).collect(),
            updated: change.updated_allocs(),
            refused: change.refused,
        })
    }

    /// Stop a job, whoever gave it. Returns the index of the stop, which is durable; the
    /// allocations end later.
    ///
    /// # Errors
    /// When there is no such job, somebody else gave it, or the stop cannot be made durable.
    pub async fn deregister(
        &self,
        id: &JobId,
        options: StopOptions,
        origin: JobOrigin,
    ) -> Result<StopOutcome, SubmitError> {
        let StopOptions { purge, skip_shutdown_delay, reason } = options;
        let asked = JobAction::Stop { origin, reason, purge };
        let change = self.change(id.clone(), asked, skip_shutdown_delay).await?;
        if change.before.is_none() {
            return Err(SubmitError::Unknown { job: id.clone() });
        }
        Ok(StopOutcome { index: change.index, unwritten: change.unwritten })
    }

    /// Stop one allocation of a job. A registered job puts a new one in its place.
    ///
    /// # Errors
    /// When the stop cannot be made durable.
    pub async fn stop_alloc(
        &self,
        job: JobId,
        alloc: AllocId,
        reason: &str,
        skip_shutdown_delay: bool,
    ) -> Result<StopOutcome, AllocError> {
        let asked = JobAction::StopAlloc { alloc, reason: reason.to_owned() };
        let change = self.change(job, asked, skip_shutdown_delay).await?;
        Ok(StopOutcome { index: change.index, unwritten: change.unwritten })
    }

    /// Go back to an earlier version of a job, as its newest version. `enforce`: only when the
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
    ) -> Result<RegisterOutcome, SubmitError> {
        let asked = JobAction::Revert { version, enforce, origin: JobOrigin::Api };
        self.require_job(id)?;
        let change = self.change(id.clone(), asked, false).await?;
        Ok(register_outcome(change))
    }

    /// Mark a version of a job as stable or not: a failed deployment goes back to a stable one.
    /// Returns the index of the change.
    ///
    /// # Errors
    /// When there is no such job or version, or it cannot be made durable.
    pub async fn set_stable(
        &self,
        id: &JobId,
        version: u64,
        stable: bool,
    ) -> Result<u64, SubmitError> {
        self.require_job(id)?;
        let asked = JobAction::Stable { version, stable };
        Ok(self.change(id.clone(), asked, false).await?.index)
    }

    /// Send a request to the newest deployment of a job.
    ///
    /// # Errors
    /// When there is no such deployment, it is over, or has nothing to promote; when the change
    /// cannot be made durable.
    pub async fn change_deployment(
        &self,
        job: JobId,
        id: &str,
        ask: DeploymentAsk,
    ) -> Result<DeploymentOutcome, SubmitError> {
        let change = self.change(job, JobAction::Deployment(id.into(), ask), false).await?;
        let before = change.before.as_ref().map_or(0, |before| before.version);
        let version = change.record.as_ref().map(|record| record.version);
        let reverted = version.filter(|version| *version > before).and_then(|_| {
            let stable = change.history.as_ref()?.now.stable_version()?;
            Some(stable.version)
        });
        Ok(DeploymentOutcome { index: change.index, reverted })
    }

    /// Every deployment, with its job.
    #[must_use]
    pub fn deployments(&self) -> Vec<(Arc<Job>, Arc<Deployment>)> {
        self.read_tables(|tables| {
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
        self.read_tables(|tables| {
            tables.job(id).map(|entry| entry.history.versions.clone()).unwrap_or_default()
        })
    }

    fn require_job(&self, id: &JobId) -> Result<(), SubmitError> {
        let known = self.read_tables(|tables| tables.job(id).is_some());
        known.then_some(()).ok_or_else(|| SubmitError::Unknown { job: id.clone() })
    }

    async fn change(
        &self,
        job: JobId,
        asked: JobAction,
        skip_shutdown_delay: bool,
    ) -> Result<DecidedChange, SubmitError> {
        match self.ask(ControlRequest::Change { job, asked, skip_shutdown_delay }).await {
            Some(ControlAnswer::Changed(result)) => result,
            _ => Err(SubmitError::Leaving),
        }
    }

    /// Remove directory and records of one allocation that is over, or of all that are over.
    ///
    /// # Errors
    /// When there is no such allocation, it is not over, another one waits for its data, or the one
    /// that was named could not be removed. Of all of them those that stay are in
    /// [`CollectOutcome::failed`].
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<CollectOutcome, AllocError> {
        match self.ask(ControlRequest::Collect(alloc)).await {
            Some(ControlAnswer::Collected(result)) => result,
            _ => Err(AllocError::Leaving),
        }
    }

    /// Take over what an earlier agent left: once, before any change. `allocs` has what the owners
    /// of the allocations need.
    ///
    /// # Errors
    /// When records cannot be queued.
    pub async fn restore(
        &self,
        restored: RestoredNode,
        allocs: BTreeMap<AllocId, RestoredAlloc>,
    ) -> Result<(), StateError> {
        let services = &self.shared.options.node.services;
        // Before the first of them runs, because it may ask for another's services.
        services.expect(service_allocs(&restored));
        let ask = ControlRequest::Restore(Box::new(restored));
        let told = self.send(|reply| Message::Restore { ask, allocs, reply }).await;
        match told {
            Some(ControlAnswer::Written(result)) => result,
            _ => Ok(()),
        }
    }

    /// Accept changes from now on; with a policy, collect allocations.
    pub async fn set_ready(&self, policy: Option<GcPolicy>) {
        self.ask(ControlRequest::Ready(policy)).await;
    }

    /// Change the policy of collection, where allocations are collected.
    pub async fn set_gc_policy(&self, policy: GcPolicy) {
        self.ask(ControlRequest::SetGcPolicy(policy)).await;
    }

    /// Wait for an answer of the owner. `false`: it has ended.
    pub async fn is_answering(&self) -> bool {
        self.ask(ControlRequest::Probe).await.is_some()
    }

    /// Report that a run which nobody owned has ended.
    pub async fn report_run_end(&self, name: String) {
        self.tell(ControlEvent::RunEnded { name }).await;
    }

    /// Report that servers know how these allocations have ended: they may be collected.
    pub async fn mark_ends_told(&self, allocs: Vec<AllocId>) {
        self.tell(ControlEvent::EndsTold(allocs)).await;
    }

    /// Stop every allocation; kill what is left at the deadline. Returns when all are over.
    pub async fn drain(&self, deadline: Duration) {
        self.ask(ControlRequest::Drain(deadline)).await;
    }

    /// Accept no more changes. Returns when those under way have ended, or their time is over.
    pub async fn leave(&self) {
        self.ask(ControlRequest::Leave).await;
    }

    /// End every owner of an allocation, side by side; native tasks run on.
    pub async fn leave_allocs(&self) {
        // What runs goes on, and so do its services.
        self.shared.options.node.services.freeze();
        let owners = std::mem::take(&mut self.shared.lock_node().owners);
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

    async fn ask(&self, ask: ControlRequest) -> Option<ControlAnswer> {
        self.send(|reply| Message::Ask { ask, reply }).await
    }

    /// Send a message and wait for its answer. `None`: the owner has ended.
    async fn send(
        &self,
        message: impl FnOnce(oneshot::Sender<ControlAnswer>) -> Message,
    ) -> Option<ControlAnswer> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(message(reply)).await.ok()?;
        answer.await.ok()
    }

    async fn tell(&self, event: ControlEvent) {
        // An error means that the owner has ended.
        let _ended = self.queue.send(Message::ControlEvent(event)).await;
    }

    /// Who holds which device instance: running allocations, and those that are over while a
    /// release is owed to a plugin.
    #[must_use]
    pub fn device_holders(&self) -> DeviceLedger {
        self.read_tables(|tables| tables.admission().devices().clone())
    }
}

#[path = "handle_node.rs"]
mod node;
#[path = "handle_plan.rs"]
mod plan;

pub use plan::PlanSnapshot;

fn register_outcome(change: DecidedChange) -> RegisterOutcome {
    let record = change.record.as_ref().or(change.before.as_ref());
    RegisterOutcome {
        job_modify_index: record.map_or(change.index, |record| record.job_modify_index),
        version: record.map_or(0, |record| record.version),
        index: change.done_index(),
        placed: change.placed.iter().map(|alloc| alloc.id).collect(),
        updated: change.updated_allocs(),
        stopped: change.stopped_allocs(),
        warnings: waiting_sentences(&change.blocked),
    }
}

fn status_of(owners: &BTreeMap<AllocId, AllocHandle>, entry: &AllocEntry) -> ClientStatus {
    let said = || owners.get(&entry.allocation.id).map(|o| o.state().borrow().client_status);
    entry.ended_before.or_else(said).unwrap_or_else(|| entry.client_status())
}

fn alloc_ref(tables: &NodeTables, entry: &AllocEntry, owner: &AllocHandle) -> AllocRef {
    let alloc = &entry.allocation;
    let job = tables.job(&alloc.job.id).filter(|_| entry.is_registered());
    AllocRef {
        successor_at: job.and_then(|job| job.later.get(&alloc.id).copied()),
        canary: tables.is_canary(alloc),
        allocation: Arc::clone(&entry.allocation),
        modify_index: entry.modify_index,
        modify_time: entry.modify_time,
        handle: owner.clone(),
    }
}

impl JobPlan {
    /// What would wait and why, a sentence for each group.
    #[must_use]
    pub fn waiting_sentences(&self) -> Vec<String> {
        waiting_sentences(&self.waiting)
    }
}

/// What waits of a job and why, a sentence for each group.
fn waiting_sentences(blocked: &[BlockedPlacement]) -> Vec<String> {
    let mut said = Vec::new();
    let soon = blocked.iter().filter(|place| place.soon).count();
    if soon > 0 {
        let they = if soon == 1 { "it replaces" } else { "they replace" };
        let waiting = allocations_text(soon, "waits", "wait");
        said.push(format!("{waiting} until what {they} is over: there is no room for both"));
    }
    let mut groups: BTreeMap<&GroupName, Vec<&BlockedPlacement>> = BTreeMap::new();
    for place in blocked.iter().filter(|place| !place.soon) {
        groups.entry(&place.group).or_default().push(place);
    }
    for (group, places) in groups {
        let waiting = allocations_text(places.len(), "waits", "wait");
        // Places of a group are alike, so the reason of the first one counts for all.
        let Some(refusal) = places.first().map(|place| &place.refusal) else { continue };
        let until = if refusal.waits_for_room() { " until there is room" } else { "" };
        said.push(format!("group {group}: {waiting}{until}: {}", refusal.problems()));
    }
    said
}

/// Allocations that run on and will report the services they offer.
fn service_allocs(restored: &RestoredNode) -> impl Iterator<Item = AllocId> {
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

fn allocations_text(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", count_noun(count, "allocation"), if count == 1 { one } else { many })
}
