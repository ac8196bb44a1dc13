//! Plans a registration: it makes the same decisions on the same tables, and enters nothing.

use std::sync::Arc;

use super::types::World;
use crate::admission::{AttemptNames, DevicePlan};
use crate::proposal::{Proposal, block_all, find_unfit, name_attempts, next_version, same_record};
use crate::tables::NodeTables;
use crate::views::{JobOptions, JobPlan};
use ostler_model::job::Job;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::words::count_noun;

impl NodeTables {
    /// What a registration of this job would do; nothing is changed. That the job does not fit is
    /// part of the plan.
    #[must_use]
    pub fn plan(&self, world: &World<'_>, job: &Job, meant: JobOptions) -> JobPlan {
        let entry = self.jobs.get(&job.id);
        let known = entry.map(|entry| &*entry.record);
        let mut plan = JobPlan::default();
        let job = Arc::new(meant.apply_to(job, known).into_owned());
        let record = match known.and_then(|known| same_record(&job, known, meant)) {
            Some(record) => record,
            None => JobRecord {
                stopped: meant.stopped,
                ..next_version(&job, known, JobOrigin::Api, world.now)
            },
        };
        plan.version = record.version;
        plan.known = entry.map(|entry| Arc::clone(&entry.record));
        if let Some(known) = known {
            plan.job_modify_index = known.job_modify_index;
            match (known.stopped, meant.stopped) {
                (true, false) => {
                    plan.changes.push("the job is stopped and would run again".to_owned());
                }
                (false, true) => plan.changes.push("the job would be stopped".to_owned()),
                _ => {}
            }
        }
        let mut history = self.history(&job.id);
        history.cancel_others(&record);
        let mut proposal = Proposal::new(self, &record, &history, world.now, false);
        let mut devices = DevicePlan::default();
        let explain = Some(&mut devices);
        plan.waiting = match self.closed_problem() {
            Some(why) => block_all(&world.node.name, &record, &proposal, &why),
            None => find_unfit(world, &self.holds, &self.admission, &record, &proposal, explain),
        };
        let tried = proposal.unplaced_attempts(&job.id, &[]);
        let tried = AttemptNames::new(&tried);
        name_attempts(&mut plan.waiting, &tried);
        devices.name(&tried);
        if devices.left_out > 0 {
            let more = count_noun(devices.left_out, "more request");
            plan.warnings.push(format!("the devices of {more} are not explained"));
        }
        plan.devices = devices.requests;
        for group in &job.groups {
            plan.groups.entry(group.name.clone()).or_default();
        }
        proposal.hold(&plan.waiting);
        proposal.count(&mut plan.groups);
        for waiting in &plan.waiting {
            let group = plan.groups.entry(waiting.group.clone()).or_default();
            group.waiting = group.waiting.saturating_add(1);
        }
        plan
    }
}
