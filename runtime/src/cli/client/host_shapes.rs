//! What the node uses, as the agent's API tells it (Nomad's shape).

use serde::Deserialize;

use super::device_shapes::DeviceStats;
use super::shapes::or_empty;

/// `HostStats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct HostStats {
    /// Of the machine.
    pub memory: Memory,
    /// By core.
    #[serde(rename = "CPU", deserialize_with = "or_empty")]
    pub cpu: Vec<Core>,
    /// File systems.
    #[serde(deserialize_with = "or_empty")]
    pub disk_stats: Vec<Disk>,
    /// Devices, by group.
    #[serde(deserialize_with = "or_empty")]
    pub device_stats: Vec<DeviceStats>,
    /// Seconds.
    pub uptime: u64,
}

/// Bytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Memory {
    /// All there is.
    pub total: u64,
    /// In use.
    pub used: u64,
}

/// Per cent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Core {
    /// `cpu0` …
    #[serde(rename = "CPU")]
    pub name: String,
    /// In programs.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
    /// In nothing.
    pub idle: f64,
}

/// A file system, bytes and per cent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Disk {
    /// Its device.
    pub device: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// All there is.
    pub size: u64,
    /// In use.
    pub used: u64,
    /// Of the space.
    pub used_percent: f64,
    /// Of the inodes.
    pub inodes_used_percent: f64,
}
