//! Planning beside the owner of a node.
//!
//! ```text
//!  planning ── the tables are locked for a copy ──► Planning ── nothing is locked ──► plan
//! ```
//! A plan takes as long as its job is large, and is of the moment of the copy, whatever happens meanwhile.

use std::sync::Arc;

use super::ControlHandle;
use crate::owner::Shared;
use crate::tables::Tables;
use crate::views::{JobOptions, Plan};
use ostler_model::job::Job;

/// A job, and what the node knew at one moment, as far as it decides about it.
#[must_use]
pub struct Planning {
    shared: Arc<Shared>,
    job: Arc<Job>,
    tables: Tables,
}

impl ControlHandle {
    /// What is needed to plan a job. The owner waits for the copy.
    pub fn planning(&self, job: Arc<Job>) -> Planning {
        let tables = self.look(|tables| tables.about(&job.id));
        Planning { shared: Arc::clone(&self.shared), job, tables }
    }
}

impl Planning {
    /// The job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// What [`ControlHandle::register`] would have done then; nothing is changed, and nobody waits meanwhile.
    #[must_use]
    pub fn plan(&self, meant: JobOptions) -> Plan {
        self.shared.with_world(|world| self.tables.plan(world, &self.job, meant))
    }
}
