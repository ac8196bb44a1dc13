//! Typed attributes with units. Plugins and fingerprints report them, and constraints compare them.
//!
//! ```text
//! "10 GiB" ── Attribute::parse ──┐
//! plugin answer ─ Attribute::new ┴─► Attribute ── compare ─► Ordered | EqualOnly | NotComparable
//! ```
//! The fields are public so that values can be taken apart; a value built by hand is checked with
//! [`Attribute::check`], one read from a file is checked on the way in.

mod compare;
mod serial;
mod unit;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use compare::Comparison;
pub use unit::{Dimension, Unit};

use crate::limits::ANSWER_TEXT_BYTES_MAX;

/// The value of an attribute, without a unit.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// Signed integer.
    Int(i64),
    /// Finite floating point number.
    Float(f64),
    /// Truth value, which has no order.
    Bool(bool),
    /// Text, which is ordered by code point.
    Text(String),
}

/// A value with an optional unit (see [`Unit`] for the closed list).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedAttribute")]
pub struct Attribute {
    /// The value in its unit.
    pub value: AttributeValue,
    /// Unit of a number, as its text; only numbers have one.
    pub unit: Option<String>,
}

/// An attribute as read, before [`Attribute::check`].
#[derive(Deserialize)]
struct UncheckedAttribute {
    value: AttributeValue,
    unit: Option<String>,
}

impl TryFrom<UncheckedAttribute> for Attribute {
    type Error = AttributeError;
    fn try_from(unchecked: UncheckedAttribute) -> Result<Self, AttributeError> {
        let UncheckedAttribute { value, unit } = unchecked;
        let attribute = Self { value, unit };
        attribute.check()?;
        Ok(attribute)
    }
}

/// Why an attribute was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AttributeError {
    /// The unit is not in the list.
    #[error("unit {unit:?} is not known; units are {}", known_units())]
    UnknownUnit {
        /// The text given, cut to a readable length.
        unit: String,
    },
    /// A value that is no number has a unit.
    #[error("{value} is not a number and cannot have the unit {unit}")]
    UnitWithoutNumber {
        /// The value given.
        value: AttributeValue,
        /// The unit given.
        unit: String,
    },
    /// The number is NaN or infinite.
    #[error("{number} is not a finite number")]
    NotFinite {
        /// The number given.
        number: f64,
    },
    /// The text is longer than [`ANSWER_TEXT_BYTES_MAX`].
    #[error("text of {len} bytes is longer than {ANSWER_TEXT_BYTES_MAX}")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
}

fn known_units() -> String {
    let names: Vec<&str> = Unit::ALL.iter().map(|unit| unit.as_str()).collect();
    names.join(" ")
}

impl Attribute {
    /// A checked attribute.
    ///
    /// # Errors
    /// When the unit is not known or stands on something that is not a number, when a float is
    /// not finite, or when a text is too long.
    pub fn new(value: AttributeValue, unit: Option<&str>) -> Result<Self, AttributeError> {
        let attribute = Self { value, unit: unit.map(str::to_owned) };
        attribute.check()?;
        Ok(attribute)
    }

    /// Check an attribute that was built by hand.
    ///
    /// # Errors
    /// As [`Attribute::new`].
    pub fn check(&self) -> Result<(), AttributeError> {
        match (&self.value, &self.unit) {
            (AttributeValue::Float(number), _) if !number.is_finite() => {
                return Err(AttributeError::NotFinite { number: *number });
            }
            (AttributeValue::Text(text), _) if text.len() > ANSWER_TEXT_BYTES_MAX => {
                return Err(AttributeError::TooLong { len: text.len() });
            }
            _ => {}
        }
        let Some(unit) = &self.unit else {
            return Ok(());
        };
        if Unit::parse(unit).is_none() {
            return Err(AttributeError::UnknownUnit { unit: unit.chars().take(32).collect() });
        }
        match &self.value {
            AttributeValue::Int(_) | AttributeValue::Float(_) => Ok(()),
            value => {
                Err(AttributeError::UnitWithoutNumber { value: value.clone(), unit: unit.clone() })
            }
        }
    }

    /// The attribute that a text in a job file means: a number with or without a unit (`10 GiB`,
    /// `0.5W`, `5`), `true` or `false`, otherwise the text itself, unchanged.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let trimmed = text.trim();
        if let Some(value) = parse_number(trimmed) {
            return Self { value, unit: None };
        }
        if let Some((before, unit)) = Unit::split_suffix(trimmed)
            && let Some(value) = parse_number(before.trim_end())
        {
            return Self { value, unit: Some(unit.as_str().to_owned()) };
        }
        match trimmed {
            "true" => Self::from(true),
            "false" => Self::from(false),
            _ => Self::from(text),
        }
    }

    /// Compare with another attribute exactly, without rounding or overflow. The result is
    /// `NotComparable` unless both are numbers of one dimension, both text, or both truth values.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Comparison {
        compare::compare(self, other)
    }
}

fn parse_number(text: &str) -> Option<AttributeValue> {
    // This keeps out "inf" and "nan", which Rust reads as floats.
    if !text.ends_with(|last: char| last.is_ascii_digit() || last == '.') {
        return None;
    }
    if let Ok(number) = text.parse::<i64>() {
        return Some(AttributeValue::Int(number));
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(AttributeValue::Float)
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self { value: AttributeValue::Text(text.to_owned()), unit: None }
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self { value: AttributeValue::Text(text), unit: None }
    }
}

impl From<i64> for Attribute {
    fn from(number: i64) -> Self {
        Self { value: AttributeValue::Int(number), unit: None }
    }
}

impl From<bool> for Attribute {
    fn from(truth: bool) -> Self {
        Self { value: AttributeValue::Bool(truth), unit: None }
    }
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            // With a point or an exponent, so that it reads back as a float.
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Bool(truth) => truth.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)?;
        match &self.unit {
            Some(unit) => write!(f, " {unit}"),
            None => Ok(()),
        }
    }
}

/// An attribute and its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedAttribute {
    /// Name, for example `memory`.
    pub name: String,
    /// Value of the attribute with its unit.
    pub attribute: Attribute,
}

#[cfg(test)]
mod tests;
