//! What a task asks for.

use super::super::diagnostic::shown;
use super::super::schema::Schema;
use super::super::tree::Block;
use super::group::inner;
use super::{Context, Reader, constraint};
use crate::limits::ANSWER_NAME_BYTES_MAX;
use crate::model::resources::{DeviceRequest, Resources};

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
    let devices =
        reader.blocks("device").into_iter().filter_map(|block| device(block, schema, cx)).collect();
    reader.finish();
    Resources {
        cpu_mhz,
        memory_mb,
        memory_max_mb: memory_max.and_then(|(max, _)| u32::try_from(max).ok()),
        devices,
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
