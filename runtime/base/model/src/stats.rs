//! Measurements of devices, as plain data.
//!
//! ```text
//! DeviceGroupStats ─ key, stale?
//!   └─ instances: id ─► InstanceStats ─ summary?, taken_at
//!                         └─ stats: StatObject ─ attributes: name ─► StatValue
//!                              └─ nested: name ─► StatObject ─ …
//! ```
//! What was not measured is absent: absent is not zero, not `false` and not the empty text. Numbers
//! are finite; what comes from a plugin is checked in `plugin::convert`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::device::GroupKey;
use super::time::Timestamp;

/// One measurement: exactly the members that were measured are present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatValue {
    /// What the value means, for people.
    pub description: Option<String>,
    /// Unit of the numbers, as the plugin wrote it, for example `MiB` or `%`.
    pub unit: Option<String>,
    /// The value as a whole number.
    pub int_numerator: Option<i64>,
    /// The total that a whole number is a part of.
    pub int_denominator: Option<i64>,
    /// The value as a finite number.
    pub float_numerator: Option<f64>,
    /// The total that a finite number is a part of.
    pub float_denominator: Option<f64>,
    /// The value as a text.
    pub text: Option<String>,
    /// The value as a truth value.
    pub boolean: Option<bool>,
}

/// Measurements by name, and further objects inside this one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatObject {
    /// Objects inside this one.
    pub nested: BTreeMap<String, StatObject>,
    /// Measurements of this one.
    pub attributes: BTreeMap<String, StatValue>,
}

impl StatObject {
    /// Put a value at a path: the last part is its name, the parts before it name objects
    /// inside one another. Returns `false`, and changes nothing, when the path is empty or has
    /// a value already.
    pub fn insert(&mut self, path: &[String], value: StatValue) -> bool {
        let Some((name, objects)) = path.split_last() else { return false };
        if self.get(path).is_some() {
            return false;
        }
        let mut at = self;
        for object in objects {
            at = at.nested.entry(object.clone()).or_default();
        }
        at.attributes.insert(name.clone(), value);
        true
    }

    /// The value at a path.
    #[must_use]
    pub fn get(&self, path: &[String]) -> Option<&StatValue> {
        let (name, objects) = path.split_last()?;
        let mut at = self;
        for object in objects {
            at = at.nested.get(object)?;
        }
        at.attributes.get(name)
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nested.is_empty() && self.attributes.is_empty()
    }
}

/// Measurements of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceStats {
    /// The measurement to show in a list.
    pub summary: Option<StatValue>,
    /// All other measurements.
    pub stats: StatObject,
    /// When the plugin took the measurements.
    pub taken_at: Timestamp,
}

/// Measurements of instances of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceGroupStats {
    /// Name of the device group.
    pub key: GroupKey,
    /// Measurements by the id of the instance. An instance that was not measured is absent.
    pub instances: BTreeMap<String, Arc<InstanceStats>>,
    /// Why the measurements are out of date; `None` when they are current.
    pub stale: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(parts: &[&str]) -> Vec<String> {
        parts.iter().map(|part| (*part).to_owned()).collect()
    }

    fn int(number: i64) -> StatValue {
        StatValue { int_numerator: Some(number), ..StatValue::default() }
    }

    #[test]
    fn a_value_is_found_where_it_was_put_and_a_second_one_changes_nothing() {
        let mut object = StatObject::default();
        assert!(object.insert(&path(&["fans", "0", "speed"]), int(1)));
        assert!(object.insert(&path(&["fans"]), int(2)), "an object and a value may share a name");
        assert!(!object.insert(&path(&["fans", "0", "speed"]), int(3)));
        assert!(!object.insert(&[], int(4)));
        assert_eq!(object.get(&path(&["fans", "0", "speed"])), Some(&int(1)));
        assert_eq!(object.get(&path(&["fans"])), Some(&int(2)));
        assert_eq!(object.get(&path(&["fans", "1", "speed"])), None);
    }

    #[test]
    fn unset_zero_false_and_the_empty_text_are_four_things_in_json_and_in_postcard() {
        let values = [
            StatValue::default(),
            int(0),
            int(i64::MIN),
            StatValue { float_numerator: Some(0.0), ..StatValue::default() },
            StatValue { boolean: Some(false), ..StatValue::default() },
            StatValue { text: Some(String::new()), ..StatValue::default() },
            StatValue { unit: Some(String::new()), ..StatValue::default() },
        ];
        for (number, value) in values.iter().enumerate() {
            let json = serde_json::to_string(value).unwrap();
            assert_eq!(&serde_json::from_str::<StatValue>(&json).unwrap(), value);
            let bytes = postcard::to_stdvec(value).unwrap();
            assert_eq!(&postcard::from_bytes::<StatValue>(&bytes).unwrap(), value);
            assert!(values.iter().skip(number + 1).all(|other| other != value));
        }
    }
}
