//! Device plugin `usb`: what is plugged into the USB ports of the node, read from sysfs.
//!
//! The entries of `bus/usb/devices` are links into `devices/`, so the granted directory is the
//! root of sysfs: a sandboxed directory does not follow a link that leaves it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use device::Device;
use ostler_sdk::device::prelude::*;
use plugin_support::{groups, sysfs};
use serde::Deserialize;

mod device;
mod nodes;

const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "root": {
      "type": "string", "pattern": "^/", "default": "/sys",
      "description": "Granted directory where sysfs is mounted."
    },
    "classes": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Only devices with one of these classes: names (hid, video) or two digits (03). Absent: all."
    },
    "ignored_ids": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Devices left out: serial numbers, places (1-4.2) or vendor and product (046d:c52b)."
    },
    "hubs": {"type": "boolean", "default": false, "description": "Hubs are devices too."},
    "driver_nodes": {
      "type": "boolean", "default": true,
      "description": "Assign what drivers made of a device too: tty, hidraw, video4linux and usbmisc nodes."
    }
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    root: PathBuf,
    classes: Vec<String>,
    ignored_ids: Vec<String>,
    hubs: bool,
    driver_nodes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/sys"),
            classes: vec![],
            ignored_ids: vec![],
            hubs: false,
            driver_nodes: true,
        }
    }
}

impl Config {
    fn bus(&self) -> PathBuf {
        self.root.join("bus/usb/devices")
    }
}

struct Usb;

impl DevicePlugin for Usb {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("usb", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let config: Config = host::config()?;
        let (root, bus) = (&config.root, config.bus());
        let groups = grouped(device::list(&bus, &config)?).into_iter();
        let groups = groups.map(|((vendor, product), devices)| {
            Group::new(vendor, "usb", product)
                .attributes(groups::shared(devices.iter().map(|one| one.attributes(&bus))))
                .instances(devices.iter().map(|one| one.instance(root, &bus)))
        });
        let found = Fingerprint::new(Health::healthy()).groups(groups);
        Ok(found.check_after(60_000).watch_subsystem("usb"))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let config: Config = host::config()?;
        let bus = config.bus();
        let there = device::list(&bus, &config)?;
        let mut reservation = Reservation::empty().env("USB_DEVICES", claim.ids.join(","));
        let mut own = vec![];
        for id in &claim.ids {
            let found = there.iter().find(|device| {
                device.id == *id && device.vendor == claim.vendor && device.product == claim.name
            });
            let device = found
                .filter(|_| claim.type_ == "usb")
                .ok_or_else(|| Error::not_found(format!("no USB device {id:?} of this group")))?;
            for node in nodes::of(&bus, device, config.driver_nodes)? {
                reservation = reservation.device_node(nodes::assigned(&node));
            }
            own.push(format!("/dev/{}", device.node));
        }
        Ok(reservation.env("USB_DEVICE_NODES", own.join(",")))
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let config: Config = host::config()?;
        let bus = config.bus();
        let groups = grouped(device::list(&bus, &config)?).into_iter();
        let groups = groups.map(|((vendor, name), devices)| GroupStats {
            vendor,
            type_: "usb".to_owned(),
            name,
            instances: devices.into_iter().map(|one| measure(&bus, one)).collect(),
        });
        Ok(groups.collect())
    }
}

/// What the kernel counts of a device; what it does not is absent.
fn measure(bus: &std::path::Path, device: Device) -> InstanceStats {
    let dir = bus.join(&device.path);
    let number = |file: &str| sysfs::read_number::<i64>(&dir.join(file));
    let requests = number("urbnum")
        .map(|count| StatValue::int(count, "", "requests to the device since it was plugged in"));
    let mut stats = InstanceStats::new(device.id, requests.clone());
    if let Some(requests) = requests {
        stats = stats.stat("requests", requests);
    }
    for (name, file, description) in [
        ("connected", "power/connected_duration", "time since it was plugged in"),
        ("active", "power/active_duration", "time in which it was not suspended"),
    ] {
        if let Some(span) = number(file) {
            stats = stats.nested(&["power", name], StatValue::int(span, "ms", description));
        }
    }
    stats
}

fn grouped(devices: Vec<Device>) -> BTreeMap<(String, String), Vec<Device>> {
    let mut groups: BTreeMap<_, Vec<Device>> = BTreeMap::new();
    for device in devices {
        let key = (device.vendor.clone(), device.product.clone());
        groups.entry(key).or_default().push(device);
    }
    groups
}

ostler_sdk::export_device!(Usb);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
