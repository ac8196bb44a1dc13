//! What the kernel measures of a PCI device: the link, the power state and error counts.

use std::path::Path;

use ostler_sdk::device::prelude::*;
use plugin_support::sysfs;

/// Base class of bridges: half the devices of a node, and no task uses them.
const BRIDGE: u32 = 0x06;

/// Measurements of one device. `None` where there are none to take.
pub fn instance(dir: &Path, id: String, class: u32) -> Option<InstanceStats> {
    if class >> 16 == BRIDGE {
        return None;
    }
    let mut stats = InstanceStats::new(id, None);
    let speed = gigatransfers(dir, "current_link_speed");
    if let Some(now) = speed {
        let value = StatValue {
            description: Some("speed of the link, of the highest it can have".to_owned()),
            unit: Some("GT/s".to_owned()),
            float_numerator: Some(now),
            float_denominator: gigatransfers(dir, "max_link_speed"),
            ..StatValue::empty()
        };
        stats = stats.nested(&["link", "speed"], value);
        if let Some(lanes) = sysfs::read_number(&dir.join("current_link_width")) {
            let value = StatValue {
                int_denominator: sysfs::read_number(&dir.join("max_link_width")),
                ..StatValue::int(lanes, "lanes", "width of the link, of the widest it can have")
            };
            stats.summary = Some(value.clone());
            stats = stats.nested(&["link", "width"], value);
        }
    }
    for (kind, file, total) in [
        ("correctable", "aer_dev_correctable", "TOTAL_ERR_COR"),
        ("nonfatal", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
        ("fatal", "aer_dev_fatal", "TOTAL_ERR_FATAL"),
    ] {
        // One file is there when all are.
        let Some(text) = sysfs::read(&dir.join(file)) else {
            break;
        };
        if let Some(errors) = count(&text, total) {
            let value = StatValue::int(errors, "", "errors since the node started");
            stats = stats.nested(&["errors", kind], value);
        }
    }
    (!stats.stats.is_empty()).then_some(stats)
}

/// `16.0 GT/s PCIe` as 16. `Unknown` is not zero.
fn gigatransfers(dir: &Path, file: &str) -> Option<f64> {
    let text = sysfs::read(&dir.join(file))?;
    text.split_whitespace().next()?.parse().ok().filter(|speed: &f64| speed.is_finite())
}

/// The number behind a word.
fn count(text: &str, word: &str) -> Option<i64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}
