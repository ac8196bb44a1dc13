//! Writes numbers as Go does.

/// The shortest digits that stand for this number, and the exponent of the first digit.
#[must_use]
pub fn shortest(value: f64) -> (String, i32) {
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
#[must_use]
pub fn general(value: f64, precision: Option<usize>) -> String {
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
#[must_use]
pub fn plain(digits: &str, exponent: i32) -> String {
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
#[must_use]
pub fn exponential(value: f64, precision: usize, letter: char) -> String {
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
#[must_use]
pub fn fixed(value: f64, precision: usize) -> String {
    special(value).map_or_else(|| format!("{value:.precision$}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_the_fewest_digits_or_with_so_many() {
        for (value, precision, text) in [
            (0.0, None, "0"),
            (1.5, None, "1.5"),
            (-0.0001, None, "-0.0001"),
            (0.000_01, None, "1e-05"),
            (1_500_000.0, None, "1.5e+06"),
            (9.99, Some(2), "10"),
            (1_234.0, Some(2), "1.2e+03"),
            (f64::NEG_INFINITY, None, "-Inf"),
        ] {
            assert_eq!(general(value, precision), text, "{value}");
        }
        assert_eq!(exponential(1_500.0, 3, 'E'), "1.500E+03");
        assert_eq!(fixed(2.5, 2), "2.50");
    }
}
