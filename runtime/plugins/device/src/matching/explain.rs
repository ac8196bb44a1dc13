//! Why each group fits a request or not: what a person asks of a plan.

use serde::{Deserialize, Serialize};

use super::{offer, rules, sort_groups};
use crate::ledger::DeviceLedger;
use ostler_model::device::{DeviceGroup, GroupKey};
use ostler_model::resources::{AllocatedDevice, DeviceRequest};
use ostler_node::constraint::constraint_text;

/// A request, every group of the node, and the decision about each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestExplanation {
    /// The name that the request asks for.
    pub request: String,
    /// Number of instances asked for.
    pub count: u32,
    /// The instances it gets; absent: nothing fits.
    pub chosen: Option<AllocatedDevice>,
    /// The NUMA node of all instances it gets; absent where they are on several nodes or it
    /// is not known.
    pub numa_node: Option<u32>,
    /// Sum of the absolute values of all affinity weights: the score is between minus this
    /// and plus this.
    pub score_max: i64,
    /// Every group of the node with the decision, by name.
    pub candidates: Vec<DeviceCandidate>,
}

/// One group, and the decision about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCandidate {
    /// Name of the group.
    pub group: GroupKey,
    /// The decision about the group.
    pub outcome: DeviceOutcome,
    /// The reason of the decision, for people.
    pub why: String,
    /// Sum of the weights of the affinities that hold; absent for a group that does not fit.
    pub score: Option<i64>,
    /// Number of instances it could assign, before other requests of the allocation are considered;
    /// absent for a group that does not fit.
    pub free: Option<usize>,
    /// Every affinity of the request; empty for a group that does not fit.
    pub affinities: Vec<DeviceAffinity>,
}

/// The decision about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceOutcome {
    /// The instances come from this group.
    Chosen,
    /// The group could serve the request, but another one does.
    Fits,
    /// The group has the name that was asked for, but cannot serve the request now.
    Unfit,
    /// The group does not have the name that was asked for.
    OtherName,
}

/// Whether an affinity holds for a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceAffinity {
    /// The rule as the job file states it: `${device.attr.memory} >= 40 GiB`.
    pub rule: String,
    /// The weight from the job file, -100 to 100.
    pub weight: i8,
    /// The affinity holds, so its weight counts.
    pub holds: bool,
    /// The reason why it does not hold; empty when it holds.
    pub why: String,
}

/// Explain a request that was decided: `chosen` is what it got, `ledger` what was held before.
#[must_use]
pub fn explain(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    chosen: Option<&AllocatedDevice>,
) -> RequestExplanation {
    let (node, group) = chosen.map_or((None, None), |device| {
        let group = groups.iter().find(|group| group.key == device.group);
        (group.and_then(|group| shared_node(group, device)), group)
    });
    let asked = rules::asks_for_node(request);
    let score = group.map(|group| rules::score(group, node.filter(|_| asked), request));
    let candidates = sort_groups(groups).into_iter();
    let weights = request.affinities.iter().map(|affinity| i64::from(affinity.weight).abs());
    RequestExplanation {
        request: request.name.clone(),
        count: request.count,
        chosen: chosen.cloned(),
        numa_node: node,
        score_max: weights.sum(),
        candidates: candidates
            .map(|group| match chosen.zip(score).filter(|(device, _)| device.group == group.key) {
                Some((device, score)) => {
                    chosen_candidate(group, ledger, request, device, (node, score))
                }
                None => other_candidate(group, ledger, request, chosen.zip(score)),
            })
            .collect(),
    }
}

/// The NUMA node of all instances of `device`.
fn shared_node(group: &DeviceGroup, device: &AllocatedDevice) -> Option<u32> {
    let node_of = |id: &String| {
        let instance = group.instances.iter().find(|instance| &instance.id == id)?;
        instance.locality.as_ref()?.numa_node
    };
    let mut nodes = device.ids.iter().map(node_of);
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

fn chosen_candidate(
    group: &DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    device: &AllocatedDevice,
    (node, score): (Option<u32>, i64),
) -> DeviceCandidate {
    let asked = rules::asks_for_node(request);
    let place = match node {
        Some(node) if asked || device.ids.len() > 1 => format!(", NUMA node {node}"),
        None if asked => ", on no one NUMA node".to_owned(),
        _ => String::new(),
    };
    let free = offer::offers_of_group(group, ledger, request, None).ok();
    DeviceCandidate {
        group: group.key.clone(),
        outcome: DeviceOutcome::Chosen,
        why: format!("assigns {}{place}", device.ids.join(", ")),
        score: Some(score),
        free: free.and_then(|offers| offers.iter().map(|offer| offer.free.len()).max()),
        affinities: affinities(group, node.filter(|_| asked), request),
    }
}

fn other_candidate(
    group: &DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    winner: Option<(&AllocatedDevice, i64)>,
) -> DeviceCandidate {
    let key = group.key.clone();
    let offers = match offer::offers_of_group(group, ledger, request, None) {
        Ok(offers) => offers,
        Err(why) => {
            let outcome = match why {
                super::UnfitReason::Name => DeviceOutcome::OtherName,
                _ => DeviceOutcome::Unfit,
            };
            let why = why.to_string();
            return DeviceCandidate {
                group: key,
                outcome,
                why,
                score: None,
                free: None,
                affinities: Vec::new(),
            };
        }
    };
    let best = offers.first();
    let score = best.map_or(0, |offer| offer.score);
    let why = match winner {
        Some((device, most)) if score < most => {
            format!("fits; {} has the higher score", device.group)
        }
        Some((device, most)) if score == most && device.group < key => {
            format!("fits as well; {} is first by name", device.group)
        }
        // A request of the allocation needs this group because nothing else fits it, or because it
        // suits that request better.
        Some(_) => "fits; another request of the allocation needs it".to_owned(),
        None => "fits, but not together with the other requests of the allocation".to_owned(),
    };
    let affinities = affinities(group, best.and_then(|offer| offer.node), request);
    let free = offers.iter().map(|offer| offer.free.len()).max();
    DeviceCandidate {
        group: key,
        outcome: DeviceOutcome::Fits,
        why,
        score: Some(score),
        free,
        affinities,
    }
}

fn affinities(
    group: &DeviceGroup,
    node: Option<u32>,
    request: &DeviceRequest,
) -> Vec<DeviceAffinity> {
    let results = rules::affinities(group, node, request).map(|(affinity, unmet)| DeviceAffinity {
        rule: constraint_text(&affinity.rule),
        weight: affinity.weight,
        holds: unmet.is_none(),
        why: unmet.map(|unmet| unmet.to_string()).unwrap_or_default(),
    });
    results.collect()
}
