//! Device nodes that belong to a USB device: its own, and those its drivers made.

use std::path::{Path, PathBuf};

use ostler_sdk::device::prelude::*;
use plugin_support::sysfs::{self, Uevent};

use crate::device::Device;

/// Classes whose nodes are assigned with the device. Disks are not among them.
const CLASSES: [&str; 4] = ["hidraw", "tty", "usbmisc", "video4linux"];
/// Directories below an interface that are looked into.
const DEPTH: usize = 4;
/// Directories of one device that are looked into.
const LOOKS: usize = 200;

/// The nodes of a device, its own first.
///
/// # Errors
/// A directory that is there cannot be read.
pub fn of(bus: &Path, device: &Device, drivers: bool) -> Result<Vec<String>> {
    let mut nodes = vec![device.node.clone()];
    if drivers {
        let mut looks = LOOKS;
        for interface in &device.interfaces {
            below(&bus.join(interface), DEPTH, &mut looks, &mut nodes)?;
        }
    }
    Ok(nodes)
}

fn below(dir: &Path, depth: usize, looks: &mut usize, nodes: &mut Vec<String>) -> Result<()> {
    let (Some(depth), Some(left)) = (depth.checked_sub(1), looks.checked_sub(1)) else {
        return Ok(());
    };
    *looks = left;
    for name in sysfs::directories(dir)? {
        let child: PathBuf = dir.join(&name);
        if CLASSES.contains(&name.as_str()) {
            for made in sysfs::directories(&child)? {
                let uevent = Uevent::of(&child.join(made));
                nodes.extend(uevent.and_then(|u| u.get("DEVNAME").map(str::to_owned)));
            }
        } else if name != "power" {
            below(&child, depth, looks, nodes)?;
        }
    }
    Ok(())
}

/// A node, assigned for reading and writing where it is.
pub fn assigned(name: &str) -> DeviceNode {
    let path = format!("/dev/{name}");
    DeviceNode { host_path: path.clone(), task_path: path, permissions: "rw".to_owned() }
}
