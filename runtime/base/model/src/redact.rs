//! Finds the secrets in what a plugin is given, and removes them from what is written and shown:
//! from recordings of its calls, and from all texts of the plugin itself (errors, panics, messages,
//! events). Pure.
//!
//! A value is secret when
//! - its key in a configuration holds one of [`WORDS`], or
//! - the plugin's schema marks it (`"writeOnly": true`, or `"format": "password"`), or
//! - it is a variable of a task's environment, other than [`PLAIN`] and those the agent sets, or one
//!   of the agent's own that the plugin is granted.
//!
//! Texts become as many stars as they have bytes, so that lengths and the form of everything around
//! them stay; numbers and truth values under such a key become 0 and false. Wherever a secret text of
//! [`LEAST`] bytes or more (of the environment: [`LEAST_VARIABLE`]) stands in anything else that is
//! kept or shown (handles, answers of the host, error texts, also as written inside JSON), stars stand
//! there too. What a plugin made of a secret (a hash, base64, a half of it) is not recognised.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::limits::{RECORDED_SECRETS_MAX, TASK_SECRETS_MAX};

/// Parts of keys whose values are secret, in lower case, without `_` and `-`.
pub const WORDS: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "privatekey",
    "apikey",
    "accesskey",
    "authorization",
];
/// Variables of the environment that are no secrets.
pub const PLAIN: [&str; 7] = ["PATH", "HOME", "USER", "SHELL", "LANG", "TZ", "TMPDIR"];
/// Variable with the path of a task's secrets directory, which is no secret itself.
const SECRETS_DIR: &str = "NOMAD_SECRETS_DIR";
/// Shortest secret that is looked for elsewhere, bytes.
pub const LEAST: usize = 4;
/// Shortest secret variable that is looked for elsewhere, bytes: `true` or `1` stand everywhere.
pub const LEAST_VARIABLE: usize = 8;
/// Deepest nesting of configurations and schemas that is followed.
const DEPTH_MAX: usize = 64;

/// Secret texts that were found so far, up to a bound; later ones are left out.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    texts: BTreeSet<Vec<u8>>,
    most: usize,
    /// Number of values that were redacted.
    pub redacted: u32,
}

/// No secrets yet, with room for those of a recording.
impl Default for Secrets {
    fn default() -> Self {
        Self { texts: BTreeSet::new(), most: RECORDED_SECRETS_MAX, redacted: 0 }
    }
}

/// Shows how many secrets there are, but not the secrets.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.texts.len())
    }
}

impl Secrets {
    /// No secrets yet, with room for those of one task and its driver.
    #[must_use]
    pub const fn for_task() -> Self {
        Self { texts: BTreeSet::new(), most: TASK_SECRETS_MAX, redacted: 0 }
    }

    fn learn(&mut self, text: &str, least: usize) {
        if text.len() < least || self.texts.len() >= self.most {
            return;
        }
        self.texts.insert(text.as_bytes().to_vec());
        let quoted = Value::from(text).to_string();
        let inside = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        if inside != text {
            self.texts.insert(inside.as_bytes().to_vec());
        }
    }

    fn star_out(&mut self, text: &mut String, least: usize) {
        self.learn(text, least);
        *text = "*".repeat(text.len());
        self.redacted = self.redacted.saturating_add(1);
    }

    /// Add the secrets of another value, as far as there is room.
    pub fn add_secrets(&mut self, other: &Self) {
        let room = self.most.saturating_sub(self.texts.len());
        self.texts.extend(other.texts.iter().take(room).cloned());
    }

    /// Redact a configuration, given as JSON text, and learn its secrets.
    #[must_use]
    pub fn redact_config(&mut self, text: &str, schema: Option<&Value>) -> String {
        let Ok(mut value) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
        let before = self.redacted;
        self.walk(&mut value, schema.map(|schema| (schema, schema)), false, 0);
        // As it was written where nothing is secret: plugins see the text.
        if self.redacted == before { text.to_owned() } else { value.to_string() }
    }

    fn walk(
        &mut self,
        value: &mut Value,
        schema: Option<(&Value, &Value)>,
        secret: bool,
        depth: usize,
    ) {
        if depth > DEPTH_MAX {
            // What is not looked at may be secret.
            *value = Value::Null;
            self.redacted = self.redacted.saturating_add(1);
            return;
        }
        let secret = secret || schema.is_some_and(|(root, at)| is_marked_secret(root, at, 0));
        match value {
            Value::Object(map) => {
                for (key, value) in map.iter_mut() {
                    let below =
                        schema.and_then(|(root, at)| Some((root, property(root, at, key, 0)?)));
                    self.walk(value, below, secret || is_secret_key(key), depth + 1);
                }
            }
            Value::Array(list) => {
                for value in list {
                    let below = schema.and_then(|(root, at)| Some((root, items(root, at)?)));
                    self.walk(value, below, secret, depth + 1);
                }
            }
            Value::String(text) if secret => self.star_out(text, LEAST),
            Value::Number(number) if secret => {
                *number = 0.into();
                self.redacted = self.redacted.saturating_add(1);
            }
            Value::Bool(truth) if secret => {
                *truth = false;
                self.redacted = self.redacted.saturating_add(1);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Learn the secrets in a configuration, given as JSON text.
    pub fn learn_config(&mut self, text: &str, schema: Option<&Value>) {
        let _redacted = self.redact_config(text, schema);
    }

    /// Redact a variable of a task's environment, and learn it.
    pub fn redact_variable(&mut self, name: &str, value: &mut String) {
        if !is_plain(name) && !value.is_empty() {
            self.star_out(value, LEAST_VARIABLE);
        }
    }

    /// Learn a variable of a task's environment.
    pub fn learn_variable(&mut self, name: &str, value: &str) {
        if !is_plain(name) {
            self.learn(value, LEAST_VARIABLE);
        }
    }

    /// Learn a variable of the agent's own environment that a plugin was granted.
    pub fn learn_granted(&mut self, value: &str) {
        self.learn(value, LEAST_VARIABLE);
    }

    /// Replace every secret text in some bytes by stars. Returns how many were found.
    pub fn scrub(&self, bytes: &mut [u8]) -> u32 {
        let mut found = 0_u32;
        // Longest first: a secret may be a part of another.
        let mut texts: Vec<&Vec<u8>> = self.texts.iter().collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        for text in texts {
            let mut at = 0;
            while let Some(place) = find(bytes.get(at..).unwrap_or_default(), text) {
                let from = at + place;
                at = from + text.len();
                if let Some(place) = bytes.get_mut(from..at) {
                    place.fill(b'*');
                }
                found = found.saturating_add(1);
            }
        }
        found
    }

    /// As [`Secrets::scrub_text`], for the end of a text whose beginning was cut off: the rest of a
    /// secret may stand at the beginning.
    pub fn scrub_end(&self, text: &mut String) -> u32 {
        let left_of = |secret: &Vec<u8>| {
            (LEAST..secret.len())
                .rev()
                .find(|len| text.as_bytes().starts_with(end_of(secret, *len)))
        };
        let cut = self.texts.iter().filter_map(left_of).max().unwrap_or(0);
        let mut bytes = std::mem::take(text).into_bytes();
        if let Some(begin) = bytes.get_mut(..cut) {
            begin.fill(b'*');
        }
        *text = String::from_utf8_lossy(&bytes).into_owned();
        self.scrub_text(text).saturating_add(u32::from(cut > 0))
    }

    /// As [`Secrets::scrub`], for a text.
    pub fn scrub_text(&self, text: &mut String) -> u32 {
        if self.texts.is_empty() {
            return 0;
        }
        let mut bytes = std::mem::take(text).into_bytes();
        let found = self.scrub(&mut bytes);
        // Secrets are texts, so what is left is one too.
        *text = String::from_utf8_lossy(&bytes).into_owned();
        found
    }
}

/// Whether a variable is no secret, because every process has it or the agent sets it.
fn is_plain(name: &str) -> bool {
    let of_agent = name.starts_with("NOMAD_") && !name.starts_with("NOMAD_META_");
    PLAIN.contains(&name) || (of_agent && (name == SECRETS_DIR || !is_secret_key(name)))
}

/// The last `len` bytes of a secret.
fn end_of(secret: &[u8], len: usize) -> &[u8] {
    secret.get(secret.len().saturating_sub(len)..).unwrap_or_default()
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let first = *text.first()?;
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if bytes.get(at..)?.starts_with(text) {
            return Some(at);
        }
        from = at + 1;
    }
}

fn is_secret_key(key: &str) -> bool {
    let plain: String = key.chars().filter(|c| !matches!(c, '_' | '-')).collect();
    let plain = plain.to_lowercase();
    WORDS.iter().any(|word| plain.contains(word))
}

/// Schemas that this one refers to for the same value: by `$ref`, `allOf`, `anyOf` or `oneOf`.
fn related_schemas<'a>(root: &'a Value, at: &'a Value) -> Vec<&'a Value> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| at.get(key)?.as_array());
    let mut all: Vec<&Value> = lists.flatten().collect();
    let target = at.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
    all.extend(target.and_then(|path| root.pointer(path)));
    all
}

fn is_marked_secret(root: &Value, at: &Value, depth: usize) -> bool {
    let here = at.get("writeOnly") == Some(&Value::Bool(true))
        || at.get("format").and_then(Value::as_str) == Some("password");
    here || (depth < 8
        && related_schemas(root, at).into_iter().any(|one| is_marked_secret(root, one, depth + 1)))
}

fn property<'a>(root: &'a Value, at: &'a Value, key: &str, depth: usize) -> Option<&'a Value> {
    let own = at.get("properties").and_then(|all| all.get(key));
    let own = own.or_else(|| at.get("additionalProperties").filter(|one| one.is_object()));
    own.or_else(|| {
        if depth >= 8 {
            return None;
        }
        related_schemas(root, at).into_iter().find_map(|one| property(root, one, key, depth + 1))
    })
}

fn items<'a>(root: &'a Value, at: &'a Value) -> Option<&'a Value> {
    at.get("items")
        .or_else(|| related_schemas(root, at).into_iter().find_map(|one| one.get("items")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_known_by_their_key_and_by_the_schema() {
        let schema = json!({
            "properties": {
                "pin": { "type": "integer", "writeOnly": true },
                "door": { "$ref": "#/$defs/code" },
                "list": { "items": { "format": "password" } }
            },
            "$defs": { "code": { "allOf": [{ "writeOnly": true }] } }
        });
        let config = r#"{"dir":"/srv","db_Password":"hunter22","pin":1234,"door":"open",
            "list":["abcd"],"nested":{"API-Token":{"value":"tttt"}}}"#;
        let mut secrets = Secrets::default();
        let redacted = secrets.redact_config(config, Some(&schema));
        let expected = json!({
            "dir": "/srv", "db_Password": "********", "pin": 0, "door": "****",
            "list": ["****"], "nested": { "API-Token": { "value": "****" } }
        });
        assert_eq!(serde_json::from_str::<Value>(&redacted).unwrap(), expected);
        assert_eq!(secrets.redacted, 5);
    }

    #[test]
    fn a_configuration_without_secrets_stays_as_it_was_written() {
        let config = "{ \"dir\":   \"/srv\" }";
        assert_eq!(Secrets::default().redact_config(config, None), config);
    }

    #[test]
    fn a_secret_is_taken_out_wherever_it_stands_and_nothing_moves() {
        let mut secrets = Secrets::default();
        let _config = secrets.redact_config(r#"{"password": "say \"friend\""}"#, None);
        let mut handle = br#"\x00{"config":"{say \"friend\"}"} say "friend" end"#.to_vec();
        let len = handle.len();
        assert_eq!(secrets.scrub(&mut handle), 2);
        assert_eq!(handle.len(), len);
        let text = String::from_utf8(handle).unwrap();
        assert!(!text.contains("friend") && text.ends_with("************ end"), "{text}");
    }

    #[test]
    fn variables_are_secret_but_for_those_that_the_agent_sets() {
        let mut secrets = Secrets::default();
        let mut seen = |name: &str, value: &str| {
            let mut value = value.to_owned();
            secrets.redact_variable(name, &mut value);
            value
        };
        assert_eq!(seen("PATH", "/bin"), "/bin");
        assert_eq!(seen("NOMAD_TASK_DIR", "/local"), "/local");
        assert_eq!(seen("NOMAD_SECRETS_DIR", "/secrets"), "/secrets");
        assert_eq!(seen("NOMAD_META_KEY", "value"), "*****");
        assert_eq!(seen("DB", "postgres://u:p@h"), "****************");
        assert_eq!(seen("SHORT", "1"), "*");
        let mut elsewhere = b"1 postgres://u:p@h 1".to_vec();
        assert_eq!(secrets.scrub(&mut elsewhere), 1, "short ones stand everywhere");
    }

    #[test]
    fn what_is_left_of_a_secret_whose_begin_was_cut_is_taken_out_too() {
        let mut secrets = Secrets::for_task();
        secrets.learn_variable("DB", "postgres://u:p@h");
        let scrubbed = |text: &str| {
            let mut text = text.to_owned();
            let found = secrets.scrub_end(&mut text);
            (text, found)
        };
        assert_eq!(scrubbed("u:p@h) no such host"), ("*****) no such host".to_owned(), 1));
        assert_eq!(scrubbed("p@h and more").1, 0, "so few bytes may be anything");
        let both = scrubbed("//u:p@h, postgres://u:p@h");
        assert_eq!(both, ("*******, ****************".to_owned(), 2));
        assert_eq!(format!("{secrets:?}"), "1 secrets");
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut secrets = Secrets::for_task();
        for number in 0..2 * TASK_SECRETS_MAX {
            secrets.learn_variable("A", &format!("secret-{number:06}"));
        }
        assert_eq!(secrets.texts.len(), TASK_SECRETS_MAX);
    }

    proptest! {
        #[test]
        fn no_secret_of_a_configuration_is_left_in_anything(
            secret in "[a-zA-Z0-9\"\\\\é]{4,20}",
            before in "[xyz]{0,8}",
            after in "[xyz]{0,8}",
        ) {
            let mut secrets = Secrets::default();
            let config = json!({ "token": secret }).to_string();
            let redacted = secrets.redact_config(&config, None);
            prop_assert!(!redacted.contains(&secret));
            let mut other = format!("{before}{secret}{after}").into_bytes();
            secrets.scrub(&mut other);
            prop_assert!(!String::from_utf8(other).unwrap().contains(&secret));
        }

        #[test]
        fn what_is_no_json_stays_as_it_is(config: String) {
            prop_assume!(serde_json::from_str::<Value>(&config).is_err());
            prop_assert_eq!(Secrets::default().redact_config(&config, None), config);
        }

        #[test]
        fn redacting_keeps_the_shape_and_a_second_time_changes_nothing(
            config in any_json(), schema in any_json(),
        ) {
            let redact = |config: &Value| {
                let redacted = Secrets::default().redact_config(&config.to_string(), Some(&schema));
                serde_json::from_str::<Value>(&redacted).unwrap()
            };
            let redacted = redact(&config);
            prop_assert!(same_shape(&config, &redacted), "{} {}", config, redacted);
            prop_assert_eq!(redact(&redacted), redacted);
        }
    }

    /// JSON with keys that mean something in configurations and in schemas.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "(password|#/a|\\PC{0,8})".prop_map(Value::from),
        ];
        let key = "(a|b|token|pass-WORD|properties|items|allOf|[$]ref|writeOnly|format)";
        leaf.prop_recursive(5, 40, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn same_shape(one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                let alike = |(key, value)| other.get(key).is_some_and(|o| same_shape(value, o));
                one.len() == other.len() && one.iter().all(alike)
            }
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same_shape(a, b))
            }
            (Value::String(one), Value::String(other)) => one.len() == other.len(),
            _ => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }
}
