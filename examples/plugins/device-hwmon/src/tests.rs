use super::*;
use ostler_sdk::testing::FakeHost;
use plugin_support::testing::Tree;

const PACKAGE: &str = "devices/platform/coretemp.0/hwmon/hwmon2";
const DISK: &str = "devices/pci0000:00/0000:04:00.0/nvme/nvme0/hwmon3";

fn sysfs(name: &str, more: &str) -> Tree {
    let tree = Tree::new(&format!("hwmon-{name}"));
    let root = tree.root().display();
    FakeHost::install().set_config(&format!(r#"{{"root": "{root}"{more}}}"#));
    tree
}

fn add(tree: &Tree, dir: &str, files: &[(&str, &str)]) {
    for (name, text) in files {
        tree.file(&format!("{dir}/{name}"), text);
    }
    let entry = dir.rsplit('/').next().unwrap();
    tree.link(&format!("class/hwmon/{entry}"), &format!("../../{dir}"));
}

/// A processor, a disk on NUMA node 0, and a board with fans.
fn machine(name: &str, more: &str) -> Tree {
    let tree = sysfs(name, more);
    let package = [
        ("name", "coretemp"),
        ("temp1_input", "61000"),
        ("temp1_label", "Package id 0"),
        ("temp1_crit", "100000"),
        ("temp1_max", "80000"),
        ("temp2_input", "65500"),
        ("temp2_label", "Core 0"),
        ("temp3_label", "a label and nothing else"),
    ];
    add(&tree, PACKAGE, &package);
    add(&tree, DISK, &[("name", "nvme"), ("temp1_input", "-5000"), ("temp1_label", "Composite")]);
    tree.file("bus/pci/devices/0000:04:00.0/numa_node", "0");
    let board = [
        ("name", "nct6798"),
        ("fan1_input", "0"),
        ("fan2_input", "1180"),
        ("in0_input", "1008"),
        ("in0_label", "Vcore"),
        ("power1_average", "45250000"),
        ("power1_cap", "90000000"),
        ("curr1_input", "1500"),
        ("pwm1", "128"),
        ("intrusion0_alarm", "0"),
    ];
    add(&tree, "devices/platform/nct6775.656/hwmon/hwmon4", &board);
    tree
}

fn claim(name: &str, id: &str) -> Claim {
    Claim {
        vendor: "linux".to_owned(),
        type_: "sensor".to_owned(),
        name: name.to_owned(),
        ids: vec![id.to_owned()],
    }
}

fn found() -> Vec<(String, Vec<String>)> {
    let groups = Hwmon::fingerprint().unwrap().groups.into_iter();
    groups.map(|g| (g.name, g.instances.into_iter().map(|one| one.id).collect())).collect()
}

fn stats_of(name: &str) -> InstanceStats {
    let groups = Hwmon::stats().unwrap();
    let group = groups.into_iter().find(|group| group.name == name).unwrap();
    group.instances.into_iter().next().unwrap()
}

fn value(stats: &InstanceStats, path: &[&str]) -> Option<StatValue> {
    let found = stats.stats.iter().find(|entry| entry.path == path);
    found.map(|found| found.value.clone())
}

#[test]
fn chips_are_known_by_their_place_and_not_by_their_number() {
    let tree = machine("place", "");
    let expected =
        [("coretemp", "coretemp.0"), ("nct6798", "nct6775.656"), ("nvme", "0000:04:00.0")];
    let expected = expected.map(|(name, id)| (name.to_owned(), vec![id.to_owned()]));
    assert_eq!(found(), expected);
    let again = Hwmon::fingerprint().unwrap();
    assert_eq!(again.watch.subsystems, ["hwmon"]);
    let place = again.groups[2].instances[0].locality.clone().unwrap();
    assert_eq!((place.pci_bus_id.as_deref(), place.numa_node), (Some("0000:04:00.0"), Some(0)));
    tree.remove("class/hwmon/hwmon3");
    tree.remove(DISK);
    let disk = [("name", "nvme"), ("temp1_input", "1000")];
    add(&tree, "devices/pci0000:00/0000:04:00.0/nvme/nvme1/hwmon9", &disk);
    assert_eq!(found(), expected);
}

#[test]
fn attributes_count_the_sensors() {
    let _tree = machine("attributes", "");
    let groups = Hwmon::fingerprint().unwrap().groups;
    assert_eq!(groups[0].attributes, [NamedAttribute::new("temperature_sensors", 2_i64)]);
    let board = ["fan_sensors", "power_sensors", "voltage_sensors", "current_sensors"];
    let names: Vec<_> = groups[1].attributes.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, board);
}

#[test]
fn temperatures_are_measured_and_the_hottest_is_the_summary() {
    let _tree = machine("temperature", "");
    let stats = stats_of("coretemp");
    let package = value(&stats, &["temperature", "Package id 0"]).unwrap();
    assert_eq!((package.float_numerator, package.float_denominator), (Some(61.0), Some(100.0)));
    assert_eq!(package.unit.as_deref(), Some("°C"));
    let summary = stats.summary.unwrap();
    assert_eq!(summary.float_numerator, Some(65.5));
    assert_eq!(summary.description.as_deref(), Some("temperature: Core 0"));
    assert_eq!(stats.stats.len(), 2);
    assert_eq!(stats_of("nvme").summary.unwrap().float_numerator, Some(-5.0));
}

#[test]
fn fans_power_voltages_and_currents_are_measured_in_their_units() {
    let _tree = machine("board", "");
    let stats = stats_of("nct6798");
    for (path, number, unit) in [
        (["fan", "fan1"], 0.0, "RPM"),
        (["fan", "fan2"], 1180.0, "RPM"),
        (["voltage", "Vcore"], 1.008, "V"),
        (["power", "power1"], 45.25, "W"),
        (["current", "curr1"], 1.5, "A"),
    ] {
        let value = value(&stats, &path).unwrap();
        assert_eq!((value.float_numerator, value.unit.as_deref()), (Some(number), Some(unit)));
    }
    assert_eq!(value(&stats, &["power", "power1"]).unwrap().float_denominator, Some(90.0));
    assert_eq!(stats.summary.unwrap().float_numerator, Some(0.0), "no temperature: the first");
}

#[test]
fn what_cannot_be_measured_is_absent_and_not_zero() {
    let tree = sysfs("absent", "");
    let chip = [
        ("name", "lm75"),
        ("temp1_input", "0"),
        ("temp2_input", ""),
        ("temp3_input", "rubbish"),
        ("temp4_input", "85000"),
        ("temp4_fault", "1"),
        ("temp5_input", "30000"),
        ("temp5_crit", "0"),
    ];
    add(&tree, "devices/i2c-0/0-0048/hwmon/hwmon0", &chip);
    let stats = stats_of("lm75");
    let paths: Vec<_> = stats.stats.iter().map(|entry| entry.path.join(".")).collect();
    assert_eq!(paths, ["temperature.temp1", "temperature.temp5"]);
    assert_eq!(value(&stats, &["temperature", "temp1"]).unwrap().float_numerator, Some(0.0));
    assert_eq!(value(&stats, &["temperature", "temp5"]).unwrap().float_denominator, None);
}

#[test]
fn labels_that_are_the_same_or_odd_do_not_hide_a_sensor() {
    let tree = sysfs("labels", "");
    let long = "x".repeat(1_000);
    let chip = [
        ("name", "odd\u{1b}[2J"),
        ("temp1_input", "1000"),
        ("temp1_label", "same"),
        ("temp2_input", "2000"),
        ("temp2_label", "same"),
        ("temp3_input", "3000"),
        ("temp3_label", "\u{7}"),
        ("temp4_input", "4000"),
        ("temp4_label", long.as_str()),
    ];
    add(&tree, "devices/platform/odd/hwmon/hwmon0", &chip);
    let stats = stats_of("odd[2J");
    let names: Vec<_> = stats.stats.iter().map(|entry| entry.path[1].as_str()).collect();
    assert_eq!(names, ["same", "temp2 same", "temp3", &long[..256]]);
}

#[test]
fn two_chips_of_one_controller_are_told_apart() {
    let tree = sysfs("twins", "");
    for (inner, entry) in [("nvme/nvme0", "hwmon0"), ("nvme/nvme1", "hwmon1")] {
        let dir = format!("devices/pci0000:00/0000:04:00.0/{inner}/{entry}");
        add(&tree, &dir, &[("name", "nvme"), ("temp1_input", "1000")]);
    }
    assert_eq!(found()[0].1, ["0000:04:00.0-nvme0", "0000:04:00.0-nvme1"]);
    let same = "devices/pci0000:00/0000:04:00.0/nvme/nvme0/hwmon2";
    add(&tree, same, &[("name", "nvme"), ("temp1_input", "1000")]);
    let ids = &found()[0].1;
    assert_eq!(ids, &["0000:04:00.0-hwmon0", "0000:04:00.0-hwmon2", "0000:04:00.0-nvme1"]);
}

#[test]
fn a_chip_is_assigned_with_its_directory_where_it_is() {
    let tree = machine("reserve", "");
    let assigned = Hwmon::reserve(claim("coretemp", "coretemp.0")).unwrap();
    let dir = tree.path(PACKAGE).display().to_string();
    assert_eq!(assigned.mounts, [Mount::read_only(dir.as_str(), dir.as_str())]);
    let env = [EnvVar::new("HWMON_DEVICES", "coretemp.0"), EnvVar::new("HWMON_DEVICE_DIRS", dir)];
    assert_eq!(assigned.env, env);
    for (name, id) in [("coretemp", "gone"), ("nvme", "coretemp.0"), ("coretemp", "")] {
        assert!(matches!(Hwmon::reserve(claim(name, id)), Err(Error::NotFound(_))), "{name} {id}");
    }
}

#[test]
fn ignored_chips_and_chips_without_sensors_are_left_out() {
    let tree = machine("ignored", r#", "ignored_ids": ["nvme", "nct6775.656"]"#);
    add(&tree, "devices/platform/none/hwmon/hwmon7", &[("name", "none"), ("pwm1", "1")]);
    tree.link("class/hwmon/hwmon8", "../../devices/gone");
    let names: Vec<_> = found().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["coretemp"]);
}

#[test]
fn a_node_without_sensors_has_no_devices() {
    FakeHost::install().set_config(r#"{"root": "/nowhere/at/all"}"#);
    assert_eq!(Hwmon::fingerprint().unwrap().groups, []);
    assert_eq!(Hwmon::stats().unwrap(), []);
}
