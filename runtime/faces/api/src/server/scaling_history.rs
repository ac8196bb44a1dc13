//! The scaling events of task groups.
//!
//! They are kept in memory, as many of them as Nomad keeps. There are none when an agent starts.

use std::collections::{BTreeMap, VecDeque};

use ostler_agent::JobView;
use ostler_model::ids::{GroupName, JobId};
use ostler_model::limits::SCALING_EVENTS_MAX;
use ostler_wire::ScalingEvent;

/// A job, and the index that tells it from an earlier job with the same id.
pub(super) type JobKey = (JobId, u64);

/// The scaling events of groups, newest first.
#[derive(Default)]
pub(super) struct ScalingHistory(BTreeMap<JobKey, BTreeMap<GroupName, VecDeque<ScalingEvent>>>);

impl ScalingHistory {
    /// Add an event. The events of jobs that are gone are removed.
    pub(super) fn add(
        &mut self,
        of: JobKey,
        group: GroupName,
        event: ScalingEvent,
        jobs: &[JobView],
    ) {
        let known = |of: &JobKey| jobs.iter().any(|job| key(job) == *of);
        self.0.retain(|of, _| known(of));
        let events = self.0.entry(of).or_default().entry(group).or_default();
        events.push_front(event);
        events.truncate(SCALING_EVENTS_MAX);
    }

    /// The events of a group, newest first; none if it never had one.
    pub(super) fn events_of_group(
        &self,
        of: &JobKey,
        group: &GroupName,
    ) -> Option<Vec<ScalingEvent>> {
        let events = self.0.get(of)?.get(group)?;
        Some(events.iter().cloned().collect())
    }
}

/// The key of the events of a job.
pub(super) fn key(job: &JobView) -> JobKey {
    (job.record.job.id.clone(), job.record.create_index)
}
