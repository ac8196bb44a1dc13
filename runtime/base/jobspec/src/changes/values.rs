//! Compares two values, and describes their difference.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use similar::{ChangeTag, TextDiff};

/// The longest text that is shown as a whole, in characters. Of longer texts, the part that differs is shown.
const TEXT_CHARS_MAX: usize = 120;
/// The number of characters that are shown before the part that differs, in a long text.
const BEFORE_CHARS: usize = 20;
/// The largest number of lines that are compared with each other: the cost grows with both sides.
const COMPARED_LINES_MAX: usize = 2_000;
/// The largest number of lines that are shown of one difference.
const SHOWN_LINES_MAX: usize = 80;
/// The number of lines that are shown around those that differ.
const CONTEXT: usize = 1;

/// The difference at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueChange {
    /// A value was added, with this content.
    Added(String),
    /// A value was removed, with this content.
    Removed(String),
    /// A value was replaced by another one.
    Set { old: String, new: String },
    /// Lines were added or removed; with marks and with some lines around them.
    Lines(Vec<String>),
}

impl ValueChange {
    /// The difference as text for people, with the place in front.
    pub(super) fn describe(&self, place: &str, forces: bool) -> String {
        let forces = if forces { " (forces replacement)" } else { "" };
        match self {
            Self::Added(with) if with.is_empty() => format!("{place}: added{forces}"),
            Self::Added(with) => format!("{place}: added: {with}{forces}"),
            Self::Removed(with) if with.is_empty() => format!("{place}: removed{forces}"),
            Self::Removed(with) => format!("{place}: removed: {with}{forces}"),
            Self::Set { old, new } => format!("{place}: {old} -> {new}{forces}"),
            Self::Lines(lines) => {
                let mut text = format!("{place}:{forces}");
                for line in lines {
                    let _ = write!(text, "\n  {line}");
                }
                text
            }
        }
    }
}

/// The difference of two values that differ and are not both maps.
pub(super) fn diff_values(old: &Value, new: &Value) -> ValueChange {
    match (old, new) {
        (Value::String(old), Value::String(new)) => diff_texts(old, new),
        (Value::Array(_), Value::Array(_) | Value::Null) | (Value::Null, Value::Array(_)) => {
            diff_lines(&items(old), &items(new))
        }
        (Value::Null, Value::String(new)) if is_multiline(new) => diff_texts("", new),
        (Value::String(old), Value::Null) if is_multiline(old) => diff_texts(old, ""),
        (Value::Null, new) => ValueChange::Added(value_text(new)),
        (old, Value::Null) => ValueChange::Removed(value_text(old)),
        (old, new) => ValueChange::Set { old: value_text(old), new: value_text(new) },
    }
}

/// The difference of two durations, which are nanoseconds as in JSON.
pub(super) fn diff_durations(old: &Value, new: &Value) -> ValueChange {
    let text = |value: &Value| value.as_u64().map(duration);
    match (text(old), text(new)) {
        (Some(old), Some(new)) => ValueChange::Set { old, new },
        (Some(old), None) => ValueChange::Removed(old),
        (None, new) => ValueChange::Added(new.unwrap_or_default()),
    }
}

/// A duration as people write it.
pub(super) fn duration(nanos: u64) -> String {
    humantime::format_duration(Duration::from_nanos(nanos)).to_string()
}

/// A text in quotes.
pub(super) fn quote_json(text: &str) -> String {
    Value::from(text).to_string()
}

fn is_multiline(text: &str) -> bool {
    text.contains('\n')
}

fn items(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(Value::to_string).collect()
}

/// A value as text, cut where it is long.
fn value_text(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

fn diff_texts(old: &str, new: &str) -> ValueChange {
    if is_multiline(old) || is_multiline(new) {
        let of = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let said = diff_lines(&of(old), &of(new));
        // All lines are equal, so the line ends differ.
        let empty = matches!(&said, ValueChange::Lines(lines) if lines.is_empty());
        return if empty {
            ValueChange::Lines(vec!["the line ends differ".to_owned()])
        } else {
            said
        };
    }
    let long = |text: &str| text.chars().nth(TEXT_CHARS_MAX).is_some();
    let same = old.chars().zip(new.chars()).take_while(|(old, new)| old == new).count();
    let from = if long(old) || long(new) { same.saturating_sub(BEFORE_CHARS) } else { 0 };
    let part = |text: &str| {
        let part: String = text.chars().skip(from).take(TEXT_CHARS_MAX).collect();
        let ends = text.chars().nth(from.saturating_add(TEXT_CHARS_MAX)).is_none();
        let (begin, end) = (if from > 0 { "…" } else { "" }, if ends { "" } else { "…" });
        format!("{begin}{}{end}", quote_json(&part))
    };
    ValueChange::Set { old: part(old), new: part(new) }
}

fn diff_lines(old: &[String], new: &[String]) -> ValueChange {
    if old.len().max(new.len()) > COMPARED_LINES_MAX {
        let text = format!("{} lines -> {} lines", old.len(), new.len());
        return ValueChange::Lines(vec![text]);
    }
    let [old, new] = [old, new].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
    let diff = TextDiff::from_slices(old.as_slice(), new.as_slice());
    let mut told = Vec::new();
    for (number, hunk) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if number > 0 {
            told.push("…".to_owned());
        }
        for change in hunk.iter().flat_map(|op| diff.iter_changes(op)) {
            let mark = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            told.push(format!("{mark} {}", change.value()).trim_end().to_owned());
        }
    }
    let more = told.len().saturating_sub(SHOWN_LINES_MAX);
    if more > 0 {
        told.truncate(SHOWN_LINES_MAX);
        told.push(format!("… and {more} more lines"));
    }
    ValueChange::Lines(told)
}
