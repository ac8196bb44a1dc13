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
    /// What it is, for people.
    pub description: Option<String>,
    /// Unit of the numbers, as the plugin wrote it, for example `MiB` or `%`.
    pub unit: Option<String>,
    /// A whole number.
    pub int_numerator: Option<i64>,
    /// Of how much, as a whole number.
    pub int_denominator: Option<i64>,
    /// A finite number.
    pub float_numerator: Option<f64>,
    /// Of how much, as a finite number.
    pub float_denominator: Option<f64>,
    /// A text.
    pub text: Option<String>,
    /// A truth.
    pub boolean: Option<bool>,
}

/// Measurements by name, with further ones inside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatObject {
    /// Objects inside this one.
    pub nested: BTreeMap<String, StatObject>,
    /// Measurements of this one.
    pub attributes: BTreeMap<String, StatValue>,
}

impl StatObject {
    /// Put a value where `path` says: the last part is its name, those before it are objects inside
    /// one another. `false` when the path is empty or there is a value already; nothing changed
    /// then.
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

    /// Nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nested.is_empty() && self.attributes.is_empty()
    }
}

/// Measurements of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceStats {
    /// The one number to show in a list.
    pub summary: Option<StatValue>,
    /// All others.
    pub stats: StatObject,
    /// When the plugin measured.
    pub taken_at: Timestamp,
}

/// Measurements of instances of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceGroupStats {
    /// The group.
    pub key: GroupKey,
    /// By instance id; one that was not measured is absent. Shared with whoever else shows them.
    pub instances: BTreeMap<String, Arc<InstanceStats>>,
    /// Why these are not what the device measures now; `None`: they are.
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
