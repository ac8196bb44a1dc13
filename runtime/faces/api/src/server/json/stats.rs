//! What allocations, devices and the node use.

use super::moment;
use ostler_model::stats as model;
use ostler_model::time::Timestamp;
use ostler_node::usage::{CoreShare, DiskUse, HostUsage};
use ostler_wire::{
    CpuStats, DeviceStats, HostCpu, HostDisk, HostMemory, HostStats, MemoryStats, ResourceUsage,
    Text, WireDeviceGroupStats,
};

/// The measurements of devices, by group.
pub(crate) fn devices(groups: &[model::DeviceGroupStats]) -> Vec<WireDeviceGroupStats<'_>> {
    let groups = groups.iter().map(|group| WireDeviceGroupStats {
        vendor: (&group.key.vendor).into(),
        kind: (&group.key.kind).into(),
        name: (&group.key.name).into(),
        instance_stats: group.instances.iter().map(|(id, one)| (id.into(), device(one))).collect(),
        stale: group.stale.as_ref().map(Into::into),
    });
    groups.collect()
}

fn device(stats: &model::InstanceStats) -> DeviceStats<'_> {
    DeviceStats {
        summary: stats.summary.as_ref().map(Into::into),
        stats: (&stats.stats).into(),
        timestamp: moment(stats.taken_at),
    }
}

/// The usage of a task from its memory in bytes and its per cent of a core, as far as they are
/// known. `core_mhz` is the speed of one core.
pub(crate) fn usage(
    memory_bytes: Option<u64>,
    percent: Option<f64>,
    core_mhz: f64,
) -> ResourceUsage<'static> {
    let (rss, share) = (memory_bytes.unwrap_or(0), percent.unwrap_or(0.0));
    let measured = |known: bool, names: &[&'static str]| -> Vec<Text<'static>> {
        names.iter().filter(|_| known).map(|name| Text::from(*name)).collect()
    };
    ResourceUsage {
        memory_stats: MemoryStats {
            rss,
            usage: rss,
            measured: measured(memory_bytes.is_some(), &["RSS", "Usage"]),
            ..MemoryStats::default()
        },
        cpu_stats: CpuStats {
            percent: share,
            total_ticks: share / 100.0 * core_mhz,
            measured: measured(percent.is_some(), &["Percent"]),
            ..CpuStats::default()
        },
        device_stats: Vec::new(),
    }
}

/// Add the memory and the processor time of `other` to `sum`. Devices are not changed here: they
/// are merged by group elsewhere.
pub(crate) fn add(sum: &mut ResourceUsage<'_>, other: &ResourceUsage<'static>) {
    let (memory, more) = (&mut sum.memory_stats, &other.memory_stats);
    memory.rss = memory.rss.saturating_add(more.rss);
    memory.usage = memory.usage.saturating_add(more.usage);
    let (cpu, also) = (&mut sum.cpu_stats, &other.cpu_stats);
    cpu.percent += also.percent;
    cpu.total_ticks += also.total_ticks;
    for (measured, other) in
        [(&mut memory.measured, &more.measured), (&mut cpu.measured, &also.measured)]
    {
        let new: Vec<_> = other.iter().filter(|name| !measured.contains(name)).cloned().collect();
        measured.extend(new);
    }
}

/// What the machine uses. `shares` has one entry for each core; `core_mhz` is the speed of one
/// core, 0 if it is unknown.
pub(crate) fn host<'a>(
    usage: HostUsage,
    shares: &[CoreShare],
    core_mhz: f64,
    now: Timestamp,
    groups: &'a [model::DeviceGroupStats],
) -> HostStats<'a> {
    let ticks = |share: &CoreShare| share.busy / 100.0 * core_mhz;
    let memory = usage.memory;
    let cores = usage.cores.into_iter().zip(shares).map(|(core, share)| HostCpu {
        name: core.name.into(),
        user: share.user,
        system: share.system,
        idle: share.idle,
        total: share.busy,
        total_percent: share.busy,
        total_ticks: ticks(share),
    });
    HostStats {
        memory: HostMemory {
            total: memory.total,
            available: memory.available,
            used: memory.total.saturating_sub(memory.available),
            free: memory.free,
        },
        cpu: cores.collect(),
        disk_stats: usage.disks.into_iter().map(disk).collect(),
        alloc_dir_stats: usage.data_dir.map(disk),
        device_stats: devices(groups),
        uptime: usage.uptime_secs,
        cpu_ticks_consumed: shares.iter().map(ticks).sum(),
        timestamp: now,
    }
}

fn disk(disk: DiskUse) -> HostDisk<'static> {
    HostDisk {
        device: disk.device.into(),
        mountpoint: disk.mountpoint.display().to_string().into(),
        size: disk.size,
        used: disk.used,
        available: disk.available,
        used_percent: disk.used_percent,
        inodes_used_percent: disk.inodes_used_percent,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use ostler_model::device::GroupKey;
    use ostler_model::stats::{InstanceStats, StatObject, StatValue};
    use ostler_node::usage::{CoreTime, MemoryUse};

    #[test]
    fn usage_of_tasks_adds_up_and_says_what_was_measured() {
        let mut sum = ResourceUsage::default();
        add(&mut sum, &usage(Some(10), None, 2_000.0));
        add(&mut sum, &usage(Some(5), Some(50.0), 2_000.0));
        assert_eq!((sum.memory_stats.rss, sum.cpu_stats.total_ticks), (15, 1_000.0));
        assert_eq!(sum.memory_stats.measured, ["RSS", "Usage"]);
        assert_eq!(sum.cpu_stats.measured, ["Percent"]);
    }

    #[test]
    fn the_shape_is_nomads_and_ticks_are_of_what_was_busy() {
        let core = |name: &str| CoreTime { name: name.to_owned(), ..CoreTime::default() };
        let usage = HostUsage {
            memory: MemoryUse { total: 10, available: 4, free: 1 },
            cores: vec![core("cpu0"), core("cpu1")],
            disks: vec![DiskUse { device: "/dev/a".to_owned(), size: 8, ..DiskUse::default() }],
            data_dir: None,
            uptime_secs: 5,
        };
        let half = CoreShare { user: 30.0, system: 20.0, idle: 50.0, busy: 50.0 };
        let shares = [half, CoreShare { idle: 100.0, ..CoreShare::default() }];
        let stats = host(usage, &shares, 2_000.0, Timestamp::from_nanos(7), &[]);
        let expected = json!({
            "Memory": {"Total": 10, "Available": 4, "Used": 6, "Free": 1},
            "CPU": [
                {"CPU": "cpu0", "User": 30.0, "System": 20.0, "Idle": 50.0,
                 "Total": 50.0, "TotalPercent": 50.0, "TotalTicks": 1000.0},
                {"CPU": "cpu1", "User": 0.0, "System": 0.0, "Idle": 100.0,
                 "Total": 0.0, "TotalPercent": 0.0, "TotalTicks": 0.0},
            ],
            "DiskStats": [{"Device": "/dev/a", "Mountpoint": "", "Size": 8, "Used": 0,
                "Available": 0, "UsedPercent": 0.0, "InodesUsedPercent": 0.0}],
            "AllocDirStats": null, "DeviceStats": [], "Uptime": 5,
            "CPUTicksConsumed": 1000.0, "Timestamp": 7,
        });
        assert_eq!(serde_json::to_value(stats).unwrap(), expected);
    }

    #[test]
    fn every_member_has_its_place_and_what_is_unset_has_none() {
        let full = StatValue {
            description: Some("d".into()),
            unit: Some("MiB".into()),
            int_numerator: Some(0),
            int_denominator: Some(i64::MIN),
            float_numerator: Some(0.0),
            float_denominator: Some(1.5),
            text: Some(String::new()),
            boolean: Some(false),
        };
        let mut stats = StatObject::default();
        assert!(stats.insert(&["fans".to_owned(), "0".to_owned()], full));
        assert!(stats.insert(&["empty".to_owned()], StatValue::default()));
        let summary = Some(StatValue { int_numerator: Some(7), ..StatValue::default() });
        let one = InstanceStats { summary, stats, taken_at: Timestamp::from_nanos(1_000_000_000) };
        let none = InstanceStats { summary: None, ..InstanceStats::default() };
        let key = GroupKey { vendor: "v".into(), kind: "t".into(), name: "n".into() };
        let instances = [("0".to_owned(), Arc::new(one)), ("1".to_owned(), Arc::new(none))].into();
        let group = model::DeviceGroupStats { key, instances, stale: None };
        let shown = json!(devices(std::slice::from_ref(&group))[0]);
        let full = json!({
            "FloatNumeratorVal": 0.0, "FloatDenominatorVal": 1.5, "IntNumeratorVal": 0,
            "IntDenominatorVal": i64::MIN, "StringVal": "", "BoolVal": false, "Unit": "MiB",
            "Desc": "d",
        });
        assert_eq!(
            shown["InstanceStats"]["0"],
            json!({
                "Summary": { "IntNumeratorVal": 7 },
                "Stats": {
                    "Nested": { "fans": { "Nested": {}, "Attributes": { "0": full } } },
                    "Attributes": { "empty": {} },
                },
                "Timestamp": "1970-01-01T00:00:01.000000000Z",
            })
        );
        assert_eq!(shown["InstanceStats"]["1"]["Summary"], json!(null));
        assert_eq!(
            (&shown["Vendor"], &shown["Type"], &shown["Name"]),
            (&json!("v"), &json!("t"), &json!("n"))
        );
        assert_eq!(shown.get("Stale"), None);
        let stale = model::DeviceGroupStats { stale: Some("late".into()), ..group };
        assert_eq!(json!(devices(&[stale]))[0]["Stale"], "late");
    }
}
