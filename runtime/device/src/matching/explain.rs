//! Why each group fits a request or not: what a person asks of a plan.

use serde::{Deserialize, Serialize};

use super::{offer, rules, sorted};
use crate::ledger::DeviceLedger;
use ostler_model::device::{DeviceGroup, GroupKey};
use ostler_model::resources::{AllocatedDevice, DeviceRequest};
use ostler_node::constraint::written;

/// A request, every group of the node, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The name asked for.
    pub request: String,
    /// Instances asked for.
    pub count: u32,
    /// What it gets; absent: nothing fits.
    pub chosen: Option<AllocatedDevice>,
    /// The NUMA node of all instances it gets; absent where they are of several or it is not known.
    pub numa_node: Option<u32>,
    /// Sum of the sizes of all affinity weights: the score lies between minus this and this.
    pub score_max: i64,
    /// Every group of the node, by name.
    pub candidates: Vec<DeviceCandidate>,
}

/// A group that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCandidate {
    /// The group.
    pub group: GroupKey,
    /// What came of it.
    pub outcome: DeviceOutcome,
    /// Why, for people.
    pub why: String,
    /// Sum of the weights of the affinities that hold; absent for a group that does not fit.
    pub score: Option<i64>,
    /// Instances it could assign, before other requests of the allocation are thought of; absent for
    /// a group that does not fit.
    pub free: Option<usize>,
    /// Each affinity of the request; empty for a group that does not fit.
    pub affinities: Vec<DeviceAffinity>,
}

/// What came of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceOutcome {
    /// The instances come from it.
    Chosen,
    /// It could serve the request, and another does.
    Fits,
    /// It has what was asked for by name and cannot serve the request now.
    Unfit,
    /// It is something else.
    OtherName,
}

/// Whether an affinity holds for a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceAffinity {
    /// As in the job file: `${device.attr.memory} >= 40 GiB`.
    pub rule: String,
    /// -100 to 100.
    pub weight: i8,
    /// Its weight counts.
    pub holds: bool,
    /// Why not; empty when it holds.
    pub why: String,
}

/// Explain a request that was decided: `chosen` is what it got, `ledger` what was held before.
#[must_use]
pub fn explain(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    chosen: Option<&AllocatedDevice>,
) -> Explained {
    let (node, group) = chosen.map_or((None, None), |device| {
        let group = groups.iter().find(|group| group.key == device.group);
        (group.and_then(|group| shared_node(group, device)), group)
    });
    let asked = rules::asks_for_node(request);
    let score = group.map(|group| rules::score(group, node.filter(|_| asked), request));
    let candidates = sorted(groups).into_iter();
    let weights = request.affinities.iter().map(|affinity| i64::from(affinity.weight).abs());
    Explained {
        request: request.name.clone(),
        count: request.count,
        chosen: chosen.cloned(),
        numa_node: node,
        score_max: weights.sum(),
        candidates: candidates
            .map(|group| match chosen.zip(score).filter(|(device, _)| device.group == group.key) {
                Some((device, score)) => taken(group, ledger, request, device, (node, score)),
                None => not_taken(group, ledger, request, chosen.zip(score)),
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

fn taken(
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
    let free = offer::of_group(group, ledger, request, None).ok();
    DeviceCandidate {
        group: group.key.clone(),
        outcome: DeviceOutcome::Chosen,
        why: format!("assigns {}{place}", device.ids.join(", ")),
        score: Some(score),
        free: free.and_then(|offers| offers.iter().map(|offer| offer.free.len()).max()),
        affinities: affinities(group, node.filter(|_| asked), request),
    }
}

fn not_taken(
    group: &DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    winner: Option<(&AllocatedDevice, i64)>,
) -> DeviceCandidate {
    let key = group.key.clone();
    let offers = match offer::of_group(group, ledger, request, None) {
        Ok(offers) => offers,
        Err(why) => {
            let outcome = match why {
                super::Unfit::Name => DeviceOutcome::OtherName,
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
        // A request of the allocation that fits nowhere else, or that it suits more.
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
        rule: written(&affinity.rule),
        weight: affinity.weight,
        holds: unmet.is_none(),
        why: unmet.map(|unmet| unmet.to_string()).unwrap_or_default(),
    });
    results.collect()
}
