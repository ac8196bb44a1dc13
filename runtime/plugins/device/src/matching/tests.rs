#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;
use ostler_model::attribute::{Attribute, NamedAttribute};
use ostler_model::device::{DeviceInstance, GroupKey, Health, HealthState, Locality};
use ostler_model::ids::PluginName;
use ostler_model::job::{Affinity, Constraint, Operator};

fn key(name: &str) -> GroupKey {
    GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() }
}

fn group(name: &str, ids: &[&str], memory: &str) -> DeviceGroup {
    let instance = |id: &&str| DeviceInstance {
        id: (*id).to_owned(),
        health: Health { state: HealthState::Healthy, reason: String::new() },
        locality: None,
    };
    DeviceGroup {
        key: key(name),
        plugin: PluginName::new("files").unwrap(),
        instances: ids.iter().map(instance).collect(),
        attributes: vec![NamedAttribute {
            name: "memory".into(),
            attribute: Attribute::parse(memory),
        }],
    }
}

fn request(name: &str, count: u32) -> DeviceRequest {
    DeviceRequest { name: name.into(), count, constraints: vec![], affinities: vec![] }
}

fn rule(left: &str, operator: Operator, right: &str) -> Constraint {
    Constraint { left: left.into(), operator, right: right.into() }
}

fn holder() -> InstanceHolder {
    InstanceHolder {
        alloc: AllocId::new(uuid::Uuid::from_u128(7)),
        task: TaskName::new("train").unwrap(),
    }
}

fn ids(result: Result<AllocatedDevice, NoDevice>) -> Vec<String> {
    result.unwrap().ids
}

fn why(result: Result<AllocatedDevice, NoDevice>, name: &str) -> UnfitReason {
    let refusal = result.unwrap_err();
    refusal.candidates.into_iter().find(|c| c.group == key(name)).unwrap().why
}

#[test]
fn a_request_names_type_or_vendor_and_type_or_all_three() {
    let groups = [group("big/2", &["0"], "80 GiB")];
    let free = DeviceLedger::default();
    for name in ["gpu", "acme/gpu", "acme/gpu/big/2"] {
        assert_eq!(ids(choose(&groups, &free, &request(name, 1))), ["0"], "{name}");
    }
    for name in ["acme", "tpu", "other/gpu", "acme/gpu/big", ""] {
        assert_eq!(
            why(choose(&groups, &free, &request(name, 1)), "big/2"),
            UnfitReason::Name,
            "{name}"
        );
    }
}

#[test]
fn two_groups_of_one_are_not_one_group_of_two() {
    let groups = [group("a", &["0"], "1 GiB"), group("b", &["0"], "1 GiB")];
    let refusal = choose(&groups, &DeviceLedger::default(), &request("gpu", 2)).unwrap_err();
    assert_eq!(refusal.candidates.len(), 2);
    for candidate in refusal.candidates {
        assert!(matches!(candidate.why, UnfitReason::TooFew { healthy: 1, free: 1, .. }));
    }
}

#[test]
fn held_and_unhealthy_instances_are_named_with_holder_and_reason() {
    let mut groups = [group("a", &["0", "1", "2"], "1 GiB")];
    groups[0].instances[1].health =
        Health { state: HealthState::Unhealthy, reason: "fan stopped".into() };
    let mut ledger = DeviceLedger::default();
    let taken = AllocatedDevice { group: key("a"), ids: vec!["0".into()] };
    ledger.claim(&holder(), &[taken]).unwrap();
    assert_eq!(ids(choose(&groups, &ledger, &request("gpu", 1))), ["2"]);
    let text = choose(&groups, &ledger, &request("gpu", 2)).unwrap_err().to_string();
    for part in ["2 healthy, 1 free", "0 is held by task train of", "1 is not healthy: fan stopped"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn groups_that_nobody_asked_for_do_not_hide_why_there_is_none() {
    let mut groups = vec![group("a", &["0"], "1 GiB")];
    groups[0].instances[0].health =
        Health { state: HealthState::Unhealthy, reason: "fan stopped".into() };
    for name in ["1", "2"] {
        let key = GroupKey { kind: "network".into(), ..key(name) };
        groups.push(DeviceGroup { key, ..group(name, &["0"], "1 GiB") });
    }
    let refusal = choose(&groups, &DeviceLedger::default(), &request("gpu", 1)).unwrap_err();
    assert_eq!(refusal.candidates.len(), 3, "as data they are all there");
    let text = refusal.to_string();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.contains("acme/gpu/a: 0 healthy, 0 free; 0 is not healthy: fan stopped"),
        "{text}"
    );
}

#[test]
fn constraints_are_explained_with_the_value_of_the_group() {
    let groups = [group("small", &["0"], "16 GiB"), group("large", &["0"], "80 GiB")];
    let free = DeviceLedger::default();
    let mut wanted = request("gpu", 1);
    wanted.constraints = vec![rule("${device.attr.memory}", Operator::GreaterOrEqual, "40 GiB")];
    assert_eq!(choose(&groups, &free, &wanted).unwrap().group, key("large"));
    wanted.constraints.push(rule("${device.model}", Operator::Equal, "small"));
    let text = choose(&groups, &free, &wanted).unwrap_err().to_string();
    assert!(text.contains("${device.attr.memory} is 16 GiB"), "{text}");
    assert!(text.contains("${device.model} is large"), "{text}");
}

#[test]
fn the_highest_affinity_wins_and_ties_go_to_the_first_name() {
    let groups =
        [group("b", &["0"], "16 GiB"), group("c", &["0"], "80 GiB"), group("a", &["0"], "16 GiB")];
    let free = DeviceLedger::default();
    let mut wanted = request("gpu", 1);
    assert_eq!(choose(&groups, &free, &wanted).unwrap().group, key("a"));
    let large = rule("${device.attr.memory}", Operator::Greater, "40 GiB");
    wanted.affinities = vec![Affinity { rule: large.clone(), weight: 50 }];
    assert_eq!(choose(&groups, &free, &wanted).unwrap().group, key("c"));
    wanted.affinities = vec![
        Affinity { rule: large, weight: -50 },
        Affinity { rule: rule("${device.model}", Operator::Equal, "b"), weight: 10 },
    ];
    assert_eq!(choose(&groups, &free, &wanted).unwrap().group, key("b"));
}

#[test]
fn a_rule_on_ids_narrows_the_instances() {
    let groups = [group("a", &["0", "1", "2"], "1 GiB")];
    let free = DeviceLedger::default();
    let mut wanted = request("gpu", 1);
    wanted.constraints = vec![rule("${device.ids}", Operator::SetContainsAny, "2,9")];
    assert_eq!(ids(choose(&groups, &free, &wanted)), ["2"]);
    wanted.constraints = vec![rule("${device.ids}", Operator::SetContainsAll, "2,9")];
    assert!(matches!(why(choose(&groups, &free, &wanted), "a"), UnfitReason::Constraints(_)));
    wanted.constraints = vec![rule("${device.ids}", Operator::NotEqual, "0")];
    assert_eq!(ids(choose(&groups, &free, &wanted)), ["1"]);
    wanted.constraints = vec![rule("${device.ids}", Operator::Equal, "1")];
    wanted.count = 2;
    assert!(matches!(
        why(choose(&groups, &free, &wanted), "a"),
        UnfitReason::TooFew { free: 1, .. }
    ));
}

/// Put instances on NUMA nodes, in their order.
fn on_nodes(mut group: DeviceGroup, nodes: &[u32]) -> DeviceGroup {
    for (instance, node) in group.instances.iter_mut().zip(nodes) {
        instance.locality = Some(Locality { pci_bus_id: None, numa_node: Some(*node) });
    }
    group
}

fn one_node(mut request: DeviceRequest, must: bool) -> DeviceRequest {
    let rule = rule("${device.numa_node}", Operator::IsSet, "");
    if must {
        request.constraints.push(rule);
    } else {
        request.affinities.push(Affinity { rule, weight: 50 });
    }
    request
}

fn together(
    groups: &[DeviceGroup],
    requests: &[(&str, DeviceRequest)],
) -> Vec<Result<Vec<String>, NoDevice>> {
    let tasks: Vec<TaskName> =
        requests.iter().map(|(task, _)| TaskName::new(*task).unwrap()).collect();
    let wanted: Vec<TaskRequest<'_>> = tasks
        .iter()
        .zip(requests)
        .map(|(task, (_, request))| TaskRequest { task, request })
        .collect();
    let chosen = choose_all(groups, &DeviceLedger::default(), holder().alloc, &wanted);
    chosen.into_iter().map(|one| one.map(|device| device.ids)).collect()
}

fn all(results: Vec<Result<Vec<String>, NoDevice>>) -> Vec<Vec<String>> {
    results.into_iter().map(|one| one.unwrap_or_else(|e| panic!("{e}"))).collect()
}

#[test]
fn requests_of_one_allocation_never_share_an_instance() {
    let groups = [group("a", &["0", "1"], "1 GiB")];
    let wanted =
        [("x", request("gpu", 1)), ("x", request("acme/gpu", 1)), ("y", request("gpu", 1))];
    assert_eq!(all(together(&groups, &wanted[..2])), [["0"], ["1"]]);
    let results = together(&groups, &wanted);
    let text = results[2].as_ref().unwrap_err().to_string();
    assert!(text.contains("0 is held by task x of"), "{text}");
}

#[test]
fn a_request_that_can_go_elsewhere_leaves_what_only_another_can_use() {
    let groups = [group("a", &["0"], "80 GiB"), group("b", &["0", "1"], "16 GiB")];
    let mut picky = request("gpu", 1);
    picky.constraints = vec![rule("${device.attr.memory}", Operator::Greater, "40 GiB")];
    let wanted = [("x", request("gpu", 1)), ("y", picky)];
    let groups_of = |groups: &[DeviceGroup]| {
        let tasks = [TaskName::new("x").unwrap(), TaskName::new("y").unwrap()];
        let wanted: Vec<TaskRequest<'_>> = tasks
            .iter()
            .zip(&wanted)
            .map(|(task, (_, request))| TaskRequest { task, request })
            .collect();
        let chosen = choose_all(groups, &DeviceLedger::default(), holder().alloc, &wanted);
        chosen.into_iter().map(|one| one.unwrap().group.name).collect::<Vec<_>>()
    };
    assert_eq!(groups_of(&groups), ["b", "a"]);
    // The same within a group, by ids.
    let groups = [group("a", &["0", "1"], "1 GiB")];
    let mut first = request("gpu", 1);
    first.constraints = vec![rule("${device.ids}", Operator::Equal, "0")];
    assert_eq!(all(together(&groups, &[("x", request("gpu", 1)), ("y", first)])), [["1"], ["0"]]);
}

#[test]
fn an_instance_moves_on_when_only_that_lets_all_have_one() {
    let groups = [group("a", &["1", "2", "3"], "1 GiB")];
    let of = |ids: &str| {
        let mut request = request("gpu", 1);
        request.constraints = vec![rule("${device.ids}", Operator::Regexp, ids)];
        request
    };
    let wanted = [("x", of("[12]")), ("y", of("[13]")), ("z", of("[13]"))];
    let assigned = all(together(&groups, &wanted));
    assert_eq!(assigned[0], ["2"]);
    assert_ne!(assigned[1], assigned[2]);
}

#[test]
fn the_sum_of_all_scores_decides_who_gets_what_both_want() {
    let groups = [group("a", &["0"], "80 GiB"), group("b", &["0"], "16 GiB")];
    let wants = |weight| {
        let mut request = request("gpu", 1);
        let rule = rule("${device.model}", Operator::Equal, "a");
        request.affinities = vec![Affinity { rule, weight }];
        request
    };
    let tasks = [TaskName::new("x").unwrap(), TaskName::new("y").unwrap()];
    let (little, much) = (wants(10), wants(90));
    let wanted = [
        TaskRequest { task: &tasks[0], request: &little },
        TaskRequest { task: &tasks[1], request: &much },
    ];
    let chosen = choose_all(&groups, &DeviceLedger::default(), holder().alloc, &wanted);
    let names: Vec<String> = chosen.into_iter().map(|one| one.unwrap().group.name).collect();
    assert_eq!(names, ["b", "a"]);
}

#[test]
fn instances_of_one_numa_node_are_taken_when_asked_for_and_only_then() {
    let groups = [on_nodes(group("a", &["0", "1", "2"], "1 GiB"), &[0, 1, 1])];
    let free = DeviceLedger::default();
    assert_eq!(ids(choose(&groups, &free, &request("gpu", 2))), ["0", "1"]);
    for must in [true, false] {
        assert_eq!(ids(choose(&groups, &free, &one_node(request("gpu", 2), must))), ["1", "2"]);
    }
    assert_eq!(ids(choose(&groups, &free, &one_node(request("gpu", 3), false))), ["0", "1", "2"]);
    let text = choose(&groups, &free, &one_node(request("gpu", 3), true)).unwrap_err().to_string();
    assert!(text.contains("free are 1 on node 0, 2 on node 1"), "{text}");
    assert!(text.contains("${device.numa_node} is not set"), "{text}");
    let mut named = request("gpu", 1);
    named.constraints = vec![rule("${ device.numa_node }", Operator::Equal, "1")];
    assert_eq!(ids(choose(&groups, &free, &named)), ["1"]);
}

#[test]
fn all_devices_of_a_task_that_ask_for_a_numa_node_are_on_the_same() {
    let gpus = on_nodes(group("a", &["g0", "g1"], "1 GiB"), &[0, 1]);
    let mut cards = on_nodes(group("n", &["n0"], "1 GiB"), &[1]);
    cards.key.kind = "nic".into();
    let groups = [gpus, cards];
    let pair = |task: &'static str, must| {
        [("x", one_node(request("gpu", 1), must)), (task, one_node(request("nic", 1), must))]
    };
    for must in [true, false] {
        assert_eq!(all(together(&groups, &pair("x", must))), [["g1"], ["n0"]], "{must}");
        assert_eq!(all(together(&groups, &pair("y", must))), [["g0"], ["n0"]], "{must}");
    }
    // Nothing of the card is on node 0, so no way is left; the second one says why.
    let mut near = pair("x", true);
    near[0].1.constraints.push(rule("${device.numa_node}", Operator::Equal, "0"));
    let results = together(&groups, &near);
    let text = results[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("another device of the task is on node 0"), "{text}");
}

#[test]
fn an_explanation_names_every_group_with_score_and_reason() {
    let mut tpu = group("t", &["0"], "1 GiB");
    tpu.key.kind = "tpu".into();
    let groups = [
        on_nodes(group("a", &["0", "1"], "80 GiB"), &[1, 1]),
        group("b", &["0", "1"], "48 GiB"),
        group("c", &["0", "1"], "16 GiB"),
        tpu,
    ];
    let mut wanted = request("gpu", 2);
    wanted.constraints = vec![rule("${device.attr.memory}", Operator::Greater, "40 GiB")];
    wanted.affinities =
        vec![Affinity { rule: rule("${device.model}", Operator::Equal, "a"), weight: 30 }];
    let free = DeviceLedger::default();
    let chosen = choose(&groups, &free, &wanted).unwrap();
    let told = explain(&groups, &free, &wanted, Some(&chosen));
    assert_eq!((told.score_max, told.numa_node), (30, Some(1)));
    let seen: Vec<_> =
        told.candidates.iter().map(|c| (c.outcome, c.score, c.free, c.why.as_str())).collect();
    assert_eq!(seen[0], (DeviceOutcome::Chosen, Some(30), Some(2), "assigns 0, 1, NUMA node 1"));
    let better = "fits; acme/gpu/a has the higher score";
    assert_eq!(seen[1], (DeviceOutcome::Fits, Some(0), Some(2), better));
    assert_eq!((seen[2].0, seen[2].1), (DeviceOutcome::Unfit, None));
    assert!(seen[2].3.contains("${device.attr.memory} is 16 GiB"), "{}", seen[2].3);
    assert_eq!(seen[3].0, DeviceOutcome::OtherName);
    assert!(told.candidates[0].affinities[0].holds);
    assert!(told.candidates[1].affinities[0].why.contains("${device.model} is b"));
}

#[test]
fn a_node_without_devices_says_so() {
    let text = choose(&[], &DeviceLedger::default(), &request("gpu", 1)).unwrap_err().to_string();
    assert!(text.contains("the node has no devices"), "{text}");
}

proptest! {
    #[test]
    fn what_is_chosen_can_always_be_claimed_and_does_not_depend_on_the_order(
        sizes in prop::collection::vec(0_usize..4, 0..4),
        counts in prop::collection::vec(1_u32..4, 0..6),
    ) {
        let names = ["0", "1", "2", "3"];
        let groups: Vec<DeviceGroup> = sizes
            .iter().enumerate().map(|(at, size)| group(names[at], &names[..*size], "1 W")).collect();
        let mut reversed: Vec<DeviceGroup> = groups.iter().rev().cloned().collect();
        reversed.iter_mut().for_each(|group| group.instances.reverse());
        let mut ledger = DeviceLedger::default();
        for count in counts {
            let wanted = request("gpu", count);
            let chosen = choose(&groups, &ledger, &wanted);
            prop_assert_eq!(&chosen.clone().ok(), &choose(&reversed, &ledger, &wanted).ok());
            match chosen {
                Ok(device) => {
                    prop_assert_eq!(device.ids.len(), count as usize);
                    prop_assert!(ledger.claim(&holder(), &[device]).is_ok());
                }
                Err(refusal) => {
                    let small = |candidate: &UnfitGroup| {
                        matches!(candidate.why, UnfitReason::TooFew { free, .. } if free < count as usize)
                    };
                    prop_assert!(refusal.candidates.iter().all(small), "a group had enough");
                }
            }
        }
    }
}

#[test]
fn a_refusal_names_groups_like_what_was_asked_for_and_counts_the_others() {
    let of = |vendor: &str, kind: &str| DeviceGroup {
        key: GroupKey { vendor: vendor.into(), kind: kind.into(), name: "x".into() },
        ..group("x", &["0"], "1 GiB")
    };
    let told = |groups: &[DeviceGroup]| {
        let wanted = request("nvidia/gpu", 1);
        choose(groups, &DeviceLedger::default(), &wanted).unwrap_err().to_string()
    };
    let strange = [of("intel", "bridge"), of("ostler", "sensor"), of("ostler", "net")];
    assert_eq!(
        told(&strange),
        "no plugin offers nvidia/gpu; none of the 3 groups of devices is of that vendor or type"
    );
    let near = [strange.as_slice(), &[of("acme", "gpu"), of("nvidia", "nic")]].concat();
    assert_eq!(
        told(&near),
        "no plugin offers nvidia/gpu; there are acme/gpu/x, nvidia/nic/x, and 3 groups of other kinds"
    );
    assert_eq!(told(&strange[..1]), "no plugin offers nvidia/gpu; there is intel/bridge/x");
}

#[test]
fn a_reason_that_many_instances_share_is_said_once() {
    let mut groups = [group("a", &["0", "1"], "1 GiB"), group("b", &["2", "3"], "1 GiB")];
    for instance in groups.iter_mut().flat_map(|group| &mut group.instances) {
        instance.health =
            Health { state: HealthState::Unhealthy, reason: "its plugin is quarantined".into() };
    }
    groups[1].instances[1].health.reason = "fan stopped".into();
    let wanted = request("gpu", 1);
    let text = choose(&groups, &DeviceLedger::default(), &wanted).unwrap_err().to_string();
    assert_eq!(
        text,
        "no device \"gpu\" for 1 instance\n\
         - acme/gpu/a: 0 healthy, 0 free; 0, 1 are not healthy: its plugin is quarantined\n\
         - acme/gpu/b: 0 healthy, 0 free; 2 is not healthy, for the same reason; 3 is not healthy: fan stopped"
    );
}
