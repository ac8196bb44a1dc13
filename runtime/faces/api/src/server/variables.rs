//! The variables that this agent stores.
//!
//! Variables have an index of their own. The content of a variable stands only in the answers to
//! those who read or write it, and never in a log line or an error.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::body::{self, Body, body_bytes};
use super::error::RequestFailure;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::VariableError;
use ostler_model::access::AccessLevel;
use ostler_model::ids::NAMESPACE;
use ostler_model::vars::{Items, VarKey, VarList, Variable, VariableStore as _};
use ostler_wire as wire;

/// Which variable a request is about.
fn key(params: &Params, path: &str) -> Result<VarKey, RequestFailure> {
    key_in_namespace(params.text("namespace").unwrap_or(NAMESPACE), path)
}

fn key_in_namespace(namespace: &str, path: &str) -> Result<VarKey, RequestFailure> {
    VarKey::new(namespace, path).map_err(RequestFailure::VarPath)
}

/// `GET /v1/vars`: the variables without their items.
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let kept = api.agent.variables();
    let (wait, changes) = (params.wait_from(kept.index())?, kept.indexes());
    let namespace = match params.text("namespace") {
        Some("*") => None,
        named => Some(named.unwrap_or(NAMESPACE)),
    };
    let look = || {
        let mut list = kept.list(namespace, params.prefix());
        list.found.retain(|one| params.access().allow(AccessLevel::Submit, one.namespace.as_str()));
        IndexedValue { index: list.index, value: Ok(list) }
    };
    let shape = params.clone();
    let show = move |list: VarList| {
        let params = shape;
        // `!` is lower than any character of a namespace, so that the names are in the order of the
        // list.
        let name = |of: &Arc<Variable>| format!("{}!{}", of.namespace, of.path);
        let (page, next) = params.page(list.found, name)?;
        let shown: Vec<_> = page.iter().map(|of| metadata(of)).collect();
        reply::page(&params, &shown, next.as_deref())
    };
    wait::answer_whole_on(&api, &params, wait, changes, look, show).await
}

/// `GET /v1/var/PATH`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let key = key(&params, &id)?;
    let kept = api.agent.variables();
    let (wait, changes) = (params.wait_from(kept.index())?, kept.indexes());
    let look = || match kept.get(&key) {
        (_, Some(variable)) => IndexedValue { index: variable.modify_index, value: Ok(variable) },
        (index, None) => IndexedValue { index, value: Err(RequestFailure::NotThere("variable")) },
    };
    let show = |variable: Arc<Variable>| reply::json(&params, &variable_json(&variable));
    wait::answer_on(&api, &params, wait, changes, look, show).await
}

/// `PUT /v1/var/PATH`
pub(super) async fn put(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let cas = expected_index(&params)?;
    let (key, items) = read_put(&api, &params, &id, &body_bytes(body)?)?;
    match api.agent.variables().put(key, items, cas).await {
        Ok(written) => {
            let namespace = &written.namespace;
            tracing::info!(path = %written.path, %namespace, index = written.modify_index, "variable written");
            let response = reply::json(&params, &variable_json(&written))?;
            Ok(reply::with_index(written.modify_index, response))
        }
        Err(error) => conflict_answer(&params, error),
    }
}

/// `DELETE /v1/var/PATH`
pub(super) async fn delete(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let (key, cas) = (key(&params, &id)?, expected_index(&params)?);
    let named = key.clone();
    match api.agent.variables().delete(key, cas).await {
        Ok(index) => {
            tracing::info!(path = %named.path, namespace = %named.namespace, index, "variable removed");
            Ok(reply::with_index(index, StatusCode::NO_CONTENT.into_response()))
        }
        Err(error) => conflict_answer(&params, error),
    }
}

/// The index that the variable must be at for the change; none for any.
fn expected_index(params: &Params) -> Result<Option<u64>, RequestFailure> {
    match params.key_with_prefix("lock-") {
        Some(asked) => Err(RequestFailure::VarLock(asked.chars().take(64).collect())),
        // An empty value is the mistake of a script, and would overwrite whatever is there.
        None if params.is_empty("cas") => Err(RequestFailure::bad_param("cas", "", "a number")),
        None => params.number("cas"),
    }
}

/// The keys that a client has from reading a variable and may send back when it writes it.
const OF_READING: [&str; 4] = ["CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime"];

/// The key and the items of a variable to be written. The body may name the namespace, and may
/// repeat the path.
fn read_put(
    api: &Api,
    params: &Params,
    path: &str,
    text: &[u8],
) -> Result<(VarKey, Items), RequestFailure> {
    let (put, unread) =
        body::read_with_unread::<wire::VariablePut>(text).map_err(|error| match error {
            // A value that does not fit may be a secret, and the error would show it.
            RequestFailure::BadBody(error) => {
                RequestFailure::VarBody { line: error.line(), column: error.column() }
            }
            other => other,
        })?;
    if let Some(key) = unread.iter().find(|key| !OF_READING.contains(&key.as_str())) {
        return Err(body::unknown_key(key));
    }
    if put.lock.is_some() {
        return Err(RequestFailure::VarLock("Lock in the body".to_owned()));
    }
    let other = |what, request: &str, body: &str| {
        let (request, body) = (request.to_owned(), body.chars().take(128).collect());
        Err(RequestFailure::VarOther { what, request, body })
    };
    let named = Some(put.namespace.as_str()).filter(|named| !named.is_empty());
    let asked = params.text("namespace");
    if let (Some(asked), Some(named)) = (asked, named)
        && asked != named
    {
        return other("namespace", asked, named);
    }
    let namespace = asked.or(named).unwrap_or(NAMESPACE);
    // The namespace of the request was checked before, that of the body was not.
    params.access().require(AccessLevel::Submit, namespace)?;
    if !api.agent.has_namespace(namespace) {
        return Err(RequestFailure::other_namespace(namespace));
    }
    let key = key_in_namespace(namespace, path)?;
    match put.path.as_str() {
        "" => Ok((key, put.items)),
        path if path == key.path.as_str() => Ok((key, put.items)),
        path => other("path", key.path.as_str(), path),
    }
}

/// Answer a conflict with the present variable.
fn conflict_answer(params: &Params, error: VariableError) -> Result<Response, RequestFailure> {
    let VariableError::Conflict { key, index, present, .. } = &error else {
        return Err(RequestFailure::Variable(error));
    };
    let none = || wire::WireVariable {
        namespace: key.namespace.as_str().into(),
        path: key.path.as_str().into(),
        ..wire::WireVariable::default()
    };
    let shown = present.as_deref().map_or_else(none, variable_json);
    let mut response = reply::json(params, &shown)?;
    *response.status_mut() = StatusCode::CONFLICT;
    Ok(reply::with_index(*index, response))
}

fn metadata(of: &Variable) -> wire::VariableMetadata<'_> {
    wire::VariableMetadata {
        namespace: of.namespace.as_str().into(),
        path: of.path.as_str().into(),
        create_index: of.create_index,
        modify_index: of.modify_index,
        create_time: of.created.nanos(),
        modify_time: of.modified.nanos(),
    }
}

fn variable_json(of: &Variable) -> wire::WireVariable<'_> {
    let wire::VariableMetadata {
        namespace,
        path,
        create_index,
        modify_index,
        create_time,
        modify_time,
    } = metadata(of);
    let items = of.items.clone();
    wire::WireVariable {
        namespace,
        path,
        create_index,
        modify_index,
        create_time,
        modify_time,
        items,
    }
}
