//! Checks what all allocations of a job have in common, once for the job: a job may have thousands
//! of groups, and its places are tried one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Problem, RefusalScope, looks, unmet_constraints};
use ostler_model::grants::wildcard;
use ostler_model::ids::GroupName;
use ostler_model::job::{Job, TaskGroup};
use ostler_model::limits::JOB_TASKS_MAX;
use ostler_node::NodeView;

/// Indexes of the places that are to be filled, by group.
pub(crate) type Indexes<'a> = BTreeMap<&'a GroupName, Vec<u32>>;

/// A job, with the result of its check as a whole.
pub(crate) struct JobCheck<'a> {
    pub(super) job: &'a Arc<Job>,
    /// The groups, each with its position in the job file.
    groups: BTreeMap<&'a GroupName, (usize, &'a TaskGroup)>,
    /// Fixed ports of all groups. None of them is given to an allocation as a dynamic port.
    pub(super) reserved: BTreeSet<u16>,
    /// The problems of the job as a whole. An error: the job is too large to be checked.
    pub(super) problems: Result<Vec<Problem>, Problem>,
}

impl<'a> JobCheck<'a> {
    /// Check this job for this node.
    pub(crate) fn new(job: &'a Arc<Job>, view: &NodeView) -> Self {
        looks::note(job.groups.len());
        let groups = job.groups.iter().enumerate();
        Self {
            job,
            groups: groups.map(|(at, group)| (&group.name, (at, group))).collect(),
            reserved: fixed_ports(job),
            problems: check_size(job).map(|()| job_problems(job, view)),
        }
    }

    /// The groups that the job has of these, in the order of its file.
    pub(super) fn groups_in_order<'i>(
        &self,
        indexes: &'i Indexes<'_>,
    ) -> Vec<(&'a TaskGroup, &'i [u32])> {
        looks::note(indexes.len());
        let found = indexes.iter().filter_map(|(name, indexes)| {
            let (at, group) = self.groups.get(*name)?;
            Some((*at, *group, indexes.as_slice()))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|(at, ..)| *at);
        found.into_iter().map(|(_, group, indexes)| (group, indexes)).collect()
    }
}

/// Check the size before anything is made for each allocation, because `count` may be any number.
fn check_size(job: &Job) -> Result<(), Problem> {
    let tasks = job.groups.iter().fold(0_u64, |sum, group| {
        let tasks = u64::try_from(group.tasks.len()).unwrap_or(u64::MAX);
        sum.saturating_add(tasks.saturating_mul(u64::from(group.count)))
    });
    let most = u64::try_from(JOB_TASKS_MAX).unwrap_or(u64::MAX);
    if tasks > most { Err(Problem::TooManyTasks { tasks, most }) } else { Ok(()) }
}

fn fixed_ports(job: &Job) -> BTreeSet<u16> {
    let networks = job.groups.iter().filter_map(|group| group.network.as_ref());
    let of_groups = networks.flat_map(|network| &network.ports);
    let tasks = job.groups.iter().flat_map(|group| &group.tasks);
    let of_tasks = tasks.flat_map(|task| &task.resources.ports);
    of_groups.chain(of_tasks).filter_map(|port| port.fixed).collect()
}

fn job_problems(job: &Job, view: &NodeView) -> Vec<Problem> {
    let mut problems = Vec::new();
    let wanted = &job.datacenters;
    if !wanted.is_empty() && !wanted.iter().any(|pattern| wildcard(pattern, &view.datacenter)) {
        problems
            .push(Problem::Datacenter { wanted: wanted.clone(), actual: view.datacenter.clone() });
    }
    problems.extend(unmet_constraints(&job.constraints, &RefusalScope::Job, view));
    problems
}
