//! Whether another allocation comes after one that failed. Pure.
//!
//! ```text
//!          no `reschedule`, or no attempt of it is left      ─► Nothing
//! failed ─┼─► the agent names what is to place the other one ─► Comes
//!          └─► it has not said so yet ─► Open ─ for too long ─► Nothing
//! ```
//! The agent decides it when the allocation is over, which is a while after it counts as failed: other tasks of it end
//! first, and what it held is given back.

use std::time::Duration;

use super::{Alloc, ClientStatus, Report, Watch};
use ostler_model::rollout::ReschedulePolicy;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;

/// How long the agent may take to say what comes after an allocation of which nothing runs any more.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);
/// How long between two looks at one that is not decided: a decision alone is no change that wakes who waits for one.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What comes after an allocation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Another takes its place.
    Comes,
    /// It is not decided.
    Open,
    /// It failed for good.
    Nothing,
}

/// When its last task ended.
fn ended_at(alloc: &Alloc) -> Timestamp {
    let tasks = alloc.task_states.values();
    let ends = tasks.filter_map(|task| Timestamp::parse(task.finished_at.as_deref()?));
    ends.max().unwrap_or(alloc.create_time)
}

/// May there be one more in the place of this one?
fn has_attempts(policy: ReschedulePolicy, alloc: &Alloc) -> bool {
    let failed_at = ended_at(alloc);
    let before = alloc.reschedule_tracker.iter().flatten().flat_map(|tracker| &tracker.events);
    let counted = before.filter(|event| {
        failed_at.since(Timestamp::from_nanos(event.reschedule_time)) < policy.interval
    });
    let attempted = counted.count();
    policy.attempts == 0 || u32::try_from(attempted).is_ok_and(|count| count < policy.attempts)
}

fn failed(alloc: &Alloc) -> bool {
    alloc.client_status == ClientStatus::Failed
}

impl Watch {
    /// Since when nothing of one that failed runs.
    pub(super) fn note_ended(&mut self, alloc: &Alloc, now: Duration) {
        let runs = alloc.task_states.values().any(|task| task.state == TaskStatus::Running);
        if failed(alloc) && !runs {
            self.ended.entry(alloc.id).or_insert(now);
        } else {
            self.ended.remove(&alloc.id);
        }
    }

    /// That another follows one that failed: told once.
    pub(super) fn follows(&mut self, alloc: &Alloc, now: Duration) -> Option<Report> {
        let comes = failed(alloc) && self.after(alloc, now) == Next::Comes;
        let short = alloc.id.short();
        (comes && self.followed.insert(alloc.id)).then(|| Report::Progress {
            message: format!(
                "another allocation is to take the place of {short}; `ostler explain {short}` says when"
            ),
        })
    }

    /// One that failed and that no other follows.
    pub(super) fn failed_for_good<'a>(
        &self,
        wanted: &[&'a Alloc<'a>],
        now: Duration,
    ) -> Option<&'a Alloc<'a>> {
        let mut failed = wanted.iter().copied().filter(|alloc| failed(alloc));
        failed.find(|alloc| self.after(alloc, now) == Next::Nothing)
    }

    /// When to look again at those that failed and of which it is not decided; none where there are none.
    pub(super) fn undecided(&self, wanted: &[&Alloc], now: Duration) -> Option<Duration> {
        let mut failed = wanted.iter().filter(|alloc| failed(alloc));
        failed.any(|alloc| self.after(alloc, now) == Next::Open).then_some(LOOK_AGAIN)
    }

    fn after(&self, alloc: &Alloc, now: Duration) -> Next {
        let policy = self.reschedule.get(&*alloc.task_group).filter(|policy| policy.is_enabled());
        let Some(policy) = policy else { return Next::Nothing };
        if alloc.followup_eval_id.as_deref().is_some_and(|id| !id.is_empty()) {
            return Next::Comes;
        }
        let since = self.ended.get(&alloc.id);
        let late = since.is_some_and(|since| now.saturating_sub(*since) >= DECIDED_WITHIN);
        match has_attempts(*policy, alloc) && !late {
            true => Next::Open,
            false => Next::Nothing,
        }
    }
}
