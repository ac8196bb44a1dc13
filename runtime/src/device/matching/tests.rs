#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;
use crate::model::attribute::NamedAttribute;
use crate::model::device::Health;
use crate::model::ids::{AllocId, PluginName, TaskName};
use crate::model::job::Affinity;

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

fn holder() -> Holder {
    Holder { alloc: AllocId::new(uuid::Uuid::from_u128(7)), task: TaskName::new("train").unwrap() }
}

fn ids(result: Result<AllocatedDevice, NoDevice>) -> Vec<String> {
    result.unwrap().ids
}

fn why(result: Result<AllocatedDevice, NoDevice>, name: &str) -> Unfit {
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
        assert_eq!(why(choose(&groups, &free, &request(name, 1)), "big/2"), Unfit::Name, "{name}");
    }
}

#[test]
fn two_groups_of_one_are_not_one_group_of_two() {
    let groups = [group("a", &["0"], "1 GiB"), group("b", &["0"], "1 GiB")];
    let refusal = choose(&groups, &DeviceLedger::default(), &request("gpu", 2)).unwrap_err();
    assert_eq!(refusal.candidates.len(), 2);
    for candidate in refusal.candidates {
        assert!(matches!(candidate.why, Unfit::TooFew { healthy: 1, free: 1, .. }));
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
    assert!(matches!(why(choose(&groups, &free, &wanted), "a"), Unfit::Constraints(_)));
    wanted.constraints = vec![rule("${device.ids}", Operator::NotEqual, "0")];
    assert_eq!(ids(choose(&groups, &free, &wanted)), ["1"]);
    wanted.constraints = vec![rule("${device.ids}", Operator::Equal, "1")];
    wanted.count = 2;
    assert!(matches!(why(choose(&groups, &free, &wanted), "a"), Unfit::TooFew { free: 1, .. }));
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
                    let small = |candidate: &Candidate| {
                        matches!(candidate.why, Unfit::TooFew { free, .. } if free < count as usize)
                    };
                    prop_assert!(refusal.candidates.iter().all(small), "a group had enough");
                }
            }
        }
    }
}
