//! The trace that a new allocation belongs to: that of the last registration of its job, where it
//! is recent.

use std::collections::BTreeMap;

use ostler_model::ids::JobId;
use ostler_model::limits::{TRACE_JOB_WALL_MAX, TRACE_JOBS_MAX};
use ostler_model::time::Timestamp;
use ostler_trace::TraceContext;

/// Registrations that are recorded in a trace, by job.
#[derive(Debug, Default)]
pub(super) struct JobTraces(BTreeMap<JobId, (TraceContext, Timestamp)>);

impl JobTraces {
    /// Note that a registration of this job begins. One without a trace ends the trace of an
    /// earlier one.
    pub(super) fn note_registration(
        &mut self,
        job: &JobId,
        trace: Option<TraceContext>,
        now: Timestamp,
    ) {
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

    /// The trace of an allocation of this job that is placed now.
    pub(super) fn trace_of_job(&self, job: &JobId, now: Timestamp) -> Option<TraceContext> {
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
        TraceParent::parse(header).unwrap().recorded_context().unwrap()
    }

    #[test]
    fn allocations_belong_to_the_last_registration_of_their_job_for_a_while() {
        let (mut traces, job) = (JobTraces::default(), JobId::new("web").unwrap());
        let now = Timestamp::from_nanos(1);
        assert_eq!(traces.trace_of_job(&job, now), None);
        traces.note_registration(&job, Some(trace()), now);
        assert_eq!(traces.trace_of_job(&job, now), Some(trace()));
        assert_eq!(traces.trace_of_job(&JobId::new("db").unwrap(), now), None);
        assert_eq!(
            traces.trace_of_job(&job, now.plus(TRACE_JOB_WALL_MAX)),
            None,
            "later it has other reasons"
        );
        traces.note_registration(&job, None, now);
        assert_eq!(traces.trace_of_job(&job, now), None, "the last one is not recorded");
    }

    #[test]
    fn there_are_so_many_jobs_and_old_ones_make_room() {
        let (mut traces, now) = (JobTraces::default(), Timestamp::from_nanos(1));
        let job = |number: usize| JobId::new(format!("j{number}")).unwrap();
        for number in 0..TRACE_JOBS_MAX + 5 {
            traces.note_registration(&job(number), Some(trace()), now);
        }
        assert_eq!(traces.0.len(), TRACE_JOBS_MAX);
        traces.note_registration(&job(0), Some(trace()), now.plus(TRACE_JOB_WALL_MAX));
        assert_eq!(traces.0.len(), 1);
    }
}
