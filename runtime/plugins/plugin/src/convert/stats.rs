//! Checks measurements of a plugin: they are bounded and finite, every place is named once, and
//! none is from the future.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{AnswerResult, broken_answer, check_count, dev, group_key, name, text, wit};
use ostler_model::limits::{
    DEVICE_GROUPS_MAX, DEVICE_INSTANCES_MAX, STAT_DEPTH_MAX, STAT_ENTRIES_MAX, STATS_AHEAD_MAX,
};
use ostler_model::stats::{DeviceGroupStats, InstanceStats, StatObject, StatValue};
use ostler_model::time::Timestamp;

/// The newest measurements of a device plugin. `now` is the host's time: a measurement may be old,
/// but not from the future.
pub(crate) fn device_stats(
    given: Vec<dev::GroupStats>,
    now: Timestamp,
) -> AnswerResult<Vec<DeviceGroupStats>> {
    check_count("stats", given.len(), DEVICE_GROUPS_MAX)?;
    let mut seen = BTreeSet::new();
    let mut groups = Vec::with_capacity(given.len());
    for group in given {
        let key = group_key(group.vendor, group.type_, group.name)?;
        let place = format!("stats of {key}");
        if !seen.insert(key.clone()) {
            return broken_answer(place, "are listed twice");
        }
        check_count(&place, group.instances.len(), DEVICE_INSTANCES_MAX)?;
        let mut instances = BTreeMap::new();
        for given in group.instances {
            let (id, stats) = instance(&place, given, now)?;
            if instances.contains_key(&id) {
                return broken_answer(place, format!("instance {id:?} is listed twice"));
            }
            instances.insert(id, Arc::new(stats));
        }
        groups.push(DeviceGroupStats { key, instances, stale: None });
    }
    Ok(groups)
}

fn instance(
    place: &str,
    given: dev::InstanceStats,
    now: Timestamp,
) -> AnswerResult<(String, InstanceStats)> {
    let id = name(format_args!("{place}: instance id"), given.id)?;
    let place = format!("{place}, instance {id}");
    let taken_at = now.translate_nanos(given.taken_at);
    if given.taken_at == 0 {
        return broken_answer(place, "taken-at is not set");
    }
    if taken_at > now.plus(STATS_AHEAD_MAX) {
        return broken_answer(place, format!("taken-at is {taken_at}, in the future"));
    }
    let summary = given.summary.map(|value| stat_value(&format!("{place}: summary"), value));
    Ok((
        id,
        InstanceStats {
            summary: summary.transpose()?,
            stats: stat_object(&place, given.stats)?,
            taken_at,
        },
    ))
}

/// Convert measurements with their places into the nested object that they stand for.
pub(crate) fn stat_object(place: &str, given: Vec<wit::StatEntry>) -> AnswerResult<StatObject> {
    check_count(place, given.len(), STAT_ENTRIES_MAX)?;
    let mut object = StatObject::default();
    for entry in given {
        check_count(format_args!("{place}: path"), entry.path.len(), STAT_DEPTH_MAX)?;
        if entry.path.is_empty() {
            return broken_answer(format!("{place}: path"), "is empty");
        }
        let parts = entry.path.into_iter().map(|part| name(format_args!("{place}: path"), part));
        let path = parts.collect::<AnswerResult<Vec<_>>>()?;
        let place = format!("{place}: {}", path.join("."));
        if !object.insert(&path, stat_value(&place, entry.value)?) {
            return broken_answer(place, "is listed twice");
        }
    }
    Ok(object)
}

/// Check one measurement. What is unset stays unset. A number that is not finite is refused: JSON
/// cannot hold it, and it cannot be compared.
fn stat_value(place: &str, given: wit::StatValue) -> AnswerResult<StatValue> {
    let finite = |number: Option<f64>| match number {
        Some(number) if !number.is_finite() => {
            broken_answer(place, format!("{number} is not a finite number"))
        }
        number => Ok(number),
    };
    Ok(StatValue {
        description: given.description.map(|it| text(place, it)).transpose()?,
        unit: given.unit.map(|it| name(place, it)).transpose()?,
        int_numerator: given.int_numerator,
        int_denominator: given.int_denominator,
        float_numerator: finite(given.float_numerator)?,
        float_denominator: finite(given.float_denominator)?,
        text: given.text.map(|it| text(place, it)).transpose()?,
        boolean: given.boolean,
    })
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
