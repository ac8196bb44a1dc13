//! The agent's handle for jobs and allocations: register, plan, stop, restart, drain.

use std::sync::{Arc, PoisonError};

use super::views::Readiness;
use super::{
    AgentHandle, AllocError, AllocView, DeploymentAsk, DeploymentOutcome, JobOptions, JobPlan,
    NodeAsk, NodeAskError, RegisterOptions, RegisterOutcome, RestartScope, StopOptions,
    StopOutcome, SubmitError,
};
use ostler_control::reconcile::job_essence;
use ostler_control::scaling::scale_job;
use ostler_control::{ControlHandle, PlanSnapshot};
use ostler_jobsdir::{FilesOnDisk, JobsDir, JobsDirReport};
use ostler_jobspec::changes;
use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
use ostler_model::job::Job;
use ostler_model::saved::JobOrigin;
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::signal::full_name;
use ostler_trace::TraceContext;

impl AgentHandle {
    /// The owner of jobs and allocations: what there is of them, and their changes. Jobs are
    /// changed by the functions of this handle, which check more.
    #[must_use]
    pub fn control(&self) -> &ControlHandle {
        &self.0.control
    }

    /// Make jobs run as the files of the jobs directory say, if there is such a directory.
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
        self.spawn_beside(dir.follow(files, control, is_somewhere, check, ended));
    }

    /// Make a job run as it says: start what is missing, change what differs, stop what is too
    /// much. A job equal to the present version changes nothing. What does not fit on this node now
    /// waits, and what it would replace runs on until it fits. The reported result is durable.
    ///
    /// # Errors
    /// When its configuration is wrong, the index is not the expected one, or somebody else gave
    /// the job; then nothing is changed.
    pub async fn register(
        &self,
        job: Job,
        options: RegisterOptions,
    ) -> Result<RegisterOutcome, SubmitError> {
        self.takes_jobs()?;
        self.check_job(&job)?;
        self.0.control.register(Arc::new(job), options).await
    }

    /// Go back to an earlier version of a job; see [`ostler_control::ControlHandle::revert`].
    /// `trace` is the trace to which its allocations belong.
    ///
    /// # Errors
    /// As there.
    pub async fn revert(
        &self,
        id: &JobId,
        version: u64,
        enforce: Option<u64>,
        trace: Option<TraceContext>,
    ) -> Result<RegisterOutcome, SubmitError> {
        self.takes_jobs()?;
        self.assign_trace(id, trace).await;
        self.0.control.revert(id, version, enforce).await
    }

    /// Assign a trace to everything that is placed of a job from now on. Nothing happens if no
    /// traces are recorded.
    pub(super) async fn assign_trace(&self, job: &JobId, trace: Option<TraceContext>) {
        if ostler_trace::is_recording() {
            self.0.control.set_trace(job, trace).await;
        }
    }

    /// Give a group of a job another count, which makes a new version of the job. With `expected`,
    /// this is done only if the job is at that index. `trace` is the trace to which its
    /// allocations belong.
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
    ) -> Result<RegisterOutcome, SubmitError> {
        self.takes_jobs()?;
        let view =
            self.0.control.job(id).ok_or_else(|| SubmitError::Unknown { job: id.clone() })?;
        let job = scale_job(&view.record, view.deployment.as_deref(), group, count);
        // If two clients scale at once, one of them gets an error.
        let options = RegisterOptions {
            enforce_job_modify_index: expected.or(Some(view.record.job_modify_index)),
            trace,
            ..RegisterOptions::default()
        };
        let job = job.map_err(SubmitError::Scale)?;
        self.check_all(&job)?;
        self.0.control.register(Arc::new(job), options).await
    }

    /// Say whether a version of a job is stable. Returns the index of the change.
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

    /// Promote, fail, pause or resume the newest deployment of a job.
    ///
    /// # Errors
    /// When there is no such deployment, it is over, or has nothing to promote; when the change
    /// cannot be made durable.
    pub async fn deployment(
        &self,
        job: JobId,
        id: &str,
        ask: DeploymentAsk,
    ) -> Result<DeploymentOutcome, SubmitError> {
        self.takes_jobs()?;
        self.0.control.change_deployment(job, id, ask).await
    }

    /// Say whether an allocation is healthy. The first verdict on an allocation counts.
    ///
    /// # Errors
    /// When there is no such allocation, or it has ended.
    pub async fn judge_alloc(&self, id: AllocId, healthy: bool) -> Result<(), AllocError> {
        self.takes_jobs()?;
        self.find_active_alloc(id).await?.handle.judge(healthy).await;
        Ok(())
    }

    /// What [`AgentHandle::register`] would do; nothing is changed.
    ///
    /// # Errors
    /// When the job's configuration is wrong. That the job does not fit is part of the plan.
    pub fn plan(&self, job: &Job, meant: JobOptions) -> Result<JobPlan, SubmitError> {
        self.plan_with(&self.0.control.plan_snapshot(Arc::new(job.clone())), meant)
    }

    /// The same as [`AgentHandle::plan`], with what was known at the moment of
    /// [`ControlHandle::plan_snapshot`].
    ///
    /// # Errors
    /// As [`AgentHandle::plan`].
    pub fn plan_with(
        &self,
        planning: &PlanSnapshot,
        meant: JobOptions,
    ) -> Result<JobPlan, SubmitError> {
        let job = planning.job();
        self.takes_jobs()?;
        self.check_job(job)?;
        let mut plan = planning.plan(meant);
        if let Some(known) = &plan.known {
            let job = meant.apply_to(job, Some(known));
            let mut told =
                changes(&known.job, &job, (&job_essence(&known.job), &job_essence(&job)));
            told.append(&mut plan.changes);
            plan.changes = told;
        }
        Ok(plan)
    }

    /// Stop a job. Returns the index of the stop, which is durable. The allocations end later.
    ///
    /// # Errors
    /// When there is no such job, a file gives it that is in the jobs directory, or the stop cannot
    /// be made durable.
    pub async fn deregister(
        &self,
        id: &JobId,
        options: StopOptions,
    ) -> Result<StopOutcome, SubmitError> {
        self.takes_jobs()?;
        let origin = self.stop_origin(id).await;
        self.0.control.deregister(id, options, origin).await
    }

    /// The origin in whose name the API stops this job. It is that of the job's file if no file
    /// that this agent would read gives the job any more, and the API's own otherwise.
    async fn stop_origin(&self, id: &JobId) -> JobOrigin {
        let origin = self.0.control.job(id).map(|view| view.record.origin.clone());
        let Some(JobOrigin::File(path)) = origin else { return JobOrigin::Api };
        let dir = self.0.jobs_dir.as_ref().map(|dir| dir.report().dir);
        let file = path.clone();
        let given = tokio::task::spawn_blocking(move || {
            // A file that cannot be examined now may still be there.
            file.parent() == dir.as_deref() && file.try_exists().unwrap_or(true)
        });
        match given.await {
            Ok(false) => JobOrigin::File(path),
            Ok(true) | Err(_) => JobOrigin::Api,
        }
    }

    /// Stop one allocation. Its registered job puts a new one in its place, which starts when this
    /// one is over, and gets its data if the group says so (`ephemeral_disk`).
    ///
    /// # Errors
    /// When there is no such allocation, it has ended, or the stop cannot be made durable.
    pub async fn stop_alloc(
        &self,
        id: AllocId,
        skip_shutdown_delay: bool,
    ) -> Result<StopOutcome, AllocError> {
        self.takes_jobs()?;
        let view = self.find_active_alloc(id).await?;
        let (job, reason) = (view.allocation.job.id.clone(), "alloc was stopped by the operator");
        self.0.control.stop_alloc(job, id, reason, skip_shutdown_delay).await
    }

    /// An allocation that has not ended, so that it can be asked for something.
    async fn find_active_alloc(&self, id: AllocId) -> Result<AllocView, AllocError> {
        let view =
            self.0.control.wait_for_alloc(id).await.ok_or(AllocError::Unknown { alloc: id })?;
        let status = view.state.client_status;
        if status.is_terminal() || view.phase.has_ended() {
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
        let view = self.find_active_alloc(id).await?;
        Ok(view.handle.restart(scope, reason).await?)
    }

    /// Send a signal by name to one task, or to every running one.
    ///
    /// # Errors
    /// When there is no such signal, allocation or task, it has ended or does not run, or its
    /// driver refuses.
    pub async fn signal_alloc(
        &self,
        id: AllocId,
        task: Option<&TaskName>,
        signal: &str,
    ) -> Result<(), AllocError> {
        let view = self.find_active_alloc(id).await?;
        let signal = full_name(signal)?;
        Ok(view.handle.signal(task, signal).await?)
    }

    /// Run a command inside a running task. The command has the rights of the task, and ends with
    /// the task or when the session is dropped.
    ///
    /// # Errors
    /// When there is no such allocation or task, it has ended or does not run, or its driver or the
    /// host refuses.
    pub async fn exec_alloc(
        &self,
        id: AllocId,
        task: &TaskName,
        command: ExecCommand,
    ) -> Result<ExecSession, AllocError> {
        let view = self.find_active_alloc(id).await?;
        let program = command.argv.first().cloned().unwrap_or_default();
        tracing::info!(alloc = %id, %task, program, "a command is run inside a task");
        Ok(view.handle.exec(task, command).await?)
    }

    /// The stage of the agent's start, and the plugins that have not answered yet.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let stage = self.0.control.stage();
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let loading = self.0.node.current().loading.clone();
        Readiness { stage, waiting: waiting.iter().cloned().collect(), loading }
    }

    /// Wait until no plugin is being loaded any more.
    pub async fn wait_plugins_loaded(&self) {
        let mut views = self.0.node.subscribe();
        // An error means that the agent has ended.
        let _loaded = views.wait_for(|view| view.loading.is_empty()).await;
    }

    /// Wait until the drivers that a job names are there, or it is certain that one of them will
    /// not come.
    pub async fn wait_drivers_known(&self, job: &Job) {
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

    /// Make the node eligible or ineligible for new allocations, or drain it. Returns the index of
    /// the change, which is durable. A drain goes on for as long as it takes.
    ///
    /// # Errors
    /// When it is being drained and is to be eligible, the deadline is too far away, servers decide
    /// on it, or it cannot be made durable.
    pub async fn schedule(&self, asked: NodeAsk) -> Result<u64, NodeAskError> {
        self.takes_jobs().map_err(|_| NodeAskError::Joined)?;
        self.0.control.schedule(asked).await
    }

    /// Start successors of the failed allocations of a job now, whatever its `reschedule` says.
    ///
    /// # Errors
    /// When there is no such job, and as [`AgentHandle::register`].
    pub async fn reschedule(&self, id: &JobId) -> Result<RegisterOutcome, SubmitError> {
        self.takes_jobs()?;
        self.0.control.reschedule(id).await
    }

    /// Scan the jobs directory now instead of at its next change. Nothing happens if there is none.
    pub fn rescan_jobs_dir(&self) {
        self.0.jobs_dir.iter().for_each(JobsDir::rescan);
    }

    /// The state of the jobs directory; `None` if the agent has none.
    #[must_use]
    pub fn jobs_dir(&self) -> Option<JobsDirReport> {
        self.0.jobs_dir.as_ref().map(JobsDir::report)
    }
}
