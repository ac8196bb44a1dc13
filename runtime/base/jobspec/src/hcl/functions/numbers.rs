//! Functions of numbers.

use super::super::operators::from_whole;
use super::super::value::{ValKind, round_float, to_number};
use super::{Function, FunctionCall, FunctionError};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("abs", |call| one(call, f64::abs)),
    ("ceil", |call| one(call, f64::ceil)),
    ("floor", |call| one(call, f64::floor)),
    ("log", |call| two(call, |number, base| number.ln() / base.ln())),
    ("max", |call| outermost(call, |a, b| a > b)),
    ("min", |call| outermost(call, |a, b| a < b)),
    ("parseint", parse_int),
    ("pow", |call| two(call, f64::powf)),
    ("signum", signum),
];

fn result(call: &FunctionCall<'_>, float: f64) -> Result<ValKind, FunctionError> {
    match to_number(round_float(float)) {
        Some(number) => Ok(ValKind::Number(number)),
        None => call.fail("this has no result: the number is too large or none"),
    }
}

fn one(call: FunctionCall<'_>, compute: fn(f64) -> f64) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let number = call.number(0)?;
    // A whole number may be larger than a float can hold exactly.
    if let (Some(whole), "ceil" | "floor") = (number.as_i64(), call.name) {
        return Ok(ValKind::Number(whole.into()));
    }
    if let (Some(whole), "abs") = (number.as_i64(), call.name) {
        return Ok(ValKind::Number(whole.unsigned_abs().into()));
    }
    result(&call, compute(call.float(0)?))
}

fn two(call: FunctionCall<'_>, compute: fn(f64, f64) -> f64) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    result(&call, compute(call.float(0)?, call.float(1)?))
}

fn outermost(
    call: FunctionCall<'_>,
    goes_before: fn(f64, f64) -> bool,
) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let mut best = call.number(0)?;
    for index in 1..call.arguments.len() {
        let number = call.number(index)?;
        let float = |number: &serde_json::Number| number.as_f64().unwrap_or(f64::NAN);
        if goes_before(float(&number), float(&best)) {
            best = number;
        }
    }
    Ok(ValKind::Number(best))
}

fn signum(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    Ok(ValKind::Number(call.whole(0)?.signum().into()))
}

/// Parse a whole number. The digits are 0 to 9, then small letters, then capital letters; up to base 36 a capital
/// letter counts as its small one.
fn parse_int(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (text, base) = (call.text(0)?, call.whole(1)?);
    if !(2..=62).contains(&base) {
        return call.fail_at(1, "the base is 2 to 62");
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let mut number: i128 = 0;
    for digit in digits.chars() {
        let value = match digit {
            '0'..='9' => i128::from(u32::from(digit) - u32::from('0')),
            'a'..='z' => i128::from(u32::from(digit) - u32::from('a') + 10),
            'A'..='Z' if base <= 36 => i128::from(u32::from(digit) - u32::from('A') + 10),
            'A'..='Z' => i128::from(u32::from(digit) - u32::from('A') + 36),
            _ => i128::MAX,
        };
        if value >= i128::from(base) {
            return call.fail_at(0, format!("this is not a number of base {base}"));
        }
        number = number.saturating_mul(base.into()).saturating_add(value);
        if number > i128::from(u64::MAX) {
            return call.fail_at(0, "the number is too large");
        }
    }
    if digits.is_empty() {
        return call.fail_at(0, format!("this is not a number of base {base}"));
    }
    match from_whole(if negative { -number } else { number }) {
        Some(number) => Ok(ValKind::Number(number)),
        None => call.fail_at(0, "the number is too large"),
    }
}
