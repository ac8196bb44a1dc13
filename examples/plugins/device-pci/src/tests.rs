use super::*;
use ostler_sdk::testing::FakeHost;
use plugin_support::testing::Tree;

fn sysfs(name: &str, more: &str) -> Tree {
    let tree = Tree::new(&format!("pci-{name}"));
    let root = tree.root().display();
    FakeHost::install().set_config(&format!(r#"{{"root": "{root}"{more}}}"#));
    tree
}

fn at(address: &str, file: &str) -> String {
    format!("devices/pci0000:00/{address}/{file}")
}

fn add(tree: &Tree, address: &str, uevent: &str, numa: &str) {
    tree.file(&at(address, "uevent"), uevent).file(&at(address, "numa_node"), numa);
    let target = format!("../../../devices/pci0000:00/{address}");
    tree.link(&format!("bus/pci/devices/{address}"), &target);
}

fn add_card(tree: &Tree, address: &str, driver: Option<&str>, numa: &str) {
    let driver = driver.map(|driver| format!("DRIVER={driver}\n")).unwrap_or_default();
    let uevent = format!("{driver}PCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1");
    add(tree, address, &uevent, numa);
}

fn claim(ids: &[&str]) -> Claim {
    Claim {
        vendor: "nvidia".to_owned(),
        type_: "display".to_owned(),
        name: "2330".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn ids() -> Vec<String> {
    let groups = Pci::fingerprint().unwrap().groups;
    groups.into_iter().flat_map(|group| group.instances).map(|one| one.id).collect()
}

#[test]
fn equal_cards_form_one_group_and_keep_their_place_in_the_machine() {
    let tree = sysfs("group", "");
    add_card(&tree, "0000:3b:00.0", Some("nvidia"), "0");
    add_card(&tree, "0000:af:00.0", Some("nvidia"), "-1");
    let found = Pci::fingerprint().unwrap();
    let [group] = found.groups.as_slice() else { unreachable!("{found:?}") };
    assert_eq!((group.vendor.as_str(), group.type_.as_str()), ("nvidia", "display"));
    assert_eq!(group.name, "2330");
    let place = |index: usize| group.instances[index].locality.clone().unwrap();
    assert_eq!(place(0).pci_bus_id.as_deref(), Some("0000:3b:00.0"));
    assert_eq!(place(0).numa_node, Some(0));
    assert_eq!(place(1).numa_node, None, "-1 means unknown");
    let expected = [
        ("class", "030200"),
        ("vendor_id", "10de"),
        ("device_id", "2330"),
        ("driver", "nvidia"),
        ("subsystem_id", "10de:16c1"),
    ];
    assert_eq!(group.attributes, expected.map(|(name, value)| NamedAttribute::new(name, value)));
    assert_eq!(found.watch.subsystems, ["pci"]);
}

#[test]
fn devices_of_an_ignored_driver_are_left_to_another_plugin() {
    let tree = sysfs("ignored-driver", r#", "ignored_drivers": ["nvidia"]"#);
    add_card(&tree, "0000:3b:00.0", Some("nvidia"), "0");
    add_card(&tree, "0000:5e:00.0", Some("vfio-pci"), "0");
    add_card(&tree, "0000:af:00.0", None, "0");
    assert_eq!(ids(), ["0000:5e:00.0", "0000:af:00.0"]);
    assert!(matches!(Pci::reserve(claim(&["0000:3b:00.0"])), Err(Error::NotFound(_))));
}

#[test]
fn the_driver_is_left_out_where_the_devices_disagree() {
    let tree = sysfs("drivers", "");
    add_card(&tree, "0000:3b:00.0", Some("nvidia"), "0");
    add_card(&tree, "0000:af:00.0", Some("vfio-pci"), "0");
    let found = Pci::fingerprint().unwrap();
    assert!(found.groups[0].attributes.iter().all(|attribute| attribute.name != "driver"));
}

#[test]
fn a_device_that_cannot_be_read_is_left_out_and_the_others_stay() {
    let tree = sysfs("broken", "");
    add_card(&tree, "0000:3b:00.0", None, "0");
    add(&tree, "0000:00:1f.0", "PCI_CLASS=rubbish\nPCI_ID=8086:1", "0");
    add(&tree, "0000:00:1f.1", "PCI_CLASS=60100\nPCI_ID=8086", "0");
    tree.link("bus/pci/devices/0000:00:02.0", "../../../devices/gone");
    assert_eq!(ids(), ["0000:3b:00.0"]);
}

#[test]
fn programming_interfaces_of_one_device_do_not_make_two_groups_of_one_name() {
    let tree = sysfs("merge", "");
    for (address, class) in [("0000:00:01.0", "10601"), ("0000:00:02.0", "10602")] {
        let uevent = format!("DRIVER=ahci\nPCI_CLASS={class}\nPCI_ID=8086:2922");
        add(&tree, address, &uevent, "0");
    }
    let found = Pci::fingerprint().unwrap();
    assert_eq!(found.groups.len(), 1);
    assert_eq!(found.groups[0].instances.len(), 2);
    assert!(found.groups[0].attributes.contains(&NamedAttribute::new("driver", "ahci")));
    assert!(found.groups[0].attributes.iter().all(|attribute| attribute.name != "class"));
}

#[test]
fn a_node_without_pci_has_no_devices() {
    FakeHost::install().set_config(r#"{"root": "/nowhere/at/all"}"#);
    assert_eq!(Pci::fingerprint().unwrap().groups, []);
    assert_eq!(Pci::stats().unwrap(), []);
}

#[test]
fn classes_and_ignored_ids_narrow_what_is_found_and_what_is_assigned() {
    let one_of_each = |tree: &Tree| {
        add_card(tree, "0000:3b:00.0", None, "0");
        add_card(tree, "0000:af:00.0", None, "0");
        add(tree, "0000:01:00.0", "PCI_CLASS=20000\nPCI_ID=8086:1521", "0");
        add(tree, "0000:00:1f.0", "PCI_CLASS=60100\nPCI_ID=8086:A1C1", "0");
    };
    for (more, left) in [
        (r#", "classes": ["display"]"#, vec!["0000:3b:00.0", "0000:af:00.0"]),
        (r#", "classes": ["02"]"#, vec!["0000:01:00.0"]),
        (r#", "classes": ["0300"]"#, vec![]),
        (r#", "ignored_ids": ["8086:a1c1", "0000:3B:00.0", "8086:1521"]"#, vec!["0000:af:00.0"]),
    ] {
        let tree = sysfs("narrow", more);
        one_of_each(&tree);
        assert_eq!(ids(), left, "{more}");
        let assigned = Pci::reserve(claim(&["0000:3b:00.0"])).is_ok();
        assert_eq!(assigned, left.contains(&"0000:3b:00.0"), "{more}");
    }
}

#[test]
fn a_reservation_names_the_addresses_and_refuses_what_is_gone_or_of_another_group() {
    let tree = sysfs("reserve", "");
    add_card(&tree, "0000:3b:00.0", None, "0");
    add(&tree, "0000:01:00.0", "PCI_CLASS=20000\nPCI_ID=8086:1521", "0");
    let reserved = Pci::reserve(claim(&["0000:3b:00.0"])).unwrap();
    assert_eq!(reserved, Reservation::empty().env("PCI_DEVICES", "0000:3b:00.0"));
    for id in ["0000:ff:00.0", "0000:01:00.0", "../devices/0000:3b:00.0", "0000:3B:00.0", ""] {
        assert!(matches!(Pci::reserve(claim(&[id])), Err(Error::NotFound(_))), "{id}");
    }
    tree.remove("devices/pci0000:00/0000:3b:00.0");
    let unplugged = Pci::reserve(claim(&["0000:3b:00.0"]));
    assert!(matches!(unplugged, Err(Error::NotFound(_))));
    assert_eq!(ids(), ["0000:01:00.0"]);
}

#[test]
fn the_nodes_of_a_graphics_card_are_assigned_and_those_of_a_disk_are_not() {
    let tree = sysfs("nodes", "");
    add_card(&tree, "0000:3b:00.0", Some("amdgpu"), "0");
    let card = |file: &str| at("0000:3b:00.0", file);
    tree.file(&card("drm/card0/uevent"), "MAJOR=226\nMINOR=0\nDEVNAME=dri/card0")
        .file(&card("drm/renderD128/uevent"), "MAJOR=226\nMINOR=128\nDEVNAME=dri/renderD128")
        .file(&card("drm/version"), "no device")
        .file(&card("nvme/nvme0/uevent"), "DEVNAME=nvme0");
    let nodes = Pci::reserve(claim(&["0000:3b:00.0"])).unwrap().device_nodes;
    let paths: Vec<_> = nodes.iter().map(|node| node.host_path.as_str()).collect();
    assert_eq!(paths, ["/dev/dri/card0", "/dev/dri/renderD128"]);
    assert!(nodes.iter().all(|node| node.permissions == "rw" && node.task_path == node.host_path));
    let root = tree.root().display();
    FakeHost::install().set_config(&format!(r#"{{"root": "{root}", "nodes": false}}"#));
    assert_eq!(Pci::reserve(claim(&["0000:3b:00.0"])).unwrap().device_nodes, []);
}

#[test]
fn a_device_of_vfio_is_assigned_with_its_group_once() {
    let tree = sysfs("vfio", "");
    for address in ["0000:3b:00.0", "0000:3b:00.1"] {
        add_card(&tree, address, Some("vfio-pci"), "0");
        tree.link(&at(address, "iommu_group"), "../../../kernel/iommu_groups/42");
    }
    let assigned = Pci::reserve(claim(&["0000:3b:00.0", "0000:3b:00.1"])).unwrap();
    let paths: Vec<_> = assigned.device_nodes.iter().map(|node| node.host_path.as_str()).collect();
    assert_eq!(paths, ["/dev/vfio/vfio", "/dev/vfio/42"]);
}

#[test]
fn link_and_errors_are_measured_and_what_is_unknown_is_absent() {
    let tree = sysfs("stats", "");
    add_card(&tree, "0000:3b:00.0", None, "0");
    add_card(&tree, "0000:af:00.0", None, "0");
    add(&tree, "0000:00:1c.0", "PCI_CLASS=60400\nPCI_ID=8086:A190", "0");
    let card = |file: &str| at("0000:3b:00.0", file);
    tree.file(&card("current_link_speed"), "16.0 GT/s PCIe")
        .file(&card("max_link_speed"), "Unknown")
        .file(&card("current_link_width"), "8")
        .file(&card("max_link_width"), "16")
        .file(&card("aer_dev_correctable"), "RxErr 3\nTOTAL_ERR_COR 3")
        .file(&card("aer_dev_nonfatal"), "Undefined 0\nTOTAL_ERR_NONFATAL 0")
        .file(&at("0000:af:00.0", "current_link_speed"), "Unknown")
        .file(&at("0000:00:1c.0", "current_link_speed"), "16.0 GT/s PCIe");
    let stats = Pci::stats().unwrap();
    let [group] = stats.as_slice() else { unreachable!("{stats:?}") };
    let [card] = group.instances.as_slice() else { unreachable!("{group:?}") };
    let value = |path: &[&str]| {
        let found = card.stats.iter().find(|entry| entry.path == path);
        found.map(|entry| entry.value.clone())
    };
    let speed = value(&["link", "speed"]).unwrap();
    assert_eq!((speed.float_numerator, speed.float_denominator), (Some(16.0), None));
    let width = value(&["link", "width"]).unwrap();
    assert_eq!((width.int_numerator, width.int_denominator), (Some(8), Some(16)));
    assert_eq!(value(&["errors", "correctable"]).unwrap().int_numerator, Some(3));
    assert_eq!(value(&["errors", "nonfatal"]).unwrap().int_numerator, Some(0));
    assert_eq!(value(&["errors", "fatal"]), None);
}
