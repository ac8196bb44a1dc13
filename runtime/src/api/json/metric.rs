//! Why places of a group cannot be filled, as Nomad's tools show it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Absent;
use crate::agent::BlockedPlacement;
use crate::agent::admission::{Problem, Resource};

/// `AllocationMetric` of places that are not filled. There is one node, and it does not do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct Metric {
    nodes_evaluated: u32,
    nodes_filtered: u32,
    nodes_available: BTreeMap<String, u32>,
    class_filtered: Absent,
    /// What keeps the node out, with how many nodes each does.
    constraint_filtered: BTreeMap<String, u32>,
    nodes_exhausted: u32,
    class_exhausted: Absent,
    /// What the node has not enough of, with how many nodes each.
    dimension_exhausted: BTreeMap<String, u32>,
    quota_exhausted: Absent,
    scores: Absent,
    score_meta_data: Absent,
    allocation_time: u64,
    /// Places of the group that are not filled beside the first.
    coalesced_failures: u32,
}

impl Metric {
    fn new(place: &BlockedPlacement, datacenter: &str) -> Self {
        let problems = || place.refusal.groups.iter().flat_map(|refusal| &refusal.problems);
        let of = |exhausted: bool| {
            let wanted =
                problems().filter(move |problem| dimension(problem).is_some() == exhausted);
            let named =
                |problem: &Problem| dimension(problem).unwrap_or_else(|| problem.to_string());
            wanted.map(|problem| (named(problem), 1)).collect::<BTreeMap<String, u32>>()
        };
        let (filtered, exhausted) = (of(false), of(true));
        // A node that is kept out is not looked at for what it has.
        let out = u32::from(!filtered.is_empty());
        let another = problems().any(|problem| matches!(problem, Problem::Datacenter { .. }));
        Self {
            nodes_evaluated: u32::from(!another),
            nodes_filtered: out.saturating_sub(u32::from(another)),
            nodes_available: BTreeMap::from([(datacenter.to_owned(), 1)]),
            class_filtered: Absent,
            constraint_filtered: filtered,
            nodes_exhausted: 1 - out,
            class_exhausted: Absent,
            dimension_exhausted: exhausted,
            quota_exhausted: Absent,
            scores: Absent,
            score_meta_data: Absent,
            allocation_time: 0,
            coalesced_failures: 0,
        }
    }

    /// `FailedTGAllocs`: by group what cannot be placed until something of others becomes free;
    /// none when all can.
    pub fn of(blocked: &[BlockedPlacement], datacenter: &str) -> Option<BTreeMap<String, Self>> {
        let mut groups: BTreeMap<String, Self> = BTreeMap::new();
        for place in blocked.iter().filter(|place| !place.soon) {
            match groups.get_mut(place.group.as_str()) {
                Some(known) => {
                    known.coalesced_failures = known.coalesced_failures.saturating_add(1);
                }
                None => {
                    groups.insert(place.group.to_string(), Self::new(place, datacenter));
                }
            }
        }
        (!groups.is_empty()).then_some(groups)
    }
}

/// What there is not enough of; `None`: the node does not do, whatever it has.
fn dimension(problem: &Problem) -> Option<String> {
    match problem {
        Problem::Resource { resource: Resource::Cpu, .. } => Some("cpu".to_owned()),
        Problem::Resource { resource: Resource::Memory, .. } => Some("memory".to_owned()),
        Problem::Port { error, .. } => Some(format!("network: {error}")),
        Problem::Device { refusal, .. } => Some(format!("devices: {refusal}")),
        Problem::DeviceHeld { error, .. } => Some(format!("devices: {error}")),
        Problem::TooManyTasks { .. }
        | Problem::Datacenter { .. }
        | Problem::Constraint { .. }
        | Problem::UnknownDriver { .. }
        | Problem::DriverNotReady { .. }
        | Problem::DriverStillLoading { .. }
        | Problem::HeldBack { .. }
        | Problem::IdInUse { .. } => None,
    }
}
