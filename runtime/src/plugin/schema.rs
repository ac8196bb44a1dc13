//! Configurations checked against the JSON Schema a plugin brought.
//!
//! The schema comes from the plugin, so it is untrusted: bounded in size, patterns run on the
//! linear-time regex engine, references to other documents are not followed, and what there is to
//! check is counted before (`schema_cost`).

use serde_json::Value;

use super::schema_cost::affordable;
use super::{PluginError, convert};
use crate::driver::api::Diagnostic;
use crate::limits::SCHEMA_BYTES_MAX;
use crate::model::ids::PluginName;
use crate::model::json::JsonObject;

/// Most problems reported of one configuration.
const DIAGNOSTICS_MAX: usize = 20;

/// A compiled schema.
pub struct ConfigSchema {
    validator: jsonschema::Validator,
    text: String,
}

impl ConfigSchema {
    /// Compile a schema. An empty text allows anything.
    ///
    /// # Errors
    /// [`PluginError::Schema`] when it is too large or no schema.
    pub fn new(which: &'static str, text: &str) -> Result<Self, PluginError> {
        let wrong = |reason: String| PluginError::Schema { which, reason };
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(wrong(format!("{} bytes; at most {SCHEMA_BYTES_MAX}", text.len())));
        }
        let value: Value = if text.is_empty() {
            Value::Bool(true)
        } else {
            serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?
        };
        affordable(&value).map_err(|e| wrong(e.to_string()))?;
        let validator = jsonschema::options()
            .with_pattern_options(jsonschema::PatternOptions::regex())
            .build(&value)
            .map_err(|e| wrong(e.to_string()))?;
        Ok(Self { validator, text: text.to_owned() })
    }

    /// The schema as the plugin gave it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Everything wrong with a configuration; empty when it fits.
    #[must_use]
    pub fn check(&self, config: &JsonObject) -> Vec<Diagnostic> {
        let value = Value::Object(config.map().clone());
        self.validator
            .iter_errors(&value)
            .take(DIAGNOSTICS_MAX)
            .map(|error| Diagnostic {
                path: error.instance_path().to_string().trim_start_matches('/').replace('/', "."),
                message: crate::host::imports::cut(error.to_string(), 512),
            })
            .collect()
    }
}

/// What every plugin says of itself, checked.
pub(super) struct Described {
    pub name: PluginName,
    pub version: String,
    pub config_schema: ConfigSchema,
}

impl Described {
    /// Check a description, and the plugin's configuration against the schema in it.
    pub(super) fn check(
        name: String,
        version: String,
        config_schema: &str,
        config: &JsonObject,
    ) -> Result<Self, PluginError> {
        let name = PluginName::new(convert::name("name", name)?).map_err(|e| {
            let place = "name".to_owned();
            convert::AnswerError { place, problem: e.to_string() }
        })?;
        let config_schema = ConfigSchema::new("configuration schema", config_schema)?;
        let problems = config_schema.check(config);
        if !problems.is_empty() {
            return Err(PluginError::Config(problems));
        }
        Ok(Self { name, version: convert::name("version", version)?, config_schema })
    }
}

/// Problems in one line.
#[must_use]
pub fn one_line(diagnostics: &[Diagnostic]) -> String {
    diagnostics
        .iter()
        .map(|d| {
            if d.path.is_empty() { d.message.clone() } else { format!("{}: {}", d.path, d.message) }
        })
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> JsonObject {
        JsonObject::from(value.as_object().unwrap().clone())
    }

    #[test]
    fn every_problem_of_a_configuration_is_named_with_its_path() {
        let schema = json!({
            "type": "object",
            "required": ["command"],
            "additionalProperties": false,
            "properties": {
                "command": {"type": "string"},
                "args": {"type": "array", "items": {"type": "string"}}
            }
        });
        let schema = ConfigSchema::new("task schema", &schema.to_string()).unwrap();
        assert!(schema.check(&object(json!({"command": "x", "args": ["a"]}))).is_empty());
        let found = schema.check(&object(json!({"args": ["a", 1], "comand": "x"})));
        let text = one_line(&found);
        assert!(text.contains("args.1: "), "{text}");
        assert!(text.contains("comand"), "{text}");
        assert!(text.contains("\"command\" is a required property"), "{text}");
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        assert!(ConfigSchema::new("s", "{").is_err());
        assert!(ConfigSchema::new("s", r#"{"type": 5}"#).is_err());
        assert!(ConfigSchema::new("s", &" ".repeat(SCHEMA_BYTES_MAX + 1)).is_err());
        let remote = r#"{"$ref": "https://example.com/schema.json"}"#;
        assert!(ConfigSchema::new("s", remote).is_err(), "references are not followed");
    }
}
