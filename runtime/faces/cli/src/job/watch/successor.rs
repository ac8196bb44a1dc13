//! Whether another allocation takes the place of one that failed. Pure.
//!
//! ```text
//!          no `reschedule`, or no attempt of it is left      ─► Nothing
//! failed ─┼─► the agent names the evaluation that places another one ─► Comes
//!          └─► the agent has not decided yet ─► Open ─ for too long ─► Nothing
//! ```
//! The agent decides when the allocation is over, which is a while after it counts as failed: its
//! other tasks end first, and its resources are given back.

use std::time::Duration;

use super::{Alloc, ClientStatus, JobWatch, RunReport};
use ostler_model::rollout::ReschedulePolicy;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;

/// How long the agent may take to decide, once no task of the failed allocation runs any more.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);
/// Time between two checks for the decision: a decision alone is no change that ends a wait.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What follows an allocation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    /// Another allocation takes its place.
    Comes,
    /// The agent has not decided yet.
    Open,
    /// The allocation failed for good.
    Nothing,
}

/// The time when the last task of an allocation ended.
fn ended_at(alloc: &Alloc) -> Timestamp {
    let tasks = alloc.task_states.values();
    let ends = tasks.filter_map(|task| Timestamp::parse(task.finished_at.as_deref()?));
    ends.max().unwrap_or(alloc.create_time)
}

/// Does the policy allow one more allocation in the place of this one?
fn has_attempts(policy: ReschedulePolicy, alloc: &Alloc) -> bool {
    let failed_at = ended_at(alloc);
    let before = alloc.reschedule_tracker.iter().flatten().flat_map(|tracker| &tracker.events);
    let counted = before.filter(|event| {
        failed_at.since(Timestamp::from_nanos(event.reschedule_time)) < policy.interval
    });
    let attempted = counted.count();
    policy.attempts == 0 || u32::try_from(attempted).is_ok_and(|count| count < policy.attempts)
}

fn has_failed(alloc: &Alloc) -> bool {
    alloc.client_status == ClientStatus::Failed
}

impl JobWatch {
    /// Note since when no task of a failed allocation runs.
    pub(super) fn note_ended(&mut self, alloc: &Alloc, now: Duration) {
        let runs = alloc.task_states.values().any(|task| task.state == TaskStatus::Running);
        if has_failed(alloc) && !runs {
            self.ended.entry(alloc.id).or_insert(now);
        } else {
            self.ended.remove(&alloc.id);
        }
    }

    /// The report, made once, that another allocation takes the place of a failed one.
    pub(super) fn successor_news(&mut self, alloc: &Alloc, now: Duration) -> Option<RunReport> {
        let comes = has_failed(alloc) && self.successor(alloc, now) == Successor::Comes;
        let short = alloc.id.short();
        (comes && self.followed.insert(alloc.id)).then(|| RunReport::Progress {
            message: format!(
                "another allocation will take the place of {short}; `ostler explain {short}` says when"
            ),
        })
    }

    /// Find an allocation that failed and that no other follows.
    pub(super) fn find_failed_for_good<'a>(
        &self,
        wanted: &[&'a Alloc<'a>],
        now: Duration,
    ) -> Option<&'a Alloc<'a>> {
        let mut failed = wanted.iter().copied().filter(|alloc| has_failed(alloc));
        failed.find(|alloc| self.successor(alloc, now) == Successor::Nothing)
    }

    /// The time until the next check for undecided failed allocations; `None` where there are none.
    pub(super) fn next_look(&self, wanted: &[&Alloc], now: Duration) -> Option<Duration> {
        let mut failed = wanted.iter().filter(|alloc| has_failed(alloc));
        failed.any(|alloc| self.successor(alloc, now) == Successor::Open).then_some(LOOK_AGAIN)
    }

    fn successor(&self, alloc: &Alloc, now: Duration) -> Successor {
        let policy = self.reschedule.get(&*alloc.task_group).filter(|policy| policy.is_enabled());
        let Some(policy) = policy else { return Successor::Nothing };
        if alloc.followup_eval_id.as_deref().is_some_and(|id| !id.is_empty()) {
            return Successor::Comes;
        }
        let since = self.ended.get(&alloc.id);
        let late = since.is_some_and(|since| now.saturating_sub(*since) >= DECIDED_WITHIN);
        if has_attempts(*policy, alloc) && !late { Successor::Open } else { Successor::Nothing }
    }
}
