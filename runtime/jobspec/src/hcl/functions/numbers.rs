//! Numbers.

use super::super::operators::of_whole;
use super::super::value::{Kind, rounded, to_number};
use super::{Call, Function, Wrong};

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

fn result(call: &Call<'_>, float: f64) -> Result<Kind, Wrong> {
    match to_number(rounded(float)) {
        Some(number) => Ok(Kind::Number(number)),
        None => call.wrong("this has no result: the number is too large or none"),
    }
}

fn one(call: Call<'_>, compute: fn(f64) -> f64) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let number = call.number(0)?;
    // Whole numbers may be larger than a float can tell apart.
    if let (Some(whole), "ceil" | "floor") = (number.as_i64(), call.name) {
        return Ok(Kind::Number(whole.into()));
    }
    if let (Some(whole), "abs") = (number.as_i64(), call.name) {
        return Ok(Kind::Number(whole.unsigned_abs().into()));
    }
    result(&call, compute(call.float(0)?))
}

fn two(call: Call<'_>, compute: fn(f64, f64) -> f64) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    result(&call, compute(call.float(0)?, call.float(1)?))
}

fn outermost(call: Call<'_>, goes_before: fn(f64, f64) -> bool) -> Result<Kind, Wrong> {
    call.takes(1, usize::MAX)?;
    let mut best = call.number(0)?;
    for index in 1..call.arguments.len() {
        let number = call.number(index)?;
        let float = |number: &serde_json::Number| number.as_f64().unwrap_or(f64::NAN);
        if goes_before(float(&number), float(&best)) {
            best = number;
        }
    }
    Ok(Kind::Number(best))
}

fn signum(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    Ok(Kind::Number(call.whole(0)?.signum().into()))
}

/// Digits, small and large letters are digits up to base 62, in this order.
fn parse_int(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let (text, base) = (call.text(0)?, call.whole(1)?);
    if !(2..=62).contains(&base) {
        return call.wrong_at(1, "the base is 2 to 62");
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
            return call.wrong_at(0, format!("this is no number of base {base}"));
        }
        number = number.saturating_mul(base.into()).saturating_add(value);
        if number > i128::from(u64::MAX) {
            return call.wrong_at(0, "the number is too large");
        }
    }
    if digits.is_empty() {
        return call.wrong_at(0, format!("this is no number of base {base}"));
    }
    match of_whole(if negative { -number } else { number }) {
        Some(number) => Ok(Kind::Number(number)),
        None => call.wrong_at(0, "the number is too large"),
    }
}
