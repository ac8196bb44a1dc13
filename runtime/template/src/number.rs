//! Reads and writes numbers as Go does.

use crate::lex::TokenKind;

/// Read a number of a template.
pub(crate) fn read(text: &str) -> Result<TokenKind, String> {
    let wrong = || format!("{text:?} is not a number");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.ends_with('_') || digits.contains("__") {
        return Err(wrong());
    }
    let digits = digits.replace('_', "");
    let lower = digits.to_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, lower.get(2..).unwrap_or_default()),
        Some("0o") => (8, lower.get(2..).unwrap_or_default()),
        Some("0b") => (2, lower.get(2..).unwrap_or_default()),
        _ if lower.len() > 1 && lower.starts_with('0') && all_digits(&lower) => (8, lower.as_str()),
        _ => (10, lower.as_str()),
    };
    if radix == 10 && !all_digits(digits) {
        return float(digits, negative).map(TokenKind::Float).ok_or_else(wrong);
    }
    let value = i128::from_str_radix(digits, radix).map_err(|_| wrong())?;
    let value = if negative { -value } else { value };
    i64::try_from(value).map(TokenKind::Int).map_err(|_| format!("{text} is too large a number"))
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn float(text: &str, negative: bool) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b".e+-".contains(&byte));
    let value: f64 = text.parse().ok().filter(|value: &f64| plain && value.is_finite())?;
    Some(if negative { -value } else { value })
}

/// The shortest digits that stand for this number, and the exponent of the first digit.
pub(crate) fn shortest(value: f64) -> (String, i32) {
    let text = format!("{:e}", value.abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (digits.replace('.', ""), exponent.parse().unwrap_or(0))
}

fn special(value: f64) -> Option<&'static str> {
    match value {
        v if v.is_nan() => Some("NaN"),
        v if v == f64::INFINITY => Some("+Inf"),
        v if v == f64::NEG_INFINITY => Some("-Inf"),
        _ => None,
    }
}

/// The number as `%v` and `%g` write it: with the fewest digits that are exact, or with `precision` digits; with
/// an exponent where it would be long otherwise.
pub(crate) fn general(value: f64, precision: Option<usize>) -> String {
    /// From this exponent on, a number with the fewest digits is written with an exponent.
    const SHORTEST_FROM: i32 = 6;
    if let Some(special) = special(value) {
        return special.to_owned();
    }
    let (digits, exponent, from) = match precision {
        None => {
            let (digits, exponent) = shortest(value);
            (digits, exponent, SHORTEST_FROM)
        }
        Some(precision) => {
            let precision = precision.max(1);
            let text = format!("{:.*e}", precision - 1, value.abs());
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let digits = digits.replace('.', "");
            let kept = digits.trim_end_matches('0');
            let kept = if kept.is_empty() { "0" } else { kept };
            (kept.to_owned(), exponent.parse().unwrap_or(0), as_i32(precision))
        }
    };
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if exponent < -4 || exponent >= from {
        format!("{sign}{}", scientific(&digits, exponent, 'e'))
    } else {
        format!("{sign}{}", plain(&digits, exponent))
    }
}

fn as_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A number with an exponent, such as `1.5e+06`.
fn scientific(digits: &str, exponent: i32, letter: char) -> String {
    let (first, rest) = digits.split_at_checked(1).unwrap_or((digits, ""));
    let point = if rest.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{first}{point}{rest}{letter}{sign}{:02}", exponent.unsigned_abs())
}

/// A number without an exponent.
pub(crate) fn plain(digits: &str, exponent: i32) -> String {
    let Ok(before) = usize::try_from(exponent + 1) else {
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        return format!("0.{}{digits}", "0".repeat(zeros));
    };
    if before == 0 {
        return format!("0.{digits}");
    }
    match digits.split_at_checked(before) {
        Some((whole, "")) => whole.to_owned(),
        Some((whole, rest)) => format!("{whole}.{rest}"),
        None => format!("{digits}{}", "0".repeat(before - digits.len())),
    }
}

/// The number as `%e` writes it.
pub(crate) fn exponential(value: f64, precision: usize, letter: char) -> String {
    if let Some(special) = special(value) {
        return special.to_owned();
    }
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{letter}{sign}{:02}", exponent.unsigned_abs())
}

/// The number as `%f` writes it.
pub(crate) fn fixed(value: f64, precision: usize) -> String {
    special(value).map_or_else(|| format!("{value:.precision$}"), str::to_owned)
}
