//! Where something stands in a JSON document, in words: `TaskGroups[0] ("web") > Tasks[1] > CPU`. Of a
//! job that a program sent, in one long line, a column helps nobody.

use std::fmt::Write as _;

use super::super::diagnostic::{Span, shown};
use super::super::tree::{Key, Value, ValueKind};

/// Members by which a person knows the object that has them.
const NAMES: [&str; 3] = ["Name", "ID", "Label"];

/// The keys and positions that lead to a place; empty for the whole.
pub(crate) fn at(value: &Value, place: Span) -> String {
    let (mut value, mut path) = (value, String::new());
    loop {
        match &value.kind {
            ValueKind::Object(members) => {
                let Some((key, inner)) =
                    members.iter().find(|(key, value)| holds(key, value, place))
                else {
                    return path;
                };
                // What stands around the job is known to be there.
                if !(path.is_empty() && key.name == "Job") {
                    let comma = if path.is_empty() { "" } else { " > " };
                    let _ = write!(path, "{comma}{}", plain(&key.name));
                }
                value = inner;
            }
            ValueKind::List(items) => {
                let inside =
                    |item: &&Value| item.span.start <= place.start && place.start < item.span.end;
                let Some(index) = items.iter().position(|item| inside(&item)) else { return path };
                let Some(item) = items.get(index) else { return path };
                let _ = write!(path, "[{index}]");
                if let Some(name) = name_of(item) {
                    let _ = write!(path, " ({})", shown(name));
                }
                value = item;
            }
            _ => return path,
        }
    }
}

fn holds(key: &Key, value: &Value, place: Span) -> bool {
    key.span.start <= place.start && place.start < value.span.end.max(key.span.end)
}

fn name_of(value: &Value) -> Option<&str> {
    let ValueKind::Object(members) = &value.kind else { return None };
    NAMES.iter().find_map(|name| {
        let member = members.iter().find(|(key, _)| key.name == *name);
        match member.map(|(_, value)| &value.kind) {
            Some(ValueKind::Text(text)) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        }
    })
}

/// A key as it is, where that is a word.
fn plain(name: &str) -> String {
    let word = !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if word { name.to_owned() } else { shown(name) }
}
