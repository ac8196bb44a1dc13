//! Durations as job files write them: `15s`, `1h30m`, `1.5h`, `250ms`.

use std::time::Duration;

/// The longest text that is read as a duration, in bytes.
const TEXT_BYTES_MAX: usize = 64;

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is empty or holds blanks alone.
    #[error("a duration must not be empty; write for example \"15s\"")]
    Empty,
    /// A number has no unit; with what may have been meant.
    #[error("a duration needs a unit (ns, us, ms, s, m, h)")]
    NoUnit {
        /// The same number with the unit of seconds.
        seconds: String,
    },
    /// The duration is below zero.
    #[error("a duration must not be negative")]
    Negative,
    /// The duration is longer than the agent can count (about 292 years).
    #[error("the duration is too long")]
    TooLong,
    /// The text does not follow the syntax.
    #[error("not a duration; write for example \"15s\" or \"1h30m\"")]
    Syntax,
}

/// Read a duration in the syntax of Nomad's job files: numbers with units, which are added up. The largest unit
/// comes first by custom. The units are `ns`, `us`, `µs`, `ms`, `s`, `m` and `h`; `0` needs none.
///
/// # Errors
/// When the text is empty, a unit is missing or unknown, or the duration is negative or beyond 292 years.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(DurationError::Syntax);
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(DurationError::Negative);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (amount, after) = split_while(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, after) = split_while(after, |c| !c.is_ascii_digit() && c != '.');
        if unit.is_empty() && amount == text {
            return Err(DurationError::NoUnit { seconds: format!("{amount}s") });
        }
        nanos = nanos.saturating_add(part(amount, unit)?);
        rest = after;
    }
    // The bound of Nomad's own 64-bit nanoseconds.
    match i64::try_from(nanos) {
        Ok(nanos) => Ok(Duration::from_nanos(nanos.unsigned_abs())),
        Err(_) => Err(DurationError::TooLong),
    }
}

/// A duration as Nomad's users read it: `5s`, `1m30s`, `2h0m0s`, `250ms`.
#[must_use]
pub fn short_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 {
        return match duration.subsec_nanos() {
            0 => "0s".to_owned(),
            nanos if nanos < 1_000 => format!("{nanos}ns"),
            nanos if nanos < 1_000_000 => format!("{}µs", nanos / 1_000),
            nanos => format!("{}ms", nanos / 1_000_000),
        };
    }
    let fraction = match duration.subsec_millis() {
        0 => String::new(),
        millis => format!(".{millis:03}").trim_end_matches('0').to_owned(),
    };
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}{fraction}s"),
        (0, m, s) => format!("{m}m{s}{fraction}s"),
        (h, m, s) => format!("{h}h{m}m{s}{fraction}s"),
    }
}

fn split_while(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !keep(c)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// The nanoseconds of one number and its unit. They are exact: no floating point is used.
fn part(amount: &str, unit: &str) -> Result<u128, DurationError> {
    let scale: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(DurationError::Syntax),
    };
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(DurationError::Syntax);
    }
    let digits = |text: &str| match text {
        "" => Ok(0),
        _ => text.parse::<u128>().map_err(|_| DurationError::TooLong),
    };
    let whole = digits(whole)?.checked_mul(scale).ok_or(DurationError::TooLong)?;
    // Digits beyond the fifteenth are below a nanosecond.
    let fraction: String = fraction.chars().take(15).collect();
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    Ok(whole + digits(&fraction)? * scale / divisor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_nomad_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("15s", 15_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("250ms", 250_000_000),
            (".5s", 500_000_000),
            ("1m0.5s", 60_500_000_000),
            ("3us", 3_000),
            ("2µs7ns", 2_007),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_nanos(nanos), "{text}");
        }
    }

    #[test]
    fn durations_read_as_in_nomad() {
        for (millis, text) in [
            (0, "0s"),
            (250, "250ms"),
            (5_000, "5s"),
            (1_500, "1.5s"),
            (15_250, "15.25s"),
            (90_000, "1m30s"),
            (7_200_000, "2h0m0s"),
        ] {
            assert_eq!(short_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(short_duration(Duration::from_nanos(1)), "1ns");
    }

    #[test]
    fn what_is_no_duration_says_why() {
        use DurationError::{Empty, Negative, NoUnit, Syntax, TooLong};
        for (text, why) in [
            ("", Empty),
            ("  ", Empty),
            ("20", NoUnit { seconds: "20s".to_owned() }),
            ("-5s", Negative),
            ("5 s", Syntax),
            ("5x", Syntax),
            ("s", Syntax),
            ("1.2.3s", Syntax),
            ("1s5", Syntax),
            ("1d", Syntax),
            ("99999999999h", TooLong),
            ("99999999999999999999999999999999999999999h", TooLong),
        ] {
            assert_eq!(parse_duration(text), Err(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-zµ.+ -]{0,40}") {
            prop_assert_eq!(parse_duration(&format!(" {text} ")), parse_duration(&text));
        }

        #[test]
        fn what_rust_prints_is_read_back(hours in 0_u64..1000, minutes in 0_u64..60, millis in 0_u64..60_000) {
            let text = format!("{hours}h{minutes}m{millis}ms");
            let expected = Duration::from_millis((hours * 60 + minutes) * 60_000 + millis);
            prop_assert_eq!(parse_duration(&text), Ok(expected));
        }
    }
}
