//! Decodes the resources that a task asks for.

use super::constraint::{AffinityKeys, ConstraintKeys, PREFERRED, affinities, constraints};
use super::network::{self, TaskNetworkKeys};
use crate::diagnostic::quote_text;
use crate::keys::FieldBounds::{NotZero, Whole};
use crate::keys::{Context, MOST, Setting, Texts, keys, keyword};
use ostler_model::job::{Affinity, Constraint, Operator};
use ostler_model::limits::ANSWER_NAME_BYTES_MAX;
use ostler_model::resources::{CoreRequest, DeviceRequest, NumaAffinity, Resources};

keys! {
    struct ResourceKeys: "resources" {
        /// MHz of processor time; 0 only beside `cores`.
        cpu / CPU: Setting<u32> [Whole(0, MOST)], "`100`, none beside `cores`";
        /// Cores that it has for itself, of a task that is a process, instead of `cpu`.
        cores / Cores: Setting<u32> [NotZero(1, MOST)], "none";
        /// MiB that are reserved.
        memory / MemoryMB: Setting<u32> [Whole(1, MOST)] = Resources::default().memory_mb;
        /// MiB that it may grow to.
        memory_max / MemoryMaxMB: Setting<u32> [NotZero(1, MOST)], "`memory`";
        /// MiB that its `secrets` directory may hold, in memory.
        secrets / SecretsMB: Setting<u32> [NotZero(1, MOST)], "`1`";
        /// Devices, by `type`, `vendor/type` or `vendor/type/name`.
        devices "device" / Devices: Vec<DeviceKeys>;
        /// Ports of the task at the node's address; newer jobs have them in the group.
        networks "network" / Networks: Vec<TaskNetworkKeys>;
        /// Of Nomad's before 0.5, and of no effect since.
        disk / DiskMB: Setting<u32> [NotZero(0, MOST)], "none";
        /// As `disk`.
        iops / IOPS: Setting<u32> [NotZero(0, MOST)], "none";
        /// Devices, or cores, that belong to one NUMA node.
        numa / NUMA: Option<NumaKeys>;
    }
}

keys! {
    struct NumaKeys: "numa" {
        /// How much that matters.
        affinity / Affinity: Setting<NumaAffinity> = NumaAffinity::None;
        /// Labels of `device` blocks beside it.
        devices / Devices: Texts, "none";
    }
}

keys! {
    struct DeviceKeys: "a device", label Name {
        /// Instances, all of one group.
        count / Count: Setting<u32> [Whole(1, MOST)] = 1_u32;
        /// What has to hold of the group.
        constraints "constraint" / Constraints: Vec<ConstraintKeys>;
        /// What is preferred.
        affinities "affinity" / Affinities: Vec<AffinityKeys>;
    }
}

/// The attribute of the rule that a `numa` block adds to each device request that it names: the NUMA node
/// that all the instances are on.
const ON_ONE_NODE: &str = "${device.numa_node}";

keyword! {
    NumaAffinity, "NUMA affinity": "none" = None, "prefer" = Prefer, "require" = Require;
}

/// Decode `resources`.
pub(super) fn resources(keys: ResourceKeys, cx: &mut Context<'_>) -> Resources {
    for (old, instead) in [
        (&keys.disk, "write ephemeral_disk { size = … } into the group"),
        (&keys.iops, "leave it out"),
    ] {
        if old.value.is_some_and(|value| value > 0) {
            let key = old.key;
            cx.sink
                .warn(old.key_at, format!("{key} has no effect, nor has it in Nomad; {instead}"));
        }
    }
    let memory_mb = keys.memory.value.unwrap_or_default();
    let (cpu, cores) = (keys.cpu.key, keys.cores.key);
    match (keys.cpu.value, keys.cores.value) {
        (Some(1..), Some(_)) => cx.error(
            keys.cores.key_at,
            format!(
                "{cores} and {cpu} are both here: a task has cores for itself or a share of all"
            ),
        ),
        (Some(0), None) => cx.error(keys.cpu.at, format!("{cpu} must be at least 1, not 0")),
        _ => {}
    }
    if let Some(max) = keys.memory_max.value.filter(|max| *max < memory_mb) {
        let (max_name, name) = (keys.memory_max.key, keys.memory.key);
        let message = format!("{max_name} ({max}) must not be below {name} ({memory_mb})");
        cx.error(keys.memory_max.at, message);
    }
    let mut devices: Vec<DeviceRequest> =
        keys.devices.into_iter().filter_map(|device| request(device, cx)).collect();
    let affinity = keys.numa.map(|block| numa(block, keys.cores.value, &mut devices, cx));
    let numa = affinity.unwrap_or_default();
    let cores = keys.cores.value.map(|count| CoreRequest { count, numa });
    let of_shared = if cores.is_some() { 0 } else { Resources::default().cpu_mhz };
    let cpu_mhz = keys.cpu.value.unwrap_or(of_shared);
    let ports = network::task_ports(keys.networks, cx);
    let secrets_mb = keys.secrets.value;
    if let Some(secrets) = secrets_mb.filter(|secrets| *secrets > memory_mb) {
        let (name, of) = (keys.secrets.key, keys.memory.key);
        cx.error(
            keys.secrets.at,
            format!("{name} ({secrets}) is memory of the task, so at most its {of} ({memory_mb})"),
        );
    }
    let memory_max_mb = keys.memory_max.value;
    Resources { cpu_mhz, cores, memory_mb, memory_max_mb, secrets_mb, devices, ports }
}

/// Decode `numa`. Returns the affinity of the cores, and adds rules to the device requests that it names.
fn numa(
    keys: NumaKeys,
    cores: Option<u32>,
    devices: &mut [DeviceRequest],
    cx: &mut Context<'_>,
) -> NumaAffinity {
    let affinity = keys.affinity.get();
    if affinity == NumaAffinity::None {
        return affinity;
    }
    let names = keys.devices.value.unwrap_or_default();
    match (names.is_empty(), cores) {
        (true, None) => {
            let message = format!("numa needs {} or, beside it, cores", keys.devices.key);
            cx.error(keys.at, message);
        }
        (false, Some(_)) => {
            let message = format!(
                "{} beside cores: cores and devices are not brought to one NUMA node together; leave one out",
                keys.devices.key
            );
            cx.error(keys.devices.key_at, message);
        }
        _ => {}
    }
    for (name, at) in names {
        let mut found = false;
        for device in devices.iter_mut().filter(|device| device.name == name) {
            found = true;
            let (left, right) = (ON_ONE_NODE.to_owned(), String::new());
            let rule = Constraint { left, operator: Operator::IsSet, right };
            match affinity {
                NumaAffinity::Require => device.constraints.push(rule),
                _ => device.affinities.push(Affinity { rule, weight: PREFERRED }),
            }
        }
        if !found {
            cx.error(at, format!("{} is not a device of these resources", quote_text(&name)));
        }
    }
    affinity
}

fn request(keys: DeviceKeys, cx: &mut Context<'_>) -> Option<DeviceRequest> {
    let label = keys.label;
    let constraints = constraints(keys.constraints, cx);
    let affinities = affinities(keys.affinities, cx);
    let name = label.name;
    if name.splitn(3, '/').any(str::is_empty) || name.len() > ANSWER_NAME_BYTES_MAX {
        let message = format!(
            "{} is not a device; write type, vendor/type or vendor/type/name",
            quote_text(&name)
        );
        return cx.refuse(label.span, message);
    }
    Some(DeviceRequest { name, count: keys.count.get(), constraints, affinities })
}
