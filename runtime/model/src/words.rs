//! Numbers as texts for people: counts with their noun, and durations.

use std::fmt::Display;

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
    fn a_time_has_the_unit_in_which_it_is_short() {
        let times = [0, 40_000, 999_949, 1_500_000, 5_000_000_000].map(format_nanos);
        assert_eq!(times, ["0.0 µs", "40.0 µs", "999.9 µs", "1.5 ms", "5.0 s"]);
    }
}
