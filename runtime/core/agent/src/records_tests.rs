//! Tests of the records that the agent keeps of itself, over several starts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health};
use ostler_model::grants::Grants;
use ostler_model::ids::NodeId;
use ostler_model::rng::Rng;
use ostler_node::DriverView;
use ostler_state::records::{DeviceManagerKey, DriverManagerKey, PluginHandleKey};

fn name(text: &str) -> PluginName {
    PluginName::new(text).unwrap()
}

/// A plugin in use under the name of its block.
fn loaded(block: &str, kind: PluginKind, digest: &str) -> PluginEntry {
    PluginEntry {
        name: block.into(),
        source: "built-in".into(),
        kind: Some(kind),
        describes_as: Some(block.into()),
        version: Some("1.0.0".into()),
        interface_version: Some("0.1.0".into()),
        digest: Some(digest.repeat(32)),
        trust: None,
        size_bytes: 5,
        status: PluginStatus::Loaded,
        grants: Grants::default(),
        asks: Vec::new(),
    }
}

/// Remember the plugins as one start of an agent does.
async fn remember(state: &StateStore, entries: &[PluginEntry]) -> (Handles, Vec<String>) {
    let remembered = remember_plugins(state, entries).await.unwrap();
    state.flush().await.unwrap();
    remembered
}

fn kept(state: &StateStore) -> Vec<String> {
    state.scan(&KeyPrefix::Plugins).unwrap().iter().map(|record| record.key.to_string()).collect()
}

fn view(id: u64) -> NodeView {
    NodeView::new(NodeId::new(Rng::from_seed(id).uuid()), "box")
}

#[tokio::test]
async fn a_plugin_of_another_digest_is_told_once_and_an_equal_one_never() {
    let state = StateStore::in_memory().unwrap();
    let first = [loaded("exec", PluginKind::Driver, "ab")];
    for _ in 0..2 {
        let (used, said) = remember(&state, &first).await;
        assert_eq!((used.len(), said.len()), (1, 0), "{said:?}");
    }
    let mut second = [loaded("exec", PluginKind::Driver, "cd")];
    second[0].version = Some("2.0.0".into());
    second[0].source = "/plugins/exec.wasm".into();
    let (used, said) = remember(&state, &second).await;
    assert_eq!(
        said,
        [
            "plugin exec changed since the last start: it was version 1.0.0 with digest abababababab \
          (built-in), it is version 2.0.0 with digest cdcdcdcdcdcd (/plugins/exec.wasm)"
        ]
    );
    let stored: PluginHandle = state.get(&PluginHandleKey::of(name("exec"))).unwrap().unwrap();
    assert_eq!(stored, used[&name("exec")]);
    assert_eq!(remember(&state, &second).await.1, [""; 0]);
}

#[tokio::test]
async fn a_plugin_that_is_gone_is_forgotten_and_one_that_did_not_load_is_not() {
    let state = StateStore::in_memory().unwrap();
    let mut entries =
        ["a", "b", "c", "d"].map(|block| loaded(block, PluginKind::Driver, "ab")).to_vec();
    remember(&state, &entries).await;
    assert_eq!(kept(&state), ["plugin/a", "plugin/b", "plugin/c", "plugin/d"]);
    // `a` is as it was, `b` is refused, `c` calls itself otherwise, and `d` has no block any more.
    entries[1].status = PluginStatus::Refused("no grant".into());
    entries[1].describes_as = None;
    entries[2].describes_as = Some("other".into());
    entries.truncate(3);
    remember(&state, &entries).await;
    assert_eq!(kept(&state), ["plugin/a", "plugin/b", "plugin/other"]);
    // The plugin is back and has changed: this is still noticed.
    entries[1] = loaded("b", PluginKind::Driver, "cd");
    let (_, said) = remember(&state, &entries).await;
    assert_eq!(said.len(), 1, "{said:?}");
}

fn health(state: HealthState) -> Health {
    Health { state, reason: String::new() }
}

fn group(plugin: &str, group: &str, instances: &[&str]) -> DeviceGroup {
    let instance = |id: &&str| DeviceInstance {
        id: (*id).to_owned(),
        health: health(HealthState::Healthy),
        locality: None,
    };
    DeviceGroup {
        key: GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: group.into() },
        plugin: name(plugin),
        instances: instances.iter().map(instance).collect(),
        attributes: Vec::new(),
    }
}

fn handles() -> Handles {
    [loaded("exec", PluginKind::Driver, "ab"), loaded("pci", PluginKind::Device, "cd")]
        .iter()
        .filter_map(entry_handle)
        .collect()
}

#[test]
fn a_device_plugin_that_does_not_answer_keeps_the_groups_it_had() {
    let mut node = view(1);
    node.devices = vec![group("pci", "b", &["1", "0"]), group("pci", "a", &["0"])];
    node.device_plugins.insert(name("pci"), health(HealthState::Healthy));
    let seen = device_manager_state(&node, &handles(), &DeviceManagerState::default());
    let groups = &seen.plugins[&name("pci")].groups;
    let names: Vec<_> = groups.iter().map(|g| (g.key.name.as_str(), g.instances.len())).collect();
    assert_eq!(names, [("a", 1), ("b", 2)]);
    assert_eq!(groups[1].instances, ["0", "1"]);
    // The plugin of the next agent does not answer: the groups stay, the health does not.
    let mut next = view(1);
    next.device_plugins.insert(name("pci"), health(HealthState::Unhealthy));
    let after = device_manager_state(&next, &handles(), &seen);
    assert_eq!(&after.plugins[&name("pci")].groups, groups);
    assert_eq!(after.plugins[&name("pci")].health, HealthState::Unhealthy);
    // The plugin answers and has found nothing, so there are no groups.
    next.device_plugins.insert(name("pci"), health(HealthState::Healthy));
    assert!(
        device_manager_state(&next, &handles(), &after).plugins[&name("pci")].groups.is_empty()
    );
    // The plugin is gone.
    assert_eq!(device_manager_state(&next, &Handles::new(), &after), DeviceManagerState::default());
}

#[tokio::test]
async fn the_managers_states_follow_the_node_and_an_unchanged_node_writes_nothing() {
    let state = StateStore::in_memory().unwrap();
    let node = NodePublisher::new(view(1));
    let follower = RecordsWriter::spawn(state.clone(), &node, handles());
    node.update(|view| {
        let exec = DriverView { health: health(HealthState::Healthy), ..DriverView::default() };
        view.drivers.insert(name("exec"), exec);
        view.device_plugins.insert(name("pci"), health(HealthState::Healthy));
        view.devices = vec![group("pci", "a", &["0"])];
    });
    // The follower may not have run at all yet. Stopping it hands over the present view.
    follower.stop().await;
    state.flush().await.unwrap();
    let written = state.stats().writes;
    RecordsWriter::spawn(state.clone(), &node, handles()).stop().await;
    state.flush().await.unwrap();
    assert_eq!(state.stats().writes, written);
    let drivers: DriverManagerState = state.get(&DriverManagerKey::of()).unwrap().unwrap();
    assert_eq!(drivers.drivers[&name("exec")].health, HealthState::Healthy);
    assert_eq!(drivers.drivers[&name("exec")].digest, "ab".repeat(32));
    let devices: DeviceManagerState = state.get(&DeviceManagerKey::of()).unwrap().unwrap();
    assert_eq!(devices.plugins[&name("pci")].groups.len(), 1);
}
