//! Writes a time in a layout of Go, such as `2006-01-02 15:04:05`, always in UTC.

use std::time::SystemTime;

use time::OffsetDateTime;

fn hour_12(at: &OffsetDateTime) -> u8 {
    if at.hour().is_multiple_of(12) { 12 } else { at.hour() % 12 }
}

fn short(name: &str) -> String {
    name.chars().take(3).collect()
}

type Part = (&'static str, fn(&OffsetDateTime) -> String);

/// The parts of a layout. Where two of them fit, the one that stands first here is taken.
const PARTS: &[Part] = &[
    ("January", |at| at.month().to_string()),
    ("Jan", |at| short(&at.month().to_string())),
    ("Monday", |at| at.weekday().to_string()),
    ("Mon", |at| short(&at.weekday().to_string())),
    ("MST", |_| "UTC".to_owned()),
    ("2006", |at| format!("{:04}", at.year())),
    ("002", |at| format!("{:03}", at.ordinal())),
    ("01", |at| format!("{:02}", u8::from(at.month()))),
    ("02", |at| format!("{:02}", at.day())),
    ("03", |at| format!("{:02}", hour_12(at))),
    ("04", |at| format!("{:02}", at.minute())),
    ("05", |at| format!("{:02}", at.second())),
    ("06", |at| format!("{:02}", at.year() % 100)),
    ("15", |at| format!("{:02}", at.hour())),
    ("1", |at| u8::from(at.month()).to_string()),
    ("__2", |at| format!("{:>3}", at.ordinal())),
    ("_2006", |at| format!("_{:04}", at.year())),
    ("_2", |at| format!("{:>2}", at.day())),
    ("2", |at| at.day().to_string()),
    ("3", |at| hour_12(at).to_string()),
    ("4", |at| at.minute().to_string()),
    ("5", |at| at.second().to_string()),
    ("PM", |at| if at.hour() < 12 { "AM" } else { "PM" }.to_owned()),
    ("pm", |at| if at.hour() < 12 { "am" } else { "pm" }.to_owned()),
    ("Z07:00:00", |_| "Z".to_owned()),
    ("Z07:00", |_| "Z".to_owned()),
    ("Z070000", |_| "Z".to_owned()),
    ("Z0700", |_| "Z".to_owned()),
    ("Z07", |_| "Z".to_owned()),
    ("-07:00:00", |_| "+00:00:00".to_owned()),
    ("-07:00", |_| "+00:00".to_owned()),
    ("-070000", |_| "+000000".to_owned()),
    ("-0700", |_| "+0000".to_owned()),
    ("-07", |_| "+00".to_owned()),
];

/// Read a fraction of the second, `.000` or `.999`: the number of its characters, and the text for them.
fn fraction(rest: &str, at: &OffsetDateTime) -> Option<(usize, String)> {
    let digits = rest.strip_prefix(['.', ','])?;
    let mark = digits.chars().next().filter(|c| matches!(c, '0' | '9'))?;
    let count = digits.chars().take_while(|c| *c == mark).count();
    let ends = !digits.chars().nth(count).is_some_and(|c| c.is_ascii_digit());
    if !ends || count > 9 {
        return None;
    }
    let nanos = format!("{:09}", at.nanosecond());
    let mut shown = nanos.get(..count)?.to_owned();
    if mark == '9' {
        shown.truncate(shown.trim_end_matches('0').len());
    }
    let point = rest.get(..1)?;
    let shown = if shown.is_empty() { shown } else { format!("{point}{shown}") };
    Some((count + 1, shown))
}

/// The time in a layout of Go, such as `2006-01-02 15:04:05`, always in UTC.
#[must_use]
pub fn format_time(at: SystemTime, layout: &str) -> String {
    let at = OffsetDateTime::from(at);
    let (mut made, mut rest) = (String::new(), layout);
    while let Some(c) = rest.chars().next() {
        if let Some((length, text)) = fraction(rest, &at) {
            made.push_str(&text);
            rest = rest.get(length..).unwrap_or_default();
            continue;
        }
        if let Some((part, tell)) = PARTS.iter().find(|(part, _)| rest.starts_with(part)) {
            made.push_str(&tell(&at));
            rest = rest.get(part.len()..).unwrap_or_default();
            continue;
        }
        made.push(c);
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    made
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn layouts_are_those_of_go() {
        // 2024-02-29T13:04:05.123450000Z, a Thursday.
        let at = UNIX_EPOCH + Duration::from_nanos(1_709_211_845_123_450_000);
        for (layout, text) in [
            ("2006-01-02T15:04:05Z07:00", "2024-02-29T13:04:05Z"),
            ("Mon Jan _2 15:04:05 MST 2006", "Thu Feb 29 13:04:05 UTC 2024"),
            ("Monday, 02-Jan-06 3:4:5PM", "Thursday, 29-Feb-24 1:4:5PM"),
            ("05.000 05.999999999 05.000000", "05.123 05.12345 05.123450"),
            ("2006-002 January -0700", "2024-060 February +0000"),
        ] {
            assert_eq!(format_time(at, layout), text);
        }
        assert_eq!(format_time(UNIX_EPOCH, "Mon 2006-01-02"), "Thu 1970-01-01");
    }
}
