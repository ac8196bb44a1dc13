//! Functions of dates and times.

use std::fmt::Write as _;

use ostler_text::duration::parse_duration;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use super::super::value::ValKind;
use super::{Function, FunctionCall, FunctionError};

pub(super) const TABLE: &[(&str, Function)] = &[("formatdate", format_date), ("timeadd", time_add)];

fn time(call: &FunctionCall<'_>, index: usize) -> Result<OffsetDateTime, FunctionError> {
    let time = OffsetDateTime::parse(&call.text(index)?, &Rfc3339);
    time.or_else(|_| call.fail_at(index, "this is not a time such as 2006-01-02T15:04:05Z"))
}

fn time_add(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (time, text) = (time(&call, 0)?, call.text(1)?);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.as_str()),
    };
    let step = match parse_duration(digits).map(Duration::try_from) {
        Ok(Ok(step)) => step,
        Ok(Err(_)) => return call.fail_at(1, "the duration is too long"),
        Err(error) => return call.fail_at(1, error.to_string()),
    };
    let moved = if negative { time.checked_sub(step) } else { time.checked_add(step) };
    let Some(time) = moved else { return call.fail("there is no such time") };
    let date = (time.year(), u8::from(time.month()), time.day());
    let mut out = format!("{:04}-{:02}-{:02}", date.0, date.1, date.2);
    let _ = write!(out, "T{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    out.push_str(&zone(time, 1).unwrap_or_default());
    Ok(ValKind::literal(out))
}

/// Format a time. A run of one letter stands for a part of the time. Text in `'…'` and all other characters
/// stand for themselves.
fn format_date(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (pattern, time) = (call.text(0)?, time(&call, 1)?);
    call.pay(pattern.len().saturating_mul(4))?;
    let mut out = String::new();
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '\'' {
            if letters.next_if_eq(&'\'').is_some() {
                out.push('\'');
                continue;
            }
            loop {
                match letters.next() {
                    None => return call.fail_at(0, "a ' is never closed"),
                    Some('\'') if letters.next_if_eq(&'\'').is_none() => break,
                    Some(letter) => out.push(letter),
                }
            }
            continue;
        }
        if !letter.is_ascii_alphabetic() {
            out.push(letter);
            continue;
        }
        let mut count = 1_usize;
        while letters.next_if_eq(&letter).is_some() {
            count += 1;
        }
        match part(time, letter, count) {
            Some(text) => out.push_str(&text),
            None => {
                let run = letter.to_string().repeat(count.min(16));
                return call
                    .fail_at(0, format!("{run} is not a part of a time; quote letters with '"));
            }
        }
    }
    Ok(ValKind::literal(out))
}

fn part(time: OffsetDateTime, letter: char, count: usize) -> Option<String> {
    let number = |number: u8| match count {
        1 => Some(number.to_string()),
        2 => Some(format!("{number:02}")),
        _ => None,
    };
    let half = time.hour() / 12;
    match (letter, count) {
        ('Y', 2) => Some(format!("{:02}", time.year().rem_euclid(100))),
        ('Y', 4) => Some(format!("{:04}", time.year())),
        ('M', 3 | 4) => {
            let name = time.month().to_string();
            Some(if count == 3 { name.get(..3)?.to_owned() } else { name })
        }
        ('M', _) => number(time.month().into()),
        ('D', _) => number(time.day()),
        ('E', 3 | 4) => {
            let name = time.weekday().to_string();
            Some(if count == 3 { name.get(..3)?.to_owned() } else { name })
        }
        ('h', _) => number(time.hour()),
        ('H', _) => number(if time.hour().is_multiple_of(12) { 12 } else { time.hour() % 12 }),
        ('A', 2) => Some(if half == 0 { "AM" } else { "PM" }.to_owned()),
        ('a', 2) => Some(if half == 0 { "am" } else { "pm" }.to_owned()),
        ('m', _) => number(time.minute()),
        ('s', _) => number(time.second()),
        ('Z', _) => zone(time, count),
        _ => None,
    }
}

fn zone(time: OffsetDateTime, count: usize) -> Option<String> {
    let minutes = i32::from(time.offset().whole_minutes());
    let sign = if minutes < 0 { '-' } else { '+' };
    let (hours, rest) = (minutes.abs() / 60, minutes.abs() % 60);
    match (count, minutes) {
        (1, 0) => Some("Z".to_owned()),
        (3, 0) => Some("UTC".to_owned()),
        (1 | 5, _) => Some(format!("{sign}{hours:02}:{rest:02}")),
        (3 | 4, _) => Some(format!("{sign}{hours:02}{rest:02}")),
        _ => None,
    }
}
