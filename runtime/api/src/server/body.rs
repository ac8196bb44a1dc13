//! What a request brings in its body: a key that nobody acts on is an error that names it.
//!
//! Clients send many keys empty, of features they do not use: those say nothing.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::Failure;
use super::jobs::{Body, bytes};
use super::json::REGION;
use super::params::Params;
use ostler_model::ids::NAMESPACE;
use ostler_model::limits::NAME_BYTES_MAX;
use ostler_wire::NEVER;

/// A body as JSON; an empty one means all defaults.
pub(super) fn read<T: DeserializeOwned + Default>(
    params: &Params,
    body: Body,
) -> Result<T, Failure> {
    let bytes = bytes(body)?;
    let (read, unread) = with_unread(&bytes)?;
    check(params, &bytes, unread)?;
    Ok(read)
}

/// The same of something that was shown as `S` and may be given back as it is: what only the agent says of
/// it is passed over.
pub(super) fn read_shown<T: DeserializeOwned + Default, S: DeserializeOwned + Default>(
    params: &Params,
    body: Body,
) -> Result<T, Failure> {
    let bytes = bytes(body)?;
    let (read, mut unread) = with_unread(&bytes)?;
    let (_, unshown) = with_unread::<S>(&bytes)?;
    unread.retain(|path| unshown.contains(path));
    check(params, &bytes, unread)?;
    Ok(read)
}

fn check(params: &Params, bytes: &[u8], unread: Vec<String>) -> Result<(), Failure> {
    if unread.is_empty() {
        return Ok(());
    }
    let whole: Value = serde_json::from_slice(bytes).map_err(Failure::BadBody)?;
    let mut said = unread.iter().filter(|path| !says_nothing(at(&whole, path)));
    said.try_for_each(|path| of_every_request(params, path, at(&whole, path)))
}

/// What is read, and the paths of the keys that are not.
pub(super) fn with_unread<T: DeserializeOwned + Default>(
    bytes: &[u8],
) -> Result<(T, Vec<String>), Failure> {
    let mut unread = Vec::new();
    if bytes.is_empty() {
        return Ok((T::default(), unread));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_ignored::deserialize(&mut json, |path| {
        // A field of which only whether it is there counts is read by that, and ends so.
        let path = path.to_string();
        if !path.ends_with(".?") {
            unread.push(path);
        }
    });
    let read = read.map_err(Failure::BadBody)?;
    json.end().map_err(Failure::BadBody)?;
    Ok((read, unread))
}

/// Keys that Nomad has in the body of every request that changes something, and gives another place.
fn of_every_request(params: &Params, key: &str, value: &Value) -> Result<(), Failure> {
    let text = value.as_str().unwrap_or_default();
    match key {
        "Region" if text == REGION => Ok(()),
        "Region" => Err(Failure::OtherRegion(text.chars().take(64).collect())),
        "Namespace" if text == params.text("namespace").unwrap_or(NAMESPACE) => Ok(()),
        "Namespace" => Err(Failure::BadRequest(
            "Namespace in the body is another than that of the request; write it into the query: \
             ?namespace=NAME"
                .to_owned(),
        )),
        "SecretID" | "AuthToken" => Err(Failure::BadRequest(format!(
            "{key} in the body is not read: send the token in the header X-Nomad-Token"
        ))),
        other => Err(unknown(other)),
    }
}

/// What the path names, a body may name too, and then the same.
pub(super) fn as_path(path: &str, body: &str) -> Result<(), Failure> {
    // A path may have the beginning of an id.
    if body.starts_with(path) || body.is_empty() {
        return Ok(());
    }
    let body: String = body.chars().take(NAME_BYTES_MAX).collect();
    let message = format!("the body has {body:?}, the path {path:?}: they must be the same");
    Err(Failure::BadRequest(message))
}

/// Said of a key that nobody acts on.
pub(super) fn unknown(key: &str) -> Failure {
    let key: String = key.chars().take(NAME_BYTES_MAX).collect();
    Failure::BadRequest(format!("{key:?} is unknown in this request, and would have no effect"))
}

/// The value at a path, through what is perhaps not there (`?`).
fn at<'a>(whole: &'a Value, path: &str) -> &'a Value {
    path.split('.').filter(|part| *part != "?").fold(whole, |value, part| match value.as_array() {
        Some(items) => {
            part.parse().ok().and_then(|at: usize| items.get(at)).unwrap_or(&Value::Null)
        }
        None => value.get(part).unwrap_or(&Value::Null),
    })
}

/// Null, zero, false, never, or nothing.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == NEVER,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(says_nothing),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_wire::{DrainRequest, EligibilityRequest};

    fn refused<T: DeserializeOwned + Default + std::fmt::Debug>(query: &str, body: &str) -> String {
        let read = read::<T>(&Params::parse(query), Ok(body.to_owned().into()));
        read.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_key_that_nobody_acts_on_is_refused_by_its_name_and_an_empty_one_says_nothing() {
        let wrong = [
            (r#"{"eligibility": "eligible"}"#, "\"eligibility\" is unknown"),
            (r#"{"Eligibility": "eligible", "Meta": {"a": "b"}}"#, "\"Meta\" is unknown"),
            (r#"{"Region": "mars"}"#, "not in \"mars\""),
            (r#"{"Namespace": "prod"}"#, "?namespace=NAME"),
            (r#"{"SecretID": "s"}"#, "SecretID in the body is not read"),
            (r#"{"Eligibility": "eligible"} x"#, "cannot be read"),
        ];
        for (body, said) in wrong {
            let found = refused::<EligibilityRequest>("", body);
            assert!(found.contains(said), "{body}: {found}");
        }
        let nested = r#"{"DrainSpec": {"Deadline": 7, "IgnoreJobs": true}}"#;
        assert!(refused::<DrainRequest>("", nested).contains("DrainSpec.?.IgnoreJobs"));
        let right = r#"{"Eligibility": "eligible", "Meta": {}, "Region": "global", "SecretID": "",
            "Namespace": "prod", "UpdatedAt": 0, "NodeID": null, "More": [], "No": false}"#;
        let right = right.replace("\"NodeID\": null, ", "");
        assert_eq!(refused::<EligibilityRequest>("namespace=prod", &right), "");
        assert_eq!(refused::<EligibilityRequest>("", ""), "");
    }
}
