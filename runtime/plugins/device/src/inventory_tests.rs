//! Who owns what, whatever plugins say.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::*;

fn plugin(name: &str) -> PluginName {
    PluginName::new(name).unwrap()
}

fn key(name: &str) -> GroupKey {
    GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() }
}

fn group(owner: &str, name: &str) -> DeviceGroup {
    DeviceGroup {
        key: key(name),
        plugin: plugin(owner),
        instances: vec![DeviceInstance { id: "0".into(), health: healthy(), locality: None }],
        attributes: vec![],
    }
}

fn healthy() -> Health {
    Health { state: HealthState::Healthy, reason: String::new() }
}

fn unhealthy(reason: &str) -> Health {
    Health { state: HealthState::Unhealthy, reason: reason.to_owned() }
}

/// A healthy plugin to whom nothing is granted more narrowly than to others.
fn found(inventory: &mut Inventory, who: &str, groups: Vec<DeviceGroup>) -> GroupChanges {
    inventory.record_answer(&plugin(who), healthy(), groups, |_| 0)
}

fn owners(inventory: &Inventory) -> Vec<(String, String)> {
    let groups = inventory.groups().into_iter();
    groups.map(|group| (group.key.name, group.plugin.to_string())).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn a_group_of_two_plugins_is_the_first_ones_until_it_no_longer_reports_it() {
    let mut inventory = Inventory::default();
    found(&mut inventory, "q", vec![group("q", "a")]);
    let moved = found(&mut inventory, "p", vec![group("p", "a"), group("p", "b")]);
    assert_eq!(moved.left_out, [(key("a"), plugin("q"))]);
    assert_eq!(owners(&inventory), pairs(&[("a", "q"), ("b", "p")]));
    found(&mut inventory, "q", vec![group("q", "a")]);
    assert_eq!(owners(&inventory), pairs(&[("a", "q"), ("b", "p")]), "it stays with q");
    let moved = found(&mut inventory, "q", vec![]);
    assert_eq!(moved.passed_on, [(key("a"), plugin("p"))]);
    assert_eq!(owners(&inventory), pairs(&[("a", "p"), ("b", "p")]), "at once, p is not asked");
    let moved = found(&mut inventory, "q", vec![group("q", "a")]);
    assert_eq!(moved.left_out, [(key("a"), plugin("p"))], "now p was first");
}

#[test]
fn a_group_belongs_to_the_plugin_to_whom_it_is_granted_most_narrowly_whoever_comes_first() {
    let mut inventory = Inventory::default();
    inventory.record_answer(
        &plugin("any"),
        healthy(),
        vec![group("any", "a"), group("any", "b")],
        |_| 1,
    );
    let moved = inventory.record_answer(&plugin("own"), healthy(), vec![group("own", "a")], |_| 9);
    assert_eq!(moved.passed_on, [(key("a"), plugin("own"))]);
    assert_eq!(owners(&inventory), pairs(&[("a", "own"), ("b", "any")]));
    let again = vec![group("any", "a"), group("any", "b")];
    let moved = inventory.record_answer(&plugin("any"), healthy(), again, |_| 1);
    assert_eq!(moved.left_out, [(key("a"), plugin("own"))]);
    inventory.record_failure(&plugin("own"), "it trapped");
    assert_eq!(owners(&inventory), pairs(&[("a", "own"), ("b", "any")]), "it may come back");
    found(&mut inventory, "own", vec![]);
    assert_eq!(owners(&inventory), pairs(&[("a", "any"), ("b", "any")]));
}

#[test]
fn only_an_answer_that_is_the_last_one_again_is_no_news() {
    let mut inventory = Inventory::default();
    let answer = [group("p", "a"), group("p", "b")];
    assert!(!inventory.is_latest_answer(&plugin("p"), &healthy(), &answer), "it has said nothing");
    assert!(
        !inventory.is_latest_answer(&plugin("p"), &healthy(), &[]),
        "not even that it has none"
    );
    found(&mut inventory, "p", answer.to_vec());
    assert!(inventory.is_latest_answer(&plugin("p"), &healthy(), &answer));
    assert!(!inventory.is_latest_answer(&plugin("q"), &healthy(), &answer), "another one");
    assert!(!inventory.is_latest_answer(&plugin("p"), &healthy(), &answer[..1]), "one is gone");
    let mut ill = answer.to_vec();
    ill[1].instances[0].health.state = HealthState::Unhealthy;
    assert!(!inventory.is_latest_answer(&plugin("p"), &healthy(), &ill), "one is ill");
    inventory.record_failure(&plugin("p"), "it trapped");
    assert!(!inventory.is_latest_answer(&plugin("p"), &healthy(), &answer), "it comes back");
    assert!(
        !inventory.is_latest_answer(&plugin("p"), &unhealthy("it trapped"), &answer),
        "it says so itself"
    );
    inventory.record_answer(&plugin("p"), unhealthy("hot"), answer.to_vec(), |_| 0);
    assert!(inventory.is_latest_answer(&plugin("p"), &unhealthy("hot"), &answer));
    assert!(
        !inventory.is_latest_answer(&plugin("p"), &unhealthy("wet"), &answer),
        "for another reason"
    );
}

#[test]
fn a_plugin_that_fails_keeps_its_groups_unhealthy_and_touches_no_others() {
    let mut inventory = Inventory::default();
    found(&mut inventory, "p", vec![group("p", "a")]);
    found(&mut inventory, "q", vec![group("q", "a"), group("q", "b")]);
    inventory.record_failure(&plugin("p"), "it trapped");
    let groups = inventory.groups();
    assert_eq!(owners(&inventory), pairs(&[("a", "p"), ("b", "q")]));
    let health = &groups[0].instances[0].health;
    assert_eq!((health.state, health.reason.as_str()), (HealthState::Unhealthy, "it trapped"));
    assert_eq!(groups[1].instances[0].health.state, HealthState::Healthy);
    let states: Vec<_> = inventory.plugins().into_values().map(|health| health.state).collect();
    assert_eq!(states, [HealthState::Unhealthy, HealthState::Healthy]);
    found(&mut inventory, "p", vec![group("p", "a")]);
    assert_eq!(inventory.groups()[0].instances[0].health.state, HealthState::Healthy);
    inventory.record_failure(&plugin("never-answered"), "it hangs");
    assert_eq!(inventory.groups().len(), 2);
}

#[test]
fn a_plugin_that_says_it_is_unhealthy_says_so_of_each_of_its_instances() {
    let mut inventory = Inventory::default();
    let held = (key("a"), ["0".to_owned()]);
    inventory.record_answer(&plugin("p"), unhealthy("being updated"), vec![group("p", "a")], |_| 0);
    assert_eq!(inventory.groups()[0].instances[0].health, unhealthy("being updated"));
    let first = inventory.first_unhealthy(&held.0, &held.1);
    assert_eq!(first, Some(("0".to_owned(), unhealthy("being updated"))));
    inventory.record_failure(&plugin("p"), "it trapped");
    assert_eq!(inventory.first_unhealthy(&held.0, &held.1), None, "nothing is known of them now");
    found(&mut inventory, "p", vec![group("p", "a")]);
    assert_eq!(inventory.first_unhealthy(&held.0, &held.1), None);
    assert_eq!(inventory.groups()[0].instances[0].health, healthy());
}

#[test]
fn a_changed_vendor_is_another_group_and_the_old_one_is_gone() {
    let mut inventory = Inventory::default();
    found(&mut inventory, "p", vec![group("p", "a")]);
    let mut renamed = group("p", "a");
    renamed.key.vendor = "other".into();
    let moved = found(&mut inventory, "p", vec![renamed]);
    assert_eq!(moved.gone, [key("a")]);
    assert_eq!(inventory.owner(&key("a")), None);
    assert_eq!(inventory.owner_with(&key("a"), &["0".to_owned()]), Err(None));
    assert_eq!(inventory.groups()[0].key.vendor, "other");
}

#[test]
fn nothing_for_a_plugin_on_this_node_is_no_failure() {
    let mut inventory = Inventory::default();
    found(&mut inventory, "p", vec![group("p", "a")]);
    let undetected = Health { state: HealthState::Undetected, reason: "no card".into() };
    let moved = inventory.record_answer(&plugin("p"), undetected, vec![], |_| 0);
    assert_eq!(moved.gone, [key("a")]);
    assert_eq!(inventory.groups(), vec![]);
    let health = inventory.health(&plugin("p")).unwrap();
    assert_eq!((health.state, health.reason.as_str()), (HealthState::Undetected, "no card"));
    assert_eq!(inventory.health(&plugin("q")), None);
}

#[test]
fn an_instance_is_its_owners_while_the_newest_answer_has_it() {
    let mut inventory = Inventory::default();
    found(&mut inventory, "p", vec![group("p", "a")]);
    let ids = ["0".to_owned(), "1".to_owned()];
    assert_eq!(inventory.owner_with(&key("a"), &ids[..1]), Ok(&plugin("p")));
    assert_eq!(inventory.owner_with(&key("a"), &ids), Err(Some("1")));
    inventory.record_failure(&plugin("p"), "it trapped");
    assert_eq!(inventory.owner_with(&key("a"), &ids[..1]), Ok(&plugin("p")));
}

#[test]
fn a_plugin_measures_only_what_is_its_own() {
    let mut inventory = Inventory::default();
    found(&mut inventory, "p", vec![group("p", "a")]);
    found(&mut inventory, "q", vec![group("q", "b")]);
    let measured = |name: &str, ids: &[&str]| DeviceGroupStats {
        key: key(name),
        instances: ids.iter().map(|id| ((*id).to_owned(), std::sync::Arc::default())).collect(),
        stale: None,
    };
    let mut stats = vec![measured("a", &["0", "1"]), measured("b", &["0"]), measured("c", &[])];
    let foreign = inventory.keep_own(&plugin("p"), &mut stats);
    assert_eq!(stats, [measured("a", &["0"])]);
    assert_eq!(foreign, ["acme/gpu/a instance 1", "acme/gpu/b", "acme/gpu/c"]);
}

#[derive(Clone, Debug)]
enum Said {
    Found(usize, Vec<String>),
    Failed(usize),
}

fn said() -> impl Strategy<Value = Said> {
    let names = prop::collection::btree_set("[a-d]", 0..4);
    prop_oneof![
        3 => (0_usize..3, names).prop_map(|(p, set)| Said::Found(p, set.into_iter().collect())),
        1 => (0_usize..3).prop_map(Said::Failed),
    ]
}

proptest! {
    /// Every group that somebody reports has exactly one owner, who reports it; an owner that goes
    /// on reporting a group never loses it; and what one plugin says changes no group of another.
    #[test]
    fn every_reported_group_has_one_owner_that_reports_it(
        series in prop::collection::vec(said(), 0..40),
    ) {
        let names = ["p", "q", "r"];
        let mut inventory = Inventory::default();
        let mut reported: [Vec<String>; 3] = [vec![], vec![], vec![]];
        for said in series {
            let before = inventory.groups();
            let speaker = match said {
                Said::Found(p, groups) => {
                    let answer = groups.iter().map(|name| group(names[p], name)).collect();
                    found(&mut inventory, names[p], answer);
                    reported[p] = groups;
                    p
                }
                Said::Failed(p) => {
                    inventory.record_failure(&plugin(names[p]), "no");
                    p
                }
            };
            let after = inventory.groups();
            let mut all: Vec<&String> = reported.iter().flatten().collect();
            all.sort();
            all.dedup();
            prop_assert_eq!(after.iter().map(|g| &g.key.name).collect::<Vec<_>>(), all);
            for group in &after {
                let owner = names.iter().position(|n| *n == group.plugin.as_str()).unwrap();
                prop_assert!(reported[owner].contains(&group.key.name));
                prop_assert_eq!(inventory.owner(&group.key), Some(&group.plugin));
            }
            for old in before {
                let owner = names.iter().position(|n| *n == old.plugin.as_str()).unwrap();
                let new = after.iter().find(|g| g.key == old.key);
                if owner == speaker {
                    let keeps = reported[owner].contains(&old.key.name);
                    prop_assert_eq!(new.is_some_and(|g| g.plugin == old.plugin), keeps);
                } else {
                    prop_assert_eq!(new, Some(&old));
                }
            }
        }
    }
}
