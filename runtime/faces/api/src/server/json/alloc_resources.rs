//! The resources of an allocation: processor, memory, disk, ports, devices.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::word;
use ostler_model::alloc::Allocation;
use ostler_model::cow_arc::CowArc;
use ostler_model::job::{PortSpec, Task};
use ostler_model::network::NetworkMode;
use ostler_model::resources::{AllocatedDevice, AllocatedPort};
use ostler_wire::{
    AllocatedPortMapping, AllocatedResources, Cpu, Dns, LegacyResources, NetworkPort,
    NetworkResource, SharedResources, TaskDevices, TaskLifecycleConfig, TaskResources, Text,
    WireMemory,
};

/// All resources of an allocation, in Nomad's present form.
pub(super) fn allocated_resources(alloc: &Allocation) -> AllocatedResources<'_> {
    let tasks = tasks(alloc);
    let lifecycle = |task: &Task| {
        task.lifecycle.map(|one| TaskLifecycleConfig { hook: word(one.hook), sidecar: one.sidecar })
    };
    let ports = alloc.ports.iter().filter(|port| port.task.is_none());
    let ports = ports.map(|port| AllocatedPortMapping {
        label: (&port.label).into(),
        value: port.value,
        to: port.to.into(),
        host_ip: (&port.host_ip).into(),
    });
    AllocatedResources {
        tasks: tasks
            .iter()
            .map(|t| (t.name.as_str().into(), resources_of_task(alloc, t)))
            .collect(),
        task_lifecycles: tasks.iter().map(|t| (t.name.as_str().into(), lifecycle(t))).collect(),
        shared: SharedResources {
            networks: networks(alloc),
            disk_mib: disk_mib(alloc),
            ports: ports.collect(),
        },
    }
}

fn resources_of_task<'a>(alloc: &'a Allocation, task: &Task) -> TaskResources<'a> {
    let devices = alloc.devices.get(&task.name).filter(|devices| !devices.is_empty());
    TaskResources {
        cpu: Cpu {
            cpu_shares: alloc.cpu_mhz(task).into(),
            reserved_cores: alloc.cores_of(&task.name).iter().collect(),
            ..Cpu::default()
        },
        memory: WireMemory { mib: task.resources.memory_mb.into() },
        devices: devices.map(|devices| devices.iter().map(device).collect()),
        networks: networks_of_task(alloc, task),
    }
}

fn device(AllocatedDevice { group, ids }: &AllocatedDevice) -> TaskDevices<'_> {
    TaskDevices {
        vendor: (&group.vendor).into(),
        kind: (&group.kind).into(),
        name: (&group.name).into(),
        ids: Cow::Borrowed(ids),
    }
}

/// The resources of all tasks together, in Nomad's oldest form.
pub(super) fn all_tasks(alloc: &Allocation) -> LegacyResources<'_> {
    let sum = |part: &dyn Fn(&Task) -> u32| tasks(alloc).iter().map(|t| u64::from(part(t))).sum();
    LegacyResources {
        cpu: sum(&|task| alloc.cpu_mhz(task)),
        memory_mib: sum(&|task| task.resources.memory_mb),
        ..shared_resources(alloc)
    }
}

/// The resources that all tasks share, in Nomad's oldest form.
pub(super) fn shared_resources(alloc: &Allocation) -> LegacyResources<'_> {
    LegacyResources {
        disk_mib: disk_mib(alloc),
        networks: Some(networks(alloc)),
        ..LegacyResources::default()
    }
}

/// The resources of each task, in Nomad's oldest form.
pub(super) fn resources_by_task(alloc: &Allocation) -> BTreeMap<Text<'_>, LegacyResources<'_>> {
    let one = |task: &Task| LegacyResources {
        cpu: alloc.cpu_mhz(task).into(),
        memory_mib: task.resources.memory_mb.into(),
        ..LegacyResources::default()
    };
    tasks(alloc).iter().map(|task| (task.name.as_str().into(), one(task))).collect()
}

fn tasks(alloc: &Allocation) -> &[CowArc<Task>] {
    alloc.task_group().map_or(&[], |group| &group.tasks)
}

fn disk_mib(alloc: &Allocation) -> u64 {
    alloc.task_group().map_or(0, |group| group.ephemeral_disk.size_mb.into())
}

/// The network of the group; empty if there is no port and the network is that of the node.
fn networks(alloc: &Allocation) -> Vec<NetworkResource<'_>> {
    let spec = alloc.task_group().and_then(|group| group.network.as_ref());
    let specs = spec.map_or(&[][..], |spec| &spec.ports);
    let mode = spec.map_or(&NetworkMode::Host, |spec| &spec.mode);
    let ports: Vec<_> = alloc.ports.iter().filter(|port| port.task.is_none()).collect();
    if ports.is_empty() && !mode.is_own() {
        return Vec::new();
    }
    let dns = spec.and_then(|spec| spec.dns.as_ref()).map(Dns::from);
    vec![NetworkResource { mode: mode.text().into(), dns, ..network(&ports, specs) }]
}

/// The ports that a task has alone; none if it has none.
fn networks_of_task<'a>(alloc: &'a Allocation, task: &Task) -> Option<Vec<NetworkResource<'a>>> {
    let of = |port: &&AllocatedPort| port.task.as_ref() == Some(&task.name);
    let ports: Vec<_> = alloc.ports.iter().filter(of).collect();
    let specs = alloc.task_group().and_then(|group| group.task(&task.name));
    let specs = specs.map_or(&[][..], |task| &task.resources.ports);
    (!ports.is_empty()).then(|| vec![network(&ports, specs)])
}

fn network<'a>(given: &[&'a AllocatedPort], specs: &'a [PortSpec]) -> NetworkResource<'a> {
    let spec = |label: &str| specs.iter().find(|spec| spec.label == label);
    let ports = |wanted: bool| {
        let fixed = |label: &str| spec(label).is_some_and(|spec| spec.fixed.is_some());
        let some = given.iter().filter(|port| fixed(&port.label) == wanted);
        let some = some.map(|port| NetworkPort {
            label: (&port.label).into(),
            value: port.value,
            to: port.to.into(),
            host_network: spec(&port.label)
                .and_then(|spec| spec.host_network.as_deref())
                .unwrap_or("default")
                .into(),
        });
        Some(some.collect::<Vec<_>>()).filter(|some| !some.is_empty())
    };
    NetworkResource {
        mode: "host".into(),
        ip: given.first().map(|port| (&port.host_ip).into()).unwrap_or_default(),
        reserved_ports: ports(true),
        dynamic_ports: ports(false),
        ..NetworkResource::default()
    }
}
