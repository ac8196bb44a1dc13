//! Takes out of answers of the agent what may be a secret. Pure.
//!
//! Rather too much is left out than too little: what a value is called decides, and of tasks only what is known to
//! be harmless stays.

use serde_json::{Map, Value};

/// Stands where something was.
pub(crate) const LEFT_OUT: &str = "<left out>";

/// Parts of names whose values may be secret.
const SECRET_NAMES: [&str; 11] = [
    "secret",
    "token",
    "password",
    "passwd",
    "credential",
    "private",
    "apikey",
    "api_key",
    "authorization",
    "cookie",
    "encrypt",
];
/// Members whose own members are anybody's: their names stay.
const FREE_MAPS: [&str; 8] = [
    "env",
    "environment",
    "meta",
    "metarequired",
    "headers",
    "header",
    "getterheaders",
    "getteroptions",
];
/// Members that are texts of people.
const FREE_TEXTS: [&str; 4] = ["embeddedtmpl", "payload", "args", "data"];
/// What of the configuration of a task is told.
const OF_CONFIG: [&str; 4] = ["command", "image", "module", "ports"];

/// A value without what may be a secret.
pub(crate) fn redacted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            // A task names its driver beside its configuration.
            let task = members.contains_key("Driver");
            let of = |(name, value): (String, Value)| {
                let value = member(&name, value, task);
                (name, value)
            };
            Value::Object(members.into_iter().map(of).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(redacted).collect()),
        Value::String(text) => Value::String(without_query(&without_users(&text))),
        other => other,
    }
}

/// `/path?query`, as checks ask for, without the query.
fn without_query(text: &str) -> String {
    match text.split_once('?') {
        Some((path, query)) if path.starts_with('/') && query != LEFT_OUT => {
            format!("{path}?{LEFT_OUT}")
        }
        _ => text.to_owned(),
    }
}

fn member(name: &str, value: Value, of_task: bool) -> Value {
    let lower = name.to_ascii_lowercase();
    if SECRET_NAMES.iter().any(|part| lower.contains(part)) || FREE_TEXTS.contains(&&*lower) {
        return emptied(value);
    }
    match value {
        Value::Object(members) if FREE_MAPS.contains(&&*lower) => all_emptied(members),
        Value::Object(members) if of_task && lower == "config" => {
            let of = |(name, value): (String, Value)| {
                let told = OF_CONFIG.contains(&&*name.to_ascii_lowercase());
                let value = if told { redacted(value) } else { emptied(value) };
                (name, value)
            };
            Value::Object(members.into_iter().map(of).collect())
        }
        other => redacted(other),
    }
}

fn all_emptied(members: Map<String, Value>) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name, emptied(value))).collect())
}

/// That there was something stays.
fn emptied(value: Value) -> Value {
    match value {
        Value::String(text) if text.is_empty() => Value::String(text),
        Value::Null | Value::Bool(_) => value,
        Value::Array(items) if items.is_empty() => Value::Array(items),
        Value::Object(members) if members.is_empty() => Value::Object(members),
        _ => Value::String(LEFT_OUT.to_owned()),
    }
}

/// `scheme://user:password@host/path?query` without user, password and query.
pub(crate) fn without_users(text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at.saturating_add(3));
        told.push_str(before);
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | ')' | ',');
        let end = after.find(ends).unwrap_or(after.len());
        let (address, after) = after.split_at(end);
        let host =
            address.find('/').map_or(address, |slash| address.get(..slash).unwrap_or(address));
        let from = host.rfind('@').map_or(0, |at| at.saturating_add(1));
        if from > 0 {
            told.push_str(LEFT_OUT);
            told.push('@');
        }
        let address = address.get(from..).unwrap_or_default();
        match address.split_once('?') {
            Some((address, query)) if query.contains('=') => {
                told.push_str(address);
                told.push('?');
                told.push_str(LEFT_OUT);
            }
            _ => told.push_str(address),
        }
        rest = after;
    }
    told.push_str(rest);
    told
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_secret_of_a_job_stays_wherever_it_is() {
        let job = json!({
            "ID": "web", "Meta": { "key": "HIDDEN" }, "VaultToken": "HIDDEN",
            "Payload": "HIDDEN",
            "TaskGroups": [{ "Name": "g", "Tasks": [{
                "Name": "t", "Driver": "exec",
                "Config": { "command": "/bin/app", "args": ["--key", "HIDDEN"], "auth": { "x": "HIDDEN" } },
                "Env": { "DB_URL": "HIDDEN" },
                "Templates": [{ "EmbeddedTmpl": "HIDDEN", "DestPath": "local/a" }],
                "Artifacts": [{ "GetterSource": "https://me:HIDDEN@host/x.tgz?sig=HIDDEN", "GetterHeaders": { "A": "HIDDEN" } }],
                "Services": [{ "Checks": [{ "Path": "/health?key=HIDDEN", "Header": { "Authorization": ["HIDDEN"] } }] }],
            }] }],
        });
        let text = redacted(job).to_string();
        assert!(!text.contains("HIDDEN"), "{text}");
        for stays in
            ["/bin/app", "DB_URL", "local/a", "https://<left out>@host/x.tgz?<left out>", "\"web\""]
        {
            assert!(text.contains(stays), "{stays} in {text}");
        }
    }

    #[test]
    fn what_is_empty_or_only_a_flag_stays_as_it_is() {
        let value = json!({ "Token": "", "TokenIsThere": true, "Env": null, "Restarts": 3 });
        assert_eq!(redacted(value.clone()), value);
    }

    #[test]
    fn a_text_has_no_users_of_addresses() {
        let text = "pulled oci://a:b@r.example/x, then \"http://c@d:1/y?z=1\" and e://f";
        let expected = "pulled oci://<left out>@r.example/x, then \"http://<left out>@d:1/y?<left out>\" and e://f";
        assert_eq!(without_users(text), expected);
    }
}
