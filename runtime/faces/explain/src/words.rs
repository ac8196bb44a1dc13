//! Times, spans and names as people write them.

use std::time::Duration;

use ostler_model::signal::SIGNALS;
use ostler_model::time::Timestamp;
use ostler_model::words::format_seconds;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// A span as events write it: `1m30s`, `1.5s`, `250ms`. `None` where the text is no span.
pub(crate) fn wire_span(text: &str) -> Option<Duration> {
    ostler_text::duration::parse_duration(text).ok()
}

/// Why an allocation or a task of it is stopped, in words. A text that is none of ours stays as it
/// is on the wire.
pub(crate) fn stop_reason(wire: &str) -> &str {
    match wire {
        "alloc not needed as job is stopped" => "its job was stopped",
        "alloc not needed due to job update" => "the job wants fewer, or its group no longer",
        "alloc is being updated due to job update" => "a new version of the job takes its place",
        // There is only one node, so nothing goes on elsewhere.
        "alloc is being migrated" => "its node was drained",
        "alloc was rescheduled because it failed" => "it failed, and another took its place",
        "another allocation has the same place" => "another allocation has its place",
        other => other,
    }
}

/// The time until then: `in 12s`, or `now` when it is over.
pub(crate) fn time_until(at: Timestamp, now: Timestamp) -> String {
    match at.since(now).as_secs() {
        0 => "now".to_owned(),
        seconds => format!("in {}", format_seconds(seconds)),
    }
}

/// The time of day, with the date where it is not today; UTC.
#[must_use]
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    let day = |time: Timestamp| time.nanos() / 1_000_000_000 / DAY;
    let text = at.to_string();
    let text = text.trim_end_matches('Z');
    match text.split_once('T') {
        Some((_, clock)) if day(at) == day(now) => clock.to_owned(),
        Some((date, clock)) => format!("{date} {clock}"),
        None => text.to_owned(),
    }
}

/// `SIGSEGV (signal 11)`.
pub(crate) fn signal(number: i64) -> String {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match index.and_then(|index| SIGNALS.get(index)) {
        Some(name) => format!("{name} (signal {number})"),
        None => format!("signal {number}"),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The text with a capital letter and a full stop.
pub(crate) fn sentence(text: &str) -> String {
    let mut chars = text.trim_end().chars();
    let mut text: String =
        chars.next().map(|first| first.to_uppercase().collect()).unwrap_or_default();
    text.push_str(chars.as_str());
    // A block to copy stays as it is.
    let copied = text.contains('\n') && text.ends_with('}');
    if !copied && !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_another_day_has_its_date() {
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        assert_eq!(moment(at(3_661), at(7_000)), "01:01:01");
        assert_eq!(moment(at(3_661), at(90_000)), "1970-01-01 01:01:01");
        assert_eq!(
            (time_until(at(9), at(5)), time_until(at(5), at(9))),
            ("in 4s".to_owned(), "now".to_owned())
        );
    }

    #[test]
    fn signals_have_their_names_and_lists_an_and() {
        assert_eq!(signal(11), "SIGSEGV (signal 11)");
        assert_eq!(signal(99), "signal 99");
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(list(&names), "a, b and c");
        assert_eq!(sentence("it runs"), "It runs.");
        assert_eq!(sentence("it lacks this\n"), "It lacks this.", "no line with a full stop alone");
        assert_eq!(sentence("it lacks\nplugin \"x\" {\n}\n"), "It lacks\nplugin \"x\" {\n}");
    }

    #[test]
    fn spans_of_events_are_read_as_they_are_written() {
        let millis = |text: &str| wire_span(text).map(|span| span.as_millis());
        let texts = ["20s", "1m30s", "1.5s", "250ms", "2h0m0s"].map(millis);
        assert_eq!(texts, [20_000, 90_000, 1_500, 250, 7_200_000].map(Some));
        assert_eq!(["", "20", "s", "1x", "1.2.3s", "-1s"].map(millis), [None; 6]);
    }
}
