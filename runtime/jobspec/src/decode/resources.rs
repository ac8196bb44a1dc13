//! What a task asks for.

use super::super::diagnostic::shown;
use super::super::schema::Schema;
use super::super::tree::Block;
use super::group::inner;
use super::{Context, Reader, constraint};
use ostler_model::job::{Affinity, Constraint, Operator};
use ostler_model::limits::ANSWER_NAME_BYTES_MAX;
use ostler_model::resources::{DeviceRequest, Resources};

/// Decode `resources`; absent means the defaults.
pub(super) fn resources(
    block: Option<Block>,
    task: &'static Schema,
    cx: &mut Context<'_>,
) -> Resources {
    let defaults = Resources::default();
    let (Some(block), Some(schema)) = (block, inner(task, "resources")) else {
        return defaults;
    };
    let mut reader = Reader::new(block.body, schema, cx);
    let most = i64::from(u32::MAX);
    let cpu_mhz = reader.number("cpu", 1..=most, cx).unwrap_or(defaults.cpu_mhz);
    let memory_mb = reader.number("memory", 1..=most, cx).unwrap_or(defaults.memory_mb);
    let memory_max = reader.integer("memory_max", 1..=most, cx);
    if let Some((max, at)) = memory_max
        && max < i64::from(memory_mb)
    {
        let (max_name, name) =
            (cx.name("memory_max", "MemoryMaxMB"), cx.name("memory", "MemoryMB"));
        cx.error(at, format!("{max_name} ({max}) must not be below {name} ({memory_mb})"));
    }
    let mut devices: Vec<DeviceRequest> =
        reader.blocks("device").into_iter().filter_map(|block| device(block, schema, cx)).collect();
    if let Some(block) = reader.block("numa") {
        numa(block, schema, &mut devices, cx);
    }
    reader.finish();
    Resources {
        cpu_mhz,
        memory_mb,
        memory_max_mb: memory_max.and_then(|(max, _)| u32::try_from(max).ok()),
        devices,
    }
}

/// What a `numa` block says of where instances are: a rule that each device request named there
/// gets.
const ON_ONE_NODE: &str = "${device.numa_node}";
/// Weight of `affinity = "prefer"`: that of an affinity without one.
const PREFERRED: i8 = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Numa {
    None,
    Prefer,
    Require,
}

/// Decode `numa` into rules of the device requests it names: this agent pins no processors, so that
/// devices are all there is to bring together.
fn numa(
    block: Block,
    resources: &'static Schema,
    devices: &mut [DeviceRequest],
    cx: &mut Context<'_>,
) {
    let Some(schema) = inner(resources, "numa") else { return };
    let header = block.key.span;
    let mut reader = Reader::new(block.body, schema, cx);
    let choices = [("none", Numa::None), ("prefer", Numa::Prefer), ("require", Numa::Require)];
    let given = reader.text("affinity", cx);
    let affinity = match given {
        Some(given) => cx.choice("NUMA affinity", Some(given), &choices),
        None => Some(Numa::None),
    };
    let names = reader.texts("devices", cx).map(|(names, _)| names).unwrap_or_default();
    reader.finish();
    let Some(affinity) = affinity.filter(|affinity| *affinity != Numa::None) else { return };
    if names.is_empty() {
        let devices = cx.name("devices", "Devices");
        let message =
            format!("numa needs {devices}: processors are not pinned here, devices can be");
        cx.error(header, message);
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

fn device(block: Block, resources: &'static Schema, cx: &mut Context<'_>) -> Option<DeviceRequest> {
    let schema = inner(resources, "device")?;
    let label = block.labels.into_iter().next()?;
    let mut reader = Reader::new(block.body, schema, cx);
    let count = reader.number("count", 1..=i64::from(u32::MAX), cx).unwrap_or(1);
    let constraints = constraint::constraints(reader.blocks("constraint"), cx);
    let affinities = constraint::affinities(reader.blocks("affinity"), cx);
    reader.finish();
    let name = label.name;
    if name.splitn(3, '/').any(str::is_empty) || name.len() > ANSWER_NAME_BYTES_MAX {
        let message =
            format!("{} is no device; write type, vendor/type or vendor/type/name", shown(&name));
        cx.error(label.span, message);
        return None;
    }
    Some(DeviceRequest { name, count, constraints, affinities })
}
