//! To which trace a new allocation belongs: that of the last registration of its job, where it is not long ago.

use std::collections::BTreeMap;

use ostler_model::ids::JobId;
use ostler_model::limits::{TRACE_JOB_WALL_MAX, TRACE_JOBS_MAX};
use ostler_model::time::Timestamp;
use ostler_trace::TraceContext;

/// Registrations that are recorded, by job.
#[derive(Debug, Default)]
pub(super) struct JobTraces(BTreeMap<JobId, (TraceContext, Timestamp)>);

impl JobTraces {
    /// A registration of this job begins. One that is not recorded ends what was known of an earlier one.
    pub(super) fn registered(&mut self, job: &JobId, trace: Option<TraceContext>, now: Timestamp) {
        let Some(trace) = trace else {
            self.0.remove(job);
            return;
        };
        if self.0.len() >= TRACE_JOBS_MAX {
            self.0.retain(|_, (_, at)| now.since(*at) < TRACE_JOB_WALL_MAX);
        }
        if self.0.len() < TRACE_JOBS_MAX {
            self.0.insert(job.clone(), (trace, now));
        }
    }

    /// Where an allocation of this job belongs that is placed now.
    pub(super) fn of(&self, job: &JobId, now: Timestamp) -> Option<TraceContext> {
        let (trace, at) = self.0.get(job)?;
        (now.since(*at) < TRACE_JOB_WALL_MAX).then_some(*trace)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use ostler_trace::TraceParent;

    use super::*;

    fn trace() -> TraceContext {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        TraceParent::parse(header).unwrap().recorded().unwrap()
    }

    #[test]
    fn allocations_belong_to_the_last_registration_of_their_job_for_a_while() {
        let (mut traces, job) = (JobTraces::default(), JobId::new("web").unwrap());
        let now = Timestamp::from_nanos(1);
        assert_eq!(traces.of(&job, now), None);
        traces.registered(&job, Some(trace()), now);
        assert_eq!(traces.of(&job, now), Some(trace()));
        assert_eq!(traces.of(&JobId::new("db").unwrap(), now), None);
        assert_eq!(
            traces.of(&job, now.plus(TRACE_JOB_WALL_MAX)),
            None,
            "later it has other reasons"
        );
        traces.registered(&job, None, now);
        assert_eq!(traces.of(&job, now), None, "the last one is not recorded");
    }

    #[test]
    fn there_are_so_many_jobs_and_old_ones_make_room() {
        let (mut traces, now) = (JobTraces::default(), Timestamp::from_nanos(1));
        let job = |number: usize| JobId::new(format!("j{number}")).unwrap();
        for number in 0..TRACE_JOBS_MAX + 5 {
            traces.registered(&job(number), Some(trace()), now);
        }
        assert_eq!(traces.0.len(), TRACE_JOBS_MAX);
        traces.registered(&job(0), Some(trace()), now.plus(TRACE_JOB_WALL_MAX));
        assert_eq!(traces.0.len(), 1);
    }
}
