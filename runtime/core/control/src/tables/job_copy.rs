//! A copy of the tables, as far as they decide about one job: a plan is made with it while the node
//! goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{JobEntry, NodeTables};
use ostler_model::ids::JobId;

impl NodeTables {
    /// Copy what is known of a job, and the assigned resources of the node. The job's waiting
    /// places are left out, because they follow from the rest.
    #[must_use]
    pub fn copy_for_job(&self, job: &JobId) -> Self {
        let known = self.jobs.get(job).map(|entry| JobEntry {
            record: Arc::clone(&entry.record),
            blocked: Vec::new(),
            ended: entry.ended.clone(),
            history: entry.history.clone(),
            later: BTreeMap::new(),
        });
        let ids = self.by_job.get(job);
        let allocs = self.allocs_of(job).map(|entry| (entry.allocation.id, entry.clone()));
        Self {
            jobs: known.map(|known| (job.clone(), known)).into_iter().collect(),
            allocs: allocs.collect(),
            by_job: ids.map(|ids| (job.clone(), ids.clone())).into_iter().collect(),
            admission: self.admission.clone(),
            holds: self.holds.clone(),
            stage: self.stage,
            scheduling: self.scheduling.clone(),
            index: self.index,
            forgot: self.forgot,
            noted: Vec::new(),
        }
    }
}
