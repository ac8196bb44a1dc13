//! What a task asks for.

use super::constraint::{AffinityKeys, ConstraintKeys, PREFERRED, affinities, constraints};
use super::network::{self, TaskNetworkKeys};
use crate::diagnostic::shown;
use crate::keys::Bounds::{NotZero, Unwritten, Whole};
use crate::keys::{Context, Given, MOST, Texts, keys, keyword};
use ostler_model::job::{Affinity, Constraint, Operator};
use ostler_model::limits::ANSWER_NAME_BYTES_MAX;
use ostler_model::resources::{DeviceRequest, Resources};

keys! {
    struct ResourceKeys: "resources" {
        /// MHz of processor time.
        cpu / CPU: Given<u32> [Whole(1, MOST)] = Resources::default().cpu_mhz;
        /// MiB that are reserved.
        memory / MemoryMB: Given<u32> [Whole(1, MOST)] = Resources::default().memory_mb;
        /// MiB that it may grow to.
        memory_max / MemoryMaxMB: Given<u32> [NotZero(1, MOST)], "`memory`";
        /// MiB that its `secrets` directory may hold, in memory.
        secrets / SecretsMB: Given<u32> [NotZero(1, MOST)], "`1`";
        /// Devices, by `type`, `vendor/type` or `vendor/type/name`.
        devices "device" / Devices: Vec<DeviceKeys>;
        /// Ports of the task at the node's address; newer jobs have them in the group.
        networks "network" / Networks: Vec<TaskNetworkKeys>;
        /// Of Nomad's before 0.5, and of no effect since.
        disk / DiskMB: Given<u32> [NotZero(0, MOST)], "none";
        /// As `disk`.
        iops / IOPS: Given<u32> [NotZero(0, MOST)], "none";
        /// Devices that belong to one NUMA node.
        numa / NUMA: Option<NumaKeys> [Unwritten];
    }
    not_yet {
        "cores" / Cores => 0;
    }
}

keys! {
    struct NumaKeys: "numa" {
        /// How much that matters.
        affinity / Affinity: Given<Numa> = Numa::None;
        /// Labels of `device` blocks beside it.
        devices / Devices: Texts, "none";
    }
}

keys! {
    struct DeviceKeys: "a device", label Name {
        /// Instances, all of one group.
        count / Count: Given<u32> [Whole(1, MOST)] = 1_u32;
        /// What has to hold of the group.
        constraints "constraint" / Constraints: Vec<ConstraintKeys>;
        /// What is preferred.
        affinities "affinity" / Affinities: Vec<AffinityKeys>;
    }
}

/// What a `numa` block says of where instances are: a rule that each device request named there
/// gets.
const ON_ONE_NODE: &str = "${device.numa_node}";

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Numa {
    #[default]
    None,
    Prefer,
    Require,
}

keyword! {
    Numa, "NUMA affinity": "none" = None, "prefer" = Prefer, "require" = Require;
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
    let (cpu_mhz, memory_mb) = (keys.cpu.get(), keys.memory.value.unwrap_or_default());
    if let Some(max) = keys.memory_max.value.filter(|max| *max < memory_mb) {
        let (max_name, name) = (keys.memory_max.key, keys.memory.key);
        let message = format!("{max_name} ({max}) must not be below {name} ({memory_mb})");
        cx.error(keys.memory_max.at, message);
    }
    let mut devices: Vec<DeviceRequest> =
        keys.devices.into_iter().filter_map(|device| request(device, cx)).collect();
    if let Some(block) = keys.numa {
        numa(block, &mut devices, cx);
    }
    let ports = network::of_task(keys.networks, cx);
    let secrets_mb = keys.secrets.value;
    if let Some(secrets) = secrets_mb.filter(|secrets| *secrets > memory_mb) {
        let (name, of) = (keys.secrets.key, keys.memory.key);
        cx.error(
            keys.secrets.at,
            format!("{name} ({secrets}) is memory of the task, so at most its {of} ({memory_mb})"),
        );
    }
    let memory_max_mb = keys.memory_max.value;
    Resources { cpu_mhz, memory_mb, memory_max_mb, secrets_mb, devices, ports }
}

/// Decode `numa` into rules of the device requests it names: this agent pins no processors, so that
/// devices are all there is to bring together.
fn numa(keys: NumaKeys, devices: &mut [DeviceRequest], cx: &mut Context<'_>) {
    let affinity = keys.affinity.get();
    if affinity == Numa::None {
        return;
    }
    let names = keys.devices.value.unwrap_or_default();
    if names.is_empty() {
        let message = format!(
            "numa needs {}: processors are not pinned here, devices can be",
            keys.devices.key
        );
        cx.error(keys.at, message);
    }
    for (name, at) in names {
        let mut found = false;
        for device in devices.iter_mut().filter(|device| device.name == name) {
            found = true;
            let (left, right) = (ON_ONE_NODE.to_owned(), String::new());
            let rule = Constraint { left, operator: Operator::IsSet, right };
            match affinity {
                Numa::Require => device.constraints.push(rule),
                _ => device.affinities.push(Affinity { rule, weight: PREFERRED }),
            }
        }
        if !found {
            cx.error(at, format!("{} is no device of these resources", shown(&name)));
        }
    }
}

fn request(keys: DeviceKeys, cx: &mut Context<'_>) -> Option<DeviceRequest> {
    let label = keys.label;
    let constraints = constraints(keys.constraints, cx);
    let affinities = affinities(keys.affinities, cx);
    let name = label.name;
    if name.splitn(3, '/').any(str::is_empty) || name.len() > ANSWER_NAME_BYTES_MAX {
        let message =
            format!("{} is no device; write type, vendor/type or vendor/type/name", shown(&name));
        return cx.refuse(label.span, message);
    }
    Some(DeviceRequest { name, count: keys.count.get(), constraints, affinities })
}
