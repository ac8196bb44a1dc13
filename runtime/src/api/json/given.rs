//! What an allocation was given: processor, memory, disk, ports, devices. Nomad tells it three
//! times, in the forms of three of its ages.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Absent;
use ostler_model::alloc::Allocation;
use ostler_model::job::{LifecycleHook, Task};
use ostler_model::resources::AllocatedDevice;

/// `AllocatedResources`: the present form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct Given<'a> {
    tasks: BTreeMap<&'a str, TaskGiven<'a>>,
    task_lifecycles: BTreeMap<&'a str, Option<LifecycleJson>>,
    shared: Shared<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct TaskGiven<'a> {
    cpu: Cpu,
    memory: Memory,
    networks: Absent,
    devices: Option<Vec<DeviceJson<'a>>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct Cpu {
    /// MHz.
    pub cpu_shares: u64,
}

#[derive(Debug, Serialize)]
pub(in crate::api) struct Memory {
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceJson<'a> {
    vendor: &'a str,
    #[serde(rename = "Type")]
    kind: &'a str,
    name: &'a str,
    #[serde(rename = "DeviceIDs")]
    device_ids: &'a [String],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct LifecycleJson {
    hook: LifecycleHook,
    sidecar: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shared<'a> {
    networks: Vec<NetworkJson<'a>>,
    #[serde(rename = "DiskMB")]
    disk_mb: u32,
    ports: Vec<PortMapping<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PortMapping<'a> {
    label: &'a str,
    value: u16,
    to: u16,
    #[serde(rename = "HostIP")]
    host_ip: &'a str,
}

/// `NetworkResource`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct NetworkJson<'a> {
    mode: &'static str,
    device: &'static str,
    #[serde(rename = "CIDR")]
    cidr: &'static str,
    #[serde(rename = "IP")]
    ip: &'a str,
    #[serde(rename = "MBits")]
    mbits: u32,
    #[serde(rename = "DNS")]
    dns: Absent,
    reserved_ports: Option<Vec<PortJson<'a>>>,
    dynamic_ports: Option<Vec<PortJson<'a>>>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PortJson<'a> {
    label: &'a str,
    value: u16,
    to: u16,
    host_network: &'static str,
}

/// `Resources`: the oldest form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct OldGiven<'a> {
    #[serde(rename = "CPU")]
    cpu: u64,
    #[serde(rename = "MemoryMB")]
    memory_mb: u64,
    #[serde(rename = "DiskMB")]
    disk_mb: u32,
    #[serde(rename = "IOPS")]
    iops: u32,
    networks: Option<Vec<NetworkJson<'a>>>,
    devices: Absent,
}

impl<'a> From<&'a Allocation> for Given<'a> {
    fn from(alloc: &'a Allocation) -> Self {
        let tasks = tasks(alloc);
        Self {
            tasks: tasks.iter().map(|t| (t.name.as_str(), TaskGiven::new(alloc, t))).collect(),
            task_lifecycles: tasks
                .iter()
                .map(|task| {
                    let lifecycle = task.lifecycle;
                    let json =
                        lifecycle.map(|l| LifecycleJson { hook: l.hook, sidecar: l.sidecar });
                    (task.name.as_str(), json)
                })
                .collect(),
            shared: Shared {
                networks: networks(alloc),
                disk_mb: disk_mb(alloc),
                ports: alloc
                    .ports
                    .iter()
                    .map(|port| PortMapping {
                        label: &port.label,
                        value: port.value,
                        to: port.to,
                        host_ip: &port.host_ip,
                    })
                    .collect(),
            },
        }
    }
}

impl<'a> TaskGiven<'a> {
    fn new(alloc: &'a Allocation, task: &'a Task) -> Self {
        let devices = alloc.devices.get(&task.name).filter(|devices| !devices.is_empty());
        Self {
            cpu: Cpu { cpu_shares: task.resources.cpu_mhz.into() },
            memory: Memory { memory_mb: task.resources.memory_mb.into() },
            networks: Absent,
            devices: devices.map(|devices| devices.iter().map(DeviceJson::from).collect()),
        }
    }
}

impl<'a> From<&'a AllocatedDevice> for DeviceJson<'a> {
    fn from(device: &'a AllocatedDevice) -> Self {
        let AllocatedDevice { group, ids } = device;
        Self { vendor: &group.vendor, kind: &group.kind, name: &group.name, device_ids: ids }
    }
}

impl<'a> OldGiven<'a> {
    /// All tasks together.
    pub fn all(alloc: &'a Allocation) -> Self {
        let sum = |part: fn(&Task) -> u32| tasks(alloc).iter().map(|t| u64::from(part(t))).sum();
        Self {
            cpu: sum(|task| task.resources.cpu_mhz),
            memory_mb: sum(|task| task.resources.memory_mb),
            networks: Some(networks(alloc)),
            ..Self::shared(alloc)
        }
    }

    /// What no task has alone.
    pub fn shared(alloc: &'a Allocation) -> Self {
        Self {
            cpu: 0,
            memory_mb: 0,
            disk_mb: disk_mb(alloc),
            iops: 0,
            networks: Some(networks(alloc)),
            devices: Absent,
        }
    }

    /// By task.
    pub fn by_task(alloc: &'a Allocation) -> BTreeMap<&'a str, Self> {
        let one = |task: &'a Task| Self {
            cpu: task.resources.cpu_mhz.into(),
            memory_mb: task.resources.memory_mb.into(),
            disk_mb: 0,
            iops: 0,
            networks: None,
            devices: Absent,
        };
        tasks(alloc).iter().map(|task| (task.name.as_str(), one(task))).collect()
    }
}

fn tasks(alloc: &Allocation) -> &[Task] {
    alloc.task_group().map_or(&[], |group| &group.tasks)
}

fn disk_mb(alloc: &Allocation) -> u32 {
    alloc.task_group().map_or(0, |group| group.ephemeral_disk.size_mb)
}

/// One network with all ports, as soon as there is one port.
fn networks(alloc: &Allocation) -> Vec<NetworkJson<'_>> {
    let Some(first) = alloc.ports.first() else { return Vec::new() };
    let specs = alloc.task_group().and_then(|group| group.network.as_ref());
    let fixed = |label: &str| {
        specs.is_some_and(|n| n.ports.iter().any(|p| p.label == label && p.fixed.is_some()))
    };
    let ports = |wanted: bool| {
        let some: Vec<PortJson<'_>> = alloc
            .ports
            .iter()
            .filter(|port| fixed(&port.label) == wanted)
            .map(|port| PortJson {
                label: &port.label,
                value: port.value,
                to: port.to,
                host_network: "default",
            })
            .collect();
        (!some.is_empty()).then_some(some)
    };
    vec![NetworkJson {
        mode: "host",
        device: "",
        cidr: "",
        ip: &first.host_ip,
        mbits: 0,
        dns: Absent,
        reserved_ports: ports(true),
        dynamic_ports: ports(false),
    }]
}
