//! Comparison of attributes, exact for every number.
//!
//! A number is turned into `coefficient · 10^exponent` of the smallest unit of its dimension and
//! compared without rounding. An integer is itself. A float that is a whole number in the range
//! of `i64` is that number; any other float is the shortest decimal that reads back as it, so
//! that `0.1 GB` equals `100 MB` although no binary float is one tenth. Both choices lie between
//! the neighbouring floats, so the order of floats is kept, and the order of all numbers of one
//! dimension is total.

use std::cmp::Ordering;

use super::unit::{Dimension, Unit};
use super::{Attribute, AttributeValue};

/// How two attributes relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Both are numbers of one dimension, or both texts (by code point).
    Ordered(Ordering),
    /// Both are truth values: equal or not, neither is larger.
    EqualOnly(bool),
    /// Different kinds, different dimensions, a unit on one side only, or a broken attribute.
    NotComparable,
}

impl Comparison {
    /// Equal, different, or not comparable.
    #[must_use]
    pub fn equal(self) -> Option<bool> {
        match self {
            Self::Ordered(order) => Some(order == Ordering::Equal),
            Self::EqualOnly(equal) => Some(equal),
            Self::NotComparable => None,
        }
    }

    /// The order, where there is one.
    #[must_use]
    pub fn order(self) -> Option<Ordering> {
        match self {
            Self::Ordered(order) => Some(order),
            Self::EqualOnly(_) | Self::NotComparable => None,
        }
    }
}

/// Compare two attributes.
pub(super) fn compare(left: &Attribute, right: &Attribute) -> Comparison {
    match (&left.value, &right.value) {
        _ if left.unit.is_some() != right.unit.is_some() => Comparison::NotComparable,
        (AttributeValue::Text(a), AttributeValue::Text(b)) if left.unit.is_none() => {
            Comparison::Ordered(a.cmp(b))
        }
        (AttributeValue::Bool(a), AttributeValue::Bool(b)) if left.unit.is_none() => {
            Comparison::EqualOnly(a == b)
        }
        _ => match (Quantity::from_attribute(left), Quantity::from_attribute(right)) {
            (Some(a), Some(b)) if a.dimension == b.dimension => Comparison::Ordered(a.order(&b)),
            _ => Comparison::NotComparable,
        },
    }
}

/// A number in the smallest unit of its dimension: `± coefficient · 10^exponent`.
struct Quantity {
    dimension: Option<Dimension>,
    negative: bool,
    coefficient: u128,
    exponent: i32,
}

impl Quantity {
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        let unit = match attribute.unit.as_deref() {
            Some(text) => Some(Unit::parse(text)?),
            None => None,
        };
        let (negative, digits, exponent) = match attribute.value {
            AttributeValue::Int(number) => (number < 0, number.unsigned_abs(), 0),
            AttributeValue::Float(number) => decimal(number)?,
            AttributeValue::Bool(_) | AttributeValue::Text(_) => return None,
        };
        // At most 2^63 · 2^60: no overflow.
        let factor = unit.map_or(1, Unit::factor);
        Some(Self {
            dimension: unit.map(Unit::dimension),
            negative: negative && digits != 0,
            coefficient: u128::from(digits).checked_mul(u128::from(factor))?,
            exponent,
        })
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.magnitude_order(other),
            (true, true) => other.magnitude_order(self),
        }
    }

    fn magnitude_order(&self, other: &Self) -> Ordering {
        if self.exponent >= other.exponent {
            scaled_order(
                self.coefficient,
                self.exponent.abs_diff(other.exponent),
                other.coefficient,
            )
        } else {
            scaled_order(
                other.coefficient,
                self.exponent.abs_diff(other.exponent),
                self.coefficient,
            )
            .reverse()
        }
    }
}

/// Order of `large · 10^shift` and `plain`. An overflow means that the left is larger than any
/// `u128`, so larger than the right.
fn scaled_order(large: u128, shift: u32, plain: u128) -> Ordering {
    if large == 0 {
        return 0.cmp(&plain);
    }
    let scaled = 10u128.checked_pow(shift).and_then(|power| large.checked_mul(power));
    scaled.map_or(Ordering::Greater, |scaled| scaled.cmp(&plain))
}

/// Sign, digits and power of ten of a finite float; see the module text.
fn decimal(number: f64) -> Option<(bool, u64, i32)> {
    const WHOLE_BELOW: f64 = 9_223_372_036_854_775_808.0; // 2^63
    if !number.is_finite() {
        return None;
    }
    let (negative, size) = (number.is_sign_negative(), number.abs());
    if size < WHOLE_BELOW && size.fract() == 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        return Some((negative, size as u64, 0));
    }
    let text = format!("{size:e}");
    let (mantissa, exponent) = text.split_once('e')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // The shortest form has at most 17 digits.
    let digits = format!("{whole}{fraction}").parse::<u64>().ok()?;
    let exponent = exponent.parse::<i32>().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    Some((negative, digits, exponent.checked_sub(places)?))
}
