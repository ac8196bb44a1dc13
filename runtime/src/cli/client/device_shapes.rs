//! What devices measure, as the agent's API tells it (Nomad's shape).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::shapes::or_empty;
use ostler_model::stats::{StatObject, StatValue};

/// Instances of one group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct DeviceStats {
    /// Its vendor.
    pub vendor: String,
    /// Its type.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Its name.
    pub name: String,
    /// By id.
    #[serde(deserialize_with = "or_empty")]
    pub instance_stats: BTreeMap<String, InstanceStats>,
    /// Why this is not what the devices measure now. Nomad does not say.
    pub stale: Option<String>,
}

impl DeviceStats {
    /// `vendor/type/name`
    pub(in crate::cli) fn group(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// One instance.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct InstanceStats {
    /// The one number to show in a list.
    pub summary: Option<Value>,
    /// All others.
    #[serde(deserialize_with = "or_empty")]
    pub stats: Object,
}

/// Measurements, with further ones inside. The JSON reader bounds how deep.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Object {
    #[serde(deserialize_with = "or_empty")]
    nested: BTreeMap<String, Object>,
    #[serde(deserialize_with = "or_empty")]
    attributes: BTreeMap<String, Value>,
}

impl From<Object> for StatObject {
    fn from(Object { nested, attributes }: Object) -> Self {
        Self {
            nested: nested.into_iter().map(|(name, one)| (name, one.into())).collect(),
            attributes: attributes.into_iter().map(|(name, one)| (name, one.into())).collect(),
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Value {
    float_numerator_val: Option<f64>,
    float_denominator_val: Option<f64>,
    int_numerator_val: Option<i64>,
    int_denominator_val: Option<i64>,
    string_val: Option<String>,
    bool_val: Option<bool>,
    unit: Option<String>,
    desc: Option<String>,
}

impl From<Value> for StatValue {
    fn from(value: Value) -> Self {
        Self {
            description: value.desc,
            unit: value.unit,
            int_numerator: value.int_numerator_val,
            int_denominator: value.int_denominator_val,
            float_numerator: value.float_numerator_val,
            float_denominator: value.float_denominator_val,
            text: value.string_val,
            boolean: value.bool_val,
        }
    }
}
