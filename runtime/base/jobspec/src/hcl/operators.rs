//! Arithmetic, comparison and logic on values that are known while the file is read.

use hcl_edit::expr::{BinaryOperator, UnaryOperator};
use serde_json::Number;

use super::value::{Val, ValKind, parse_number, round_float, to_number};
use crate::diagnostic::{Sink, Span, quote_text};

/// The message about a value that is known only later, and so cannot be computed with.
pub(super) const LATE: &str =
    "known only when the task starts; nothing can be computed from it here";

/// The truth value that a value is, also as a text. Another value is reported.
pub(super) fn truth(value: &Val, sink: &mut Sink) -> Option<bool> {
    match &value.kind {
        ValKind::Bool(truth) => Some(*truth),
        ValKind::Text(text) if text.as_str() == "true" => Some(true),
        ValKind::Text(text) if text.as_str() == "false" => Some(false),
        kind => {
            let message = if value.is_late() {
                LATE.to_owned()
            } else {
                format!("true or false is needed here, not {}", kind.describe())
            };
            sink.refuse(value.span, message)
        }
    }
}

/// Report a value that is known only later, and so cannot be computed with.
pub(super) fn refuse_late(value: &Val, sink: &mut Sink) -> Option<()> {
    if value.is_late() {
        return sink.refuse(value.span, LATE);
    }
    Some(())
}

/// Evaluate `-x` or `!x`.
pub(super) fn unary(
    operator: &UnaryOperator,
    value: &Val,
    span: Span,
    sink: &mut Sink,
) -> Option<ValKind> {
    match operator {
        UnaryOperator::Not => truth(value, sink).map(|truth| ValKind::Bool(!truth)),
        UnaryOperator::Neg => {
            let zero = Val::new(ValKind::Number(0.into()), span);
            binary(BinaryOperator::Minus, &zero, value, span, sink)
        }
    }
}

/// Evaluate an operator between two values, such as `a + b`.
pub(super) fn binary(
    operator: BinaryOperator,
    left: &Val,
    right: &Val,
    span: Span,
    sink: &mut Sink,
) -> Option<ValKind> {
    use BinaryOperator as Op;
    match operator {
        Op::And => Some(ValKind::Bool(truth(left, sink)? & truth(right, sink)?)),
        Op::Or => Some(ValKind::Bool(truth(left, sink)? | truth(right, sink)?)),
        Op::Eq | Op::NotEq => {
            refuse_late(left, sink)?;
            refuse_late(right, sink)?;
            Some(ValKind::Bool(same(left, right) == (operator == Op::Eq)))
        }
        _ => {
            let (a, b) = (number(left, sink), number(right, sink)?);
            let result = compute(operator, &a?, &b);
            if result.is_none() {
                sink.error(span, "this has no result: division by zero or a number too large");
            }
            result
        }
    }
}

/// Whether two values are equal and of one type.
pub(super) fn same(left: &Val, right: &Val) -> bool {
    match (&left.kind, &right.kind) {
        (ValKind::Number(a), ValKind::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (ValKind::List(of, a), ValKind::List(other, b)) => {
            of == other && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (ValKind::Object(a), ValKind::Object(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|((i, (_, a)), (j, (_, b)))| i == j && same(a, b))
        }
        (a, b) => a == b,
    }
}

fn number(value: &Val, sink: &mut Sink) -> Option<Number> {
    let number = match &value.kind {
        ValKind::Number(number) => Some(number.clone()),
        ValKind::Text(text) => parse_number(text.as_str()),
        _ => None,
    };
    if number.is_none() {
        refuse_late(value, sink)?;
        let given = match &value.kind {
            ValKind::Text(text) => format!("the text {}", quote_text(text.as_str())),
            kind => kind.describe().to_owned(),
        };
        sink.error(value.span, format!("a number is needed here, not {given}"));
    }
    number
}

/// The number, if it is whole, in a type that also holds every result of two such numbers.
fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// The whole number as a number of JSON, if it is in its range.
pub(super) fn from_whole(whole: i128) -> Option<Number> {
    let signed = i64::try_from(whole).map(Number::from);
    signed.or_else(|_| u64::try_from(whole).map(Number::from)).ok()
}

fn compute(operator: BinaryOperator, a: &Number, b: &Number) -> Option<ValKind> {
    use BinaryOperator as Op;
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        let whole = match operator {
            Op::Plus => a.checked_add(b),
            Op::Minus => a.checked_sub(b),
            Op::Mul => a.checked_mul(b),
            Op::Mod => a.checked_rem(b),
            Op::Div if b != 0 && a.checked_rem(b) == Some(0) => a.checked_div(b),
            Op::Less => return Some(ValKind::Bool(a < b)),
            Op::LessEq => return Some(ValKind::Bool(a <= b)),
            Op::Greater => return Some(ValKind::Bool(a > b)),
            Op::GreaterEq => return Some(ValKind::Bool(a >= b)),
            _ => None,
        };
        if operator != Op::Div || whole.is_some() {
            return whole.and_then(from_whole).map(ValKind::Number);
        }
    }
    let (a, b) = (a.as_f64()?, b.as_f64()?);
    let result = match operator {
        Op::Plus => a + b,
        Op::Minus => a - b,
        Op::Mul => a * b,
        Op::Div => a / b,
        Op::Mod => a % b,
        Op::Less => return Some(ValKind::Bool(a < b)),
        Op::LessEq => return Some(ValKind::Bool(a <= b)),
        Op::Greater => return Some(ValKind::Bool(a > b)),
        Op::GreaterEq => return Some(ValKind::Bool(a >= b)),
        _ => return None,
    };
    to_number(round_float(result)).map(ValKind::Number)
}
