//! How many live allocations of a job and of its groups are here, and how many constraints allow
//! (`distinct_hosts`, `distinct_property`): on one node all of them share every host and property.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Problem, RefusalScope};
use ostler_model::ids::{GroupName, JobId};
use ostler_model::job::{Constraint, Job, TaskGroup};
use ostler_node::constraint::written;

/// A group of a job.
pub(super) type Of = Arc<(JobId, GroupName)>;

/// Live allocations by group and by job. None of one: it is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    groups: BTreeMap<Of, u64>,
    jobs: BTreeMap<JobId, u64>,
}

impl Live {
    /// One more of this group.
    pub(super) fn add(&mut self, job: &JobId, group: &GroupName) -> Of {
        let of: Of = Arc::new((job.clone(), group.clone()));
        let of = self.groups.get_key_value(&of).map_or(of, |(known, _)| Arc::clone(known));
        let of_job = self.jobs.entry(job.clone()).or_default();
        *of_job = of_job.saturating_add(1);
        let of_group = self.groups.entry(Arc::clone(&of)).or_default();
        *of_group = of_group.saturating_add(1);
        of
    }

    /// One less.
    pub(super) fn remove(&mut self, of: &Of) {
        one_less(&mut self.groups, of);
        one_less(&mut self.jobs, &of.0);
    }

    fn of_group(&self, job: &JobId, group: &GroupName) -> u64 {
        self.groups.get(&(job.clone(), group.clone())).copied().unwrap_or_default()
    }

    fn of_job(&self, job: &Job) -> u64 {
        self.jobs.get(&job.id).copied().unwrap_or_default()
    }

    /// What stands in the way of one more of this group.
    pub(super) fn problems(&self, job: &Job, group: &TaskGroup, index: u32) -> Vec<Problem> {
        let limited = |constraints: &[Constraint], scope: RefusalScope, here: &dyn Fn() -> u64| {
            let full = |rule: &Constraint| {
                let most = rule.most_on_node()?;
                let here = here();
                let (constraint, scope) = (written(rule), scope.clone());
                (here >= most).then_some(Problem::Distinct { scope, constraint, index, here, most })
            };
            constraints.iter().filter_map(full).collect::<Vec<_>>()
        };
        let mut problems = limited(&job.constraints, RefusalScope::Job, &|| self.of_job(job));
        problems.extend(limited(&group.constraints, RefusalScope::Group, &|| {
            self.of_group(&job.id, &group.name)
        }));
        problems
    }
}

fn one_less<K: Ord>(counts: &mut BTreeMap<K, u64>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(of);
        }
    }
}
