//! The agent's handle for jobs and allocations: register, plan, stop, restart, look.

use std::sync::Arc;

use tokio::sync::watch;

use super::views::{
    AllocView, Collected, GroupPlan, JobView, JobsDirReport, LeaveMode, Plan, Readiness,
    RegisterOptions, Registered, StopOptions,
};
use super::{AgentHandle, AllocError, JobError, SubmitError};
use crate::alloc::AllocPhase;
use crate::model::alloc::Allocation;
use crate::model::ids::{AllocId, JobId, TaskName};
use crate::model::job::Job;
use crate::model::saved::JobRecord;
use crate::state::Key;

/// Which tasks of an allocation are restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartScope {
    /// Those that run.
    Running,
    /// This one; it must run.
    Task(TaskName),
    /// All, dead ones and those of the lifecycle too.
    All,
}

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
    /// much. A job equal to the present version changes nothing. What is told is durable.
    ///
    /// # Errors
    /// When it cannot fit on this node even without what it replaces, its configuration is wrong,
    /// the index is not the expected one, or somebody else gave it; then nothing is changed.
    pub async fn register(
        &self,
        job: Job,
        options: RegisterOptions,
    ) -> Result<Registered, SubmitError> {
        self.check_all(&job)?;
        let job = Arc::new(job);
        let mut registered = Registered::default();
        let known = self.registry().jobs.get(&job.id).map(|entry| Arc::clone(&entry.record));
        if let Some(expected) = options.enforce_job_modify_index {
            let actual = known.as_ref().map_or(0, |record| record.job_modify_index);
            if actual != expected {
                return Err(SubmitError::Index { job: job.id.clone(), expected, actual });
            }
        }
        if let Some(known) = &known {
            if known.origin != options.origin {
                let (job, actual) = (job.id.clone(), known.origin.clone());
                return Err(SubmitError::Origin { job, actual });
            }
            if known.job == job && !known.stopped {
                registered.job_modify_index = known.job_modify_index;
                registered.version = known.version;
                return Ok(registered);
            }
        }
        let placed = self.place(&job)?;
        let now = self.0.clock.now();
        let record = {
            let registry = self.registry();
            let index = registry.next_index();
            JobRecord {
                version: known.as_ref().map_or(0, |record| record.version.saturating_add(1)),
                submitted_at: now,
                create_index: known.as_ref().map_or(index, |record| record.create_index),
                modify_index: index,
                job_modify_index: index,
                stopped: false,
                origin: options.origin,
                job: Arc::clone(&job),
            }
        };
        self.0.state.put(&Key::Job(job.id.clone()), &record).await.map_err(SubmitError::State)?;
        registered.job_modify_index = record.job_modify_index;
        registered.version = record.version;
        let old: Vec<AllocId> = {
            let mut registry = self.registry();
            registry.put_job(Arc::new(record));
            let live = registry.allocs_of(&job.id).filter(|entry| !entry.over);
            live.map(|entry| entry.allocation.id).collect()
        };
        for id in &old {
            if let Some(view) = self.alloc(*id) {
                view.handle.stop("the job was updated").await;
            }
        }
        registered.stopped = old;
        let placed: Vec<Allocation> = placed
            .into_iter()
            .map(|alloc| Allocation {
                create_index: registered.job_modify_index,
                modify_index: registered.job_modify_index,
                job_version: registered.version,
                ..alloc
            })
            .collect();
        let ids = placed.iter().map(|alloc| alloc.id).collect();
        let mut submitted =
            super::submitted::Submitted::new(self.clone(), placed.iter().map(|a| a.id));
        match self.begin(placed, true, &mut submitted).await {
            Ok(_) => submitted.keep(),
            Err(error) => {
                submitted.undo().await;
                return Err(error);
            }
        }
        registered.placed = ids;
        Ok(registered)
    }

    /// What [`AgentHandle::register`] would do; nothing is changed.
    ///
    /// # Errors
    /// When the job's configuration is wrong. That it does not fit is part of the plan.
    pub fn plan(&self, job: &Job) -> Result<Plan, SubmitError> {
        self.check_all(job)?;
        let known = self.job(&job.id);
        let mut plan = Plan::default();
        if let Some(known) = &known {
            plan.job_modify_index = known.record.job_modify_index;
            plan.version = known.record.version.saturating_add(1);
        }
        for group in &job.groups {
            let place = GroupPlan { place: group.count, ..GroupPlan::default() };
            plan.groups.insert(group.name.clone(), place);
        }
        Ok(plan)
    }

    /// Stop a job. Returns the index of the stop, which is durable; the allocations end later.
    ///
    /// # Errors
    /// When there is no such job, a file of the jobs directory gives it, or the stop cannot be
    /// made durable.
    pub async fn deregister(&self, id: &JobId, options: StopOptions) -> Result<u64, JobError> {
        let (record, allocs) = {
            let registry = self.registry();
            let Some(entry) = registry.jobs.get(id) else {
                return Err(JobError::Unknown { job: id.clone() });
            };
            let mut record = (*entry.record).clone();
            record.stopped = true;
            record.modify_index = registry.next_index();
            let allocs: Vec<_> =
                registry.allocs_of(id).filter_map(|entry| entry.handle.clone()).collect();
            (Arc::new(record), allocs)
        };
        let key = Key::Job(id.clone());
        let written = if options.purge {
            self.0.state.delete(&key).await
        } else {
            self.0.state.put(&key, &*record).await.map(drop)
        };
        written.map_err(JobError::State)?;
        {
            let mut registry = self.registry();
            if options.purge {
                registry.jobs.remove(id);
            } else {
                registry.put_job(Arc::clone(&record));
            }
        }
        for alloc in allocs {
            alloc.stop("the job was stopped").await;
        }
        Ok(record.modify_index)
    }

    /// Stop one allocation. The registered job it belongs to puts a new one in its place.
    ///
    /// # Errors
    /// When there is no such allocation, it has ended, or the stop cannot be made durable.
    pub async fn stop_alloc(
        &self,
        id: AllocId,
        _skip_shutdown_delay: bool,
    ) -> Result<u64, AllocError> {
        let view = self.alloc(id).ok_or(AllocError::Unknown { alloc: id })?;
        view.handle.stop("stopped by the operator").await;
        Ok(self.index())
    }

    /// Restart tasks of an allocation in place.
    ///
    /// # Errors
    /// When there is no such allocation or task, or it does not run.
    pub async fn restart_alloc(
        &self,
        id: AllocId,
        scope: RestartScope,
        reason: &str,
    ) -> Result<(), AllocError> {
        let view = self.alloc(id).ok_or(AllocError::Unknown { alloc: id })?;
        let task = match scope {
            RestartScope::Task(task) => Some(task),
            RestartScope::Running | RestartScope::All => None,
        };
        Ok(view.handle.restart(task.as_ref(), reason).await?)
    }

    /// Send a signal by name to one task, or to every running one.
    ///
    /// # Errors
    /// When there is no such allocation or task, it does not run, or its driver refuses.
    pub async fn signal_alloc(
        &self,
        id: AllocId,
        task: Option<&TaskName>,
        signal: &str,
    ) -> Result<(), AllocError> {
        let view = self.alloc(id).ok_or(AllocError::Unknown { alloc: id })?;
        Ok(view.handle.signal(task, signal).await?)
    }

    /// Remove directory and records of one allocation that is over, or of all of them.
    ///
    /// # Errors
    /// When there is no such allocation, or it is not over.
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<Collected, AllocError> {
        let views = match alloc {
            Some(id) => {
                let view = self.alloc(id).ok_or(AllocError::Unknown { alloc: id })?;
                if !view.phase.finished() {
                    return Err(AllocError::NotOver { alloc: id });
                }
                vec![view]
            }
            None => self.allocs(),
        };
        let mut collected = Collected::default();
        for view in views.into_iter().filter(|view| view.phase.finished()) {
            let id = view.allocation.id;
            if view.handle.destroy().await == AllocPhase::Destroyed {
                self.registry().remove_alloc(id);
                collected.allocs.push(id);
            }
        }
        Ok(collected)
    }

    /// How far the agent is, and which plugins have not answered yet.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let stage = *self.0.stage.borrow();
        Readiness { stage, waiting: Vec::new() }
    }

    /// Changes whenever [`AgentHandle::readiness`] has another stage.
    #[must_use]
    pub fn stages(&self) -> watch::Receiver<super::views::Stage> {
        self.0.stage.subscribe()
    }

    /// What the jobs directory has; `None` when the agent has none.
    #[must_use]
    pub fn jobs_dir(&self) -> Option<JobsDirReport> {
        None
    }

    /// Leave as `mode` says.
    pub async fn leave(&self, mode: LeaveMode) {
        if let LeaveMode::Drain { deadline } = mode {
            let views = self.allocs();
            let drained = async {
                for view in &views {
                    view.handle.stop("the agent drains").await;
                }
                for view in &views {
                    view.handle.wait_done().await;
                }
            };
            if crate::clock::timeout(deadline, drained).await.is_none() {
                self.kill_tasks();
            }
        }
        self.shutdown().await;
    }
}
