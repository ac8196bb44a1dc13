//! Reads numbers as Go does.

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
