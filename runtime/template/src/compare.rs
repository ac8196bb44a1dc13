//! Which values are the same, and which comes first.

use std::cmp::Ordering;

use crate::error::TemplateProblem;
use crate::value::Value;

fn incomparable(left: &Value, right: &Value) -> TemplateProblem {
    TemplateProblem::Value(format!("{} and {} cannot be compared", left.what(), right.what()))
}

/// Are they the same?
pub(crate) fn same(left: &Value, right: &Value) -> Result<bool, TemplateProblem> {
    if left.is_nothing() || right.is_nothing() {
        return Ok(left.is_nothing() && right.is_nothing());
    }
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
        _ => order(left, right).map(|order| order == Some(Ordering::Equal)),
    }
}

/// Which comes first? `None`: neither, as with what is no number.
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
