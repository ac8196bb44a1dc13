//! Arithmetic, comparison and logic on values known now.

use hcl_edit::expr::{BinaryOperator, UnaryOperator};
use serde_json::Number;

use super::super::diagnostic::{Sink, Span, shown};
use super::value::{Kind, Val, parse_number, rounded, to_number};

/// What is said of a value that cannot be computed with yet.
pub(super) const LATE: &str =
    "known only when the task starts; nothing can be computed from it here";

/// A truth value, or a text that is one.
pub(super) fn truth(value: &Val, sink: &mut Sink) -> Option<bool> {
    match &value.kind {
        Kind::Bool(truth) => Some(*truth),
        Kind::Text(text) if text.as_str() == "true" => Some(true),
        Kind::Text(text) if text.as_str() == "false" => Some(false),
        kind => {
            let message = match value.is_late() {
                true => LATE.to_owned(),
                false => format!("true or false is needed here, not {}", kind.describe()),
            };
            sink.refuse(value.span, message)
        }
    }
}

/// Report a value that cannot be computed with yet.
pub(super) fn refuse_late(value: &Val, sink: &mut Sink) -> Option<()> {
    if value.is_late() {
        return sink.refuse(value.span, LATE);
    }
    Some(())
}

/// `-x`, `!x`
pub(super) fn unary(
    operator: &UnaryOperator,
    value: &Val,
    span: Span,
    sink: &mut Sink,
) -> Option<Kind> {
    match operator {
        UnaryOperator::Not => truth(value, sink).map(|truth| Kind::Bool(!truth)),
        UnaryOperator::Neg => {
            let zero = Val::new(Kind::Number(0.into()), span);
            binary(BinaryOperator::Minus, &zero, value, span, sink)
        }
    }
}

/// `a + b` and the others.
pub(super) fn binary(
    operator: BinaryOperator,
    left: &Val,
    right: &Val,
    span: Span,
    sink: &mut Sink,
) -> Option<Kind> {
    use BinaryOperator as Op;
    match operator {
        Op::And => Some(Kind::Bool(truth(left, sink)? & truth(right, sink)?)),
        Op::Or => Some(Kind::Bool(truth(left, sink)? | truth(right, sink)?)),
        Op::Eq | Op::NotEq => {
            refuse_late(left, sink)?;
            refuse_late(right, sink)?;
            Some(Kind::Bool(same(left, right) == (operator == Op::Eq)))
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

/// Equal, and of one type.
pub(super) fn same(left: &Val, right: &Val) -> bool {
    match (&left.kind, &right.kind) {
        (Kind::Number(a), Kind::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Kind::List(of, a), Kind::List(other, b)) => {
            of == other && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Kind::Object(a), Kind::Object(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|((i, (_, a)), (j, (_, b)))| i == j && same(a, b))
        }
        (a, b) => a == b,
    }
}

fn number(value: &Val, sink: &mut Sink) -> Option<Number> {
    let number = match &value.kind {
        Kind::Number(number) => Some(number.clone()),
        Kind::Text(text) => parse_number(text.as_str()),
        _ => None,
    };
    if number.is_none() {
        refuse_late(value, sink)?;
        let given = match &value.kind {
            Kind::Text(text) => format!("the text {}", shown(text.as_str())),
            kind => kind.describe().to_owned(),
        };
        sink.error(value.span, format!("a number is needed here, not {given}"));
    }
    number
}

/// As wide as the result of two whole numbers can be.
fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// The whole number, if JSON has it.
pub(super) fn of_whole(whole: i128) -> Option<Number> {
    let signed = i64::try_from(whole).map(Number::from);
    signed.or_else(|_| u64::try_from(whole).map(Number::from)).ok()
}

fn compute(operator: BinaryOperator, a: &Number, b: &Number) -> Option<Kind> {
    use BinaryOperator as Op;
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        let whole = match operator {
            Op::Plus => a.checked_add(b),
            Op::Minus => a.checked_sub(b),
            Op::Mul => a.checked_mul(b),
            Op::Mod => a.checked_rem(b),
            Op::Div if b != 0 && a.checked_rem(b) == Some(0) => a.checked_div(b),
            Op::Less => return Some(Kind::Bool(a < b)),
            Op::LessEq => return Some(Kind::Bool(a <= b)),
            Op::Greater => return Some(Kind::Bool(a > b)),
            Op::GreaterEq => return Some(Kind::Bool(a >= b)),
            _ => None,
        };
        if operator != Op::Div || whole.is_some() {
            return whole.and_then(of_whole).map(Kind::Number);
        }
    }
    let (a, b) = (a.as_f64()?, b.as_f64()?);
    let result = match operator {
        Op::Plus => a + b,
        Op::Minus => a - b,
        Op::Mul => a * b,
        Op::Div => a / b,
        Op::Mod => a % b,
        Op::Less => return Some(Kind::Bool(a < b)),
        Op::LessEq => return Some(Kind::Bool(a <= b)),
        Op::Greater => return Some(Kind::Bool(a > b)),
        Op::GreaterEq => return Some(Kind::Bool(a >= b)),
        _ => return None,
    };
    to_number(rounded(result)).map(Kind::Number)
}
