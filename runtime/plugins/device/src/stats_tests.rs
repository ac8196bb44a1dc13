//! The index against a scan of everything.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::*;
use ostler_model::stats::StatValue;

const OLD_AFTER: Duration = Duration::from_secs(15);

fn plugin(name: &str) -> PluginName {
    PluginName::new(name).unwrap()
}

fn key(name: &str) -> GroupKey {
    GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

fn measured(name: &str, ids: &[&str], value: i64) -> DeviceGroupStats {
    let summary = StatValue { int_numerator: Some(value), ..StatValue::default() };
    let one = InstanceStats { summary: Some(summary), ..InstanceStats::default() };
    let instances = ids.iter().map(|id| ((*id).to_owned(), Arc::new(one.clone()))).collect();
    DeviceGroupStats { key: key(name), instances, stale: None }
}

fn assigned(name: &str, ids: &[&str]) -> AllocatedDevice {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    AllocatedDevice { group: key(name), ids }
}

fn ids(stats: &DeviceGroupStats) -> Vec<&str> {
    stats.instances.keys().map(String::as_str).collect()
}

#[test]
fn two_requests_served_by_one_group_both_show_in_one_group() {
    let mut index = StatsIndex::new(OLD_AFTER);
    index.replace(&plugin("p"), vec![measured("a", &["0", "1", "2"], 7)], at(1));
    let shown = index.stats_of_task(&[assigned("a", &["0"]), assigned("a", &["2"])], at(1));
    assert_eq!(shown.len(), 1);
    assert_eq!(ids(&shown[0]), ["0", "2"]);
    assert_eq!(shown[0].stale, None);
}

#[test]
fn what_was_not_measured_is_absent_and_a_measured_group_shows_even_when_empty() {
    let mut index = StatsIndex::new(OLD_AFTER);
    index.replace(&plugin("p"), vec![measured("a", &["0"], 7)], at(1));
    assert_eq!(index.stats_of_task(&[], at(1)), vec![]);
    assert_eq!(index.stats_of_task(&[assigned("b", &["0"])], at(1)), vec![]);
    let shown = index.stats_of_task(&[assigned("a", &["9"])], at(1));
    assert_eq!((shown.len(), shown[0].instances.len()), (1, 0));
}

#[test]
fn values_are_shared_with_the_index() {
    let mut index = StatsIndex::new(OLD_AFTER);
    let given = measured("a", &["0"], 7);
    let value = Arc::clone(&given.instances["0"]);
    index.replace(&plugin("p"), vec![given], at(1));
    let shown = index.stats_of_task(&[assigned("a", &["0"])], at(1));
    assert!(Arc::ptr_eq(&shown[0].instances["0"], &value));
}

#[test]
fn a_plugin_that_failed_is_stale_until_it_answers_and_no_other_is() {
    let mut index = StatsIndex::new(OLD_AFTER);
    index.replace(&plugin("p"), vec![measured("a", &["0"], 1)], at(1));
    index.replace(&plugin("q"), vec![measured("b", &["0"], 1)], at(1));
    index.mark_stale(&plugin("p"), "it trapped");
    index.mark_stale(&plugin("never-heard-of"), "whatever");
    let stale = |index: &StatsIndex, now| -> Vec<Option<String>> {
        index.all_stats(now).into_iter().map(|group| group.stale).collect()
    };
    assert_eq!(stale(&index, at(2)), [Some("it trapped".to_owned()), None]);
    index.replace(&plugin("p"), vec![measured("a", &["0"], 2)], at(3));
    assert_eq!(stale(&index, at(3)), [None, None]);
}

#[test]
fn an_answer_grows_old_without_a_failure() {
    let mut index = StatsIndex::new(OLD_AFTER);
    index.replace(&plugin("p"), vec![measured("a", &["0"], 1)], at(100));
    assert_eq!(index.all_stats(at(115))[0].stale, None);
    let stale = index.all_stats(at(116))[0].stale.clone();
    assert_eq!(stale.as_deref(), Some("plugin p last measured 16 s ago"));
    assert_eq!(index.all_stats(at(90))[0].stale, None, "a clock set back makes nothing old");
}

#[test]
fn an_answer_replaces_the_plugins_earlier_one_and_takes_no_group_of_another() {
    let mut index = StatsIndex::new(OLD_AFTER);
    index.replace(&plugin("p"), vec![measured("a", &["0"], 1), measured("b", &["0"], 1)], at(1));
    let foreign = index.replace(&plugin("q"), vec![measured("a", &["0"], 9)], at(1));
    assert_eq!(foreign, [key("a")]);
    index.replace(&plugin("p"), vec![measured("a", &["1"], 2)], at(2));
    let all = index.all_stats(at(2));
    assert_eq!(all.len(), 1, "b is gone");
    assert_eq!(ids(&all[0]), ["1"]);
    index.retain(|owner, _| owner == &plugin("q"));
    assert_eq!(index.all_stats(at(2)), vec![]);
}

/// What a scan over all devices of the node says of a task: the rule, without an index.
fn scan(host: &[DeviceGroupStats], devices: &[AllocatedDevice]) -> Vec<DeviceGroupStats> {
    let mut found = Vec::new();
    for group in host {
        let wanted: Vec<&String> =
            devices.iter().filter(|d| d.group == group.key).flat_map(|d| &d.ids).collect();
        if devices.iter().any(|d| d.group == group.key) {
            let mut shown = group.clone();
            shown.instances.retain(|id, _| wanted.contains(&id));
            found.push(shown);
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set("[0-5]", 0..5).prop_map(|set| set.into_iter().collect())
}

fn host() -> impl Strategy<Value = Vec<DeviceGroupStats>> {
    let group = ("[a-d]", names(), any::<i64>());
    prop::collection::vec(group, 0..5).prop_map(|groups| {
        let groups: BTreeMap<String, _> =
            groups.into_iter().map(|(name, ids, value)| (name, (ids, value))).collect();
        let groups = groups.into_iter().map(|(name, (ids, value))| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            measured(&name, &ids, value)
        });
        groups.collect()
    })
}

fn task() -> impl Strategy<Value = Vec<AllocatedDevice>> {
    let request =
        ("[a-e]", names()).prop_map(|(name, ids)| AllocatedDevice { group: key(&name), ids });
    prop::collection::vec(request, 0..4)
}

proptest! {
    /// Over any series of answers of two plugins, each with groups of its own, the index says of
    /// every task what a scan of the newest answers says.
    #[test]
    fn the_index_says_what_a_scan_says(
        answers in prop::collection::vec((any::<bool>(), host()), 1..6),
        tasks in prop::collection::vec(task(), 1..6),
    ) {
        let mut index = StatsIndex::new(OLD_AFTER);
        let mut newest: [Vec<DeviceGroupStats>; 2] = [vec![], vec![]];
        for (second, groups) in answers {
            let name = if second { "q" } else { "p" };
            // Groups a and b are p's, the others are q's.
            let own = |group: &DeviceGroupStats| (group.key.name.as_str() > "b") == second;
            let groups: Vec<_> = groups.into_iter().filter(own).collect();
            prop_assert_eq!(index.replace(&plugin(name), groups.clone(), at(1)), vec![]);
            newest[usize::from(second)] = groups;
        }
        let host: Vec<DeviceGroupStats> = newest.concat();
        for devices in &tasks {
            prop_assert_eq!(index.stats_of_task(devices, at(1)), scan(&host, devices));
        }
        // An allocation: its tasks' groups merged.
        let all: Vec<AllocatedDevice> = tasks.concat();
        prop_assert_eq!(index.stats_of_devices(tasks.iter().flatten(), at(1)), scan(&host, &all));
        let everything: Vec<AllocatedDevice> = host.iter().map(|group| AllocatedDevice {
            group: group.key.clone(),
            ids: group.instances.keys().cloned().collect(),
        }).collect();
        prop_assert_eq!(index.all_stats(at(1)), scan(&host, &everything));
    }
}
