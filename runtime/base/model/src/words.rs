//! Numbers as texts for people: counts with their noun, bytes, spans of time, and how long ago
//! something was.

use std::fmt::Display;
use std::time::Duration;

use crate::time::Timestamp;

/// `1 problem`, `2 problems`: a number and what it counts.
#[must_use]
pub fn count_noun<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A duration in nanoseconds as text, with one decimal digit and its unit: `40.0 µs`, `1.5 ms`.
#[must_use]
pub fn format_nanos(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000_000 => (1e3, "µs"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{:.1} {name}", nanos as f64 / unit)
}

/// A span of time in whole seconds, by its largest unit and the next smaller one where it matters:
/// `12s`, `4m05s`, `2h30m`, `3d04h`.
#[must_use]
pub fn format_seconds(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3_600, seconds / 60) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{:02}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{:02}m", minutes % 60),
        (days, hours, _) => format!("{days}d{:02}h", hours % 24),
    }
}

/// A span of time as [`format_seconds`] has it, and below ten seconds also the parts of a second:
/// `250ms`, `1.5s`.
#[must_use]
pub fn format_span(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (0, millis @ 1..) => format!("{millis}ms"),
        (1..10, 1..) => format!("{:.1}s", time.as_secs_f64()),
        (seconds, _) => format_seconds(seconds),
    }
}

/// How long ago something was, in whole seconds: `12s ago`.
#[must_use]
pub fn time_ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", format_seconds(now.since(at).as_secs()))
}

/// A number of bytes with its unit, rounded to one decimal digit: `512 B`, `1.5 KiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "B";
    for larger in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths = (tenths + 512) / 1_024;
        unit = larger;
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ => format!("{}.{} {unit}", tenths / 10, tenths % 10),
    }
}

/// A word quoted for a shell, where it has characters with a meaning for the shell.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural_and_none_has_one() {
        let texts = [0_u32, 1, 2].map(|count| count_noun(count, "problem"));
        assert_eq!(texts, ["0 problems", "1 problem", "2 problems"]);
    }

    #[test]
    fn a_shell_reads_a_word_as_it_was() {
        let words = ["a-b_c.d/e=f", "", "a b", "it's", "$x"].map(shell_word);
        assert_eq!(words, ["a-b_c.d/e=f", "''", "'a b'", r"'it'\''s'", "'$x'"]);
    }

    #[test]
    fn a_span_has_at_most_two_units() {
        let texts = [0, 59, 60, 3_599, 3_600, 86_399, 86_400, 864_061].map(format_seconds);
        let expected = ["0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "10d00h"];
        assert_eq!(texts, expected);
        let texts = [0, 250, 1_500, 9_999, 12_700, 65_000, 9_000_000, 270_000_000];
        let texts = texts.map(|millis| format_span(Duration::from_millis(millis)));
        assert_eq!(texts, ["0s", "250ms", "1.5s", "10.0s", "12s", "1m05s", "2h30m", "3d03h"]);
    }

    #[test]
    fn what_is_still_to_come_on_another_clock_was_just_now() {
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        assert_eq!(time_ago(at(5), at(9)), "4s ago");
        assert_eq!(time_ago(at(9), at(5)), "0s ago");
    }

    #[test]
    fn bytes_have_one_digit_and_a_unit() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1_023), "1023 B");
        assert_eq!(format_bytes(1_024), "1.0 KiB");
        assert_eq!(format_bytes(126_412), "123.4 KiB");
        assert_eq!(format_bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn a_time_has_the_unit_in_which_it_is_short() {
        let times = [0, 40_000, 999_949, 1_500_000, 5_000_000_000].map(format_nanos);
        assert_eq!(times, ["0.0 µs", "40.0 µs", "999.9 µs", "1.5 ms", "5.0 s"]);
    }
}
