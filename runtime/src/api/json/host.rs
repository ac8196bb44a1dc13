//! What the node uses.

use serde::Serialize;

use super::device_stats::DeviceStatsJson;
use ostler_model::stats::DeviceGroupStats;
use ostler_model::time::Timestamp;
use ostler_node::usage::{CoreShare, DiskUse, HostUsage};

/// `HostStats`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct HostStatsJson {
    memory: MemoryJson,
    #[serde(rename = "CPU")]
    cpu: Vec<CoreJson>,
    disk_stats: Vec<DiskJson>,
    alloc_dir_stats: Option<DiskJson>,
    device_stats: Vec<DeviceStatsJson>,
    /// Seconds.
    uptime: u64,
    #[serde(rename = "CPUTicksConsumed")]
    cpu_ticks_consumed: f64,
    /// Nanoseconds since the epoch.
    timestamp: u64,
}

/// `HostMemoryStats`, bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct MemoryJson {
    total: u64,
    available: u64,
    used: u64,
    free: u64,
}

/// `HostCPUStats`, per cent; ticks in MHz.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct CoreJson {
    #[serde(rename = "CPU")]
    name: String,
    user: f64,
    system: f64,
    idle: f64,
    total_percent: f64,
    total_ticks: f64,
}

/// `HostDiskStats`, bytes and per cent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct DiskJson {
    device: String,
    mountpoint: String,
    size: u64,
    used: u64,
    available: u64,
    used_percent: f64,
    inodes_used_percent: f64,
}

impl From<DiskUse> for DiskJson {
    fn from(disk: DiskUse) -> Self {
        Self {
            device: disk.device,
            mountpoint: disk.mountpoint.display().to_string(),
            size: disk.size,
            used: disk.used,
            available: disk.available,
            used_percent: disk.used_percent,
            inodes_used_percent: disk.inodes_used_percent,
        }
    }
}

impl HostStatsJson {
    /// `shares`: one for each core; `core_mhz`: speed of one core, 0 when it is not known.
    pub fn new(
        usage: HostUsage,
        shares: &[CoreShare],
        core_mhz: f64,
        now: Timestamp,
        devices: Vec<DeviceGroupStats>,
    ) -> Self {
        let ticks = |share: &CoreShare| share.busy / 100.0 * core_mhz;
        let memory = usage.memory;
        let cores = usage.cores.into_iter().zip(shares).map(|(core, share)| CoreJson {
            name: core.name,
            user: share.user,
            system: share.system,
            idle: share.idle,
            total_percent: share.busy,
            total_ticks: ticks(share),
        });
        Self {
            memory: MemoryJson {
                total: memory.total,
                available: memory.available,
                used: memory.total.saturating_sub(memory.available),
                free: memory.free,
            },
            cpu: cores.collect(),
            disk_stats: usage.disks.into_iter().map(DiskJson::from).collect(),
            alloc_dir_stats: usage.data_dir.map(DiskJson::from),
            device_stats: devices.into_iter().map(DeviceStatsJson).collect(),
            uptime: usage.uptime_secs,
            cpu_ticks_consumed: shares.iter().map(ticks).sum(),
            timestamp: now.nanos(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use ostler_node::usage::{CoreTime, MemoryUse};

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
        let stats = HostStatsJson::new(usage, &shares, 2_000.0, Timestamp::from_nanos(7), vec![]);
        let expected = json!({
            "Memory": {"Total": 10, "Available": 4, "Used": 6, "Free": 1},
            "CPU": [
                {"CPU": "cpu0", "User": 30.0, "System": 20.0, "Idle": 50.0,
                 "TotalPercent": 50.0, "TotalTicks": 1000.0},
                {"CPU": "cpu1", "User": 0.0, "System": 0.0, "Idle": 100.0,
                 "TotalPercent": 0.0, "TotalTicks": 0.0},
            ],
            "DiskStats": [{"Device": "/dev/a", "Mountpoint": "", "Size": 8, "Used": 0,
                "Available": 0, "UsedPercent": 0.0, "InodesUsedPercent": 0.0}],
            "AllocDirStats": null, "DeviceStats": [], "Uptime": 5,
            "CPUTicksConsumed": 1000.0, "Timestamp": 7,
        });
        assert_eq!(serde_json::to_value(stats).unwrap(), expected);
    }
}
