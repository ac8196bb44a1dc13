//! Plans a job beside the owner of a node.
//!
//! ```text
//! plan_snapshot ── the tables are locked for a copy ──► PlanSnapshot ── nothing is locked ──► plan
//! ```
//! A plan takes as long as its job is large. It is about the moment of the copy, whatever happens
//! meanwhile.

use std::sync::Arc;

use super::ControlHandle;
use crate::owner::OwnerState;
use crate::tables::NodeTables;
use crate::views::{JobOptions, JobPlan};
use ostler_model::job::Job;

/// A job, and a copy of the node's tables as far as they decide about it.
#[must_use]
pub struct PlanSnapshot {
    shared: Arc<OwnerState>,
    job: Arc<Job>,
    tables: NodeTables,
}

impl ControlHandle {
    /// Copy what is needed to plan a job. The owner waits for the copy.
    pub fn plan_snapshot(&self, job: Arc<Job>) -> PlanSnapshot {
        let tables = self.read_tables(|tables| tables.copy_for_job(&job.id));
        PlanSnapshot { shared: Arc::clone(&self.shared), job, tables }
    }
}

impl PlanSnapshot {
    /// The job that is planned.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The result that [`ControlHandle::register`] would have had at that moment. Nothing is
    /// changed, and nobody waits meanwhile.
    #[must_use]
    pub fn plan(&self, meant: JobOptions) -> JobPlan {
        self.shared.with_world(|world| self.tables.plan(world, &self.job, meant))
    }
}
