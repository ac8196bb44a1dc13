use super::*;
use ostler_sdk::testing::FakeHost;
use std::os::unix::fs::symlink;

/// A tree like sysfs, with links as the kernel makes them; removed at the end.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("device-pci-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        FakeHost::install().set_config(&format!(r#"{{"root": "{}"}}"#, root.display()));
        Self(root)
    }

    fn add(&self, address: &str, files: &[(&str, &str)], driver: Option<&str>) {
        let dir = self.0.join("devices/pci0000:00").join(address);
        fs::create_dir_all(&dir).unwrap();
        for (name, content) in files {
            fs::write(dir.join(name), format!("{content}\n")).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../../bus/pci/drivers/{driver}"), dir.join("driver")).unwrap();
        }
        let link = self.0.join("bus/pci/devices").join(address);
        symlink(format!("../../../devices/pci0000:00/{address}"), link).unwrap();
    }

    fn add_card(&self, address: &str, driver: Option<&str>, numa: &str) {
        let files = [
            ("vendor", "0x10de"),
            ("device", "0x2330"),
            ("class", "0x030200"),
            ("numa_node", numa),
        ];
        self.add(address, &files, driver);
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn equal_cards_form_one_group_and_keep_their_place_in_the_machine() {
    let sysfs = Sysfs::new("group");
    sysfs.add_card("0000:3b:00.0", Some("nvidia"), "0");
    sysfs.add_card("0000:af:00.0", Some("nvidia"), "-1");
    let found = Pci::fingerprint().unwrap();
    let [group] = found.groups.as_slice() else { unreachable!("{found:?}") };
    assert_eq!((group.vendor.as_str(), group.type_.as_str()), ("nvidia", "display"));
    assert_eq!(group.name, "2330");
    let place = |index: usize| group.instances[index].locality.clone().unwrap();
    assert_eq!(place(0).pci_bus_id.as_deref(), Some("0000:3b:00.0"));
    assert_eq!(place(0).numa_node, Some(0));
    assert_eq!(place(1).numa_node, None, "-1 means unknown");
    assert!(group.attributes.contains(&NamedAttribute::new("driver", "nvidia")));
}

#[test]
fn the_driver_is_left_out_where_the_devices_disagree() {
    let sysfs = Sysfs::new("drivers");
    sysfs.add_card("0000:3b:00.0", Some("nvidia"), "0");
    sysfs.add_card("0000:af:00.0", Some("vfio-pci"), "0");
    let found = Pci::fingerprint().unwrap();
    assert_eq!(found.groups[0].attributes, [NamedAttribute::new("class", "030200")]);
}

#[test]
fn a_device_that_cannot_be_read_is_left_out_and_the_others_stay() {
    let sysfs = Sysfs::new("broken");
    sysfs.add_card("0000:3b:00.0", None, "0");
    sysfs.add("0000:00:1f.0", &[("vendor", "rubbish")], None);
    symlink("../../../devices/gone", sysfs.0.join("bus/pci/devices/0000:00:02.0")).unwrap();
    let found = Pci::fingerprint().unwrap();
    assert_eq!(found.groups.len(), 1);
}

#[test]
fn programming_interfaces_of_one_device_do_not_make_two_groups_of_one_name() {
    let sysfs = Sysfs::new("merge");
    for (address, class) in [("0000:00:01.0", "0x010601"), ("0000:00:02.0", "0x010602")] {
        let files = [("vendor", "0x8086"), ("device", "0x2922"), ("class", class)];
        sysfs.add(address, &files, Some("ahci"));
    }
    let found = Pci::fingerprint().unwrap();
    assert_eq!(found.groups.len(), 1);
    assert_eq!(found.groups[0].instances.len(), 2);
    assert_eq!(found.groups[0].attributes, [NamedAttribute::new("driver", "ahci")]);
}

#[test]
fn a_node_without_pci_has_no_devices() {
    FakeHost::install().set_config(r#"{"root": "/nowhere/at/all"}"#);
    assert_eq!(Pci::fingerprint().unwrap().groups, []);
}

#[test]
fn a_reservation_names_the_addresses_and_refuses_what_is_gone() {
    let sysfs = Sysfs::new("reserve");
    sysfs.add_card("0000:3b:00.0", None, "0");
    let claim = |id: &str| Claim {
        vendor: "nvidia".to_owned(),
        type_: "display".to_owned(),
        name: "2330".to_owned(),
        ids: vec![id.to_owned()],
    };
    let reserved = Pci::reserve(claim("0000:3b:00.0")).unwrap();
    assert_eq!(reserved.env, [EnvVar::new("PCI_DEVICES", "0000:3b:00.0")]);
    assert!(matches!(Pci::reserve(claim("0000:ff:00.0")), Err(Error::NotFound(_))));
}
