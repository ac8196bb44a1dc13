//! The agent's handle for jobs and allocations: register, plan, stop, restart, look.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use super::admission::DevicePlan;
use super::change::{Asked, Change};
use super::proposal::{Proposal, next_version};
use super::reconcile::differences;
use super::views::{
    AllocView, BlockedPlacement, JobView, JobsDirReport, Plan, Readiness, RegisterOptions,
    Registered, StopOptions, Stopped,
};
use super::{AgentHandle, AllocError, JobError, RestartScope, SubmitError};
use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
use ostler_model::job::Job;
use ostler_model::saved::JobOrigin;
use ostler_model::signal::full_name;
use ostler_model::words::counted;

impl AgentHandle {
    /// The index of the last visible change. Grows with each, and over restarts of the agent.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.registry().index()
    }

    /// The index as it grows, for blocking queries: wait until it is above the last one seen, then
    /// look again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.registry().changes()
    }

    /// Every registered job, by id.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobView> {
        let registry = self.registry();
        registry.jobs.keys().filter_map(|id| registry.job_view(id)).collect()
    }

    /// One registered job.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<JobView> {
        self.registry().job_view(id)
    }

    /// Every allocation, by id; those that are over until they are collected.
    #[must_use]
    pub fn allocs(&self) -> Vec<AllocView> {
        self.registry().alloc_views()
    }

    /// One allocation.
    #[must_use]
    pub fn alloc(&self, id: AllocId) -> Option<AllocView> {
        self.registry().alloc_view(id)
    }

    /// Make a job run as it says: start what is missing, change what differs, stop what is too
    /// much. A job equal to the present version changes nothing. What does not fit on this node
    /// now waits, and what it would replace runs on until it does. What is told is durable.
    ///
    /// # Errors
    /// When its configuration is wrong, the index is not the expected one, or somebody else gave
    /// it; then nothing is changed.
    pub async fn register(
        &self,
        job: Job,
        options: RegisterOptions,
    ) -> Result<Registered, SubmitError> {
        self.check_all(&job)?;
        // Also when the caller gives up: a change is made as a whole.
        let agent = self.clone();
        let task = self
            .0
            .beside
            .spawn(async move { agent.register_checked(Arc::new(job), options).await });
        let ended = task.await;
        ended.unwrap_or_else(|_| Err(SubmitError::Runner("the registration was given up".into())))
    }

    async fn register_checked(
        &self,
        job: Arc<Job>,
        options: RegisterOptions,
    ) -> Result<Registered, SubmitError> {
        let id = job.id.clone();
        let change = self.change(&id, Asked::Version(job, options)).await?;
        let warnings = waits(change.blocked());
        let record = change.record.as_ref().or(change.before.as_ref());
        Ok(Registered {
            job_modify_index: record.map_or(change.index, |record| record.job_modify_index),
            version: record.map_or(0, |record| record.version),
            index: change.done_at(),
            placed: change.placed.iter().map(|alloc| alloc.id).collect(),
            updated: change.updated(),
            stopped: change.stopped(),
            warnings,
        })
    }

    /// What [`AgentHandle::register`] would do; nothing is changed.
    ///
    /// # Errors
    /// When the job's configuration is wrong. That it does not fit is part of the plan.
    pub fn plan(&self, job: &Job) -> Result<Plan, SubmitError> {
        self.check_all(job)?;
        let registry = self.registry();
        let known = registry.jobs.get(&job.id).map(|entry| Arc::clone(&entry.record));
        let mut plan = Plan::default();
        let record = match &known {
            Some(known) if *known.job == *job && !known.stopped => (**known).clone(),
            _ => {
                let now = self.0.clock.now();
                next_version(&Arc::new(job.clone()), known.as_deref(), JobOrigin::Api, now)
            }
        };
        plan.version = record.version;
        if let Some(known) = &known {
            plan.job_modify_index = known.job_modify_index;
            plan.changes = differences(&known.job, job);
            if known.stopped {
                plan.changes.push("the job is stopped and would run again".to_owned());
            }
        }
        let proposal = Proposal::new(&registry, &record);
        let admission = self.admission();
        let mut devices = DevicePlan::default();
        plan.waiting = self.unfit(&admission, &record, &proposal, Some(&mut devices));
        drop(admission);
        if devices.left_out > 0 {
            let more = devices.left_out;
            let more = counted(more, "more request");
            plan.warnings.push(format!("the devices of {more} are not explained"));
        }
        plan.devices = devices.requests;
        for group in &job.groups {
            plan.groups.entry(group.name.clone()).or_default();
        }
        proposal.count(&mut plan.groups);
        Ok(plan)
    }

    /// Stop a job. Returns the index of the stop, which is durable; the allocations end later.
    ///
    /// # Errors
    /// When there is no such job, a file of the jobs directory gives it, or the stop cannot be
    /// made durable.
    pub async fn deregister(&self, id: &JobId, options: StopOptions) -> Result<Stopped, JobError> {
        self.deregister_as(id, options, &JobOrigin::Api).await
    }

    /// As [`AgentHandle::deregister`], by whoever gave the job.
    pub(super) async fn deregister_as(
        &self,
        id: &JobId,
        options: StopOptions,
        origin: &JobOrigin,
    ) -> Result<Stopped, JobError> {
        let (agent, id, origin) = (self.clone(), id.clone(), origin.clone());
        let task = self.0.beside.spawn(async move {
            let StopOptions { purge, skip_shutdown_delay, reason } = options;
            let asked = Asked::Stop { origin, reason, purge };
            let change = agent.change_with(&id, asked, skip_shutdown_delay).await?;
            if change.before.is_none() {
                return Err(JobError::Unknown { job: id });
            }
            Ok(Stopped { index: change.index, unwritten: change.unwritten })
        });
        task.await.unwrap_or(Err(JobError::Leaving))
    }

    /// Stop one allocation. Its registered job puts a new one in its place, which starts when this
    /// one is over and gets its data if the group says so (`ephemeral_disk`).
    ///
    /// # Errors
    /// When there is no such allocation, it has ended, or the stop cannot be made durable.
    pub async fn stop_alloc(
        &self,
        id: AllocId,
        skip_shutdown_delay: bool,
    ) -> Result<Stopped, AllocError> {
        let view = self.not_over(id).await?;
        let (agent, job) = (self.clone(), view.allocation.job.id.clone());
        let task = self.0.beside.spawn(async move {
            let reason = "alloc was stopped by the operator".to_owned();
            let asked = Asked::StopAlloc { alloc: id, reason };
            agent.change_with(&job, asked, skip_shutdown_delay).await
        });
        let change = task.await.map_err(|_| AllocError::Leaving)?;
        let stopped = |change: Change| Stopped { index: change.index, unwritten: change.unwritten };
        change.map(stopped).map_err(AllocError::from)
    }

    /// An allocation with its owner, also when it is only being entered: its job tells its id by then.
    pub(super) async fn entered(&self, id: AllocId) -> Option<AllocView> {
        if let Some(view) = self.alloc(id) {
            return Some(view);
        }
        self.registry().alloc(id)?;
        drop(self.0.order.lock().await);
        self.alloc(id)
    }

    /// An allocation that can be asked for something.
    async fn not_over(&self, id: AllocId) -> Result<AllocView, AllocError> {
        let view = self.entered(id).await.ok_or(AllocError::Unknown { alloc: id })?;
        let status = view.state.client_status;
        if status.terminal() || view.phase.finished() {
            return Err(AllocError::Ended { alloc: id, status });
        }
        Ok(view)
    }

    /// Restart tasks of an allocation in place.
    ///
    /// # Errors
    /// When there is no such allocation or task, it has ended, or it does not run.
    pub async fn restart_alloc(
        &self,
        id: AllocId,
        scope: RestartScope,
        reason: &str,
    ) -> Result<(), AllocError> {
        let view = self.not_over(id).await?;
        Ok(view.handle.restart(scope, reason).await?)
    }

    /// Send a signal by name to one task, or to every running one.
    ///
    /// # Errors
    /// When there is no such signal, allocation or task, it has ended or does not run, or its driver
    /// refuses.
    pub async fn signal_alloc(
        &self,
        id: AllocId,
        task: Option<&TaskName>,
        signal: &str,
    ) -> Result<(), AllocError> {
        let view = self.not_over(id).await?;
        let signal = full_name(signal)?;
        Ok(view.handle.signal(task, signal).await?)
    }

    /// How far the agent is, and which plugins have not answered yet.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let stage = *self.0.stage.borrow();
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let loading = self.0.node.current().loading.clone();
        Readiness { stage, waiting: waiting.iter().cloned().collect(), loading }
    }

    /// Wait until no plugin is being loaded any more.
    pub async fn plugins_looked_for(&self) {
        let mut views = self.0.node.subscribe();
        // An error: the agent is gone.
        let _loaded = views.wait_for(|view| view.loading.is_empty()).await;
    }

    /// Wait until the drivers that a job names are there, or it is certain that one is not.
    pub async fn drivers_looked_for(&self, job: &Job) {
        let mut views = self.0.node.subscribe();
        let tasks = || job.groups.iter().flat_map(|group| &group.tasks);
        // An error: the agent is gone.
        let _there = views
            .wait_for(|view| {
                let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                tasks().all(|task| {
                    let comes = !view.loading.is_empty() || waiting.contains(&task.driver);
                    view.drivers.contains_key(&task.driver) || !comes
                })
            })
            .await;
    }

    /// Changes whenever [`AgentHandle::readiness`] has another stage.
    #[must_use]
    pub fn stages(&self) -> watch::Receiver<super::views::Stage> {
        self.0.stage.subscribe()
    }

    /// Look at the jobs directory now instead of at its next change. Nothing happens without one.
    pub fn rescan_jobs_dir(&self) {
        self.0.rescan.notify_one();
    }

    /// What the jobs directory has; `None` when the agent has none.
    #[must_use]
    pub fn jobs_dir(&self) -> Option<JobsDirReport> {
        self.0.jobs_dir.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let problems = places.first().map(|place| place.refusal.problems()).unwrap_or_default();
        said.push(format!("group {group}: {waiting} until there is room: {problems}"));
    }
    said
}

fn allocations(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", counted(count, "allocation"), if count == 1 { one } else { many })
}
