//! How many allocations of a system job are replaced at a time, and when the next ones are.

use std::time::Duration;

use super::{ExistingAlloc, WantedJob};
use ostler_model::job::JobKind;
use ostler_model::time::Timestamp;

/// The steps of system jobs with a policy: so many are replaced at a time, and then there
/// is a wait.
pub(super) struct Steps {
    left: Option<u32>,
    due: Timestamp,
    stagger: Duration,
    more: bool,
}

impl Steps {
    pub(super) fn for_job(wanted: &WantedJob<'_>, existing: &[ExistingAlloc<'_>]) -> Self {
        let every = matches!(wanted.job.kind, JobKind::System);
        let policies = wanted.job.groups.iter().filter_map(|group| group.update);
        let policies = policies.filter(|policy| every && policy.max_parallel > 0);
        let (most, stagger) = policies.fold((0, None), |(most, stagger), policy| {
            (policy.max_parallel.max(most), stagger.max(Some(policy.stagger)))
        });
        let Some(stagger) = stagger.filter(|_| wanted.lives_on) else {
            return Self { left: None, due: wanted.now, stagger: Duration::ZERO, more: false };
        };
        let of_version = existing.iter().filter(|alloc| alloc.is_of(wanted));
        let last = of_version.map(|alloc| alloc.created_at).max();
        let due = last.map_or(wanted.now, |last| last.plus(stagger));
        let left = Some(if due <= wanted.now { most } else { 0 });
        Self { left, due, stagger, more: false }
    }

    /// May one more allocation be replaced now?
    pub(super) fn take(&mut self) -> bool {
        match &mut self.left {
            None => true,
            Some(0) => {
                self.more = true;
                false
            }
            Some(left) => {
                *left = left.saturating_sub(1);
                true
            }
        }
    }

    pub(super) fn next(&self, wanted: &WantedJob<'_>) -> Option<Timestamp> {
        // The wait begins now for what is replaced just now.
        let next = if self.due > wanted.now { self.due } else { wanted.now.plus(self.stagger) };
        self.more.then_some(next)
    }
}
