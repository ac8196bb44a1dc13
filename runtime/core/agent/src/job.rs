//! A job that was accepted, with its allocations and its result.

use std::sync::Arc;

use serde::Serialize;

use ostler_lifecycle::alloc::{AllocHandle, AllocPhase};
use ostler_model::alloc::{AllocState, ClientStatus};
use ostler_model::clock;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::job::Job;
use ostler_model::limits::RUN_END_WALL_MAX;
use ostler_model::task::TaskStatus;

/// The handle of a running job. Clones share it.
#[derive(Clone)]
pub struct JobHandle {
    job: Arc<Job>,
    allocs: Arc<[AllocHandle]>,
}

impl JobHandle {
    pub(super) fn new(job: Arc<Job>, allocs: Vec<AllocHandle>) -> Self {
        Self { job, allocs: allocs.into() }
    }

    /// The job as it was accepted.
    #[must_use]
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// The handles of the job's allocations, in placement order.
    #[must_use]
    pub fn allocs(&self) -> &[AllocHandle] {
        &self.allocs
    }

    /// Stop all allocations. Returns when they have received the stop.
    pub async fn stop(&self, reason: &str) {
        for alloc in self.allocs.iter() {
            alloc.stop(reason.to_owned()).await;
        }
    }

    /// Wait until every allocation is done: its tasks are dead, its hooks have run, its states are
    /// durable. If the disk does not take the last states, this waits for [`RUN_END_WALL_MAX`] and
    /// then says so in the log.
    pub async fn wait(&self) -> JobResult {
        let mut allocs = Vec::with_capacity(self.allocs.len());
        for alloc in self.allocs.iter() {
            let state = await_final_state(alloc).await;
            let allocation = alloc.allocation();
            allocs.push(AllocResult { id: allocation.id, name: allocation.name.clone(), state });
        }
        JobResult { job: self.job.id.clone(), allocs }
    }
}

/// Wait for the final state of an allocation. Only the next agent needs the last record of a single
/// run, and it ends what it finds.
async fn await_final_state(alloc: &AllocHandle) -> AllocState {
    let mut state = alloc.state();
    let dead = |state: &AllocState| {
        !state.tasks.is_empty() && state.tasks.values().all(|task| task.status == TaskStatus::Dead)
    };
    tokio::select! {
        state = alloc.wait_done() => return state,
        // All tasks are dead, or the owner of the allocation has ended.
        _gone = async { state.wait_for(dead).await.is_err() } => {}
    }
    if let Some(state) = clock::timeout(RUN_END_WALL_MAX, alloc.wait_done()).await {
        return state;
    }
    let last = alloc.state().borrow().clone();
    // Stop the allocation. A stop waits neither for the disk nor for a record, and closes the logs.
    alloc.stop("its end cannot be recorded".to_owned()).await;
    let mut phase = alloc.phase();
    let ended = async {
        phase.wait_for(|phase| *phase == AllocPhase::Cleaning || phase.has_ended()).await.is_ok()
    };
    let _late = clock::timeout(RUN_END_WALL_MAX, ended).await;
    let _late = clock::timeout(RUN_END_WALL_MAX, alloc.shutdown()).await;
    last
}

/// How an allocation ended.
#[derive(Clone, Debug, Serialize)]
pub struct AllocResult {
    /// The id of the allocation.
    pub id: AllocId,
    /// `<job>.<group>[<index>]`.
    pub name: String,
    /// The final state of the allocation.
    pub state: AllocState,
}

/// How a job ended.
#[derive(Clone, Debug, Serialize)]
pub struct JobResult {
    /// The id of the job.
    pub job: JobId,
    /// Every allocation, in placement order.
    pub allocs: Vec<AllocResult>,
}

impl JobResult {
    /// Whether every allocation is complete.
    #[must_use]
    pub fn is_successful(&self) -> bool {
        self.allocs.iter().all(|alloc| alloc.state.client_status == ClientStatus::Complete)
    }

    /// The exit code for the command: 0 if the job was successful, else the exit code of the first
    /// failed task that has one from 1 to 255, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.is_successful() {
            return 0;
        }
        self.allocs
            .iter()
            .flat_map(|alloc| alloc.state.tasks.values())
            .filter(|task| task.failed)
            .filter_map(|task| u8::try_from(task.last_exit.as_ref()?.exit_code).ok())
            .find(|code| *code != 0)
            .unwrap_or(1)
    }
}
