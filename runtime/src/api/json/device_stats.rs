//! What devices measure, in Nomad's shape. What was not measured is absent.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::Moment;
use ostler_model::stats::{DeviceGroupStats, InstanceStats, StatObject, StatValue};

/// `DeviceGroupStats`.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::api) struct DeviceStatsJson(pub DeviceGroupStats);

impl Serialize for DeviceStatsJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DeviceGroupStats { key, instances, stale } = &self.0;
        let group = Group {
            vendor: &key.vendor,
            kind: &key.kind,
            name: &key.name,
            instance_stats: instances
                .iter()
                .map(|(id, stats)| (id.as_str(), Instance::from(&**stats)))
                .collect(),
            stale: stale.as_deref(),
        };
        group.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Group<'a> {
    vendor: &'a str,
    #[serde(rename = "Type")]
    kind: &'a str,
    name: &'a str,
    instance_stats: BTreeMap<&'a str, Instance<'a>>,
    /// Ours: why this is not what the devices measure now.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<&'a str>,
}

/// `DeviceStats`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Instance<'a> {
    summary: Option<Value<'a>>,
    stats: Object<'a>,
    timestamp: Moment,
}

impl<'a> From<&'a InstanceStats> for Instance<'a> {
    fn from(stats: &'a InstanceStats) -> Self {
        let InstanceStats { summary, stats, taken_at } = stats;
        let summary = summary.as_ref().map(Value::from);
        Self { summary, stats: stats.into(), timestamp: Moment(*taken_at) }
    }
}

/// `StatObject`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Object<'a> {
    nested: BTreeMap<&'a str, Object<'a>>,
    attributes: BTreeMap<&'a str, Value<'a>>,
}

impl<'a> From<&'a StatObject> for Object<'a> {
    // As deep as `plugin::convert` lets an answer nest.
    fn from(object: &'a StatObject) -> Self {
        let StatObject { nested, attributes } = object;
        Self {
            nested: nested.iter().map(|(name, one)| (name.as_str(), one.into())).collect(),
            attributes: attributes.iter().map(|(name, one)| (name.as_str(), one.into())).collect(),
        }
    }
}

/// `StatValue`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Value<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    float_numerator_val: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    float_denominator_val: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int_numerator_val: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int_denominator_val: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    string_val: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bool_val: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    desc: Option<&'a str>,
}

impl<'a> From<&'a StatValue> for Value<'a> {
    fn from(value: &'a StatValue) -> Self {
        Self {
            float_numerator_val: value.float_numerator,
            float_denominator_val: value.float_denominator,
            int_numerator_val: value.int_numerator,
            int_denominator_val: value.int_denominator,
            string_val: value.text.as_deref(),
            bool_val: value.boolean,
            unit: value.unit.as_deref(),
            desc: value.description.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use ostler_model::device::GroupKey;
    use ostler_model::time::Timestamp;

    #[test]
    fn every_member_has_its_place_and_what_is_unset_has_none() {
        let full = StatValue {
            description: Some("d".into()),
            unit: Some("MiB".into()),
            int_numerator: Some(0),
            int_denominator: Some(i64::MIN),
            float_numerator: Some(0.0),
            float_denominator: Some(1.5),
            text: Some(String::new()),
            boolean: Some(false),
        };
        let mut stats = StatObject::default();
        assert!(stats.insert(&["fans".to_owned(), "0".to_owned()], full));
        assert!(stats.insert(&["empty".to_owned()], StatValue::default()));
        let summary = Some(StatValue { int_numerator: Some(7), ..StatValue::default() });
        let one = InstanceStats { summary, stats, taken_at: Timestamp::from_nanos(1_000_000_000) };
        let none = InstanceStats { summary: None, ..InstanceStats::default() };
        let key = GroupKey { vendor: "v".into(), kind: "t".into(), name: "n".into() };
        let instances = [("0".to_owned(), Arc::new(one)), ("1".to_owned(), Arc::new(none))].into();
        let group = DeviceGroupStats { key, instances, stale: None };
        let shown = serde_json::to_value(DeviceStatsJson(group.clone())).unwrap();
        let full = json!({
            "FloatNumeratorVal": 0.0, "FloatDenominatorVal": 1.5, "IntNumeratorVal": 0,
            "IntDenominatorVal": i64::MIN, "StringVal": "", "BoolVal": false, "Unit": "MiB",
            "Desc": "d",
        });
        assert_eq!(
            shown["InstanceStats"]["0"],
            json!({
                "Summary": { "IntNumeratorVal": 7 },
                "Stats": {
                    "Nested": { "fans": { "Nested": {}, "Attributes": { "0": full } } },
                    "Attributes": { "empty": {} },
                },
                "Timestamp": "1970-01-01T00:00:01.000000000Z",
            })
        );
        assert_eq!(shown["InstanceStats"]["1"]["Summary"], json!(null));
        assert_eq!(
            (&shown["Vendor"], &shown["Type"], &shown["Name"]),
            (&json!("v"), &json!("t"), &json!("n"))
        );
        assert_eq!(shown.get("Stale"), None);
        let stale = DeviceGroupStats { stale: Some("late".into()), ..group };
        assert_eq!(serde_json::to_value(DeviceStatsJson(stale)).unwrap()["Stale"], "late");
    }
}
