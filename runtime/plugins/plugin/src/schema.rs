//! Checks configurations against the JSON Schema that a plugin brought.
//!
//! The schema comes from the plugin, so it is untrusted. Its size is bounded, patterns run on the
//! linear-time regex engine within a budget (`schema_patterns`), references to other documents are
//! not followed, and how much there is to check is counted before (`schema_cost`). It is compiled
//! on a thread that nobody else waits for (`run_aside`).

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use super::schema_cost::check_cost;
use super::schema_patterns::automaton_bytes;
use super::{PluginError, convert};
use ostler_model::clock::timeout;
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::limits::{
    ANSWER_DIAGNOSTIC_BYTES_MAX, ANSWER_DIAGNOSTICS_MAX, SCHEMA_BYTES_MAX, SCHEMA_WALL_MAX,
};
use ostler_model::ports::Diagnostic;
use ostler_model::printable::printable_line;
use ostler_text::suggest::nearest;

/// A number as a text. A whole number has no point and no exponent, however it was written.
fn digits(number: &serde_json::Number) -> String {
    match number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0) {
        Some(whole) => format!("{whole:.0}"),
        None => number.to_string(),
    }
}

/// Collect the places of numbers and truth values where the schema wants texts.
fn collect_text_places(error: &ValidationError<'_>, places: &mut Vec<String>) {
    use jsonschema::JsonType;
    use jsonschema::error::TypeKind;
    match error.kind() {
        ValidationErrorKind::Type { kind: TypeKind::Single(JsonType::String) } => {
            places.push(error.instance_path().as_str().to_owned());
        }
        ValidationErrorKind::OneOfNotValid { context } | ValidationErrorKind::AnyOf { context } => {
            // The recursion is as deep as the schema, which is bounded.
            let meant = matching_form(error, context).into_iter().flatten();
            meant.for_each(|error| collect_text_places(error, places));
        }
        _ => {}
    }
}

/// A compiled JSON Schema of a plugin.
pub struct ConfigSchema {
    validator: jsonschema::Validator,
    schema: Value,
    text: String,
}

impl ConfigSchema {
    /// Compile a schema. An empty text allows anything.
    ///
    /// # Errors
    /// [`PluginError::Schema`] when the text is too large or no schema.
    pub fn new(which: &'static str, text: &str) -> Result<Self, PluginError> {
        let wrong = |reason: String| PluginError::Schema { which, reason: cut(reason) };
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(wrong(format!("{} bytes; at most {SCHEMA_BYTES_MAX}", text.len())));
        }
        let value: Value = if text.is_empty() {
            Value::Bool(true)
        } else {
            serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?
        };
        check_cost(&value).map_err(|e| wrong(e.to_string()))?;
        let automaton = automaton_bytes(&value).map_err(|e| wrong(e.to_string()))?;
        let patterns =
            jsonschema::PatternOptions::regex().size_limit(automaton).dfa_size_limit(automaton / 4);
        let validator = jsonschema::options()
            .with_pattern_options(patterns)
            .build(&value)
            .map_err(|e| wrong(e.to_string()))?;
        Ok(Self { validator, schema: value, text: text.to_owned() })
    }

    /// The schema as the plugin gave it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The schema as a JSON value.
    pub(crate) const fn value(&self) -> &Value {
        &self.schema
    }

    /// The keys whose value may be the address of a file that the host fetches. The schema marks
    /// them with `"x-ostler-fetched": true`.
    #[must_use]
    pub fn file_address_keys(&self) -> Vec<String> {
        let keys = self.schema.get("properties").and_then(Value::as_object);
        let marked =
            |schema: &Value| schema.get("x-ostler-fetched").is_some_and(|marked| *marked == true);
        let keys = keys.into_iter().flatten().filter(|(_, schema)| marked(schema));
        keys.map(|(key, _)| key.clone()).take(ANSWER_DIAGNOSTICS_MAX).collect()
    }

    /// The configuration with texts in place of the numbers and truth values where the schema
    /// wants texts. Nomad reads job files in the same way: `args = ["-p", var.port]`. `None`:
    /// there are none.
    #[must_use]
    pub fn with_texts(&self, config: &JsonObject) -> Option<JsonObject> {
        let mut value = Value::Object(config.map().clone());
        let mut places = Vec::new();
        self.validator
            .iter_errors(&value)
            .for_each(|error| collect_text_places(&error, &mut places));
        let mut changed = false;
        for place in places {
            let Some(at) = value.pointer_mut(&place) else { continue };
            let text = match at {
                Value::Number(number) => digits(number),
                Value::Bool(truth) => truth.to_string(),
                _ => continue,
            };
            *at = Value::String(text);
            changed = true;
        }
        match value {
            Value::Object(map) if changed => Some(JsonObject::from(map)),
            _ => None,
        }
    }

    /// Everything that is wrong with a configuration; empty when it fits.
    #[must_use]
    pub fn check(&self, config: &JsonObject) -> Vec<Diagnostic> {
        let value = Value::Object(config.map().clone());
        let mut found = Vec::new();
        for error in self.validator.iter_errors(&value) {
            if found.len() >= ANSWER_DIAGNOSTICS_MAX {
                break;
            }
            self.tell(&value, &error, &mut found);
        }
        found.truncate(ANSWER_DIAGNOSTICS_MAX);
        found
    }

    /// Add one error in terms of what a person can correct: a place for each unknown name and, for
    /// a choice, what is wrong with the form that was meant.
    fn tell(&self, config: &Value, error: &ValidationError<'_>, found: &mut Vec<Diagnostic>) {
        let path = cut(dotted_path(error.instance_path().as_str()));
        let unknown = |name: &str| {
            let dot = if path.is_empty() { "" } else { "." };
            Diagnostic {
                path: cut(format!("{path}{dot}{name}")),
                message: cut(format!("{name:?} is unknown")),
                unknown: true,
                suggestion: self.suggest_property(error.schema_path().as_str(), name),
            }
        };
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                let names = unexpected.iter().take(ANSWER_DIAGNOSTICS_MAX);
                found.extend(names.map(|name| unknown(name)));
            }
            // The error is at an object for which no property is known.
            ValidationErrorKind::FalseSchema
                if error.schema_path().as_str().ends_with("/additionalProperties") =>
            {
                let object = config.pointer(error.instance_path().as_str());
                let names =
                    object.and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
                found.extend(names.take(ANSWER_DIAGNOSTICS_MAX).map(|name| unknown(name)));
            }
            ValidationErrorKind::Required { property: Value::String(name) } => {
                let message = cut(format!("{name} is missing"));
                found.push(Diagnostic { path, message, ..Diagnostic::default() });
            }
            ValidationErrorKind::OneOfNotValid { context }
            | ValidationErrorKind::AnyOf { context } => match matching_form(error, context) {
                // The recursion is as deep as the schema, which is bounded.
                Some(errors) => errors.iter().for_each(|error| self.tell(config, error, found)),
                None => found.push(plain_diagnostic(path, error)),
            },
            _ => found.push(plain_diagnostic(path, error)),
        }
    }

    /// The property that an unknown name probably means. It is looked for in the part of the schema
    /// in which the keyword at `keyword` refused the name.
    fn suggest_property(&self, keyword: &str, name: &str) -> Option<String> {
        let (part, _) = keyword.rsplit_once('/')?;
        let mut at = &self.schema;
        for step in part.split('/').skip(1) {
            at = match (step, at.get("$ref").and_then(Value::as_str)) {
                ("$ref", Some(reference)) => self.schema.pointer(reference.strip_prefix('#')?)?,
                _ => at.pointer(&format!("/{step}"))?,
            };
        }
        let properties = at.get("properties")?.as_object()?;
        nearest(name, properties.keys().map(String::as_str)).map(str::to_owned)
    }
}

/// A diagnostic with the whole message of an error.
fn plain_diagnostic(path: String, error: &ValidationError<'_>) -> Diagnostic {
    Diagnostic { path, message: cut(error.to_string()), ..Diagnostic::default() }
}

/// Cut a message or a place and make it safe to show. Property names come from the plugin, or from
/// whoever wrote the configuration.
fn cut(message: String) -> String {
    printable_line(message, ANSWER_DIAGNOSTIC_BYTES_MAX)
}

/// A JSON pointer as people write paths.
fn dotted_path(pointer: &str) -> String {
    let steps = pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"));
    steps.collect::<Vec<_>>().join(".")
}

/// The errors of the one form of a choice whose type fits. `None` when no form or
/// several forms fit.
fn matching_form<'a>(
    choice: &ValidationError<'_>,
    forms: &'a [Vec<ValidationError<'static>>],
) -> Option<&'a [ValidationError<'static>]> {
    let at = choice.instance_path();
    let fits = |errors: &&Vec<ValidationError<'static>>| {
        let other_type = |error: &ValidationError<'_>| {
            matches!(error.kind(), ValidationErrorKind::Type { .. }) && error.instance_path() == at
        };
        !errors.iter().any(other_type)
    };
    let mut fitting = forms.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(errors), None) if !errors.is_empty() => Some(errors),
        _ => None,
    }
}

/// Compile schemas on a thread for blocking work, within a time.
pub(super) async fn run_aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PluginError> + Send + 'static,
) -> Result<T, PluginError> {
    let failed = |reason: String| PluginError::Schema { which: "schema", reason };
    match timeout(SCHEMA_WALL_MAX, tokio::task::spawn_blocking(work)).await {
        Some(Ok(done)) => done,
        Some(Err(_gone)) => Err(failed("compiling it was interrupted".to_owned())),
        None => Err(failed(format!("compiling it took over {SCHEMA_WALL_MAX:?}"))),
    }
}

/// What every plugin says about itself, after it was checked.
pub(super) struct PluginDescription {
    pub name: PluginName,
    pub version: String,
    pub config_schema: ConfigSchema,
}

impl PluginDescription {
    /// Check the description of a plugin. Where there already is a configuration, it is checked
    /// against the schema in the description.
    pub(super) fn check(
        name: String,
        version: String,
        config_schema: &str,
        config: Option<&JsonObject>,
    ) -> Result<Self, PluginError> {
        let name = PluginName::new(convert::name("name", name)?).map_err(|e| {
            let place = "name".to_owned();
            convert::AnswerError { place, problem: e.to_string() }
        })?;
        // Errors of the answer come before those of the configuration.
        let version = convert::name("version", version)?;
        let config_schema = ConfigSchema::new("configuration schema", config_schema)?;
        let problems = config.map(|config| config_schema.check(config)).unwrap_or_default();
        if !problems.is_empty() {
            return Err(PluginError::Config(problems));
        }
        Ok(Self { name, version, config_schema })
    }
}

/// All problems in one line of text.
#[must_use]
pub fn one_line(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
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
        assert!(text.contains("comand: \"comand\" is unknown; did you mean command?"), "{text}");
        assert!(text.contains("command is missing"), "{text}");
    }

    #[test]
    fn numbers_and_truth_values_are_texts_where_the_schema_has_texts() {
        let texts = json!({"type": "array", "items": {"type": "string"}});
        let schema = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "args": texts,
                "count": {"type": "integer"},
                "either": {"oneOf": [{"type": "integer"}, texts]}
            }
        });
        let schema = ConfigSchema::new("task schema", &schema.to_string()).unwrap();
        let given = json!({
            "command": 7, "args": ["-p", 8080, true, 1.5, 1e3, 1e21], "count": 3, "either": [1, "b"]
        });
        let texts = schema.with_texts(&object(given)).unwrap();
        let expected = json!({
            "command": "7",
            "args": ["-p", "8080", "true", "1.5", "1000", "1000000000000000000000"],
            "count": 3,
            "either": ["1", "b"]
        });
        assert_eq!(texts, object(expected));
        assert!(schema.check(&texts).is_empty());
        assert_eq!(schema.with_texts(&texts), None);
        for other in [json!({"args": [null]}), json!({"args": [["a"]]}), json!({"count": "3"})] {
            assert_eq!(schema.with_texts(&object(other.clone())), None, "{other}");
            assert!(!schema.check(&object(other)).is_empty());
        }
    }

    #[test]
    fn an_unknown_name_is_found_where_it_stands_behind_references_and_choices() {
        let network = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {"listen": {"type": "boolean"}}
        });
        let part = json!({"$ref": "#/$defs/network"});
        let schema = json!({
            "type": "object",
            "properties": {
                "network": {"oneOf": [part, {"type": "array", "items": part}]}
            },
            "$defs": {"network": network}
        });
        let schema = ConfigSchema::new("task schema", &schema.to_string()).unwrap();
        for (config, path) in [
            (json!({"network": {"listn": true}}), "network.listn"),
            (json!({"network": [{"listen": true}, {"listn": true}]}), "network.1.listn"),
        ] {
            let found = schema.check(&object(config));
            let [one] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!((one.path.as_str(), one.unknown), (path, true));
            assert_eq!(one.suggestion.as_deref(), Some("listen"), "{one:?}");
        }
        let found = schema.check(&object(json!({"network": {"listen": 5}})));
        assert_eq!(found.iter().map(|d| d.path.as_str()).collect::<Vec<_>>(), ["network.listen"]);
        let neither = schema.check(&object(json!({"network": "all"})));
        assert_eq!(neither.iter().map(|d| d.path.as_str()).collect::<Vec<_>>(), ["network"]);
    }

    #[test]
    fn every_name_is_unknown_where_none_is_known() {
        let none = json!({"type": "object", "additionalProperties": false});
        let nested = json!({"type": "object", "properties": {"part": none}});
        let check = |schema: &Value, config| {
            let schema = ConfigSchema::new("task schema", &schema.to_string()).unwrap();
            let found = schema.check(&object(config));
            assert!(found.iter().all(|one| one.unknown), "{found:?}");
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let told = check(&none, json!({"enabled": true, "other": 1}));
        assert_eq!(told, ["enabled: \"enabled\" is unknown", "other: \"other\" is unknown"]);
        let told = check(&nested, json!({"part": {"x": {}}}));
        assert_eq!(told, ["part.x: \"x\" is unknown"]);
    }

    #[test]
    fn a_configuration_of_many_unknown_names_is_told_within_bounds() {
        let schema = json!({"properties": {"a": {}}, "additionalProperties": false}).to_string();
        let schema = ConfigSchema::new("task schema", &schema).unwrap();
        let many = (0..10_000).map(|n| (format!("k{n}"), Value::Null)).collect();
        assert_eq!(schema.check(&object(Value::Object(many))).len(), ANSWER_DIAGNOSTICS_MAX);
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
