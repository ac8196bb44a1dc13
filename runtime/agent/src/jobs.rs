//! The agent's handle for jobs and allocations: register, plan, stop, restart, look.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use super::views::Readiness;
use super::{
    AgentHandle, AllocError, AllocRef, AllocView, ChangesSeen, Collected, Deployed, DeploymentAsk,
    JobOptions, JobView, Plan, RegisterOptions, Registered, RestartScope, Stage, StopOptions,
    Stopped, SubmitError,
};
use ostler_control::Planning;
use ostler_control::reconcile::decisive;
use ostler_control::scaling::scaled;
use ostler_jobsdir::{FilesOnDisk, JobsDir, JobsDirReport};
use ostler_jobspec::changes;
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
use ostler_model::job::Job;
use ostler_model::rollout::Deployment;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::signal::full_name;
use ostler_trace::TraceContext;

impl AgentHandle {
    /// Make jobs run as the files of the jobs directory say, where there is one.
    pub(super) fn follow_jobs_dir(&self) {
        let Some(dir) = self.0.jobs_dir.clone() else { return };
        let asked = |ask: fn(&Self, &Job) -> Result<(), SubmitError>| {
            let weak = Arc::downgrade(&self.0);
            move |job: &Job| match weak.upgrade() {
                Some(agent) => ask(&Self(agent), job),
                None => Err(SubmitError::Leaving),
            }
        };
        let (is_somewhere, check) = (asked(Self::is_in_a_namespace), asked(Self::check_file));
        let files = FilesOnDisk(dir.report().dir);
        let (control, ended) = (self.0.control.clone(), self.0.ended.clone());
        self.beside(dir.follow(files, control, is_somewhere, check, ended));
    }

    /// The index of the last visible change. Grows with each, and over restarts of the agent.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.0.control.index()
    }

    /// The index as it grows, for blocking queries: wait until it is above the last one seen, then
    /// look again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.control.changes()
    }

    /// Where to begin with [`AgentHandle::changes_from`] so that the first is one after this index, or
    /// the oldest that is kept.
    #[must_use]
    pub fn change_position(&self, index: u64) -> u64 {
        self.0.control.change_position(index)
    }

    /// At most `most` visible changes from a position on; more come when [`AgentHandle::changes`] grows.
    #[must_use]
    pub fn changes_from(&self, position: u64, most: usize) -> ChangesSeen {
        self.0.control.changes_from(position, most)
    }

    /// Every registered job, by id.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobView> {
        self.0.control.jobs()
    }

    /// One registered job.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<JobView> {
        self.0.control.job(id)
    }

    /// Every allocation, by id; those that are over until they are collected.
    #[must_use]
    pub fn allocs(&self) -> Vec<AllocView> {
        self.0.control.allocs()
    }

    /// Those of them that are `wanted`, without a copy of their states.
    #[must_use]
    pub fn alloc_refs(&self, wanted: impl Fn(&Allocation) -> bool) -> Vec<AllocRef> {
        self.0.control.alloc_refs(wanted)
    }

    /// The index at which one of them went last; 0: none did since the agent began.
    #[must_use]
    pub fn allocs_forgot(&self) -> u64 {
        self.0.control.allocs_forgot()
    }

    /// The ids of all of them.
    #[must_use]
    pub fn alloc_ids(&self) -> BTreeSet<AllocId> {
        self.0.control.alloc_ids()
    }

    /// One allocation.
    #[must_use]
    pub fn alloc(&self, id: AllocId) -> Option<AllocView> {
        self.0.control.alloc(id)
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
        self.takes_jobs()?;
        self.accepts(&job)?;
        self.0.control.register(Arc::new(job), options).await
    }

    /// Go back to an earlier version of a job; see [`ostler_control::ControlHandle::revert`]. `trace`: where its
    /// allocations belong in a trace.
    ///
    /// # Errors
    /// As there.
    pub async fn revert(
        &self,
        id: &JobId,
        version: u64,
        enforce: Option<u64>,
        trace: Option<TraceContext>,
    ) -> Result<Registered, SubmitError> {
        self.takes_jobs()?;
        self.belongs(id, trace).await;
        self.0.control.revert(id, version, enforce).await
    }

    /// What is placed of a job from now on belongs there in a trace; nothing where none are recorded.
    pub(super) async fn belongs(&self, job: &JobId, trace: Option<TraceContext>) {
        if ostler_trace::is_recording() {
            self.0.control.trace(job, trace).await;
        }
    }

    /// Give a group of a job another count: a new version of it. `expected`: only if the job is at this
    /// index; `trace`: where its allocations belong in a trace.
    ///
    /// # Errors
    /// When there is no such job or group, it does not allow that count or not now, and as
    /// [`AgentHandle::register`].
    pub async fn scale(
        &self,
        id: &JobId,
        group: &GroupName,
        count: u32,
        expected: Option<u64>,
        trace: Option<TraceContext>,
    ) -> Result<Registered, SubmitError> {
        self.takes_jobs()?;
        let view = self.job(id).ok_or_else(|| SubmitError::Unknown { job: id.clone() })?;
        let job = scaled(&view.record, view.deployment.as_deref(), group, count);
        // Of two who scale at once, one is told.
        let options = RegisterOptions {
            enforce_job_modify_index: expected.or(Some(view.record.job_modify_index)),
            trace,
            ..RegisterOptions::default()
        };
        let job = job.map_err(SubmitError::Scale)?;
        self.check_all(&job)?;
        self.0.control.register(Arc::new(job), options).await
    }

    /// Say whether a version of a job is stable. The index of the change.
    ///
    /// # Errors
    /// When there is no such job or version, or it cannot be made durable.
    pub async fn set_stable(
        &self,
        id: &JobId,
        version: u64,
        stable: bool,
    ) -> Result<u64, SubmitError> {
        self.takes_jobs()?;
        self.0.control.set_stable(id, version, stable).await
    }

    /// Earlier versions of a job, oldest first; the present one is its record.
    #[must_use]
    pub fn versions(&self, id: &JobId) -> Vec<Arc<JobRecord>> {
        self.0.control.versions(id)
    }

    /// Every deployment that is known, with its job.
    #[must_use]
    pub fn deployments(&self) -> Vec<(Arc<Job>, Arc<Deployment>)> {
        self.0.control.deployments()
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
        self.takes_jobs()?;
        self.0.control.deployment(job, id, ask).await
    }

    /// Say whether an allocation is healthy. The first verdict on one counts.
    ///
    /// # Errors
    /// When there is no such allocation, or it has ended.
    pub async fn judge_alloc(&self, id: AllocId, healthy: bool) -> Result<(), AllocError> {
        self.takes_jobs()?;
        self.not_over(id).await?.handle.judge(healthy).await;
        Ok(())
    }

    /// What [`AgentHandle::register`] would do; nothing is changed.
    ///
    /// # Errors
    /// When the job's configuration is wrong. That it does not fit is part of the plan.
    pub fn plan(&self, job: &Job, meant: JobOptions) -> Result<Plan, SubmitError> {
        self.plan_with(&self.planning(Arc::new(job.clone())), meant)
    }

    /// What is needed to plan a job: the node waits for the copy, and not for the plan.
    pub fn planning(&self, job: Arc<Job>) -> Planning {
        self.0.control.planning(job)
    }

    /// As [`AgentHandle::plan`], with what was known at the moment of [`AgentHandle::planning`].
    ///
    /// # Errors
    /// As [`AgentHandle::plan`].
    pub fn plan_with(&self, planning: &Planning, meant: JobOptions) -> Result<Plan, SubmitError> {
        let job = planning.job();
        self.takes_jobs()?;
        self.accepts(job)?;
        let mut plan = planning.plan(meant);
        if let Some(known) = &plan.known {
            let job = meant.of(job, Some(known));
            let mut told = changes(&known.job, &job, (&decisive(&known.job), &decisive(&job)));
            told.append(&mut plan.changes);
            plan.changes = told;
        }
        Ok(plan)
    }

    /// Stop a job. Returns the index of the stop, which is durable; the allocations end later.
    ///
    /// # Errors
    /// When there is no such job, a file gives it that is in the jobs directory, or the stop cannot be
    /// made durable.
    pub async fn deregister(
        &self,
        id: &JobId,
        options: StopOptions,
    ) -> Result<Stopped, SubmitError> {
        self.takes_jobs()?;
        let origin = self.who_stops(id).await;
        self.0.control.deregister(id, options, origin).await
    }

    /// Whose word a stop of this job is that comes by the API: the API's own; or that of the job's file, where
    /// no file gives the job any more that this agent would look at.
    async fn who_stops(&self, id: &JobId) -> JobOrigin {
        let origin = self.job(id).map(|view| view.record.origin.clone());
        let Some(JobOrigin::File(path)) = origin else { return JobOrigin::Api };
        let dir = self.0.jobs_dir.as_ref().map(|dir| dir.report().dir);
        let file = path.clone();
        let given = tokio::task::spawn_blocking(move || {
            // What cannot be looked at now may be there.
            file.parent() == dir.as_deref() && file.try_exists().unwrap_or(true)
        });
        match given.await {
            Ok(false) => JobOrigin::File(path),
            Ok(true) | Err(_) => JobOrigin::Api,
        }
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
        self.takes_jobs()?;
        let view = self.not_over(id).await?;
        let (job, reason) = (view.allocation.job.id.clone(), "alloc was stopped by the operator");
        self.0.control.stop_alloc(job, id, reason, skip_shutdown_delay).await
    }

    /// Remove directory and records of one allocation that is over, or of all of them.
    ///
    /// # Errors
    /// When there is no such allocation, it is not over, another one waits for its data, or the one
    /// that was named could not be removed. Of all of them those that stay are in
    /// [`Collected::failed`].
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<Collected, AllocError> {
        self.0.control.collect(alloc).await
    }

    /// An allocation that can be asked for something.
    async fn not_over(&self, id: AllocId) -> Result<AllocView, AllocError> {
        let view = self.0.control.entered(id).await.ok_or(AllocError::Unknown { alloc: id })?;
        let status = view.state.client_status;
        if status.terminal() || view.phase.ended() {
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

    /// Run a command inside a running task. It runs with
    /// what the task may do, and ends with the task, or when the session is dropped.
    ///
    /// # Errors
    /// When there is no such allocation or task, it has ended or does not run, or its driver or the host
    /// refuses.
    pub async fn exec_alloc(
        &self,
        id: AllocId,
        task: &TaskName,
        command: ExecCommand,
    ) -> Result<ExecSession, AllocError> {
        let view = self.not_over(id).await?;
        let program = command.argv.first().cloned().unwrap_or_default();
        tracing::info!(alloc = %id, %task, program, "a command is run inside a task");
        Ok(view.handle.exec(task, command).await?)
    }

    /// How far the agent is, and which plugins have not answered yet.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let stage = self.0.control.stage();
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let loading = self.0.node.current().loading.clone();
        Readiness { stage, waiting: waiting.iter().cloned().collect(), loading }
    }

    /// Wait until no plugin is being loaded any more.
    pub async fn plugins_looked_for(&self) {
        let mut views = self.0.node.subscribe();
        // An error means that the agent has ended.
        let _loaded = views.wait_for(|view| view.loading.is_empty()).await;
    }

    /// Wait until the drivers that a job names are there, or it is certain that one is not.
    pub async fn drivers_looked_for(&self, job: &Job) {
        let mut views = self.0.node.subscribe();
        let tasks = || job.groups.iter().flat_map(|group| &group.tasks);
        // An error means that the agent has ended.
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
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.0.control.stages()
    }

    /// Returns when the owner of jobs and allocations answers, with whether it did: it has not ended. For who
    /// watches over the agent.
    pub async fn answers(&self) -> bool {
        self.0.control.answers().await
    }

    /// Look at the jobs directory now instead of at its next change. Nothing happens without one.
    pub fn rescan_jobs_dir(&self) {
        self.0.jobs_dir.iter().for_each(JobsDir::rescan);
    }

    /// What the jobs directory has; `None` when the agent has none.
    #[must_use]
    pub fn jobs_dir(&self) -> Option<JobsDirReport> {
        self.0.jobs_dir.as_ref().map(JobsDir::report)
    }
}
