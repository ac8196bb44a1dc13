//! What allocations, devices and the node use. What was not measured is absent.

use std::collections::BTreeMap;

use ostler_model::stats as model;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// `AllocResourceUsage`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocUsage<'a> {
    /// All tasks together.
    pub resource_usage: ResourceUsage<'a>,
    /// By task.
    #[serde(deserialize_with = "or_empty")]
    pub tasks: BTreeMap<Text<'a>, TaskUsage<'a>>,
    /// When it was measured.
    pub timestamp: Timestamp,
}

/// `TaskResourceUsage`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskUsage<'a> {
    /// Measured.
    pub resource_usage: ResourceUsage<'a>,
    /// When it was measured.
    pub timestamp: Timestamp,
    /// By process; the agent measures a task as a whole.
    #[serde(deserialize_with = "or_empty")]
    pub pids: BTreeMap<Text<'a>, ResourceUsage<'a>>,
}

/// `ResourceUsage`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceUsage<'a> {
    /// Memory.
    #[serde(deserialize_with = "or_empty")]
    pub memory_stats: MemoryStats<'a>,
    /// Processor.
    #[serde(deserialize_with = "or_empty")]
    pub cpu_stats: CpuStats<'a>,
    /// One object for each group, also of an allocation with several tasks.
    #[serde(deserialize_with = "or_empty")]
    pub device_stats: Vec<DeviceGroupStats<'a>>,
}

/// `MemoryStats`, bytes. What is not in `measured` is not known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MemoryStats<'a> {
    /// Resident.
    #[serde(rename = "RSS")]
    pub rss: u64,
    /// Not measured.
    pub cache: u64,
    /// Not measured.
    pub swap: u64,
    /// As `rss`.
    pub usage: u64,
    /// Not measured.
    pub max_usage: u64,
    /// Not measured.
    pub kernel_usage: u64,
    /// Not measured.
    pub kernel_max_usage: u64,
    /// What was measured.
    #[serde(deserialize_with = "or_empty")]
    pub measured: Vec<Text<'a>>,
}

/// `CpuStats`. What is not in `measured` is not known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CpuStats<'a> {
    /// Not measured.
    pub system_mode: f64,
    /// Not measured.
    pub user_mode: f64,
    /// MHz.
    pub total_ticks: f64,
    /// Not measured.
    pub throttled_periods: u64,
    /// Not measured.
    pub throttled_time: u64,
    /// Per cent of one core.
    pub percent: f64,
    /// What was measured.
    #[serde(deserialize_with = "or_empty")]
    pub measured: Vec<Text<'a>>,
}

/// `DeviceGroupStats`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceGroupStats<'a> {
    /// Vendor of the group.
    pub vendor: Text<'a>,
    /// Type of the group.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// Name of the group.
    pub name: Text<'a>,
    /// By id.
    #[serde(deserialize_with = "or_empty")]
    pub instance_stats: BTreeMap<Text<'a>, DeviceStats<'a>>,
    /// Ours: why this is not what the devices measure now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<Text<'a>>,
}

impl DeviceGroupStats<'_> {
    /// `vendor/type/name`
    #[must_use]
    pub fn group(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// `DeviceStats`: one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceStats<'a> {
    /// The one number to show in a list.
    pub summary: Option<StatValue<'a>>,
    /// All others.
    #[serde(deserialize_with = "or_empty")]
    pub stats: StatObject<'a>,
    /// When it was measured, RFC 3339.
    pub timestamp: Text<'a>,
}

/// `StatObject`: measurements, with further ones inside. How deep is bounded where they come from, and by
/// the reader of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StatObject<'a> {
    /// Objects inside this one.
    #[serde(deserialize_with = "or_empty")]
    pub nested: BTreeMap<Text<'a>, StatObject<'a>>,
    /// Measurements of this one.
    #[serde(deserialize_with = "or_empty")]
    pub attributes: BTreeMap<Text<'a>, StatValue<'a>>,
}

impl<'a> From<&'a model::StatObject> for StatObject<'a> {
    fn from(model::StatObject { nested, attributes }: &'a model::StatObject) -> Self {
        Self {
            nested: nested.iter().map(|(name, one)| (name.into(), one.into())).collect(),
            attributes: attributes.iter().map(|(name, one)| (name.into(), one.into())).collect(),
        }
    }
}

/// `StatValue`: one measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StatValue<'a> {
    /// A number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_numerator_val: Option<f64>,
    /// Of how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_denominator_val: Option<f64>,
    /// A whole number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int_numerator_val: Option<i64>,
    /// Of how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int_denominator_val: Option<i64>,
    /// A text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string_val: Option<Text<'a>>,
    /// A truth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bool_val: Option<bool>,
    /// Unit of the numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Text<'a>>,
    /// What it is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desc: Option<Text<'a>>,
}

impl<'a> From<&'a model::StatValue> for StatValue<'a> {
    fn from(value: &'a model::StatValue) -> Self {
        Self {
            float_numerator_val: value.float_numerator,
            float_denominator_val: value.float_denominator,
            int_numerator_val: value.int_numerator,
            int_denominator_val: value.int_denominator,
            string_val: value.text.as_ref().map(Into::into),
            bool_val: value.boolean,
            unit: value.unit.as_ref().map(Into::into),
            desc: value.description.as_ref().map(Into::into),
        }
    }
}

/// `HostStats`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostStats<'a> {
    /// Of the machine.
    #[serde(deserialize_with = "or_empty")]
    pub memory: HostMemory,
    /// By core.
    #[serde(rename = "CPU", deserialize_with = "or_empty")]
    pub cpu: Vec<HostCpu<'a>>,
    /// File systems.
    #[serde(deserialize_with = "or_empty")]
    pub disk_stats: Vec<HostDisk<'a>>,
    /// That of the data directory.
    pub alloc_dir_stats: Option<HostDisk<'a>>,
    /// Devices, by group.
    #[serde(deserialize_with = "or_empty")]
    pub device_stats: Vec<DeviceGroupStats<'a>>,
    /// Seconds.
    pub uptime: u64,
    /// MHz.
    #[serde(rename = "CPUTicksConsumed")]
    pub cpu_ticks_consumed: f64,
    /// When it was measured.
    pub timestamp: Timestamp,
}

/// `HostMemoryStats`, bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostMemory {
    /// All there is.
    pub total: u64,
    /// What programs can have.
    pub available: u64,
    /// In use.
    pub used: u64,
    /// In no use at all.
    pub free: u64,
}

/// `HostCPUStats`, per cent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostCpu<'a> {
    /// `cpu0` …
    #[serde(rename = "CPU")]
    pub name: Text<'a>,
    /// In programs.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
    /// In nothing.
    pub idle: f64,
    /// In something.
    pub total: f64,
    /// The same, under the name that newer clients want.
    pub total_percent: f64,
    /// The same in MHz.
    pub total_ticks: f64,
}

/// `HostDiskStats`: a file system, bytes and per cent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostDisk<'a> {
    /// Its device.
    pub device: Text<'a>,
    /// Where it is mounted.
    pub mountpoint: Text<'a>,
    /// All there is.
    pub size: u64,
    /// In use.
    pub used: u64,
    /// Free for this user.
    pub available: u64,
    /// Of the space.
    pub used_percent: f64,
    /// Of the inodes.
    pub inodes_used_percent: f64,
}
