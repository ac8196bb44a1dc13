//! Device nodes that belong to a PCI device.

use std::path::Path;

use ostler_sdk::device::prelude::*;
use plugin_support::sysfs::{self, Uevent};

/// Classes whose nodes are made to be shared out to programs. Disks are not among them: whoever
/// has the node of a disk has the node.
const CLASSES: [&str; 3] = ["drm", "accel", "infiniband_verbs"];

/// The nodes of the device in this directory: its VFIO group where that driver holds it, else what
/// its classes made.
pub fn of(device: &Path) -> Result<Vec<DeviceNode>> {
    let driver = Uevent::of(device).and_then(|uevent| uevent.get("DRIVER").map(str::to_owned));
    if driver.as_deref() == Some("vfio-pci") {
        let group = sysfs::link_parts(&device.join("iommu_group")).pop();
        let group = group.filter(|group| group.chars().all(|digit| digit.is_ascii_digit()));
        return Ok(match group {
            Some(group) => vec![node("vfio/vfio"), node(&format!("vfio/{group}"))],
            None => vec![],
        });
    }
    let mut nodes = vec![];
    for class in CLASSES {
        let dir = device.join(class);
        for child in sysfs::names(&dir)? {
            let name = Uevent::of(&dir.join(child)).and_then(|u| u.get("DEVNAME").map(node));
            nodes.extend(name);
        }
    }
    Ok(nodes)
}

fn node(name: &str) -> DeviceNode {
    let path = format!("/dev/{name}");
    DeviceNode { host_path: path.clone(), task_path: path, permissions: "rw".to_owned() }
}

/// Functions of one card can share a VFIO group.
pub fn once_each(mut reservation: Reservation) -> Reservation {
    let mut kept: Vec<DeviceNode> = vec![];
    for node in reservation.device_nodes {
        if !kept.contains(&node) {
            kept.push(node);
        }
    }
    reservation.device_nodes = kept;
    reservation
}
