//! Compares values: whether two are the same, and which one comes first.

use std::cmp::Ordering;

use crate::error::TemplateProblem;
use crate::value::Value;

fn incomparable(left: &Value, right: &Value) -> TemplateProblem {
    TemplateProblem::Value(format!(
        "{} and {} cannot be compared",
        left.describe(),
        right.describe()
    ))
}

/// Whether two values are the same.
pub(crate) fn same(left: &Value, right: &Value) -> Result<bool, TemplateProblem> {
    if left.is_nothing() || right.is_nothing() {
        return Ok(left.is_nothing() && right.is_nothing());
    }
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
        _ => order(left, right).map(|order| order == Some(Ordering::Equal)),
    }
}

/// The order of two values. `None` means that they have no order, as with a float that is not a number.
pub(crate) fn order(left: &Value, right: &Value) -> Result<Option<Ordering>, TemplateProblem> {
    if let (Some(left), Some(right)) = (left.as_text(), right.as_text()) {
        return Ok(Some(left.cmp(right)));
    }
    match (left, right) {
        (Value::Float(left), Value::Float(right)) => Ok(left.partial_cmp(right)),
        (Value::Int(_) | Value::Uint(_), Value::Int(_) | Value::Uint(_)) => {
            Ok(Some(wide(left).cmp(&wide(right))))
        }
        _ => Err(incomparable(left, right)),
    }
}

fn wide(value: &Value) -> i128 {
    match value {
        Value::Int(number) => i128::from(*number),
        Value::Uint(number) => i128::from(*number),
        _ => 0,
    }
}
