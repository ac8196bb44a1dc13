//! What a group could give to a request, before other requests are considered.

use std::collections::{BTreeMap, BTreeSet};

use super::rules;
use super::unfit::UnfitReason;
use crate::ledger::{DeviceLedger, HeldInstance};
use ostler_model::device::{DeviceGroup, DeviceInstance, HealthState};
use ostler_model::resources::DeviceRequest;

/// A way to serve a request from one group.
#[derive(Clone, Debug)]
pub(super) struct DeviceOffer<'a> {
    pub group: &'a DeviceGroup,
    /// The NUMA node of all instances in `free`; `None` where the request names no node, or they
    /// are on several.
    pub node: Option<u32>,
    /// Ids that may be assigned, sorted, each once: at least as many as the request asks for.
    pub free: Vec<&'a str>,
    /// Sum of the weights of the affinities that hold.
    pub score: i64,
}

/// The ways in which a group can serve a request, best first. There is one way. When the
/// request says something about the NUMA node, there is one for each node and one for instances
/// of several nodes.
///
/// `task_node` is the node of another request of the task that asks for one; no other node will do.
pub(super) fn offers_of_group<'a>(
    group: &'a DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    task_node: Option<u32>,
) -> Result<Vec<DeviceOffer<'a>>, UnfitReason> {
    if !group.key.matches(&request.name) {
        return Err(UnfitReason::Name);
    }
    let unmet = rules::unmet_by_group(group, request);
    if !unmet.is_empty() {
        return Err(UnfitReason::Constraints(unmet));
    }
    let found = survey_group(group, ledger, request);
    let wanted = count(request);
    if found.free.len() < wanted {
        return Err(UnfitReason::TooFew {
            healthy: found.free.len().saturating_add(found.held.len()),
            free: found.free.len(),
            held: found.held,
            unhealthy: found.unhealthy,
        });
    }
    if !rules::asks_for_node(request) {
        let score = rules::score(group, None, request);
        return Ok(vec![DeviceOffer { group, node: None, free: found.ids().collect(), score }]);
    }
    offers_by_node(group, &found, request, task_node)
}

/// Number of instances asked for.
pub(super) fn count(request: &DeviceRequest) -> usize {
    usize::try_from(request.count).unwrap_or(usize::MAX)
}

fn offers_by_node<'a>(
    group: &'a DeviceGroup,
    found: &GroupSurvey<'a>,
    request: &DeviceRequest,
    task_node: Option<u32>,
) -> Result<Vec<DeviceOffer<'a>>, UnfitReason> {
    let mut nodes: BTreeMap<u32, Vec<&'a str>> = BTreeMap::new();
    for (id, node) in &found.free {
        if let Some(node) = node {
            nodes.entry(*node).or_default().push(id);
        }
    }
    let free: BTreeMap<u32, usize> = nodes.iter().map(|(node, ids)| (*node, ids.len())).collect();
    let elsewhere = found.free.len().saturating_sub(free.values().sum());
    let usable = nodes.into_iter().filter(|(node, ids)| {
        ids.len() >= count(request) && task_node.is_none_or(|of_task| of_task == *node)
    });
    let everywhere = (None, found.ids().collect());
    let ways = usable.map(|(node, ids)| (Some(node), ids)).chain([everywhere]);
    let mut offers: Vec<DeviceOffer<'a>> = ways
        .filter(|(node, _)| rules::unmet_by_node(group, *node, request).is_empty())
        .map(|(node, free)| DeviceOffer {
            group,
            node,
            free,
            score: rules::score(group, node, request),
        })
        .collect();
    if offers.is_empty() {
        let unmet = rules::unmet_by_node(group, None, request);
        return Err(UnfitReason::Locality { free, elsewhere, task_node, unmet });
    }
    // The sort is stable: among equals the lowest node comes first, and several nodes come last.
    offers.sort_by_key(|offer| std::cmp::Reverse(offer.score));
    Ok(offers)
}

#[derive(Default)]
struct GroupSurvey<'a> {
    /// Healthy and free instances, with the NUMA node where it is known.
    free: BTreeSet<(&'a str, Option<u32>)>,
    held: Vec<HeldInstance>,
    unhealthy: Vec<(String, String)>,
}

impl<'a> GroupSurvey<'a> {
    fn ids(&self) -> impl Iterator<Item = &'a str> {
        self.free.iter().map(|(id, _)| *id)
    }
}

fn survey_group<'a>(
    group: &'a DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
) -> GroupSurvey<'a> {
    let mut found = GroupSurvey::default();
    let mut seen = BTreeSet::new();
    for instance in &group.instances {
        // An id that occurs twice is one instance.
        if !rules::admits(group, request, instance) || !seen.insert(instance.id.as_str()) {
            continue;
        }
        if instance.health.state != HealthState::Healthy {
            found.unhealthy.push((instance.id.clone(), instance.health.reason.clone()));
        } else if let Some(holder) = ledger.holder(&group.key, &instance.id) {
            let (group, id) = (group.key.clone(), instance.id.clone());
            found.held.push(HeldInstance { group, instance: id, holder: holder.clone() });
        } else {
            found.free.insert((&instance.id, node(instance)));
        }
    }
    found
}

fn node(instance: &DeviceInstance) -> Option<u32> {
    instance.locality.as_ref().and_then(|locality| locality.numa_node)
}
