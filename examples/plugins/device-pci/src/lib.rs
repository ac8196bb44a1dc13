//! Device plugin `pci`: the PCI devices of the node, read from sysfs.
//!
//! The entries of `bus/pci/devices` are links into `devices/`, so the granted directory is the
//! root of sysfs: a sandboxed directory does not follow a link that leaves it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ostler_sdk::device::prelude::*;
use plugin_support::{groups, pci, sysfs};
use serde::Deserialize;

mod measure;
mod names;
mod nodes;

const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "root": {
      "type": "string", "minLength": 1, "default": "/sys",
      "description": "Granted directory where sysfs is mounted."
    },
    "classes": {
      "type": "array", "items": {"type": "string", "minLength": 2},
      "description": "Only devices of these classes: names (display) or the first digits of the number (03, 0302). Absent: all."
    },
    "ignored_ids": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Devices left out: addresses (0000:3b:00.0) or vendor and device (10de:2330)."
    },
    "ignored_drivers": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Devices of these drivers left out, for example those that another plugin offers (nvidia)."
    },
    "nodes": {
      "type": "boolean", "default": true,
      "description": "Assign the device nodes of graphics cards, accelerators, RDMA adapters and VFIO groups."
    }
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "sysfs_root")]
    root: PathBuf,
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    ignored_ids: Vec<String>,
    #[serde(default)]
    ignored_drivers: Vec<String>,
    #[serde(default = "yes")]
    nodes: bool,
}

fn sysfs_root() -> PathBuf {
    PathBuf::from("/sys")
}

fn yes() -> bool {
    true
}

struct Pci;

impl DevicePlugin for Pci {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("pci", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let config: Config = host::config()?;
        let dir = config.root.join("bus/pci/devices");
        let found = grouped(list(&config)?).into_iter().map(|(key, devices)| {
            let group = Group::new(key.vendor, key.class, key.device);
            let attributes = groups::shared(devices.iter().map(Device::attributes));
            group
                .attributes(attributes)
                .instances(devices.into_iter().map(|one| one.instance(&dir)))
        });
        let found = Fingerprint::new(Health::healthy()).groups(found);
        Ok(found.check_after(60_000).watch_subsystem("pci"))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let config: Config = host::config()?;
        let mut reservation = Reservation::empty().env("PCI_DEVICES", claim.ids.join(","));
        for id in &claim.ids {
            let dir = config.root.join("bus/pci/devices").join(id);
            // An id with a slash would be a path out of the directory.
            let device = pci::normalise(id)
                .filter(|address| address == id)
                .and_then(|address| Device::read(&dir, address))
                .filter(|device| device.wanted(&config) && device.key().is(&claim));
            if device.is_none() {
                return Err(Error::not_found(format!("no PCI device {id:?} of this group")));
            }
            if config.nodes {
                for node in nodes::of(&dir)? {
                    reservation = reservation.device_node(node);
                }
            }
        }
        Ok(nodes::once_each(reservation))
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let config: Config = host::config()?;
        let dir = config.root.join("bus/pci/devices");
        let groups = grouped(list(&config)?).into_iter().filter_map(|(key, devices)| {
            let measured = devices.into_iter().filter_map(|device| {
                measure::instance(&dir.join(&device.address), device.address, device.class)
            });
            let instances: Vec<_> = measured.collect();
            let Key { vendor, class, device } = key;
            let stats = GroupStats { vendor, type_: class.to_owned(), name: device, instances };
            (!stats.instances.is_empty()).then_some(stats)
        });
        Ok(groups.collect())
    }
}

/// What a group is called. Two programming interfaces of one device do not make two groups.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    vendor: String,
    class: &'static str,
    device: String,
}

impl Key {
    fn is(&self, claim: &Claim) -> bool {
        (self.vendor.as_str(), self.class, self.device.as_str())
            == (claim.vendor.as_str(), claim.type_.as_str(), claim.name.as_str())
    }
}

/// One PCI function.
struct Device {
    /// `0000:3b:00.0`.
    address: String,
    vendor: u16,
    id: u16,
    /// Class, subclass and programming interface.
    class: u32,
    subsystem: Option<String>,
    driver: Option<String>,
}

impl Device {
    /// `None` for a device that went away in between.
    fn read(dir: &Path, address: String) -> Option<Self> {
        let uevent = sysfs::Uevent::of(dir)?;
        let hex = |text: &str| u16::from_str_radix(text, 16).ok();
        let (vendor, id) = uevent.get("PCI_ID")?.split_once(':')?;
        Some(Self {
            address,
            vendor: hex(vendor)?,
            id: hex(id)?,
            class: u32::from_str_radix(uevent.get("PCI_CLASS")?, 16).ok()?,
            subsystem: uevent.get("PCI_SUBSYS_ID").map(str::to_ascii_lowercase),
            driver: uevent.get("DRIVER").map(str::to_owned),
        })
    }

    fn key(&self) -> Key {
        Key {
            vendor: names::vendor(self.vendor),
            class: names::class(self.class),
            device: format!("{:04x}", self.id),
        }
    }

    /// Whether the configuration leaves it in.
    fn wanted(&self, config: &Config) -> bool {
        let digits = format!("{:06x}", self.class);
        let of_class = |class: &String| {
            let class = class.to_ascii_lowercase();
            class == names::class(self.class) || digits.starts_with(&class)
        };
        let ids = format!("{:04x}:{:04x}", self.vendor, self.id);
        let ignored =
            |id: &String| id.eq_ignore_ascii_case(&self.address) || id.eq_ignore_ascii_case(&ids);
        (config.classes.is_empty() || config.classes.iter().any(of_class))
            && !config.ignored_ids.iter().any(ignored)
            && !self.driver.as_ref().is_some_and(|driver| config.ignored_drivers.contains(driver))
    }

    fn attributes(&self) -> Vec<NamedAttribute> {
        let mut attributes = vec![
            NamedAttribute::new("class", format!("{:06x}", self.class)),
            NamedAttribute::new("vendor_id", format!("{:04x}", self.vendor)),
            NamedAttribute::new("device_id", format!("{:04x}", self.id)),
        ];
        let texts = [("driver", &self.driver), ("subsystem_id", &self.subsystem)];
        let given = texts.into_iter().filter_map(|(name, text)| {
            Some(NamedAttribute::new(name, groups::name(text.as_deref()?)?))
        });
        attributes.extend(given);
        attributes
    }

    /// Reads a second file, so it is not done for devices that are left out.
    fn instance(self, devices: &Path) -> Instance {
        let numa_node = sysfs::numa_node(&devices.join(&self.address));
        Instance::healthy(self.address.clone()).at(Some(self.address), numa_node)
    }
}

/// All devices that the configuration leaves in, sorted by address. A node without PCI has none.
fn list(config: &Config) -> Result<Vec<Device>> {
    let dir = config.root.join("bus/pci/devices");
    let mut devices = vec![];
    for address in sysfs::names(&dir)? {
        match Device::read(&dir.join(&address), address.clone()) {
            Some(device) if device.wanted(config) => devices.push(device),
            Some(_) => {}
            None => log::debug(format!("PCI device {address} cannot be read; left out")),
        }
    }
    Ok(devices)
}

fn grouped(devices: Vec<Device>) -> BTreeMap<Key, Vec<Device>> {
    let mut groups: BTreeMap<Key, Vec<Device>> = BTreeMap::new();
    for device in devices {
        groups.entry(device.key()).or_default().push(device);
    }
    groups
}

ostler_sdk::export_device!(Pci);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
