//! Device plugin `pci`: the PCI devices of the node, read from sysfs.
//!
//! The entries of `bus/pci/devices` are links into `devices/`, so the granted directory is the
//! root of sysfs: a sandboxed directory does not follow a link that leaves it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ostler_sdk::device::prelude::*;
use serde::Deserialize;

mod names;

const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "root": {
      "type": "string", "minLength": 1, "default": "/sys",
      "description": "Granted directory where sysfs is mounted."
    }
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "sysfs")]
    root: PathBuf,
}

fn sysfs() -> PathBuf {
    PathBuf::from("/sys")
}

struct Pci;

impl DevicePlugin for Pci {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("pci", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let mut groups: BTreeMap<(u16, u32, u16), Vec<Device>> = BTreeMap::new();
        for device in list()? {
            let key = (device.vendor, device.class, device.id);
            groups.entry(key).or_default().push(device);
        }
        let groups = groups.into_iter().map(|((vendor, class, id), devices)| {
            Group::new(names::vendor(vendor), names::class(class), format!("{id:04x}"))
                .attributes(attributes(class, &devices))
                .instances(devices.into_iter().map(|device| {
                    Instance::healthy(device.address.clone())
                        .at(Some(device.address), device.numa_node)
                }))
        });
        let groups = merge(groups);
        Ok(Fingerprint::new(groups).check_after(60_000).watch_subsystem("pci"))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let there = list()?;
        if let Some(gone) = claim.ids.iter().find(|id| there.iter().all(|d| d.address != **id)) {
            return Err(Error::not_found(format!("no PCI device {gone:?}")));
        }
        Ok(Reservation::empty().env("PCI_DEVICES", claim.ids.join(",")))
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
    numa_node: Option<u32>,
    driver: Option<String>,
}

impl Device {
    /// `None` for a device that went away in between.
    fn read(dir: &Path, address: String) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let hex = |name: &str| {
            let text = text(name)?;
            let digits = text.trim();
            u32::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
        };
        let driver = fs::read_link(dir.join("driver")).ok();
        Some(Self {
            address,
            vendor: hex("vendor").and_then(|id| u16::try_from(id).ok())?,
            id: hex("device").and_then(|id| u16::try_from(id).ok())?,
            class: hex("class")?,
            // The kernel writes -1 where it does not know.
            numa_node: text("numa_node").and_then(|node| node.trim().parse().ok()),
            driver: driver.and_then(|link| link.file_name()?.to_str().map(str::to_owned)),
        })
    }
}

/// All devices, sorted by address. A node without PCI has none.
fn list() -> Result<Vec<Device>> {
    let Config { root } = host::config()?;
    let dir = root.join("bus/pci/devices");
    let cannot_read = |error| Error::recoverable(format!("cannot read {}: {error}", dir.display()));
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(cannot_read)?,
    };
    let mut devices = vec![];
    for entry in entries {
        let name = entry.map_err(cannot_read)?.file_name();
        let Some(address) = name.to_str() else {
            continue;
        };
        match Device::read(&dir.join(address), address.to_owned()) {
            Some(device) => devices.push(device),
            None => log::debug(format!("PCI device {address} cannot be read; left out")),
        }
    }
    devices.sort_by(|a, b| a.address.cmp(&b.address));
    Ok(devices)
}

/// The driver is an attribute of the group only where all its devices have the same.
fn attributes(class: u32, devices: &[Device]) -> Vec<NamedAttribute> {
    let mut attributes = vec![NamedAttribute::new("class", format!("{class:06x}"))];
    let mut drivers = devices.iter().map(|device| device.driver.as_deref());
    if let Some(Some(driver)) = drivers.next()
        && drivers.all(|other| other == Some(driver))
    {
        attributes.push(NamedAttribute::new("driver", driver));
    }
    attributes
}

/// Two classes can have one name; groups must not.
fn merge(groups: impl Iterator<Item = Group>) -> Vec<Group> {
    let mut merged: Vec<Group> = vec![];
    for group in groups {
        let same = |other: &&mut Group| {
            (&other.vendor, &other.type_, &other.name) == (&group.vendor, &group.type_, &group.name)
        };
        match merged.iter_mut().find(same) {
            Some(other) => {
                other.attributes.retain(|attribute| group.attributes.contains(attribute));
                other.instances.extend(group.instances);
            }
            None => merged.push(group),
        }
    }
    merged
}

ostler_sdk::export_device!(Pci);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
