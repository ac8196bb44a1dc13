//! Chooses the allocations that go next. Pure: a function of the allocations and the measurement.
//!
//! ```text
//!            ┌──────────── measure again ◄───────────┐
//!            ▼                                       │
//!  disk over its threshold?   ─ yes ─► Destroy: the oldest one, alone ──┤
//!            │ no                                    │
//!  inodes over theirs?        ─ yes ─► Destroy: the oldest one, alone ──┤
//!            │ no                                    │
//!  more allocations than max? ─ yes ─► Destroy: the excess, `parallel` at a time
//!            │ no, or nothing that can go
//!            ▼
//!          Done
//! ```
//! The room that an allocation frees is not known before it is gone. So for room they go one by
//! one, with a measurement after each. The excess over the maximum is known, so those go together.
//! Only allocations that are over can go. One that could not be removed is left alone until the
//! next tick, then for 2, 4 … ticks; meanwhile the others go.
//!
//! Of the ledger (reference §2.11):
//! - L13, all of them go because nothing is freed yet when it is looked again:
//!   `ten_are_over_and_one_is_enough_so_one_goes` here, and in the owner's tests with destroys that
//!   take their time.
//! - live + terminal above the maximum: `live_allocations_alone_above_the_maximum_are_told_and_stay`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ostler_model::ids::AllocId;
use ostler_model::limits::{
    GC_BACKOFF_TICKS_MAX, GC_DISK_PERCENT_DEFAULT, GC_INODE_PERCENT_DEFAULT, GC_INTERVAL_DEFAULT,
    GC_MAX_ALLOCS_DEFAULT, GC_PARALLEL_DEFAULT,
};
use ostler_model::time::Timestamp;

/// When allocations that are over are removed. The defaults are Nomad's, but for the removals at the same time: here one
/// thread removes their directories one after the other, and they share the wakes and commits around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcPolicy {
    /// Time between two checks that nothing else caused.
    pub interval: Duration,
    /// Used part of the allocations' file system, per cent, above which allocations go; 100: never.
    pub disk_usage_percent: u8,
    /// Used part of its inodes, per cent, above which allocations go; 100: never.
    pub inode_usage_percent: u8,
    /// Number of allocations, live ones included, above which some go.
    pub max_allocs: u32,
    /// Number of removals at the same time; 0 counts as 1.
    pub parallel: u32,
}

impl Default for GcPolicy {
    fn default() -> Self {
        Self {
            interval: GC_INTERVAL_DEFAULT,
            disk_usage_percent: GC_DISK_PERCENT_DEFAULT,
            inode_usage_percent: GC_INODE_PERCENT_DEFAULT,
            max_allocs: GC_MAX_ALLOCS_DEFAULT,
            parallel: GC_PARALLEL_DEFAULT,
        }
    }
}

/// How full the file system of the allocations is. A total of zero is never full, because some file
/// systems do not count inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUse {
    /// Units of space in use.
    pub disk_used: u64,
    /// Units of space in use and free for the agent, together.
    pub disk_total: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes in use and free for the agent, together.
    pub inodes_total: u64,
}

/// An allocation that is over, so that it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcCandidate {
    /// Id of the allocation.
    pub id: AllocId,
    /// The time when it ended.
    pub ended_at: Timestamp,
}

/// The reason why allocations go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcReason {
    /// Too much of the disk is used.
    Disk {
        /// Used part, per cent, rounded down.
        used: u8,
        /// Allowed part, per cent.
        threshold: u8,
    },
    /// Too many inodes are used.
    Inodes {
        /// Used part, per cent, rounded down.
        used: u8,
        /// Allowed part, per cent.
        threshold: u8,
    },
    /// There are too many allocations.
    Count {
        /// Number of allocations, live ones included.
        have: usize,
        /// The most allocations that the policy allows.
        max: u32,
    },
}

impl fmt::Display for GcReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { used, threshold } => {
                write!(f, "{used} % of the disk is in use, above the threshold of {threshold} %")
            }
            Self::Inodes { used, threshold } => {
                write!(f, "{used} % of inodes are in use, above the threshold of {threshold} %")
            }
            Self::Count { have, max } => {
                write!(f, "there are {have} allocations, above the maximum of {max}")
            }
        }
    }
}

/// There are more allocations than allowed, and none of them can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyAllocs {
    /// Number of allocations, live ones included.
    pub have: usize,
    /// The most allocations that the policy allows.
    pub max: u32,
}

impl TooManyAllocs {
    /// Are there more than twice as many as allowed? That is worth a warning.
    #[must_use]
    pub fn is_great(&self) -> bool {
        self.have > usize::try_from(self.max).unwrap_or(usize::MAX).saturating_mul(2)
    }
}

/// The next step of the collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcStep {
    /// Remove these, oldest first; then measure and ask again.
    Destroy {
        /// Ids of at least one and at most `parallel` allocations.
        ids: Vec<AllocId>,
        /// The reason why they go.
        reason: GcReason,
    },
    /// Nothing has to go, or nothing can.
    Done {
        /// The excess of allocations that cannot go, where there is one.
        excess: Option<TooManyAllocs>,
    },
}

#[derive(Clone, Copy, Debug)]
struct GcFailure {
    /// Number of failures in a row.
    count: u32,
    /// The allocation is left alone before this tick.
    until: u64,
}

/// The memory from one choice to the next.
#[derive(Clone, Debug, Default)]
pub struct GcState {
    tick: u64,
    failed: BTreeMap<AllocId, GcFailure>,
    /// Nothing goes for room before this tick.
    room_from: u64,
    /// Allocations that were removed and may still be listed.
    gone: BTreeSet<AllocId>,
}

impl GcState {
    /// An interval is over: failed removals are tried again when it is their time.
    pub fn tick(&mut self) {
        self.tick = self.tick.saturating_add(1);
    }

    /// Record that an allocation was removed.
    pub fn record_destroyed(&mut self, id: AllocId) {
        self.failed.remove(&id);
        self.gone.insert(id);
    }

    /// Record that an allocation could not be removed.
    pub fn record_failure(&mut self, id: AllocId) {
        let failure = self.failed.entry(id).or_insert(GcFailure { count: 0, until: 0 });
        let ticks = 1_u64.checked_shl(failure.count).unwrap_or(u64::MAX).min(GC_BACKOFF_TICKS_MAX);
        failure.count = failure.count.saturating_add(1);
        failure.until = self.tick.saturating_add(ticks);
    }

    /// Record that the removal of an allocation did not end. It may still free its room, so nothing
    /// else goes for room before the next tick.
    pub fn record_hang(&mut self, id: AllocId) {
        self.record_failure(id);
        self.room_from = self.tick.saturating_add(1);
    }

    /// Choose what to do now. Called again after each [`GcStep::Destroy`], it comes to an end,
    /// because each allocation named before is gone or has failed by then.
    ///
    /// `measured` is `None` where the measurement failed. `terminal` are all allocations that are
    /// over, in any order; `live` is the number of the others.
    pub fn next_step(
        &mut self,
        policy: &GcPolicy,
        measured: Option<FsUse>,
        terminal: &[GcCandidate],
        live: usize,
    ) -> GcStep {
        let listed: BTreeSet<AllocId> = terminal.iter().map(|candidate| candidate.id).collect();
        self.gone.retain(|id| listed.contains(id));
        self.failed.retain(|id, _| listed.contains(id));
        let have = listed.len().saturating_sub(self.gone.len()).saturating_add(live);
        let may_go = self.oldest_first(terminal);
        let excess = have.saturating_sub(usize::try_from(policy.max_allocs).unwrap_or(usize::MAX));
        let too_many = || (excess > 0).then_some(TooManyAllocs { have, max: policy.max_allocs });
        let full = measured.filter(|_| self.tick >= self.room_from);
        let (reason, most) = if let Some(reason) = full.and_then(|fs| passed_threshold(policy, fs))
        {
            (reason, 1)
        } else if excess > 0 {
            let parallel = usize::try_from(policy.parallel.max(1)).unwrap_or(usize::MAX);
            (GcReason::Count { have, max: policy.max_allocs }, excess.min(parallel))
        } else {
            return GcStep::Done { excess: None };
        };
        let ids: Vec<AllocId> = may_go.into_iter().take(most).collect();
        if ids.is_empty() {
            GcStep::Done { excess: too_many() }
        } else {
            GcStep::Destroy { ids, reason }
        }
    }

    /// The allocations that can go now, the oldest first, then by id.
    fn oldest_first(&self, terminal: &[GcCandidate]) -> Vec<AllocId> {
        let waits = |id: &AllocId| self.failed.get(id).is_some_and(|f| self.tick < f.until);
        let can_go = terminal.iter().filter(|c| !self.gone.contains(&c.id) && !waits(&c.id));
        let by_age: BTreeSet<(Timestamp, AllocId)> = can_go.map(|c| (c.ended_at, c.id)).collect();
        by_age.into_iter().map(|(_, id)| id).collect()
    }
}

/// The first threshold that is exceeded.
fn passed_threshold(policy: &GcPolicy, fs: FsUse) -> Option<GcReason> {
    let disk = policy.disk_usage_percent;
    if is_above(fs.disk_used, fs.disk_total, disk) {
        return Some(GcReason::Disk {
            used: percent(fs.disk_used, fs.disk_total),
            threshold: disk,
        });
    }
    let inodes = policy.inode_usage_percent;
    is_above(fs.inodes_used, fs.inodes_total, inodes).then(|| GcReason::Inodes {
        used: percent(fs.inodes_used, fs.inodes_total),
        threshold: inodes,
    })
}

/// Is the used part above the threshold? Computed in whole numbers, so that no rounding decides.
fn is_above(used: u64, total: u64, threshold: u8) -> bool {
    total > 0 && u128::from(used) * 100 > u128::from(total) * u128::from(threshold)
}

fn percent(used: u64, total: u64) -> u8 {
    let percent = (u128::from(used) * 100).checked_div(u128::from(total)).unwrap_or(0);
    u8::try_from(percent).unwrap_or(u8::MAX)
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
