//! Functions of numbers. As with consul-template, the last argument is the first operand, so that the functions
//! fit in pipes: `10 | divide 3`.

use super::{Row, argument, text};
use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::value::{Value, lossy};

pub(super) const ALL: &[Row] = &[
    ("add", 2, Some(2), |_, a| {
        compute(
            a,
            |a, b| Some(a.wrapping_add(b)),
            |a, b| Some(a.wrapping_add(b)),
            |a, b| Some(a + b),
        )
    }),
    ("subtract", 2, Some(2), |_, a| {
        compute(
            a,
            |a, b| Some(a.wrapping_sub(b)),
            |a, b| Some(a.wrapping_sub(b)),
            |a, b| Some(a - b),
        )
    }),
    ("multiply", 2, Some(2), |_, a| {
        compute(
            a,
            |a, b| Some(a.wrapping_mul(b)),
            |a, b| Some(a.wrapping_mul(b)),
            |a, b| Some(a * b),
        )
    }),
    ("divide", 2, Some(2), |_, a| {
        zero(a)?;
        compute(
            a,
            |a, b| Some(a.wrapping_div(b)),
            |a, b| Some(a.wrapping_div(b)),
            |a, b| Some(a / b),
        )
    }),
    ("modulo", 2, Some(2), |_, a| {
        zero(a)?;
        compute(a, |a, b| Some(a.wrapping_rem(b)), |a, b| Some(a.wrapping_rem(b)), |_, _| None)
    }),
    ("minimum", 2, Some(2), |_, a| choose(a, false)),
    ("maximum", 2, Some(2), |_, a| choose(a, true)),
    ("loop", 1, Some(2), make_loop),
];

/// Refuse a division by a whole zero, which has no result.
fn zero(arguments: &[Value]) -> Result<(), TemplateProblem> {
    match argument(arguments, 0) {
        Value::Int(0) | Value::Uint(0) if !matches!(argument(arguments, 1), Value::Float(_)) => {
            Err(TemplateProblem::value("division by zero"))
        }
        _ => Ok(()),
    }
}

fn no_numbers(left: &Value, right: &Value) -> TemplateProblem {
    TemplateProblem::Value(format!(
        "takes numbers, not {} and {}",
        left.describe(),
        right.describe()
    ))
}

#[expect(clippy::cast_precision_loss, reason = "as in Go: a whole number beside a fraction")]
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::Uint(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// A whole number as a signed one. As in Go, a large unsigned number keeps its bits.
fn signed(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        Value::Uint(number) => number.cast_signed(),
        _ => 0,
    }
}

fn compute(
    arguments: &[Value],
    whole: fn(i64, i64) -> Option<i64>,
    unsigned: fn(u64, u64) -> Option<u64>,
    fraction: fn(f64, f64) -> Option<f64>,
) -> Result<Value, TemplateProblem> {
    let (left, right) = (argument(arguments, 1), argument(arguments, 0));
    let result = match (left, right) {
        (Value::Uint(left), Value::Uint(right)) => unsigned(*left, *right).map(Value::Uint),
        (Value::Int(_) | Value::Uint(_), Value::Int(_) | Value::Uint(_)) => {
            whole(signed(left), signed(right)).map(Value::Int)
        }
        _ => match (float(left), float(right)) {
            (Some(left), Some(right)) => fraction(left, right).map(Value::Float),
            _ => None,
        },
    };
    result.ok_or_else(|| no_numbers(left, right))
}

fn choose(arguments: &[Value], greater: bool) -> Result<Value, TemplateProblem> {
    let (left, right) = (argument(arguments, 1), argument(arguments, 0));
    let numbers = float(left).zip(float(right));
    let (a, b) = numbers.ok_or_else(|| no_numbers(left, right))?;
    let first = if greater { a > b } else { a < b };
    Ok(if first { left } else { right }.clone())
}

fn make_loop(_run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let mut bounds = Vec::with_capacity(2);
    for (index, bound) in arguments.iter().enumerate() {
        bounds.push(match bound {
            Value::Int(number) => *number,
            Value::Uint(number) => i64::try_from(*number).unwrap_or(i64::MAX),
            Value::Text(_) => {
                let digits = lossy(text(arguments, index)?).into_owned();
                let wrong = |_| TemplateProblem::Value(format!("{digits:?} is not a whole number"));
                if digits.is_empty() { 0 } else { digits.parse().map_err(wrong)? }
            }
            other => {
                return Err(TemplateProblem::Value(format!(
                    "takes whole numbers, not {}",
                    other.describe()
                )));
            }
        });
    }
    match bounds.as_slice() {
        [to] => Ok(Value::Loop(0, *to)),
        [from, to] => Ok(Value::Loop(*from, *to)),
        _ => Err(TemplateProblem::value("takes 1 or 2 arguments")),
    }
}
