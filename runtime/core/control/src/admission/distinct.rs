//! Counts the live allocations of a job and of its groups, and compares the counts with the
//! constraints `distinct_hosts` and `distinct_property`. On one node all allocations share every
//! host and property.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Problem, RefusalScope};
use ostler_model::ids::{GroupName, JobId};
use ostler_model::job::{Constraint, Job, TaskGroup};
use ostler_node::constraint::constraint_text;

/// Identifies a group of a job.
pub(super) type JobGroupKey = Arc<(JobId, GroupName)>;

/// Numbers of live allocations by group and by job. A number of zero is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveCounts {
    groups: BTreeMap<JobGroupKey, u64>,
    jobs: BTreeMap<JobId, u64>,
}

impl LiveCounts {
    /// Count one more allocation of this group.
    pub(super) fn add(&mut self, job: &JobId, group: &GroupName) -> JobGroupKey {
        let of: JobGroupKey = Arc::new((job.clone(), group.clone()));
        let of = self.groups.get_key_value(&of).map_or(of, |(known, _)| Arc::clone(known));
        let of_job = self.jobs.entry(job.clone()).or_default();
        *of_job = of_job.saturating_add(1);
        let of_group = self.groups.entry(Arc::clone(&of)).or_default();
        *of_group = of_group.saturating_add(1);
        of
    }

    /// Count one allocation less.
    pub(super) fn remove(&mut self, of: &JobGroupKey) {
        decrement(&mut self.groups, of);
        decrement(&mut self.jobs, &of.0);
    }

    fn group_count(&self, job: &JobId, group: &GroupName) -> u64 {
        self.groups.get(&(job.clone(), group.clone())).copied().unwrap_or_default()
    }

    fn job_count(&self, job: &Job) -> u64 {
        self.jobs.get(&job.id).copied().unwrap_or_default()
    }

    /// The constraints that forbid one more allocation of this group.
    pub(super) fn problems(&self, job: &Job, group: &TaskGroup, index: u32) -> Vec<Problem> {
        let limited = |constraints: &[Constraint], scope: RefusalScope, here: &dyn Fn() -> u64| {
            let full = |rule: &Constraint| {
                let most = rule.most_on_node()?;
                let here = here();
                let (constraint, scope) = (constraint_text(rule), scope.clone());
                (here >= most).then_some(Problem::Distinct { scope, constraint, index, here, most })
            };
            constraints.iter().filter_map(full).collect::<Vec<_>>()
        };
        let mut problems = limited(&job.constraints, RefusalScope::Job, &|| self.job_count(job));
        problems.extend(limited(&group.constraints, RefusalScope::Group, &|| {
            self.group_count(&job.id, &group.name)
        }));
        problems
    }
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, u64>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(of);
        }
    }
}
