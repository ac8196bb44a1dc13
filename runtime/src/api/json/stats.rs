//! What allocations use.

use std::collections::BTreeMap;

use serde::Serialize;

use super::device_stats::DeviceStatsJson;
use ostler_model::stats::DeviceGroupStats;

/// `AllocResourceUsage`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct AllocUsage {
    pub resource_usage: ResourceUsage,
    pub tasks: BTreeMap<String, TaskUsage>,
    /// Nanoseconds since the epoch.
    pub timestamp: u64,
}

/// `TaskResourceUsage`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct TaskUsage {
    pub resource_usage: ResourceUsage,
    pub timestamp: u64,
    /// By process; the agent measures a task as a whole.
    pub pids: BTreeMap<String, ResourceUsage>,
}

/// `ResourceUsage`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct ResourceUsage {
    pub memory_stats: MemoryStats,
    pub cpu_stats: CpuStats,
    /// One object for each group, also of an allocation with several tasks.
    pub device_stats: Vec<DeviceStatsJson>,
}

/// `MemoryStats`, bytes. What is not in `measured` is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct MemoryStats {
    #[serde(rename = "RSS")]
    pub rss: u64,
    pub cache: u64,
    pub swap: u64,
    pub usage: u64,
    pub max_usage: u64,
    pub kernel_usage: u64,
    pub kernel_max_usage: u64,
    pub measured: Vec<&'static str>,
}

/// `CpuStats`. `percent` is of one core, `total_ticks` the same in MHz.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct CpuStats {
    pub system_mode: f64,
    pub user_mode: f64,
    pub total_ticks: f64,
    pub throttled_periods: u64,
    pub throttled_time: u64,
    pub percent: f64,
    pub measured: Vec<&'static str>,
}

impl ResourceUsage {
    /// Of memory in bytes and per cent of a core, as far as they are known; `core_mhz`: speed of
    /// one core.
    pub fn new(memory_bytes: Option<u64>, percent: Option<f64>, core_mhz: f64) -> Self {
        let memory_stats = MemoryStats {
            rss: memory_bytes.unwrap_or(0),
            usage: memory_bytes.unwrap_or(0),
            measured: memory_bytes.map_or_else(Vec::new, |_| vec!["RSS", "Usage"]),
            ..MemoryStats::default()
        };
        let cpu_stats = CpuStats {
            percent: percent.unwrap_or(0.0),
            total_ticks: percent.unwrap_or(0.0) / 100.0 * core_mhz,
            measured: percent.map_or_else(Vec::new, |_| vec!["Percent"]),
            ..CpuStats::default()
        };
        Self { memory_stats, cpu_stats, device_stats: Vec::new() }
    }

    /// The same with what devices measure.
    pub fn with_devices(mut self, devices: Vec<DeviceGroupStats>) -> Self {
        self.device_stats = devices.into_iter().map(DeviceStatsJson).collect();
        self
    }

    /// This and another together; devices are merged by group, not added up, and stay as they are.
    pub fn add(&mut self, other: &Self) {
        let (memory, more) = (&mut self.memory_stats, &other.memory_stats);
        memory.rss = memory.rss.saturating_add(more.rss);
        memory.usage = memory.usage.saturating_add(more.usage);
        let (cpu, also) = (&mut self.cpu_stats, &other.cpu_stats);
        cpu.percent += also.percent;
        cpu.total_ticks += also.total_ticks;
        for (measured, other) in
            [(&mut memory.measured, &more.measured), (&mut cpu.measured, &also.measured)]
        {
            measured.extend(
                other.iter().filter(|name| !measured.contains(name)).copied().collect::<Vec<_>>(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_tasks_adds_up_and_says_what_was_measured() {
        let mut sum = ResourceUsage::default();
        sum.add(&ResourceUsage::new(Some(10), None, 2_000.0));
        sum.add(&ResourceUsage::new(Some(5), Some(50.0), 2_000.0));
        assert_eq!((sum.memory_stats.rss, sum.cpu_stats.total_ticks), (15, 1_000.0));
        assert_eq!(sum.memory_stats.measured, ["RSS", "Usage"]);
        assert_eq!(sum.cpu_stats.measured, ["Percent"]);
    }
}
