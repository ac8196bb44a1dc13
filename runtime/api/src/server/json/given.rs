//! What an allocation was given: processor, memory, disk, ports, devices.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::word;
use ostler_model::alloc::Allocation;
use ostler_model::held_once::HeldOnce;
use ostler_model::job::Task;
use ostler_model::resources::AllocatedDevice;
use ostler_wire::{
    AllocatedResources, Cpu, Lifecycle, Memory, NetworkPort, NetworkResource, PortMapping,
    Resources, SharedResources, TaskDevices, TaskResources, Text,
};

/// The present form.
pub(super) fn allocated(alloc: &Allocation) -> AllocatedResources<'_> {
    let tasks = tasks(alloc);
    let lifecycle = |task: &Task| {
        task.lifecycle.map(|one| Lifecycle { hook: word(one.hook), sidecar: one.sidecar })
    };
    let ports = alloc.ports.iter().map(|port| PortMapping {
        label: (&port.label).into(),
        value: port.value,
        to: port.to.into(),
        host_ip: (&port.host_ip).into(),
    });
    AllocatedResources {
        tasks: tasks.iter().map(|t| (t.name.as_str().into(), of_task(alloc, t))).collect(),
        task_lifecycles: tasks.iter().map(|t| (t.name.as_str().into(), lifecycle(t))).collect(),
        shared: SharedResources {
            networks: networks(alloc),
            disk_mib: disk_mib(alloc),
            ports: ports.collect(),
        },
    }
}

fn of_task<'a>(alloc: &'a Allocation, task: &Task) -> TaskResources<'a> {
    let devices = alloc.devices.get(&task.name).filter(|devices| !devices.is_empty());
    TaskResources {
        cpu: Cpu { cpu_shares: task.resources.cpu_mhz.into() },
        memory: Memory { mib: task.resources.memory_mb.into() },
        devices: devices.map(|devices| devices.iter().map(device).collect()),
        ..TaskResources::default()
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

/// All tasks together, in the oldest form.
pub(super) fn all(alloc: &Allocation) -> Resources<'_> {
    let sum = |part: fn(&Task) -> u32| tasks(alloc).iter().map(|t| u64::from(part(t))).sum();
    Resources {
        cpu: sum(|task| task.resources.cpu_mhz),
        memory_mib: sum(|task| task.resources.memory_mb),
        ..shared(alloc)
    }
}

/// What no task has alone, in the oldest form.
pub(super) fn shared(alloc: &Allocation) -> Resources<'_> {
    Resources { disk_mib: disk_mib(alloc), networks: Some(networks(alloc)), ..Resources::default() }
}

/// By task, in the oldest form.
pub(super) fn by_task(alloc: &Allocation) -> BTreeMap<Text<'_>, Resources<'_>> {
    let one = |task: &Task| Resources {
        cpu: task.resources.cpu_mhz.into(),
        memory_mib: task.resources.memory_mb.into(),
        ..Resources::default()
    };
    tasks(alloc).iter().map(|task| (task.name.as_str().into(), one(task))).collect()
}

fn tasks(alloc: &Allocation) -> &[HeldOnce<Task>] {
    alloc.task_group().map_or(&[], |group| &group.tasks)
}

fn disk_mib(alloc: &Allocation) -> u64 {
    alloc.task_group().map_or(0, |group| group.ephemeral_disk.size_mb.into())
}

/// One network with all ports, as soon as there is one port.
fn networks(alloc: &Allocation) -> Vec<NetworkResource<'_>> {
    let Some(first) = alloc.ports.first() else { return Vec::new() };
    let specs = alloc.task_group().and_then(|group| group.network.as_ref());
    let fixed = |label: &str| {
        specs.is_some_and(|n| n.ports.iter().any(|p| p.label == label && p.fixed.is_some()))
    };
    let ports = |wanted: bool| {
        let some = alloc.ports.iter().filter(|port| fixed(&port.label) == wanted);
        let some = some.map(|port| NetworkPort {
            label: (&port.label).into(),
            value: port.value,
            to: port.to.into(),
            host_network: "default".into(),
        });
        Some(some.collect::<Vec<_>>()).filter(|some| !some.is_empty())
    };
    vec![NetworkResource {
        mode: "host".into(),
        ip: (&first.host_ip).into(),
        reserved_ports: ports(true),
        dynamic_ports: ports(false),
        ..NetworkResource::default()
    }]
}
