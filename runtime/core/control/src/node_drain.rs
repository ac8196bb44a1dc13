//! The drain of a node: the requests, and the allocations that are stopped next. Pure.
//!
//! ```text
//!   services    ─► of each group so many at a time as its `migrate` says
//!   batch       ─► may end by itself
//!   deadline    ─► all of them at once, system jobs too
//!   all over    ─► system jobs, unless they are left alone ─► over ─► the drain is complete
//! ```
//! There is no other node that could take what is stopped. Its jobs wait, and run here again when
//! the node is eligible. So nothing waits for the health of successors.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::job::JobKind;
use ostler_state::StateError;

/// A request about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAsk {
    /// Whether the node is to take new allocations.
    Eligible(bool),
    /// Begin a drain, or change the present one.
    Drain(DrainAsk),
    /// End the drain, as far as it has come.
    EndDrain {
        /// Whether the node takes new allocations again.
        eligible: bool,
    },
}

/// How the node is to be drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainAsk {
    /// After this time everything that is left is stopped at once; zero: at once; `None`: never.
    pub deadline: Option<Duration>,
    /// Allocations of system jobs run on.
    pub ignore_system: bool,
}

/// Why a request about the node was refused.
#[derive(Debug, thiserror::Error)]
pub enum NodeAskError {
    /// The drain has to end first.
    #[error(
        "the node is being drained and cannot be made eligible; end the drain with `ostler node drain --disable`"
    )]
    Draining,
    /// The deadline is too far away.
    #[error("a drain may last at most {} days; give a shorter deadline, or none", .most.as_secs() / 86_400)]
    Deadline {
        /// The bound, [`ostler_model::limits::NODE_DRAIN_DEADLINE_MAX`].
        most: Duration,
    },
    /// The node belongs to a cluster, whose servers decide.
    #[error(
        "this node is one of a cluster, and its servers place on it and drain it: ask them, with `nomad node`"
    )]
    Joined,
    /// The change could not be made durable; the node is as before.
    #[error("the change of the node could not be recorded: {0}")]
    State(#[source] StateError),
    /// The agent is ending.
    #[error("the agent is shutting down")]
    Leaving,
}

/// An allocation that is not over, as far as a drain is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveAlloc<'a> {
    pub(crate) id: AllocId,
    pub(crate) job: &'a JobId,
    pub(crate) kind: JobKind,
    pub(crate) group: &'a GroupName,
    /// It is told to stop already.
    pub(crate) stopping: bool,
    /// The most allocations of its group that may stop at a time; see
    /// [`ostler_model::job::TaskGroup::migrate_parallel`].
    pub(crate) parallel: u32,
}

impl LiveAlloc<'_> {
    const fn is_system(&self) -> bool {
        matches!(self.kind, JobKind::System | JobKind::Sysbatch)
    }
}

/// The next step of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainStep {
    /// Ids of the allocations that are to be stopped now.
    pub(crate) stop: Vec<AllocId>,
    /// Nothing is left to be stopped.
    pub(crate) done: bool,
}

/// The next step of a drain. `live`: oldest first. See the module.
pub(crate) fn next_drain_step(
    live: &[LiveAlloc<'_>],
    forced: bool,
    ignore_system: bool,
) -> DrainStep {
    let (system, others): (Vec<&LiveAlloc<'_>>, Vec<&LiveAlloc<'_>>) =
        live.iter().partition(|alloc| alloc.is_system());
    let system = if ignore_system { Vec::new() } else { system };
    let running = |all: &[&LiveAlloc<'_>]| -> Vec<AllocId> {
        all.iter().filter(|alloc| !alloc.stopping).map(|alloc| alloc.id).collect()
    };
    let stop = if forced {
        [running(&others), running(&system)].concat()
    } else if others.is_empty() {
        running(&system)
    } else {
        next_stops(&others)
    };
    DrainStep { stop, done: others.is_empty() && system.is_empty() }
}

/// As many allocations of each group of a service as may stop at the same time.
fn next_stops(others: &[&LiveAlloc<'_>]) -> Vec<AllocId> {
    let mut leaving: BTreeMap<(&JobId, &GroupName), u32> = BTreeMap::new();
    for alloc in others.iter().filter(|alloc| alloc.stopping) {
        let count = leaving.entry((alloc.job, alloc.group)).or_default();
        *count = count.saturating_add(1);
    }
    let services = others.iter().filter(|alloc| alloc.kind == JobKind::Service && !alloc.stopping);
    let allowed = services.filter(|alloc| {
        let count = leaving.entry((alloc.job, alloc.group)).or_default();
        let fits = *count < alloc.parallel;
        *count = count.saturating_add(u32::from(fits));
        fits
    });
    allowed.map(|alloc| alloc.id).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    struct Node {
        jobs: Vec<(JobId, JobKind, u32)>,
        group: GroupName,
    }

    impl Node {
        fn new(jobs: &[(&str, JobKind, u32)]) -> Self {
            let named = |(name, kind, parallel): &(&str, JobKind, u32)| {
                (JobId::new(*name).unwrap(), *kind, *parallel)
            };
            let group = GroupName::new("g").unwrap();
            Self { jobs: jobs.iter().map(named).collect(), group }
        }

        /// Allocations by their job, a number and whether they are told to stop.
        fn live(&self, allocs: &[(usize, u128, bool)]) -> Vec<LiveAlloc<'_>> {
            let live = |(job, id, stopping): &(usize, u128, bool)| {
                let (job, kind, parallel) = self.jobs.get(*job).unwrap();
                LiveAlloc {
                    id: alloc(*id),
                    job,
                    kind: *kind,
                    group: &self.group,
                    stopping: *stopping,
                    parallel: *parallel,
                }
            };
            allocs.iter().map(live).collect()
        }
    }

    fn alloc(id: u128) -> AllocId {
        AllocId::new(uuid::Uuid::from_u128(id))
    }

    fn stops(next: &DrainStep) -> Vec<u128> {
        next.stop.iter().map(|id| uuid::Uuid::from_bytes(*id.as_bytes()).as_u128()).collect()
    }

    #[test]
    fn of_each_group_of_a_service_so_many_are_stopped_at_a_time_as_it_says() {
        let node = Node::new(&[("web", JobKind::Service, 2), ("db", JobKind::Service, 1)]);
        let all = [(0, 1, false), (0, 2, false), (0, 3, false), (1, 4, false), (1, 5, false)];
        assert_eq!(stops(&next_drain_step(&node.live(&all), false, false)), [1, 2, 4]);
        let later = [(0, 2, true), (0, 3, false), (1, 5, false)];
        assert_eq!(stops(&next_drain_step(&node.live(&later), false, false)), [3, 5]);
        let full = [(1, 4, true), (1, 5, false)];
        assert_eq!(next_drain_step(&node.live(&full), false, false), DrainStep::default());
    }

    #[test]
    fn batch_jobs_may_end_and_system_jobs_go_last() {
        let node = Node::new(&[("sum", JobKind::Batch, 1), ("log", JobKind::System, 1)]);
        let both = [(0, 1, false), (1, 2, false)];
        assert_eq!(next_drain_step(&node.live(&both), false, false), DrainStep::default());
        let last = [(1, 2, false)];
        assert_eq!(stops(&next_drain_step(&node.live(&last), false, false)), [2]);
        assert!(!next_drain_step(&node.live(&last), false, false).done);
        assert!(next_drain_step(&node.live(&last), false, true).done, "they are left alone");
        assert!(next_drain_step(&[], false, false).done);
    }

    #[test]
    fn a_forced_drain_stops_everything_at_once_but_what_is_left_alone() {
        let node = Node::new(&[
            ("web", JobKind::Service, 0),
            ("sum", JobKind::Batch, 1),
            ("log", JobKind::System, 1),
        ]);
        let all = [(0, 1, false), (0, 2, true), (1, 3, false), (2, 4, false)];
        assert_eq!(stops(&next_drain_step(&node.live(&all), true, false)), [1, 3, 4]);
        assert_eq!(stops(&next_drain_step(&node.live(&all), true, true)), [1, 3]);
        assert_eq!(
            next_drain_step(&node.live(&all), false, false),
            DrainStep::default(),
            "none may be stopped"
        );
    }
}
