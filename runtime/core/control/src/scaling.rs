//! Changes the count of one group of a job, or says why that is refused. Pure.

use ostler_model::ids::GroupName;
use ostler_model::job::{Job, JobKind};
use ostler_model::placement::OutOfRange;
use ostler_model::rollout::Deployment;
use ostler_model::saved::JobRecord;

/// Why a group is not scaled. The texts are the ones that clients know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// The request names no group.
    #[error("missing task group name for scaling action")]
    NoGroup,
    /// The target is in another namespace than the request.
    #[error("namespace in payload did not match header")]
    OtherNamespace,
    /// The job has no such group.
    #[error("task group {0:?} specified for scaling does not exist in job")]
    UnknownGroup(String),
    /// The `scaling` block of the group does not allow the count.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A system job has one allocation on the node, or none.
    #[error("jobs of type {0:?} can only be scaled between 0 and 1")]
    EveryNode(&'static str),
    /// A deployment is under way, and the count must not change under it.
    #[error("job scaling blocked due to active deployment")]
    Deployment,
    /// The job is stopped: nothing of it is to run.
    #[error("the job is stopped; run it again instead")]
    Stopped,
    /// The count is negative.
    #[error("scaling action count can't be negative")]
    Negative,
    /// No group can have such a count.
    #[error("new scaling count is too large: {0}")]
    TooLarge(i64),
    /// The request reports an error and asks for a count as well.
    #[error("scaling action should not contain count if error is true")]
    CountOfError,
    /// The text and data of the request are too long to be kept.
    #[error("message and meta of a scaling action have {bytes} bytes; at most {most} are kept")]
    TooLong {
        /// Length of message and meta together, bytes.
        bytes: usize,
        /// The most bytes that are kept.
        most: usize,
    },
}

/// The job with `count` allocations of `group`. `newest`: the newest deployment of the job.
///
/// # Errors
/// When the job does not allow that count, or not now.
pub fn scale_job(
    record: &JobRecord,
    newest: Option<&Deployment>,
    group: &GroupName,
    count: u32,
) -> Result<Job, ScaleError> {
    let mut job = (*record.job).clone();
    let kind = job.kind;
    let Some(found) = job.groups.iter_mut().find(|known| known.name == *group) else {
        return Err(ScaleError::UnknownGroup(group.to_string()));
    };
    match kind {
        JobKind::System if count > 1 => return Err(ScaleError::EveryNode("system")),
        JobKind::Sysbatch if count > 1 => return Err(ScaleError::EveryNode("sysbatch")),
        _ => {}
    }
    if let Some(policy) = &found.scaling {
        policy.check(count)?;
    }
    if record.stopped {
        return Err(ScaleError::Stopped);
    }
    if newest.is_some_and(|deployment| deployment.phase.is_active()) {
        return Err(ScaleError::Deployment);
    }
    found.count = count;
    Ok(job)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::sync::Arc;

    use super::*;
    use crate::proposal::next_version;
    use ostler_model::json::JsonObject;
    use ostler_model::placement::ScalingPolicy;
    use ostler_model::saved::JobOrigin;
    use ostler_model::time::Timestamp;
    use ostler_testing::fixtures;

    fn record(kind: JobKind, policy: Option<(u32, u32)>) -> JobRecord {
        let mut group = fixtures::group("g", vec![fixtures::task("t").unwrap()]).unwrap();
        let policy = policy.map(|(min, max)| ScalingPolicy {
            enabled: false,
            min,
            max,
            policy: JsonObject::default(),
        });
        group.scaling = policy;
        let job = fixtures::job("web", kind, vec![group]).unwrap();
        next_version(&Arc::new(job), None, JobOrigin::Api, Timestamp::from_nanos(1))
    }

    fn scale(record: &JobRecord, group: &str, count: u32) -> Result<u32, String> {
        let group = GroupName::new(group).unwrap();
        let job = scale_job(record, None, &group, count).map_err(|error| error.to_string())?;
        Ok(job.groups[0].count)
    }

    #[test]
    fn a_group_gets_the_count_that_its_policy_allows() {
        let record = record(JobKind::Service, Some((1, 3)));
        assert_eq!(scale(&record, "g", 3), Ok(3));
        let above = "group count was greater than scaling policy maximum: 4 > 3";
        assert_eq!(scale(&record, "g", 4), Err(above.to_owned()));
        let below = "group count was less than scaling policy minimum: 0 < 1";
        assert_eq!(scale(&record, "g", 0), Err(below.to_owned()));
        assert!(scale(&record, "h", 2).unwrap_err().contains("\"h\""));
    }

    #[test]
    fn a_group_without_a_policy_gets_any_count_that_its_job_can_have() {
        assert_eq!(scale(&record(JobKind::Batch, None), "g", 9), Ok(9));
        let system = record(JobKind::System, None);
        assert_eq!(scale(&system, "g", 0), Ok(0));
        assert!(scale(&system, "g", 2).unwrap_err().contains("between 0 and 1"));
        let stopped = JobRecord { stopped: true, ..record(JobKind::Service, None) };
        assert!(scale(&stopped, "g", 2).unwrap_err().contains("stopped"));
    }
}
