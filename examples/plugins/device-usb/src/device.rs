//! One USB device, read from sysfs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ostler_sdk::device::prelude::*;
use plugin_support::sysfs::{self, Uevent};
use plugin_support::{groups, pci};

use crate::Config;

/// Class of hubs.
const HUB: u8 = 0x09;

/// A device, not one of its interfaces.
pub struct Device {
    /// Name of its directory, which is its place: `1-4.2` is port 2 of the hub at port 4 of bus 1.
    pub path: String,
    /// The serial number, or the place; see [`name_all`].
    pub id: String,
    /// `046d`.
    pub vendor: String,
    /// `c52b`.
    pub product: String,
    /// Below `/dev`: `bus/usb/001/004`.
    pub node: String,
    /// Its interfaces, by name of their directories.
    pub interfaces: Vec<String>,
    classes: BTreeSet<u8>,
    serial: Option<String>,
}

impl Device {
    /// `None` for a device that went away in between, and for what is none.
    fn read(bus: &Path, path: String, interfaces: Vec<String>) -> Option<Self> {
        let dir = bus.join(&path);
        let uevent = Uevent::of(&dir)?;
        let mut product = uevent.get("PRODUCT")?.split('/');
        let mut number = || u16::from_str_radix(product.next()?, 16).ok();
        let (vendor, product) = (format!("{:04x}", number()?), format!("{:04x}", number()?));
        let node = uevent.get("DEVNAME").filter(|node| is_node(node))?.to_owned();
        let of_interface = |name: &String| {
            let interface = Uevent::of(&bus.join(name))?;
            class(interface.get("INTERFACE")?)
        };
        let own = uevent.get("TYPE").and_then(class);
        // Zero: each interface has a class of its own.
        let classes = own.filter(|class| *class != 0).into_iter();
        let classes = classes.chain(interfaces.iter().filter_map(of_interface)).collect();
        let serial = sysfs::read(&dir.join("serial")).and_then(|text| groups::name(&text));
        // What looks like a place would be taken for one, and a comma for two.
        let serial = serial.filter(|text| !is_path(text) && !text.contains(','));
        let id = serial.clone().unwrap_or_else(|| path.clone());
        Some(Self { path, id, vendor, product, node, interfaces, classes, serial })
    }

    /// Whether the configuration leaves it in.
    fn wanted(&self, config: &Config) -> bool {
        let ids = format!("{}:{}", self.vendor, self.product);
        let own = [self.path.as_str(), ids.as_str(), self.serial.as_deref().unwrap_or_default()];
        let ignored = |id: &String| own.iter().any(|own| own.eq_ignore_ascii_case(id));
        let of_class = |wanted: &String| {
            self.classes.iter().any(|class| {
                class_name(*class) == wanted || format!("{class:02x}").eq_ignore_ascii_case(wanted)
            })
        };
        (config.hubs || !self.classes.contains(&HUB))
            && (config.classes.is_empty() || config.classes.iter().any(of_class))
            && !config.ignored_ids.iter().any(ignored)
    }

    /// What it says of itself.
    pub fn attributes(&self, bus: &Path) -> Vec<NamedAttribute> {
        let dir = bus.join(&self.path);
        let text = |file: &str| sysfs::read(&dir.join(file)).and_then(|text| groups::name(&text));
        let classes: Vec<&str> = self.classes.iter().map(|class| class_name(*class)).collect();
        let mut attributes = vec![
            NamedAttribute::new("vendor_id", self.vendor.as_str()),
            NamedAttribute::new("product_id", self.product.as_str()),
            NamedAttribute::new("class", classes.join(",")),
        ];
        for (name, file) in
            [("manufacturer", "manufacturer"), ("product", "product"), ("usb_version", "version")]
        {
            attributes.extend(text(file).map(|text| NamedAttribute::new(name, text)));
        }
        // The kernel tells megabits; attributes have units of bytes.
        let megabits = text("speed").and_then(|speed| speed.parse::<f64>().ok());
        if let Some(megabits) = megabits.filter(|speed| speed.is_finite() && *speed > 0.0) {
            attributes.push(NamedAttribute::new("speed", megabits / 8.0).unit("MB/s"));
        }
        attributes
    }

    /// How it is, and where.
    pub fn instance(&self, root: &Path, bus: &Path) -> Instance {
        let dir = bus.join(&self.path);
        let instance = match sysfs::read(&dir.join("authorized")).as_deref() {
            Some("0") => Instance::unhealthy(&self.id, "not authorized (sysfs: authorized is 0)"),
            _ => Instance::healthy(&self.id),
        };
        let parts = sysfs::link_parts(&dir);
        match pci::last_address(&parts) {
            Some(controller) => {
                let numa = sysfs::numa_node(&root.join("bus/pci/devices").join(controller));
                instance.at(Some(controller.to_owned()), numa)
            }
            None => instance,
        }
    }
}

/// All devices that the configuration leaves in, by place. A node without USB has none.
pub fn list(bus: &Path, config: &Config) -> Result<Vec<Device>> {
    let mut interfaces: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let names = sysfs::names(bus)?;
    for name in &names {
        match name.split_once(':') {
            Some((device, _)) => {
                interfaces.entry(device.to_owned()).or_default().push(name.clone());
            }
            None => drop(interfaces.entry(name.clone()).or_default()),
        }
    }
    let read = |(path, own): (String, Vec<String>)| match Device::read(bus, path.clone(), own) {
        Some(device) => Some(device),
        None => {
            log::debug(format!("USB device {path} cannot be read; left out"));
            None
        }
    };
    let mut devices: Vec<Device> = interfaces.into_iter().filter_map(read).collect();
    devices.retain(|device| device.wanted(config));
    name_all(&mut devices);
    Ok(devices)
}

/// Devices are known by their serial number, so that they keep their id in another port. Cheap
/// ones all have the same: twins are known by their place, all of them, so that none is taken for
/// another.
fn name_all(devices: &mut [Device]) {
    let mut count: BTreeMap<(String, String, String), u32> = BTreeMap::new();
    let key = |device: &Device| (device.vendor.clone(), device.product.clone(), device.id.clone());
    for device in devices.iter() {
        *count.entry(key(device)).or_default() += 1;
    }
    for device in devices.iter_mut() {
        if count.get(&key(device)).is_some_and(|twins| *twins > 1) {
            device.id.clone_from(&device.path);
        }
    }
}

/// `1-4.2`, `usb1`.
fn is_path(text: &str) -> bool {
    let port = |c: char| c.is_ascii_digit() || c == '-' || c == '.';
    text.chars().all(port)
        && text.split_once('-').is_some_and(|(bus, port)| !bus.is_empty() && !port.is_empty())
        || text.strip_prefix("usb").is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()))
}

/// `bus/usb/001/004`: nothing else is assigned as the node of a USB device.
fn is_node(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    text.strip_prefix("bus/usb/")
        .and_then(|numbers| numbers.split_once('/'))
        .is_some_and(|(bus, device)| digits(bus) && digits(device))
}

/// The first of `9/0/1`, decimal as the kernel writes it.
fn class(triple: &str) -> Option<u8> {
    triple.split('/').next()?.parse().ok()
}

/// Names of classes, from the list of the USB organisation.
fn class_name(class: u8) -> &'static str {
    match class {
        0x01 => "audio",
        0x02 => "communications",
        0x03 => "hid",
        0x05 => "physical",
        0x06 => "image",
        0x07 => "printer",
        0x08 => "storage",
        HUB => "hub",
        0x0a => "cdc-data",
        0x0b => "smart-card",
        0x0e => "video",
        0x0f => "healthcare",
        0x10 => "audio-video",
        0x11 => "billboard",
        0xdc => "diagnostic",
        0xe0 => "wireless",
        0xef => "miscellaneous",
        0xfe => "application",
        0xff => "vendor-specific",
        _ => "other",
    }
}
