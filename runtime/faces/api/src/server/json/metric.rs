//! Why allocations of a group cannot be placed, as Nomad's tools show it.

use std::collections::BTreeMap;

use ostler_agent::BlockedPlacement;
use ostler_control::admission::{Problem, Resource};
use ostler_wire::AllocMetric;

/// Nomad's `FailedTGAllocs`: by group, the allocations that cannot be placed until other jobs free
/// resources. None if all can be placed.
pub(crate) fn failed_placements(
    blocked: &[BlockedPlacement],
    datacenter: &str,
) -> Option<BTreeMap<String, AllocMetric>> {
    let mut groups: BTreeMap<String, AllocMetric> = BTreeMap::new();
    for place in blocked.iter().filter(|place| !place.soon) {
        match groups.get_mut(place.group.as_str()) {
            Some(known) => {
                known.coalesced_failures = known.coalesced_failures.saturating_add(1);
            }
            None => {
                groups.insert(place.group.to_string(), metric(place, datacenter));
            }
        }
    }
    (!groups.is_empty()).then_some(groups)
}

/// The metric of one allocation that the only node cannot take.
fn metric(place: &BlockedPlacement, datacenter: &str) -> AllocMetric {
    let problems = || place.refusal.groups.iter().flat_map(|refusal| &refusal.problems);
    let of = |exhausted: bool| {
        let wanted = problems().filter(move |problem| dimension(problem).is_some() == exhausted);
        let named = |problem: &Problem| {
            let dimension = dimension(problem);
            place.refusal.text_of(&dimension.unwrap_or_else(|| problem.to_string()))
        };
        wanted.map(|problem| (named(problem), 1)).collect::<BTreeMap<String, u32>>()
    };
    let (filtered, exhausted) = (of(false), of(true));
    // The resources of a node that is ruled out are not considered.
    let out = u32::from(!filtered.is_empty());
    let another = problems().any(|problem| matches!(problem, Problem::Datacenter { .. }));
    AllocMetric {
        nodes_evaluated: u32::from(!another),
        nodes_filtered: out.saturating_sub(u32::from(another)),
        nodes_available: BTreeMap::from([(datacenter.to_owned(), 1)]),
        constraint_filtered: Some(filtered),
        nodes_exhausted: 1 - out,
        dimension_exhausted: Some(exhausted),
        ..AllocMetric::default()
    }
}

/// The resource that is short. `None` if the node is ruled out whatever resources it has.
fn dimension(problem: &Problem) -> Option<String> {
    match problem {
        Problem::Resource { resource: Resource::Cpu, .. } => Some("cpu".to_owned()),
        Problem::Cores { .. } | Problem::NoSharedCore { .. } => Some("cores".to_owned()),
        Problem::Resource { resource: Resource::Memory, .. } => Some("memory".to_owned()),
        Problem::Port { error, .. } => Some(format!("network: {error}")),
        Problem::Device { refusal, .. } => Some(format!("devices: {refusal}")),
        Problem::DeviceHeld { error, .. } => Some(format!("devices: {error}")),
        Problem::TooManyTasks { .. }
        | Problem::Datacenter { .. }
        | Problem::Constraint { .. }
        | Problem::NoCores { .. }
        | Problem::DriverGivesNoCores { .. }
        | Problem::Network { .. }
        | Problem::Volume { .. }
        | Problem::Distinct { .. }
        | Problem::UnknownDriver { .. }
        | Problem::DriverNotReady { .. }
        | Problem::DriverStillLoading { .. }
        | Problem::HeldBack { .. }
        | Problem::Closed { .. }
        | Problem::IdInUse { .. } => None,
    }
}
