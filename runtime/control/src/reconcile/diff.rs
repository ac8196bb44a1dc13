//! What differs between two versions of a job, as lines for people.

use serde_json::Value;

use ostler_model::job::Job;

/// Most lines told; a job that is another one altogether is not worth more.
const LINES_MAX: usize = 200;
/// Longest value shown, characters.
const VALUE_CHARS_MAX: usize = 120;

/// A line for each field that differs: `groups[web].count: 1 -> 3`. Lists of named things are
/// compared by name. At most 200 lines and one that says so.
#[must_use]
pub fn differences(old: &Job, new: &Job) -> Vec<String> {
    let (Ok(old), Ok(new)) = (serde_json::to_value(old), serde_json::to_value(new)) else {
        // Both came from text; if they cannot become text again there is nothing to tell.
        return Vec::new();
    };
    let mut lines = Vec::new();
    compare("", &old, &new, &mut lines);
    if lines.len() > LINES_MAX {
        let more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn compare(path: &str, old: &Value, new: &Value, lines: &mut Vec<String>) {
    if old == new {
        return;
    }
    match (parts(old), parts(new)) {
        (Some(before), Some(after)) => {
            for (key, value) in &before {
                let now = after.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
                compare(&format!("{path}{key}"), value, now.unwrap_or(&Value::Null), lines);
            }
            for (key, value) in &after {
                if !before.iter().any(|(name, _)| name == key) {
                    compare(&format!("{path}{key}"), &Value::Null, value, lines);
                }
            }
        }
        _ => {
            let path = path.trim_start_matches('.');
            lines.push(format!("{path}: {} -> {}", shown(old), shown(new)));
        }
    }
}

/// The members of what is compared member by member, with their names in a path.
fn parts(value: &Value) -> Option<Vec<(String, &Value)>> {
    match value {
        Value::Object(map) if !is_duration(value) => {
            Some(map.iter().map(|(key, value)| (format!(".{key}"), value)).collect())
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|item| {
                let name = item.get("name").or_else(|| item.get("label"))?.as_str()?;
                Some((format!("[{name}]"), item))
            })
            .collect(),
        _ => None,
    }
}

fn is_duration(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|map| map.len() == 2 && map.contains_key("secs") && map.contains_key("nanos"))
}

fn shown(value: &Value) -> String {
    let number = |name: &str| value.get(name).and_then(Value::as_u64).unwrap_or_default();
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::Object(map) if map.get("name").is_some_and(Value::is_string) => "added".to_owned(),
        _ if is_duration(value) => {
            let nanos = u32::try_from(number("nanos")).unwrap_or_default();
            let duration = std::time::Duration::new(number("secs"), nanos);
            humantime::format_duration(duration).to_string()
        }
        other => other.to_string(),
    };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
    }
}
