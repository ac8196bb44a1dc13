use super::*;
use ostler_sdk::testing::FakeHost;
use plugin_support::testing::Tree;

/// A bus with a root hub, behind a PCI controller on NUMA node 1.
fn sysfs(name: &str, more: &str) -> Tree {
    let tree = Tree::new(&format!("usb-{name}"));
    configure(&tree, more);
    tree.file("bus/pci/devices/0000:00:14.0/numa_node", "1");
    add(&tree, "usb1", "1d6b/2/601", "9/0/1", 1);
    tree
}

fn configure(tree: &Tree, more: &str) {
    let root = tree.root().display();
    FakeHost::install().set_config(&format!(r#"{{"root": "{root}"{more}}}"#));
}

fn at(path: &str, file: &str) -> String {
    format!("devices/pci0000:00/0000:00:14.0/usb1/{path}/{file}")
}

fn link(tree: &Tree, name: &str) {
    let target = format!("../../../devices/pci0000:00/0000:00:14.0/usb1/{name}");
    tree.link(&format!("bus/usb/devices/{name}"), &target);
}

fn add(tree: &Tree, path: &str, product: &str, class: &str, number: u32) {
    let uevent = format!(
        "DEVTYPE=usb_device\nDEVNAME=bus/usb/001/{number:03}\nPRODUCT={product}\nTYPE={class}"
    );
    tree.file(&at(path, "uevent"), &uevent);
    link(tree, path);
}

fn add_interface(tree: &Tree, name: &str, class: u8) {
    tree.file(&at(name, "uevent"), &format!("DEVTYPE=usb_interface\nINTERFACE={class}/1/2"));
    link(tree, name);
}

/// A serial adapter: vendor 0403, product 6001.
fn add_adapter(tree: &Tree, path: &str, serial: Option<&str>, number: u32) {
    add(tree, path, "403/6001/600", "0/0/0", number);
    add_interface(tree, &format!("{path}:1.0"), 255);
    tree.file(&at(path, "manufacturer"), "FTDI")
        .file(&at(path, "product"), "FT232R USB UART")
        .file(&at(path, "speed"), "12")
        .file(&at(path, "version"), " 2.00")
        .file(&at(path, "authorized"), "1");
    if let Some(serial) = serial {
        tree.file(&at(path, "serial"), serial);
    }
}

fn claim(ids: &[&str]) -> Claim {
    Claim {
        vendor: "0403".to_owned(),
        type_: "usb".to_owned(),
        name: "6001".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn ids() -> Vec<String> {
    let groups = Usb::fingerprint().unwrap().groups;
    groups.into_iter().flat_map(|group| group.instances).map(|one| one.id).collect()
}

#[test]
fn a_device_is_known_by_its_serial_number_and_says_what_it_is() {
    let tree = sysfs("one", "");
    add_adapter(&tree, "1-4", Some("A50285BI"), 4);
    let found = Usb::fingerprint().unwrap();
    assert_eq!(found.watch.subsystems, ["usb"]);
    let [group] = found.groups.as_slice() else { unreachable!("{found:?}") };
    assert_eq!((group.vendor.as_str(), group.type_.as_str()), ("0403", "usb"));
    assert_eq!(group.name, "6001");
    let text = |name, value: &str| NamedAttribute::new(name, value);
    assert_eq!(
        group.attributes,
        [
            text("vendor_id", "0403"),
            text("product_id", "6001"),
            text("class", "vendor-specific"),
            text("manufacturer", "FTDI"),
            text("product", "FT232R USB UART"),
            text("usb_version", "2.00"),
            NamedAttribute::new("speed", 1.5).unit("MB/s"),
        ]
    );
    let instance = &group.instances[0];
    assert_eq!((instance.id.as_str(), instance.health.state), ("A50285BI", HealthState::Healthy));
    let place = instance.locality.clone().unwrap();
    assert_eq!((place.pci_bus_id.as_deref(), place.numa_node), (Some("0000:00:14.0"), Some(1)));
}

#[test]
fn twins_and_devices_without_a_serial_number_are_known_by_their_place() {
    let tree = sysfs("twins", "");
    add_adapter(&tree, "1-4", Some("0001"), 4);
    add_adapter(&tree, "1-5.2", Some("0001"), 5);
    add_adapter(&tree, "1-6", None, 6);
    add_adapter(&tree, "1-7", Some("own"), 7);
    // What looks like a place is not trusted.
    add_adapter(&tree, "1-8", Some("1-4"), 8);
    assert_eq!(ids(), ["1-4", "1-5.2", "1-6", "own", "1-8"]);
}

#[test]
fn the_same_serial_number_of_another_product_is_no_twin() {
    let tree = sysfs("products", "");
    add_adapter(&tree, "1-4", Some("0001"), 4);
    add(&tree, "1-5", "46d/c52b/1211", "0/0/0", 5);
    tree.file(&at("1-5", "serial"), "0001");
    assert_eq!(ids(), ["0001", "0001"]);
    assert_eq!(Usb::fingerprint().unwrap().groups.len(), 2);
}

#[test]
fn a_device_keeps_its_id_in_another_port_and_goes_when_it_is_pulled_out() {
    let tree = sysfs("plug", "");
    add_adapter(&tree, "1-4", Some("A50285BI"), 4);
    assert_eq!(ids(), ["A50285BI"]);
    for path in ["1-4", "1-4:1.0"] {
        tree.remove(&format!("bus/usb/devices/{path}"));
        tree.remove(&at(path, ""));
    }
    assert_eq!(ids(), Vec::<String>::new());
    assert!(matches!(Usb::reserve(claim(&["A50285BI"])), Err(Error::NotFound(_))));
    add_adapter(&tree, "1-9", Some("A50285BI"), 11);
    assert_eq!(ids(), ["A50285BI"]);
    let assigned = Usb::reserve(claim(&["A50285BI"])).unwrap();
    assert_eq!(assigned.device_nodes[0].host_path, "/dev/bus/usb/001/011");
}

#[test]
fn a_reservation_assigns_the_node_and_what_drivers_made_of_the_device() {
    let tree = sysfs("reserve", "");
    add_adapter(&tree, "1-4", Some("A50285BI"), 4);
    tree.file(&at("1-4:1.0", "ttyUSB0/tty/ttyUSB0/uevent"), "DEVNAME=ttyUSB0")
        .file(&at("1-4:1.0", "0003:0403:6001.0001/hidraw/hidraw2/uevent"), "DEVNAME=hidraw2")
        .file(&at("1-4:1.0", "host0/target0/0:0:0:0/block/sda/uevent"), "DEVNAME=sda")
        .link(&at("1-4:1.0", "ttyUSB0/back"), "../..");
    let assigned = Usb::reserve(claim(&["A50285BI"])).unwrap();
    let paths: Vec<_> = assigned.device_nodes.iter().map(|node| node.host_path.as_str()).collect();
    assert_eq!(paths, ["/dev/bus/usb/001/004", "/dev/hidraw2", "/dev/ttyUSB0"]);
    assert!(assigned.device_nodes.iter().all(|node| node.permissions == "rw"));
    let env = [
        EnvVar::new("USB_DEVICES", "A50285BI"),
        EnvVar::new("USB_DEVICE_NODES", "/dev/bus/usb/001/004"),
    ];
    assert_eq!(assigned.env, env);
    assert_eq!(assigned, Usb::reserve(claim(&["A50285BI"])).unwrap(), "same answer twice");
    configure(&tree, r#", "driver_nodes": false"#);
    assert_eq!(Usb::reserve(claim(&["A50285BI"])).unwrap().device_nodes.len(), 1);
    for (type_, id) in [("usb", "1-4"), ("usb", "../1-4"), ("other", "A50285BI")] {
        let refused = Usb::reserve(Claim { type_: type_.to_owned(), ..claim(&[id]) });
        assert!(matches!(refused, Err(Error::NotFound(_))), "{type_} {id}");
    }
}

#[test]
fn classes_hubs_and_ignored_ids_narrow_what_is_found() {
    for (more, left) in [
        ("", vec!["A", "1-5"]),
        (r#", "hubs": true"#, vec!["A", "1-5", "usb1"]),
        (r#", "classes": ["hid"]"#, vec!["1-5"]),
        (r#", "classes": ["FF"]"#, vec!["A"]),
        (r#", "ignored_ids": ["0403:6001"]"#, vec!["1-5"]),
        (r#", "ignored_ids": ["A", "1-5"]"#, vec![]),
    ] {
        let tree = sysfs("narrow", more);
        add_adapter(&tree, "1-4", Some("A"), 4);
        add(&tree, "1-5", "46d/c52b/1211", "0/0/0", 5);
        add_interface(&tree, "1-5:1.0", 3);
        assert_eq!(ids(), left, "{more}");
    }
}

#[test]
fn a_device_that_is_not_authorized_is_unhealthy() {
    let tree = sysfs("authorized", "");
    add_adapter(&tree, "1-4", None, 4);
    tree.file(&at("1-4", "authorized"), "0");
    let found = Usb::fingerprint().unwrap();
    let health = &found.groups[0].instances[0].health;
    assert_eq!(health.state, HealthState::Unhealthy);
    assert!(health.reason.contains("authorized"), "{health:?}");
}

#[test]
fn what_a_device_says_of_itself_cannot_break_the_answer() {
    let tree = sysfs("hostile", "");
    add_adapter(&tree, "1-4", Some("a\u{1b}[2J,b"), 4);
    add_adapter(&tree, "1-5", Some(&"9".repeat(2_000)), 5);
    tree.file(&at("1-4", "product"), "\u{7}\u{7}").file(&at("1-4", "speed"), "inf");
    add(&tree, "1-6", "rubbish", "0/0/0", 6);
    add(&tree, "1-7", "1/2/3", "0/0/0", 7);
    tree.file(&at("1-7", "uevent"), "DEVNAME=../../etc/shadow\nPRODUCT=1/2/3");
    tree.link("bus/usb/devices/1-8", "../../../devices/gone");
    let found = Usb::fingerprint().unwrap();
    let [group] = found.groups.as_slice() else { unreachable!("{found:?}") };
    assert_eq!(group.instances[0].id, "1-4");
    assert_eq!(group.instances[1].id.len(), 256);
    assert!(group.attributes.iter().all(|one| one.name != "product" && one.name != "speed"));
}

#[test]
fn requests_and_times_are_measured_where_the_kernel_counts_them() {
    let tree = sysfs("stats", "");
    add_adapter(&tree, "1-4", Some("A"), 4);
    add_adapter(&tree, "1-5", Some("B"), 5);
    tree.file(&at("1-4", "urbnum"), "0").file(&at("1-4", "power/active_duration"), "1500");
    let stats = Usb::stats().unwrap();
    let [first, second] = stats[0].instances.as_slice() else { unreachable!("{stats:?}") };
    assert_eq!(first.summary.as_ref().unwrap().int_numerator, Some(0));
    assert_eq!(first.stats[1].path, ["power", "active"]);
    assert_eq!((second.summary.as_ref(), second.stats.len()), (None, 0));
}

#[test]
fn a_node_without_usb_has_no_devices() {
    FakeHost::install().set_config(r#"{"root": "/nowhere/at/all"}"#);
    assert_eq!(Usb::fingerprint().unwrap().groups, []);
    assert_eq!(Usb::stats().unwrap(), []);
}
