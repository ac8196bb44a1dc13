//! Removes what may be a secret from answers of the agent. Pure.
//!
//! Too much is left out rather than too little: the name of a value decides, and of the
//! configuration of a task only what is known to be harmless stays.

use serde_json::{Map, Value};

/// The text in the place of a value that was left out.
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
/// Members whose own members have names that users choose: the names stay, the values do not.
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
/// Members that are texts which users write.
const FREE_TEXTS: [&str; 4] = ["embeddedtmpl", "payload", "args", "data"];
/// Members of the configuration of a task that stay.
const OF_CONFIG: [&str; 4] = ["command", "image", "module", "ports"];

/// Remove what may be a secret from a value.
pub(crate) fn redact_value(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            // A task names its driver beside its configuration.
            let task = members.contains_key("Driver");
            let of = |(name, value): (String, Value)| {
                let value = redact_member(&name, value, task);
                (name, value)
            };
            Value::Object(members.into_iter().map(of).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(redact_value).collect()),
        Value::String(text) => Value::String(strip_query(&strip_users(&text))),
        other => other,
    }
}

/// Remove the query from `/path?query`, which checks have.
fn strip_query(text: &str) -> String {
    match text.split_once('?') {
        Some((path, query)) if path.starts_with('/') && query != LEFT_OUT => {
            format!("{path}?{LEFT_OUT}")
        }
        _ => text.to_owned(),
    }
}

fn redact_member(name: &str, value: Value, of_task: bool) -> Value {
    let lower = name.to_ascii_lowercase();
    if SECRET_NAMES.iter().any(|part| lower.contains(part)) || FREE_TEXTS.contains(&&*lower) {
        return empty_value(value);
    }
    match value {
        Value::Object(members) if FREE_MAPS.contains(&&*lower) => empty_members(members),
        Value::Object(members) if of_task && lower == "config" => {
            let of = |(name, value): (String, Value)| {
                let told = OF_CONFIG.contains(&&*name.to_ascii_lowercase());
                let value = if told { redact_value(value) } else { empty_value(value) };
                (name, value)
            };
            Value::Object(members.into_iter().map(of).collect())
        }
        other => redact_value(other),
    }
}

fn empty_members(members: Map<String, Value>) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name, empty_value(value))).collect())
}

/// Replace a value, unless it is empty or a flag, with the text that says that it was left out.
fn empty_value(value: Value) -> Value {
    match value {
        Value::String(text) if text.is_empty() => Value::String(text),
        Value::Null | Value::Bool(_) => value,
        Value::Array(items) if items.is_empty() => Value::Array(items),
        Value::Object(members) if members.is_empty() => Value::Object(members),
        _ => Value::String(LEFT_OUT.to_owned()),
    }
}

/// Remove user, password and query from each `scheme://user:password@host/path?query` in a text.
pub(crate) fn strip_users(text: &str) -> String {
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
        let text = redact_value(job).to_string();
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
        assert_eq!(redact_value(value.clone()), value);
    }

    #[test]
    fn a_text_has_no_users_of_addresses() {
        let text = "pulled oci://a:b@r.example/x, then \"http://c@d:1/y?z=1\" and e://f";
        let expected = "pulled oci://<left out>@r.example/x, then \"http://<left out>@d:1/y?<left out>\" and e://f";
        assert_eq!(strip_users(text), expected);
    }
}
