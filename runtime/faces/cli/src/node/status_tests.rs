#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use super::*;
use ostler_model::attribute::{Attribute, NamedAttribute};
use ostler_model::device::{GroupKey, Health, Locality};
use ostler_model::ids::PluginName;
use ostler_model::rng::Rng;
use ostler_node::{DriverView, NodeId};

fn node() -> NodeView {
    let mut node = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    node.attributes.insert("cpu.arch".into(), Attribute::from("amd64"));
    let driver = DriverView {
        health: Health { state: HealthState::Unhealthy, reason: "no cgroup\nhere".into() },
        version: "1.2.0".into(),
        attributes: BTreeMap::from([("cgroup".to_owned(), Attribute::from(false))]),
        ..DriverView::default()
    };
    node.drivers.insert(PluginName::new("exec").unwrap(), driver);
    let locality = Locality { pci_bus_id: Some("0000:3b:00.0".into()), numa_node: Some(1) };
    let instance = DeviceInstance {
        id: "gpu0".into(),
        health: Health { state: HealthState::Healthy, reason: String::new() },
        locality: Some(locality),
    };
    node.devices.push(DeviceGroup {
        key: GroupKey { vendor: "nvidia".into(), kind: "gpu".into(), name: "H100".into() },
        plugin: PluginName::new("nvidia").unwrap(),
        instances: vec![instance],
        attributes: vec![NamedAttribute {
            name: "memory".into(),
            attribute: Attribute::parse("80 GiB"),
        }],
    });
    node
}

/// The words of the line that begins with `first`.
fn row(text: &str, first: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(first)).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn everything_a_job_can_ask_for_is_shown() {
    let text = status_text(&node(), &TerminalInfo::default());
    assert_eq!(row(&text, "exec"), "exec 1.2.0 unhealthy: no cgroup; here");
    assert_eq!(
        row(&text, "nvidia/gpu/H100"),
        "nvidia/gpu/H100 gpu0 healthy 0000:3b:00.0 numa 1 nvidia"
    );
    assert_eq!(row(&text, "memory"), "memory 80 GiB");
    assert_eq!(row(&text, "cpu.arch"), "cpu.arch amd64");
    assert_eq!(row(&text, "driver.exec.cgroup"), "driver.exec.cgroup false");
    assert!(!text.contains('\x1b'));
}

#[test]
fn a_node_without_drivers_and_devices_says_so() {
    let bare = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    let text = status_text(&bare, &TerminalInfo::default());
    assert!(text.contains("\ndrivers\nnone\n") && text.contains("\ndevices\nnone\n"), "{text}");
}

#[test]
fn a_device_plugin_that_fails_is_shown_although_it_has_no_device() {
    let mut node = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    let failed = Health { state: HealthState::Unhealthy, reason: "the guest\ntrapped".into() };
    node.device_plugins.insert(PluginName::new("nvidia").unwrap(), failed);
    node.device_plugins.insert(
        PluginName::new("files").unwrap(),
        Health { state: HealthState::Healthy, reason: String::new() },
    );
    let text = status_text(&node, &TerminalInfo::default());
    assert_eq!(row(&text, "plugin"), "plugin nvidia is unhealthy: the guest; trapped");
    assert!(!text.contains("plugin files"), "{text}");
    let nothing = "/usr/bin/nvidia-smi is missing".into();
    let nothing = Health { state: HealthState::Undetected, reason: nothing };
    node.device_plugins.insert(PluginName::new("nvidia").unwrap(), nothing);
    let text = status_text(&node, &TerminalInfo::default());
    let expected = "plugin nvidia: no device found (/usr/bin/nvidia-smi is missing)";
    assert_eq!(row(&text, "plugin"), expected);
}
