//! Reads the body of a request. A key that the agent does not act on is an error that names it.
//!
//! Clients send empty keys of many features that they do not use. Empty keys are ignored.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::RequestFailure;
use super::json::REGION;
use super::params::Params;
use ostler_model::ids::NAMESPACE;
use ostler_model::limits::NAME_BYTES_MAX;
use ostler_wire::NEVER;

/// The body of a request, or why it did not arrive whole.
pub(super) type Body = Result<Bytes, BytesRejection>;

/// The bytes of a body, within the limit.
pub(super) fn body_bytes(body: Body) -> Result<Bytes, RequestFailure> {
    body.map_err(|rejection| {
        if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
            RequestFailure::BodyTooLarge
        } else {
            RequestFailure::BodyLost(rejection.body_text())
        }
    })
}

/// Read a JSON body; an empty body means all defaults.
pub(super) fn read<T: DeserializeOwned + Default>(
    params: &Params,
    body: Body,
) -> Result<T, RequestFailure> {
    let bytes = body_bytes(body)?;
    let (read, unread) = read_with_unread(&bytes)?;
    check_unread(params, &bytes, unread)?;
    Ok(read)
}

/// As [`read`], for an object that the agent shows as `S` and a client may send back unchanged:
/// keys that only the agent sets are ignored.
pub(super) fn read_shown<T: DeserializeOwned + Default, S: DeserializeOwned + Default>(
    params: &Params,
    body: Body,
) -> Result<T, RequestFailure> {
    let bytes = body_bytes(body)?;
    let (read, mut unread) = read_with_unread(&bytes)?;
    let (_, unshown) = read_with_unread::<S>(&bytes)?;
    unread.retain(|path| unshown.contains(path));
    check_unread(params, &bytes, unread)?;
    Ok(read)
}

fn check_unread(params: &Params, bytes: &[u8], unread: Vec<String>) -> Result<(), RequestFailure> {
    if unread.is_empty() {
        return Ok(());
    }
    let whole: Value = serde_json::from_slice(bytes).map_err(RequestFailure::BadBody)?;
    let mut said = unread.iter().filter(|path| !says_nothing(value_at(&whole, path)));
    said.try_for_each(|path| check_common_key(params, path, value_at(&whole, path)))
}

/// The value in a body, and the paths of the keys that were not read.
pub(super) fn read_with_unread<T: DeserializeOwned + Default>(
    bytes: &[u8],
) -> Result<(T, Vec<String>), RequestFailure> {
    let mut unread = Vec::new();
    if bytes.is_empty() {
        return Ok((T::default(), unread));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_ignored::deserialize(&mut json, |path| {
        // The path of a field of which only the presence counts ends with this. Such a field was
        // read.
        let path = path.to_string();
        if !path.ends_with(".?") {
            unread.push(path);
        }
    });
    let read = read.map_err(RequestFailure::BadBody)?;
    json.end().map_err(RequestFailure::BadBody)?;
    Ok((read, unread))
}

/// Check a key that Nomad has in the body of every request that changes something, and that belongs
/// in another place.
fn check_common_key(params: &Params, key: &str, value: &Value) -> Result<(), RequestFailure> {
    let text = value.as_str().unwrap_or_default();
    match key {
        "Region" if text == REGION => Ok(()),
        "Region" => Err(RequestFailure::OtherRegion(text.chars().take(64).collect())),
        "Namespace" if text == params.text("namespace").unwrap_or(NAMESPACE) => Ok(()),
        "Namespace" => Err(RequestFailure::BadRequest(
            "Namespace in the body differs from that of the request; give it in the query: \
             ?namespace=NAME"
                .to_owned(),
        )),
        "SecretID" | "AuthToken" => Err(RequestFailure::BadRequest(format!(
            "{key} in the body is not read: send the token in the header X-Nomad-Token"
        ))),
        other => Err(unknown_key(other)),
    }
}

/// Check that the body names the same object as the path, if it names one.
pub(super) fn check_same_as_path(path: &str, body: &str) -> Result<(), RequestFailure> {
    // The path may have only the beginning of an id.
    if body.starts_with(path) || body.is_empty() {
        return Ok(());
    }
    let body: String = body.chars().take(NAME_BYTES_MAX).collect();
    let message = format!("the body has {body:?}, the path {path:?}: they must be the same");
    Err(RequestFailure::BadRequest(message))
}

/// The error about a key that the agent does not act on.
pub(super) fn unknown_key(key: &str) -> RequestFailure {
    let key: String = key.chars().take(NAME_BYTES_MAX).collect();
    RequestFailure::BadRequest(format!(
        "{key:?} is unknown in this request, and would have no effect"
    ))
}

/// The value at a path. A `?` in the path stands for an optional field.
fn value_at<'a>(whole: &'a Value, path: &str) -> &'a Value {
    path.split('.').filter(|part| *part != "?").fold(whole, |value, part| match value.as_array() {
        Some(items) => {
            part.parse().ok().and_then(|at: usize| items.get(at)).unwrap_or(&Value::Null)
        }
        None => value.get(part).unwrap_or(&Value::Null),
    })
}

/// Whether a value is empty: null, zero, false, the time "never", or an empty text, list or map.
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
