//! Describes a place in a JSON document by keys: `TaskGroups[0] ("web") > Tasks[1] > CPU`. A job that a program sent
//! is often one long line, in which a column helps nobody.

use std::fmt::Write as _;

use super::super::diagnostic::{Span, quote_text};
use super::super::tree::{SpannedKey, SpannedValue, ValueKind};

/// The members that name an object for people.
const NAMES: [&str; 3] = ["Name", "ID", "Label"];

/// The keys and positions that lead to a place; empty for the whole.
pub(crate) fn key_path(value: &SpannedValue, place: Span) -> String {
    let (mut value, mut path) = (value, String::new());
    loop {
        match &value.kind {
            ValueKind::Object(members) => {
                let Some((key, inner)) =
                    members.iter().find(|(key, value)| holds(key, value, place))
                else {
                    return path;
                };
                // The key `Job` around the job is left out.
                if !(path.is_empty() && key.name == "Job") {
                    let comma = if path.is_empty() { "" } else { " > " };
                    let _ = write!(path, "{comma}{}", plain(&key.name));
                }
                value = inner;
            }
            ValueKind::List(items) => {
                let inside = |item: &&SpannedValue| {
                    item.span.start <= place.start && place.start < item.span.end
                };
                let Some(index) = items.iter().position(|item| inside(&item)) else { return path };
                let Some(item) = items.get(index) else { return path };
                let _ = write!(path, "[{index}]");
                if let Some(name) = name_of(item) {
                    let _ = write!(path, " ({})", quote_text(name));
                }
                value = item;
            }
            _ => return path,
        }
    }
}

fn holds(key: &SpannedKey, value: &SpannedValue, place: Span) -> bool {
    key.span.start <= place.start && place.start < value.span.end.max(key.span.end)
}

fn name_of(value: &SpannedValue) -> Option<&str> {
    let ValueKind::Object(members) = &value.kind else { return None };
    NAMES.iter().find_map(|name| {
        let member = members.iter().find(|(key, _)| key.name == *name);
        match member.map(|(_, value)| &value.kind) {
            Some(ValueKind::Text(text)) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        }
    })
}

/// A key as it is, if it is a word; otherwise in quotes.
fn plain(name: &str) -> String {
    let word = !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if word { name.to_owned() } else { quote_text(name) }
}
