//! A time of day in a layout of Go's: `2006-01-02 15:04:05`, always UTC.

use ostler_model::time::Timestamp;

const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Moment {
    year: u64,
    month: u64,
    day: u64,
    day_of_year: u64,
    weekday: &'static str,
    hour: u64,
    minute: u64,
    second: u64,
    nanos: u64,
}

impl Moment {
    fn of(at: Timestamp) -> Self {
        let (seconds, nanos) = (at.nanos() / 1_000_000_000, at.nanos() % 1_000_000_000);
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        let weekday = usize::try_from(days % 7).ok().and_then(|day| DAYS.get(day).copied());
        let (mut year, mut left) = (1970, days);
        while left >= days_of(year) {
            left -= days_of(year);
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 1;
        while left >= month_days(year, month) {
            left -= month_days(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: left + 1,
            day_of_year,
            weekday: weekday.unwrap_or_default(),
            hour: rest / 3_600,
            minute: rest / 60 % 60,
            second: rest % 60,
            nanos,
        }
    }

    fn month_name(&self) -> &'static str {
        let index = usize::try_from(self.month.saturating_sub(1)).unwrap_or(0);
        MONTHS.get(index).copied().unwrap_or_default()
    }

    fn hour_12(&self) -> u64 {
        if self.hour.is_multiple_of(12) { 12 } else { self.hour % 12 }
    }
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64) -> u64 {
    if leap(year) { 366 } else { 365 }
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn short(name: &str) -> &str {
    name.get(..3).unwrap_or(name)
}

type Part = (&'static str, fn(&Moment) -> String);

/// Parts of a layout; of two that fit the one that stands first is meant.
const PARTS: &[Part] = &[
    ("January", |at| at.month_name().to_owned()),
    ("Jan", |at| short(at.month_name()).to_owned()),
    ("Monday", |at| at.weekday.to_owned()),
    ("Mon", |at| short(at.weekday).to_owned()),
    ("MST", |_| "UTC".to_owned()),
    ("2006", |at| format!("{:04}", at.year)),
    ("002", |at| format!("{:03}", at.day_of_year)),
    ("01", |at| format!("{:02}", at.month)),
    ("02", |at| format!("{:02}", at.day)),
    ("03", |at| format!("{:02}", at.hour_12())),
    ("04", |at| format!("{:02}", at.minute)),
    ("05", |at| format!("{:02}", at.second)),
    ("06", |at| format!("{:02}", at.year % 100)),
    ("15", |at| format!("{:02}", at.hour)),
    ("1", |at| at.month.to_string()),
    ("__2", |at| format!("{:>3}", at.day_of_year)),
    ("_2006", |at| format!("_{:04}", at.year)),
    ("_2", |at| format!("{:>2}", at.day)),
    ("2", |at| at.day.to_string()),
    ("3", |at| at.hour_12().to_string()),
    ("4", |at| at.minute.to_string()),
    ("5", |at| at.second.to_string()),
    ("PM", |at| if at.hour < 12 { "AM" } else { "PM" }.to_owned()),
    ("pm", |at| if at.hour < 12 { "am" } else { "pm" }.to_owned()),
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

/// `.000` or `.999`: digits of the second. How many characters, and what becomes of them.
fn fraction(rest: &str, at: &Moment) -> Option<(usize, String)> {
    let digits = rest.strip_prefix(['.', ','])?;
    let mark = digits.chars().next().filter(|c| matches!(c, '0' | '9'))?;
    let count = digits.chars().take_while(|c| *c == mark).count();
    let ends = !digits.chars().nth(count).is_some_and(|c| c.is_ascii_digit());
    if !ends || count > 9 {
        return None;
    }
    let nanos = format!("{:09}", at.nanos);
    let mut shown = nanos.get(..count)?.to_owned();
    if mark == '9' {
        shown.truncate(shown.trim_end_matches('0').len());
    }
    let point = rest.get(..1)?;
    let shown = if shown.is_empty() { shown } else { format!("{point}{shown}") };
    Some((count + 1, shown))
}

/// The time in a layout.
pub(crate) fn formatted(at: Timestamp, layout: &str) -> String {
    let at = Moment::of(at);
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
    use super::*;

    #[test]
    fn layouts_are_those_of_go() {
        // 2024-02-29T13:04:05.123450000Z, a Thursday.
        let at = Timestamp::from_nanos(1_709_211_845_123_450_000);
        for (layout, text) in [
            ("2006-01-02T15:04:05Z07:00", "2024-02-29T13:04:05Z"),
            ("Mon Jan _2 15:04:05 MST 2006", "Thu Feb 29 13:04:05 UTC 2024"),
            ("Monday, 02-Jan-06 3:4:5PM", "Thursday, 29-Feb-24 1:4:5PM"),
            ("05.000 05.999999999 05.000000", "05.123 05.12345 05.123450"),
            ("2006-002 January -0700", "2024-060 February +0000"),
        ] {
            assert_eq!(formatted(at, layout), text);
        }
        assert_eq!(formatted(Timestamp::from_nanos(0), "Mon 2006-01-02"), "Thu 1970-01-01");
    }
}
