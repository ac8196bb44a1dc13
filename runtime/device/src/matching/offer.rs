//! What a group could give a request, before other requests are thought of.

use std::collections::{BTreeMap, BTreeSet};

use super::rules;
use super::unfit::Unfit;
use crate::ledger::{DeviceLedger, HeldInstance};
use ostler_model::device::{DeviceGroup, DeviceInstance, HealthState};
use ostler_model::resources::DeviceRequest;

/// A way to serve a request from one group.
#[derive(Clone, Debug)]
pub(super) struct Offer<'a> {
    pub group: &'a DeviceGroup,
    /// The NUMA node of all of `free`; `None` where it was not asked for, or they are of several.
    pub node: Option<u32>,
    /// Ids that may be assigned: at least as many as asked for, sorted, each once.
    pub free: Vec<&'a str>,
    /// Sum of the weights of the affinities that hold.
    pub score: i64,
}

/// The ways in which a group can serve a request: one, or, when the request says something of the
/// NUMA node, one for each node and one for instances of several nodes. Best first.
///
/// `task_node`: the node of another request of the task that asks for one; no other will do.
pub(super) fn of_group<'a>(
    group: &'a DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    task_node: Option<u32>,
) -> Result<Vec<Offer<'a>>, Unfit> {
    if !group.key.matches(&request.name) {
        return Err(Unfit::Name);
    }
    let unmet = rules::unmet_by_group(group, request);
    if !unmet.is_empty() {
        return Err(Unfit::Constraints(unmet));
    }
    let found = survey(group, ledger, request);
    let wanted = count(request);
    if found.free.len() < wanted {
        return Err(Unfit::TooFew {
            healthy: found.free.len().saturating_add(found.held.len()),
            free: found.free.len(),
            held: found.held,
            unhealthy: found.unhealthy,
        });
    }
    if !rules::asks_for_node(request) {
        let score = rules::score(group, None, request);
        return Ok(vec![Offer { group, node: None, free: found.ids().collect(), score }]);
    }
    by_node(group, &found, request, task_node)
}

/// Instances asked for.
pub(super) fn count(request: &DeviceRequest) -> usize {
    usize::try_from(request.count).unwrap_or(usize::MAX)
}

fn by_node<'a>(
    group: &'a DeviceGroup,
    found: &Survey<'a>,
    request: &DeviceRequest,
    task_node: Option<u32>,
) -> Result<Vec<Offer<'a>>, Unfit> {
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
    let mut offers: Vec<Offer<'a>> = ways
        .filter(|(node, _)| rules::unmet_by_node(group, *node, request).is_empty())
        .map(|(node, free)| Offer { group, node, free, score: rules::score(group, node, request) })
        .collect();
    if offers.is_empty() {
        let unmet = rules::unmet_by_node(group, None, request);
        return Err(Unfit::Locality { free, elsewhere, task_node, unmet });
    }
    // Stable: the lowest node first among equals, several nodes last.
    offers.sort_by_key(|offer| std::cmp::Reverse(offer.score));
    Ok(offers)
}

#[derive(Default)]
struct Survey<'a> {
    /// Healthy and free, with the NUMA node where it is known.
    free: BTreeSet<(&'a str, Option<u32>)>,
    held: Vec<HeldInstance>,
    unhealthy: Vec<(String, String)>,
}

impl<'a> Survey<'a> {
    fn ids(&self) -> impl Iterator<Item = &'a str> {
        self.free.iter().map(|(id, _)| *id)
    }
}

fn survey<'a>(
    group: &'a DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
) -> Survey<'a> {
    let mut found = Survey::default();
    let mut seen = BTreeSet::new();
    for instance in &group.instances {
        // An id that is there twice is one instance.
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
