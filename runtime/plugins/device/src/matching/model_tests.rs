//! [`choose_all`] against a model that tries everything.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use ostler_model::attribute::{Attribute, NamedAttribute};
use ostler_model::device::{DeviceInstance, GroupKey, Health, HealthState, Locality};
use ostler_model::ids::PluginName;
use ostler_model::job::{Affinity, Constraint, Operator};

/// An instance: healthy, held by somebody, NUMA node.
type Part = (bool, bool, Option<u32>);

/// A request in plain terms.
#[derive(Clone, Debug)]
struct Plain {
    task: usize,
    count: usize,
    /// Only this group.
    group: Option<usize>,
    /// At least this many GiB.
    memory: Option<u64>,
    /// Only these instances.
    ids: Option<BTreeSet<usize>>,
    node: NodeWish,
    /// Weight for group 1.
    likes: Option<i8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum NodeWish {
    Any,
    One,
    This(u32),
    Prefer(i8),
}

/// A way to serve one request.
struct Way {
    group: usize,
    ids: BTreeSet<usize>,
    node: Option<u32>,
    score: i64,
}

const MEMORY: [u64; 2] = [80, 16];

fn ways(groups: &[Vec<Part>], plain: &Plain) -> Vec<Way> {
    let mut ways = Vec::new();
    for (at, parts) in groups.iter().enumerate() {
        let fits = plain.group.is_none_or(|only| only == at)
            && plain.memory.is_none_or(|least| MEMORY[at] >= least);
        let usable = |id: &usize| {
            let (healthy, held, _) = parts[*id];
            healthy && !held && plain.ids.as_ref().is_none_or(|ids| ids.contains(id))
        };
        for set in 0_u32..1 << parts.len() {
            let ids: BTreeSet<usize> = (0..parts.len()).filter(|id| set & (1 << id) != 0).collect();
            if !fits || ids.len() != plain.count || !ids.iter().all(usable) {
                continue;
            }
            let nodes: BTreeSet<Option<u32>> = ids.iter().map(|id| parts[*id].2).collect();
            let shared = nodes.first().copied().flatten().filter(|_| nodes.len() == 1);
            let asks = plain.node != NodeWish::Any;
            for node in [None, shared.filter(|_| asks)] {
                let admitted = match plain.node {
                    NodeWish::Any | NodeWish::Prefer(_) => true,
                    NodeWish::One => node.is_some(),
                    NodeWish::This(wanted) => node == Some(wanted),
                };
                if !admitted {
                    continue;
                }
                let likes = plain.likes.filter(|_| at == 1).map_or(0, i64::from);
                let near = match plain.node {
                    NodeWish::Prefer(weight) if node.is_some() => i64::from(weight),
                    _ => 0,
                };
                ways.push(Way { group: at, ids: ids.clone(), node, score: likes + near });
            }
        }
    }
    ways
}

/// The highest sum of scores over all ways that can stand together.
fn best(all: &[(usize, Vec<Way>)]) -> Option<i64> {
    fn go<'a>(all: &'a [(usize, Vec<Way>)], taken: &mut Vec<(usize, &'a Way)>) -> Option<i64> {
        let Some(((task, ways), rest)) = all.split_first() else { return Some(0) };
        let mut best = None;
        for way in ways {
            let clash = taken.iter().any(|(other, before)| {
                let same = before.group == way.group && !before.ids.is_disjoint(&way.ids);
                let far = other == task
                    && before.node.is_some()
                    && way.node.is_some()
                    && before.node != way.node;
                same || far
            });
            if clash {
                continue;
            }
            taken.push((*task, way));
            best = best.max(go(rest, taken).map(|score| score + way.score));
            taken.pop();
        }
        best
    }
    go(all, &mut Vec::new())
}

fn real_groups(groups: &[Vec<Part>]) -> Vec<DeviceGroup> {
    let group = |(at, parts): (usize, &Vec<Part>)| DeviceGroup {
        key: key(at),
        plugin: PluginName::new("files").unwrap(),
        instances: parts
            .iter()
            .enumerate()
            .map(|(id, (healthy, _, node))| DeviceInstance {
                id: id.to_string(),
                health: Health {
                    state: if *healthy { HealthState::Healthy } else { HealthState::Unhealthy },
                    reason: String::new(),
                },
                locality: Some(Locality { pci_bus_id: None, numa_node: *node }),
            })
            .collect(),
        attributes: vec![NamedAttribute {
            name: "memory".into(),
            attribute: Attribute::parse(&format!("{} GiB", MEMORY[at])),
        }],
    };
    groups.iter().enumerate().map(group).collect()
}

fn key(at: usize) -> GroupKey {
    GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: format!("m{at}") }
}

fn real_ledger(groups: &[Vec<Part>]) -> DeviceLedger {
    let mut ledger = DeviceLedger::default();
    let other = AllocId::new(uuid::Uuid::from_u128(9));
    let holder = InstanceHolder { alloc: other, task: TaskName::new("other").unwrap() };
    for (at, parts) in groups.iter().enumerate() {
        let held = parts.iter().enumerate().filter(|(_, part)| part.1);
        let ids = held.map(|(id, _)| id.to_string()).collect();
        ledger.claim(&holder, &[AllocatedDevice { group: key(at), ids }]).unwrap();
    }
    ledger
}

fn real_request(plain: &Plain) -> DeviceRequest {
    let rule =
        |left: &str, operator, right: String| Constraint { left: left.into(), operator, right };
    let mut constraints = Vec::new();
    // Not in GiB, so that units are compared as well.
    constraints.extend(plain.memory.map(|least| {
        let text = format!("{} MiB", least * 1024);
        rule("${device.attr.memory}", Operator::GreaterOrEqual, text)
    }));
    // `set_contains_any` asks for one that is there at all, and narrows to those listed.
    constraints.extend(plain.ids.as_ref().map(|ids| {
        let list: Vec<String> = ids.iter().map(ToString::to_string).collect();
        rule("${device.ids}", Operator::Regexp, format!("^({})$", list.join("|")))
    }));
    let node = |operator, right: String| rule("${device.numa_node}", operator, right);
    let mut affinities = Vec::new();
    match plain.node {
        NodeWish::Any => {}
        NodeWish::One => constraints.push(node(Operator::IsSet, String::new())),
        NodeWish::This(wanted) => constraints.push(node(Operator::Equal, wanted.to_string())),
        NodeWish::Prefer(weight) => {
            affinities.push(Affinity { rule: node(Operator::IsSet, String::new()), weight });
        }
    }
    affinities.extend(plain.likes.map(|weight| {
        let rule = rule("${device.model}", Operator::Equal, "m1".into());
        Affinity { rule, weight }
    }));
    let name = plain.group.map_or_else(|| "gpu".to_owned(), |at| format!("acme/gpu/m{at}"));
    DeviceRequest { name, count: u32::try_from(plain.count).unwrap(), constraints, affinities }
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let node = prop_oneof![Just(None), Just(Some(0)), Just(Some(1))];
    let part = (prop::bool::weighted(0.9), prop::bool::weighted(0.1), node);
    prop::collection::vec(part, 0..5)
}

fn plain() -> impl Strategy<Value = Plain> {
    let node = prop_oneof![
        Just(NodeWish::Any),
        Just(NodeWish::One),
        (0_u32..2).prop_map(NodeWish::This),
        prop_oneof![Just(40_i8), Just(-40_i8)].prop_map(NodeWish::Prefer),
    ];
    let ids = prop::collection::btree_set(0_usize..4, 1..4);
    (
        0_usize..2,
        1_usize..3,
        prop::option::weighted(0.3, 0_usize..2),
        prop::option::weighted(0.3, prop_oneof![Just(16_u64), Just(17), Just(80)]),
        prop::option::weighted(0.3, ids),
        node,
        prop::option::of(prop_oneof![Just(50_i8), Just(-50_i8)]),
    )
        .prop_map(|(task, count, group, memory, ids, node, likes)| Plain {
            task,
            count,
            group,
            memory,
            ids,
            node,
            likes,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn requests_are_served_together_exactly_when_they_can_be_and_as_well_as_they_can_be(
        groups in prop::collection::vec(parts(), 2),
        plain in prop::collection::vec(plain(), 1..4),
    ) {
        let tasks = [TaskName::new("x").unwrap(), TaskName::new("y").unwrap()];
        let requests: Vec<DeviceRequest> = plain.iter().map(real_request).collect();
        let wanted: Vec<TaskRequest<'_>> = plain
            .iter()
            .zip(&requests)
            .map(|(plain, request)| TaskRequest { task: &tasks[plain.task], request })
            .collect();
        let alloc = AllocId::new(uuid::Uuid::from_u128(7));
        let mut ledger = real_ledger(&groups);
        let chosen = choose_all(&real_groups(&groups), &ledger, alloc, &wanted);
        prop_assert_eq!(chosen.len(), plain.len());

        let mut all: Vec<(usize, Vec<Way>)> =
            plain.iter().map(|plain| (plain.task, ways(&groups, plain))).collect();
        let most = best(&all);
        let served: Option<Vec<AllocatedDevice>> = chosen.into_iter().map(Result::ok).collect();
        prop_assert_eq!(served.is_some(), most.is_some(), "{:?}", most);
        if let Some(served) = served {
            for ((_, ways), device) in all.iter_mut().zip(&served) {
                let ids: BTreeSet<usize> = device.ids.iter().map(|id| id.parse().unwrap()).collect();
                ways.retain(|way| key(way.group) == device.group && way.ids == ids);
            }
            prop_assert_eq!(best(&all), most, "{:?}", &served);
            for (wanted, device) in wanted.iter().zip(served) {
                let holder = InstanceHolder { alloc, task: wanted.task.clone() };
                prop_assert!(ledger.claim(&holder, &[device]).is_ok());
            }
        }
    }
}
