//! The sections that `ostler node status --stats` adds: measurements of the machine and its
//! devices.

use crate::output::{self, table};
use crate::stat_values;
use crate::terminal::TerminalInfo;
use ostler_model::words::{format_bytes, format_seconds};
use ostler_wire::{HostStats, WireDeviceGroupStats};

/// Sections for the machine and each group of devices.
pub(super) fn text(stats: &HostStats, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let mut section =
        |title: &str, body: String| text.push_str(&output::section(title, &body, terminal));
    let (used, total) = (format_bytes(stats.memory.used), format_bytes(stats.memory.total));
    let up = format_seconds(stats.uptime);
    section("in use", format!("memory       {used} of {total}\nup           {up}\n"));
    let percent = |share: f64| format!("{share:.1} %");
    let cores = stats.cpu.iter().map(|core| {
        [core.name.to_string(), percent(core.user), percent(core.system), percent(core.idle)]
    });
    section("processors", table(["CORE", "USER", "SYSTEM", "IDLE"], cores, terminal));
    let disks = stats.disk_stats.iter().map(|disk| {
        let used = format!("{} of {}", format_bytes(disk.used), format_bytes(disk.size));
        let inodes = percent(disk.inodes_used_percent);
        [
            disk.device.to_string(),
            disk.mountpoint.to_string(),
            used,
            percent(disk.used_percent),
            inodes,
        ]
    });
    section("disks", table(["DEVICE", "MOUNTED AT", "USED", "", "INODES"], disks, terminal));
    let devices: Vec<_> = stats.device_stats.iter().flat_map(rows).collect();
    if !devices.is_empty() {
        let header = ["GROUP", "DEVICE", "MEASURED", "VALUE", ""];
        section("devices measured", table(header, devices, terminal));
    }
    text
}

/// Everything the devices of a group measure.
fn rows(group: &WireDeviceGroupStats) -> Vec<[String; 5]> {
    let stale = group.stale.as_ref().map(|why| format!("stale: {why}")).unwrap_or_default();
    let of_instance = group.instance_stats.iter().flat_map(|(id, instance)| {
        let summary = ["summary".to_owned(), stat_values::value(instance.summary.as_ref())];
        let all = stat_values::rows(&instance.stats);
        [summary].into_iter().chain(all).map(move |[name, value]| (id.to_string(), name, value))
    });
    of_instance.map(|(id, name, value)| [group.group(), id, name, value, stale.clone()]).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn the_machine_and_its_devices_are_shown_with_what_they_measure() {
        let stats: HostStats = serde_json::from_value(json!({
            "Memory": { "Total": 4_294_967_296_u64, "Used": 1_073_741_824_u64 },
            "CPU": [{ "CPU": "cpu0", "User": 12.34, "System": 1.0, "Idle": 86.66 }],
            "DiskStats": [{ "Device": "/dev/vda", "Mountpoint": "/", "Size": 2_048, "Used": 1_024,
                "UsedPercent": 50.0, "InodesUsedPercent": 3.0 }],
            "DeviceStats": [{
                "Vendor": "acme", "Type": "gpu", "Name": "a", "Stale": "it hangs",
                "InstanceStats": { "0": { "Summary": null, "Stats": {
                    "Nested": { "fan": { "Nested": null,
                        "Attributes": { "rpm": { "IntNumeratorVal": 900 } } } },
                    "Attributes": null,
                } } },
            }],
            "Uptime": 3_700,
        }))
        .unwrap();
        let text = text(&stats, &TerminalInfo::default());
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for line in [
            "memory 1.0 GiB of 4.0 GiB",
            "up 1h01m",
            "cpu0 12.3 % 1.0 % 86.7 %",
            "/dev/vda / 1.0 KiB of 2.0 KiB 50.0 % 3.0 %",
            "acme/gpu/a 0 summary <none> stale: it hangs",
            "acme/gpu/a 0 fan.rpm 900 stale: it hangs",
        ] {
            assert!(lines.iter().any(|shown| shown == line), "no {line:?} in\n{text}");
        }
    }
}
