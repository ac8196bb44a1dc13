//! What allocations, devices and the node use. A value that was not measured is absent.

use std::collections::BTreeMap;

use ostler_model::stats as model;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::message::time;
use crate::{Text, or_empty};

/// Nomad's `AllocResourceUsage`: what an allocation uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocUsage<'a> {
    /// What all tasks use together.
    pub resource_usage: ResourceUsage<'a>,
    /// What each task uses, by its name.
    #[serde(deserialize_with = "or_empty")]
    pub tasks: BTreeMap<Text<'a>, TaskUsage<'a>>,
    /// The time of the measurement, nanoseconds since 1970.
    pub timestamp: Timestamp,
}

/// Nomad's `TaskResourceUsage`: what a task uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskUsage<'a> {
    /// What the task uses as a whole.
    pub resource_usage: ResourceUsage<'a>,
    /// The time of the measurement, nanoseconds since 1970.
    pub timestamp: Timestamp,
    /// What each process uses. Always empty: the agent measures a task as a whole.
    #[serde(deserialize_with = "or_empty")]
    pub pids: BTreeMap<Text<'a>, ResourceUsage<'a>>,
}

/// Nomad's `ResourceUsage`: memory, processor and devices in use.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceUsage<'a> {
    /// The memory in use.
    #[serde(deserialize_with = "or_empty")]
    pub memory_stats: MemoryStats<'a>,
    /// The processor time in use.
    #[serde(deserialize_with = "or_empty")]
    pub cpu_stats: CpuStats<'a>,
    /// The measurements of devices, one entry for each device group.
    #[serde(deserialize_with = "or_empty")]
    pub device_stats: Vec<WireDeviceGroupStats<'a>>,
}

/// Nomad's `MemoryStats`, bytes. A field whose name is not in `measured` is unknown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MemoryStats<'a> {
    /// The resident memory, bytes.
    #[serde(rename = "RSS")]
    pub rss: u64,
    /// Always 0: not measured.
    pub cache: u64,
    /// Always 0: not measured.
    pub swap: u64,
    /// The same as `rss`.
    pub usage: u64,
    /// Always 0: not measured.
    pub max_usage: u64,
    /// Always 0: not measured.
    pub kernel_usage: u64,
    /// Always 0: not measured.
    pub kernel_max_usage: u64,
    /// The names of the fields that were measured.
    #[serde(deserialize_with = "or_empty")]
    pub measured: Vec<Text<'a>>,
}

/// Nomad's `CpuStats`. A field whose name is not in `measured` is unknown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CpuStats<'a> {
    /// Always 0: not measured.
    pub system_mode: f64,
    /// Always 0: not measured.
    pub user_mode: f64,
    /// The processor in use, MHz.
    pub total_ticks: f64,
    /// Always 0: not measured.
    pub throttled_periods: u64,
    /// Always 0: not measured.
    pub throttled_time: u64,
    /// The processor in use, per cent of one core.
    pub percent: f64,
    /// The names of the fields that were measured.
    #[serde(deserialize_with = "or_empty")]
    pub measured: Vec<Text<'a>>,
}

/// Nomad's `DeviceGroupStats`: the measurements of a device group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireDeviceGroupStats<'a> {
    /// The vendor of the device group.
    pub vendor: Text<'a>,
    /// The type of the device group.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The name of the device group.
    pub name: Text<'a>,
    /// The measurements of each device, by its id.
    #[serde(deserialize_with = "or_empty")]
    pub instance_stats: BTreeMap<Text<'a>, DeviceStats<'a>>,
    /// Ours: why the measurements are out of date; absent if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<Text<'a>>,
}

impl WireDeviceGroupStats<'_> {
    /// The name of the device group as `vendor/type/name`.
    #[must_use]
    pub fn group(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// Nomad's `DeviceStats`: the measurements of one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceStats<'a> {
    /// The one measurement to show in a list.
    pub summary: Option<WireStatValue<'a>>,
    /// All other measurements.
    #[serde(deserialize_with = "or_empty")]
    pub stats: WireStatObject<'a>,
    /// The time of the measurement, RFC 3339.
    #[serde(serialize_with = "time")]
    pub timestamp: Text<'a>,
}

/// Nomad's `StatObject`: measurements, with further objects inside. Their depth is bounded where
/// they come from, and by the reader of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireStatObject<'a> {
    /// The objects inside this one, by name.
    #[serde(deserialize_with = "or_empty")]
    pub nested: BTreeMap<Text<'a>, WireStatObject<'a>>,
    /// The measurements of this object, by name.
    #[serde(deserialize_with = "or_empty")]
    pub attributes: BTreeMap<Text<'a>, WireStatValue<'a>>,
}

impl<'a> From<&'a model::StatObject> for WireStatObject<'a> {
    fn from(model::StatObject { nested, attributes }: &'a model::StatObject) -> Self {
        Self {
            nested: nested.iter().map(|(name, one)| (name.into(), one.into())).collect(),
            attributes: attributes.iter().map(|(name, one)| (name.into(), one.into())).collect(),
        }
    }
}

/// Nomad's `StatValue`: one measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireStatValue<'a> {
    /// A number, as a floating point value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_numerator_val: Option<f64>,
    /// The number that `float_numerator_val` is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_denominator_val: Option<f64>,
    /// A whole number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int_numerator_val: Option<i64>,
    /// The number that `int_numerator_val` is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int_denominator_val: Option<i64>,
    /// A text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string_val: Option<Text<'a>>,
    /// A truth value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bool_val: Option<bool>,
    /// The unit of the numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Text<'a>>,
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desc: Option<Text<'a>>,
}

impl<'a> From<&'a model::StatValue> for WireStatValue<'a> {
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

/// Nomad's `HostStats`: what the machine uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostStats<'a> {
    /// The memory of the machine.
    #[serde(deserialize_with = "or_empty")]
    pub memory: HostMemory,
    /// The use of each core, per cent.
    #[serde(rename = "CPU", deserialize_with = "or_empty")]
    pub cpu: Vec<HostCpu<'a>>,
    /// The file systems of the machine.
    #[serde(deserialize_with = "or_empty")]
    pub disk_stats: Vec<HostDisk<'a>>,
    /// The file system of the data directory.
    pub alloc_dir_stats: Option<HostDisk<'a>>,
    /// The measurements of devices, by group.
    #[serde(deserialize_with = "or_empty")]
    pub device_stats: Vec<WireDeviceGroupStats<'a>>,
    /// The time since the machine started, seconds.
    pub uptime: u64,
    /// The processor in use, MHz.
    #[serde(rename = "CPUTicksConsumed")]
    pub cpu_ticks_consumed: f64,
    /// The time of the measurement, nanoseconds since 1970.
    pub timestamp: Timestamp,
}

/// Nomad's `HostMemoryStats`, bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostMemory {
    /// All memory of the machine.
    pub total: u64,
    /// The memory that programs can still get.
    pub available: u64,
    /// The memory in use.
    pub used: u64,
    /// The memory that nothing uses.
    pub free: u64,
}

/// Nomad's `HostCPUStats`, per cent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostCpu<'a> {
    /// The name of the core, such as `cpu0`.
    #[serde(rename = "CPU")]
    pub name: Text<'a>,
    /// The time in programs.
    pub user: f64,
    /// The time in the kernel.
    pub system: f64,
    /// The idle time.
    pub idle: f64,
    /// The busy time.
    pub total: f64,
    /// The busy time again, under the name that newer clients read.
    pub total_percent: f64,
    /// The busy time in MHz.
    pub total_ticks: f64,
}

/// Nomad's `HostDiskStats`: a file system, bytes and per cent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostDisk<'a> {
    /// The path of the block device.
    pub device: Text<'a>,
    /// The directory where it is mounted.
    pub mountpoint: Text<'a>,
    /// The size of the file system.
    pub size: u64,
    /// The space in use.
    pub used: u64,
    /// The space that this user can still use.
    pub available: u64,
    /// The part of the space in use.
    pub used_percent: f64,
    /// The part of the inodes in use.
    pub inodes_used_percent: f64,
}
