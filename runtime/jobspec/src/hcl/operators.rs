//! Arithmetic, comparison and logic on values known now.

use hcl_edit::expr::{BinaryOperator, UnaryOperator};
use serde_json::Number;

use super::super::diagnostic::{Sink, Span};
use super::super::tree::{Value, ValueKind};

/// A truth value, or a text that is one.
pub(super) fn truth(value: &Value, sink: &mut Sink) -> Option<bool> {
    match &value.kind {
        ValueKind::Bool(truth) => Some(*truth),
        ValueKind::Text(text) if text == "true" => Some(true),
        ValueKind::Text(text) if text == "false" => Some(false),
        kind => {
            let late = is_late(value);
            let message = if late {
                LATE.to_owned()
            } else {
                format!("true or false is needed here, not {}", kind.describe())
            };
            sink.refuse(value.span, message)
        }
    }
}

const LATE: &str = "known only when the task starts; nothing can be computed from it here";

/// Holds a reference that is replaced only when the task starts.
pub(super) fn is_late(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Text(text) => text
            .match_indices("${")
            .any(|(at, _)| !text.get(..at).is_some_and(|t| t.ends_with('$'))),
        ValueKind::List(items) => items.iter().any(is_late),
        ValueKind::Object(members) => members.iter().any(|(_, value)| is_late(value)),
        _ => false,
    }
}

/// Report a value that cannot be computed with yet.
pub(super) fn refuse_late(value: &Value, sink: &mut Sink) -> Option<()> {
    if is_late(value) {
        return sink.refuse(value.span, LATE);
    }
    Some(())
}

/// `-x`, `!x`
pub(super) fn unary(
    operator: &UnaryOperator,
    value: &Value,
    span: Span,
    sink: &mut Sink,
) -> Option<ValueKind> {
    match operator {
        UnaryOperator::Not => truth(value, sink).map(|truth| ValueKind::Bool(!truth)),
        UnaryOperator::Neg => {
            let zero = Value { kind: ValueKind::Number(0.into()), span };
            binary(BinaryOperator::Minus, &zero, value, span, sink)
        }
    }
}

/// `a + b` and the others.
pub(super) fn binary(
    operator: BinaryOperator,
    left: &Value,
    right: &Value,
    span: Span,
    sink: &mut Sink,
) -> Option<ValueKind> {
    use BinaryOperator as Op;
    match operator {
        Op::And => Some(ValueKind::Bool(truth(left, sink)? & truth(right, sink)?)),
        Op::Or => Some(ValueKind::Bool(truth(left, sink)? | truth(right, sink)?)),
        Op::Eq | Op::NotEq => {
            refuse_late(left, sink)?;
            refuse_late(right, sink)?;
            Some(ValueKind::Bool(same(left, right) == (operator == Op::Eq)))
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

fn same(left: &Value, right: &Value) -> bool {
    match (&left.kind, &right.kind) {
        (ValueKind::Number(a), ValueKind::Number(b)) => a.as_f64() == b.as_f64(),
        (ValueKind::List(a), ValueKind::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (ValueKind::Object(a), ValueKind::Object(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|((i, a), (j, b))| i.name == j.name && same(a, b))
        }
        (a, b) => a == b,
    }
}

fn number(value: &Value, sink: &mut Sink) -> Option<Number> {
    let number = match &value.kind {
        ValueKind::Number(number) => Some(number.clone()),
        ValueKind::Text(text) => text.parse::<i64>().ok().map(Number::from),
        _ => None,
    };
    if number.is_none() {
        refuse_late(value, sink)?;
        sink.error(value.span, format!("a number is needed here, not {}", value.kind.describe()));
    }
    number
}

fn compute(operator: BinaryOperator, a: &Number, b: &Number) -> Option<ValueKind> {
    use BinaryOperator as Op;
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64()) {
        let whole = match operator {
            Op::Plus => a.checked_add(b),
            Op::Minus => a.checked_sub(b),
            Op::Mul => a.checked_mul(b),
            Op::Mod => a.checked_rem(b),
            Op::Div if b != 0 && a.checked_rem(b) == Some(0) => a.checked_div(b),
            Op::Less => return Some(ValueKind::Bool(a < b)),
            Op::LessEq => return Some(ValueKind::Bool(a <= b)),
            Op::Greater => return Some(ValueKind::Bool(a > b)),
            Op::GreaterEq => return Some(ValueKind::Bool(a >= b)),
            _ => None,
        };
        if let Some(whole) = whole {
            return Some(ValueKind::Number(whole.into()));
        }
        if operator != Op::Div {
            return None;
        }
    }
    let (a, b) = (a.as_f64()?, b.as_f64()?);
    let result = match operator {
        Op::Plus => a + b,
        Op::Minus => a - b,
        Op::Mul => a * b,
        Op::Div => a / b,
        Op::Mod => a % b,
        Op::Less => return Some(ValueKind::Bool(a < b)),
        Op::LessEq => return Some(ValueKind::Bool(a <= b)),
        Op::Greater => return Some(ValueKind::Bool(a > b)),
        Op::GreaterEq => return Some(ValueKind::Bool(a >= b)),
        _ => return None,
    };
    Number::from_f64(result).map(ValueKind::Number)
}
