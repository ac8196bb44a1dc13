//! Reads configuration into typed values.
//!
//! The agent has already checked the JSON against the schema that the plugin gave, so a plugin must
//! only refuse what a schema cannot express.

use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::Error;

/// Read a JSON object. Empty text counts as an empty object.
///
/// # Errors
/// [`Error::InvalidConfig`] naming the key where serde names it.
pub fn parse<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    let text = if json.trim().is_empty() { "{}" } else { json };
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        Error::invalid_config(named_field(&message).unwrap_or_default(), message)
    })
}

/// The key in a message such as "unknown field `x`" or "missing field `x`".
fn named_field(message: &str) -> Option<String> {
    let rest = message.split_once("field `")?.1;
    Some(rest.split_once('`')?.0.to_owned())
}

/// Use this as `#[serde(default, deserialize_with = "ostler_sdk::config::block")]` for a block that
/// occurs at most once. HCL gives an object, and JSON job files may give a list of one object; both
/// are read.
///
/// # Errors
/// More than one block, or what the type itself refuses.
pub fn block<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let object = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(T::default()),
        Value::Array(mut blocks) => match (blocks.pop(), blocks.is_empty()) {
            (None, _) => return Ok(T::default()),
            (Some(only), true) => only,
            (Some(_), false) => return Err(D::Error::custom("only one such block is allowed")),
        },
        other => other,
    };
    T::deserialize(object.into_deserializer()).map_err(D::Error::custom)
}

/// Use this as `#[serde(deserialize_with = "ostler_sdk::config::duration")]` for `"1m30s"`,
/// `"250ms"`, or a number of nanoseconds as Go's JSON writes durations.
///
/// # Errors
/// Text that is no duration, or a negative number.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => parse_duration(&text).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a duration such as \"1m30s\""))
        }),
        Value::Number(number) => number
            .as_u64()
            .map(Duration::from_nanos)
            .ok_or_else(|| D::Error::custom("a duration must not be negative or have a fraction")),
        other => Err(D::Error::custom(format!("{other} is not a duration such as \"1m30s\""))),
    }
}

/// Parse Go's duration text: numbers with the units `h m s ms us ns`, one after the other, or `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(letters)?;
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let span = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(span)?;
        rest = tail;
    }
    Some(total)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug, Default, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct ListenBlock {
        listen: bool,
    }

    #[derive(Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(default, deserialize_with = "block")]
        network: ListenBlock,
    }

    #[test]
    fn a_block_is_read_from_an_object_and_from_a_list_of_one() {
        let listening = Outer { network: ListenBlock { listen: true } };
        assert_eq!(parse::<Outer>(r#"{"network": {"listen": true}}"#).unwrap(), listening);
        assert_eq!(parse::<Outer>(r#"{"network": [{"listen": true}]}"#).unwrap(), listening);
        assert_eq!(parse::<Outer>(r#"{"network": []}"#).unwrap().network, ListenBlock::default());
        assert_eq!(parse::<Outer>("").unwrap().network, ListenBlock::default());
    }

    #[test]
    fn a_second_block_is_refused() {
        assert!(parse::<Outer>(r#"{"network": [{}, {}]}"#).is_err());
    }

    #[test]
    fn an_unknown_key_is_named_in_the_diagnostic() {
        let Err(Error::InvalidConfig(found)) = parse::<Outer>(r#"{"netwrok": {}}"#) else {
            panic!("accepted");
        };
        let first = found.first().unwrap();
        assert_eq!(first.path, "netwrok");
        assert!(first.message.contains("unknown field"), "{}", first.message);
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5h"), Some(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0"), Some(Duration::ZERO));
        for bad in ["", "5", "s", "1x", "-1s", "1s2", "1..2s", "9999999999999999999h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
