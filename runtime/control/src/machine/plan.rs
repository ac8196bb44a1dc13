//! What a registration would do: the same decisions on the same tables, and nothing is entered.

use std::sync::Arc;

use super::types::World;
use crate::admission::{DevicePlan, Tried};
use crate::proposal::{Proposal, name_tried, next_version, same, shut, unfit};
use crate::tables::Tables;
use crate::views::{JobOptions, Plan};
use ostler_model::job::Job;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::words::counted;

impl Tables {
    /// What registering this job would do; nothing is changed. That it does not fit is part of the plan.
    #[must_use]
    pub fn plan(&self, world: &World<'_>, job: &Job, meant: JobOptions) -> Plan {
        let entry = self.jobs.get(&job.id);
        let known = entry.map(|entry| &*entry.record);
        let mut plan = Plan::default();
        let job = Arc::new(meant.of(job, known).into_owned());
        let record = match known.and_then(|known| same(&job, known, meant)) {
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
        plan.waiting = match self.closed() {
            Some(why) => shut(&world.node.name, &record, &proposal, &why),
            None => unfit(world, &self.holds, &self.admission, &record, &proposal, explain),
        };
        let tried = proposal.tried(&job.id, &[]);
        let tried = Tried::new(&tried);
        name_tried(&mut plan.waiting, &tried);
        devices.name(&tried);
        if devices.left_out > 0 {
            let more = counted(devices.left_out, "more request");
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
