//! Two values, and what is said of their difference.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use similar::{ChangeTag, TextDiff};

/// Longest text that is shown whole, characters; of longer ones the part that differs.
const TEXT_CHARS_MAX: usize = 120;
/// What of a long text is shown before the part that differs.
const BEFORE_CHARS: usize = 20;
/// Lines that are compared with each other: what that costs grows with both sides.
const COMPARED_LINES_MAX: usize = 2_000;
/// Lines that are shown of one difference.
const SHOWN_LINES_MAX: usize = 80;
/// Lines around those that differ.
const CONTEXT: usize = 1;

/// What is said of one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It came, with this.
    Added(String),
    /// It went, and held this.
    Removed(String),
    /// Another value.
    Set { old: String, new: String },
    /// Lines of it.
    Lines(Vec<String>),
}

impl Said {
    /// For people.
    pub(super) fn in_words(&self, place: &str, forces: bool) -> String {
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

/// Two values that differ and are not both maps.
pub(super) fn between(old: &Value, new: &Value) -> Said {
    match (old, new) {
        (Value::String(old), Value::String(new)) => texts(old, new),
        (Value::Array(_), Value::Array(_) | Value::Null) | (Value::Null, Value::Array(_)) => {
            lines(&items(old), &items(new))
        }
        (Value::Null, Value::String(new)) if several(new) => texts("", new),
        (Value::String(old), Value::Null) if several(old) => texts(old, ""),
        (Value::Null, new) => Said::Added(shown(new)),
        (old, Value::Null) => Said::Removed(shown(old)),
        (old, new) => Said::Set { old: shown(old), new: shown(new) },
    }
}

/// Two spans of time that differ, as JSON has them.
pub(super) fn durations(old: &Value, new: &Value) -> Said {
    let text = |value: &Value| value.as_u64().map(duration);
    match (text(old), text(new)) {
        (Some(old), Some(new)) => Said::Set { old, new },
        (Some(old), None) => Said::Removed(old),
        (None, new) => Said::Added(new.unwrap_or_default()),
    }
}

/// A span of time as people write it.
pub(super) fn duration(nanos: u64) -> String {
    humantime::format_duration(Duration::from_nanos(nanos)).to_string()
}

/// A text in quotes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn several(text: &str) -> bool {
    text.contains('\n')
}

fn items(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(Value::to_string).collect()
}

/// A value by itself.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

fn texts(old: &str, new: &str) -> Said {
    if several(old) || several(new) {
        let of = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let said = lines(&of(old), &of(new));
        // The same lines with another end.
        let empty = matches!(&said, Said::Lines(lines) if lines.is_empty());
        return if empty { Said::Lines(vec!["the line ends differ".to_owned()]) } else { said };
    }
    let long = |text: &str| text.chars().nth(TEXT_CHARS_MAX).is_some();
    let same = old.chars().zip(new.chars()).take_while(|(old, new)| old == new).count();
    let from = if long(old) || long(new) { same.saturating_sub(BEFORE_CHARS) } else { 0 };
    let part = |text: &str| {
        let part: String = text.chars().skip(from).take(TEXT_CHARS_MAX).collect();
        let ends = text.chars().nth(from.saturating_add(TEXT_CHARS_MAX)).is_none();
        let (begin, end) = (if from > 0 { "…" } else { "" }, if ends { "" } else { "…" });
        format!("{begin}{}{end}", quoted(&part))
    };
    Said::Set { old: part(old), new: part(new) }
}

fn lines(old: &[String], new: &[String]) -> Said {
    if old.len().max(new.len()) > COMPARED_LINES_MAX {
        let text = format!("{} lines -> {} lines", old.len(), new.len());
        return Said::Lines(vec![text]);
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
    Said::Lines(told)
}
