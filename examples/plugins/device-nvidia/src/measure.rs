//! Statistics of one card. What the card does not measure is absent.

use ostler_sdk::device::prelude::*;

use crate::table::Row;

/// Whole numbers: place, column, unit, description.
const WHOLE: &[([&str; 2], &str, &str, &str)] = &[
    (["utilization", "gpu"], "utilization.gpu", "%", "time in which a kernel ran"),
    (["utilization", "memory"], "utilization.memory", "%", "time in which memory was used"),
    (["utilization", "encoder"], "utilization.encoder", "%", "time in which the encoder ran"),
    (["utilization", "decoder"], "utilization.decoder", "%", "time in which the decoder ran"),
    (["temperature", "gpu"], "temperature.gpu", "°C", "temperature of the processor"),
    (["temperature", "memory"], "temperature.memory", "°C", "temperature of the memory"),
    (["clocks", "graphics"], "clocks.current.graphics", "MHz", "clock of the shaders"),
    (["clocks", "sm"], "clocks.current.sm", "MHz", "clock of the multiprocessors"),
    (["clocks", "memory"], "clocks.current.memory", "MHz", "clock of the memory"),
    (
        ["ecc", "corrected"],
        "ecc.errors.corrected.volatile.total",
        "",
        "memory errors corrected since the driver was loaded",
    ),
    (
        ["ecc", "uncorrected"],
        "ecc.errors.uncorrected.volatile.total",
        "",
        "memory errors that could not be corrected since the driver was loaded",
    ),
    (["fan", "speed"], "fan.speed", "%", "speed the fan is told to have"),
];

/// Measurements of the card of this line.
///
/// # Errors
/// A number that is none.
pub fn card(row: &Row<'_>, uuid: String) -> Result<InstanceStats> {
    let memory = row.whole("memory.used")?.map(|used| (used, row.whole("memory.total")));
    let memory = match memory {
        Some((used, total)) => Some(StatValue {
            int_denominator: total?,
            ..StatValue::int(used, "MiB", "memory used, of all there is")
        }),
        None => None,
    };
    let mut stats = InstanceStats::new(uuid, memory.clone());
    if let Some(memory) = memory {
        stats = stats.nested(&["memory", "used"], memory);
    }
    for (path, column, unit, description) in WHOLE {
        if let Some(number) = row.whole(column)? {
            stats = stats.nested(path, StatValue::int(number, unit, description));
        }
    }
    if let Some(draw) = row.fraction("power.draw")? {
        let power = StatValue {
            float_denominator: row.fraction("power.limit")?,
            ..StatValue::float(draw, "W", "power drawn, of what it may draw")
        };
        stats = stats.nested(&["power", "draw"], power);
    }
    if let Some(state) = row.text("pstate") {
        let description = Some("performance state: P0 is the highest".to_owned());
        let value = StatValue { text: Some(state.to_owned()), description, ..StatValue::empty() };
        stats = stats.nested(&["performance", "state"], value);
    }
    Ok(stats)
}
