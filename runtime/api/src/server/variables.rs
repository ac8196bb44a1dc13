//! The variables that this agent keeps.
//!
//! Their index is one of their own. What is in a variable is in the answers to who reads or writes it, and
//! in nothing else: no log line, no error.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::body;
use super::error::Failure;
use super::jobs::{Body, bytes};
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::VariableError;
use ostler_model::access::Level;
use ostler_model::ids::NAMESPACE;
use ostler_model::vars::{Items, KeptVariables as _, VarKey, VarList, Variable};
use ostler_wire as wire;

/// Which variable a request is about.
fn key(params: &Params, path: &str) -> Result<VarKey, Failure> {
    within(params.text("namespace").unwrap_or(NAMESPACE), path)
}

fn within(namespace: &str, path: &str) -> Result<VarKey, Failure> {
    VarKey::new(namespace, path).map_err(Failure::VarPath)
}

/// `GET /v1/vars`: without what is in them.
pub(super) async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let kept = api.agent.variables();
    let (wait, changes) = (params.wait_from(kept.index())?, kept.indexes());
    let namespace = match params.text("namespace") {
        Some("*") => None,
        named => Some(named.unwrap_or(NAMESPACE)),
    };
    let look = || {
        let mut list = kept.list(namespace, params.prefix());
        list.found.retain(|one| params.access().allow(Level::Submit, one.namespace.as_str()));
        Found { index: list.index, value: Ok(list) }
    };
    let shape = params.clone();
    let show = move |list: VarList| {
        let params = shape;
        // Lower than anything that a namespace has in it: names are in the order of the list.
        let name = |of: &Arc<Variable>| format!("{}!{}", of.namespace, of.path);
        let (page, next) = params.page(list.found, name)?;
        let shown: Vec<_> = page.iter().map(|of| metadata(of)).collect();
        reply::page(&params, &shown, next.as_deref())
    };
    wait::answer_whole_on(&api, &params, wait, changes, look, show).await
}

/// `GET /v1/var/PATH`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let key = key(&params, &id)?;
    let kept = api.agent.variables();
    let (wait, changes) = (params.wait_from(kept.index())?, kept.indexes());
    let look = || match kept.get(&key) {
        (_, Some(variable)) => Found { index: variable.modify_index, value: Ok(variable) },
        (index, None) => Found { index, value: Err(Failure::NotThere("variable")) },
    };
    let show = |variable: Arc<Variable>| reply::json(&params, &whole(&variable));
    wait::answer_on(&api, &params, wait, changes, look, show).await
}

/// `PUT /v1/var/PATH`
pub(super) async fn put(Asked { api, id, params }: Asked, body: Body) -> Result<Response, Failure> {
    let cas = change(&params)?;
    let (key, items) = given(&api, &params, &id, &bytes(body)?)?;
    match api.agent.variables().put(key, items, cas).await {
        Ok(written) => {
            let namespace = &written.namespace;
            tracing::info!(path = %written.path, %namespace, index = written.modify_index, "variable written");
            let response = reply::json(&params, &whole(&written))?;
            Ok(reply::at_index(written.modify_index, response))
        }
        Err(error) => refused(&params, error),
    }
}

/// `DELETE /v1/var/PATH`
pub(super) async fn delete(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let (key, cas) = (key(&params, &id)?, change(&params)?);
    let named = key.clone();
    match api.agent.variables().delete(key, cas).await {
        Ok(index) => {
            tracing::info!(path = %named.path, namespace = %named.namespace, index, "variable removed");
            Ok(reply::at_index(index, StatusCode::NO_CONTENT.into_response()))
        }
        Err(error) => refused(&params, error),
    }
}

/// For which index the change is; none: for any.
fn change(params: &Params) -> Result<Option<u64>, Failure> {
    match params.beginning("lock-") {
        Some(asked) => Err(Failure::VarLock(asked.chars().take(64).collect())),
        // An empty one is the mistake of a script, and would overwrite whatever is there.
        None if params.is_empty("cas") => Err(Failure::bad_param("cas", "", "a number")),
        None => params.number("cas"),
    }
}

/// What a variable that was read has beside it, which is said again when it is written.
const OF_READING: [&str; 4] = ["CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime"];

/// What is to be written. The body may name the namespace, and may repeat what the request says.
fn given(api: &Api, params: &Params, path: &str, text: &[u8]) -> Result<(VarKey, Items), Failure> {
    let (put, unread) =
        body::with_unread::<wire::VariablePut>(text).map_err(|error| match error {
            // What does not fit may be a secret, and the error would say it.
            Failure::BadBody(error) => {
                Failure::VarBody { line: error.line(), column: error.column() }
            }
            other => other,
        })?;
    if let Some(key) = unread.iter().find(|key| !OF_READING.contains(&key.as_str())) {
        return Err(body::unknown(key));
    }
    if put.lock.is_some() {
        return Err(Failure::VarLock("Lock in the body".to_owned()));
    }
    let other = |what, request: &str, body: &str| {
        let (request, body) = (request.to_owned(), body.chars().take(128).collect());
        Err(Failure::VarOther { what, request, body })
    };
    let named = Some(put.namespace.as_str()).filter(|named| !named.is_empty());
    let asked = params.text("namespace");
    if let (Some(asked), Some(named)) = (asked, named)
        && asked != named
    {
        return other("namespace", asked, named);
    }
    let namespace = asked.or(named).unwrap_or(NAMESPACE);
    // That of the request was looked at before.
    params.access().require(Level::Submit, namespace)?;
    if !api.agent.has_namespace(namespace) {
        return Err(Failure::other_namespace(namespace));
    }
    let key = within(namespace, path)?;
    match put.path.as_str() {
        "" => Ok((key, put.items)),
        path if path == key.path.as_str() => Ok((key, put.items)),
        path => other("path", key.path.as_str(), path),
    }
}

/// A conflict is answered with what is there.
fn refused(params: &Params, error: VariableError) -> Result<Response, Failure> {
    let VariableError::Conflict { key, index, present, .. } = &error else {
        return Err(Failure::Variable(error));
    };
    let none = || wire::Variable {
        namespace: key.namespace.as_str().into(),
        path: key.path.as_str().into(),
        ..wire::Variable::default()
    };
    let shown = present.as_deref().map_or_else(none, whole);
    let mut response = reply::json(params, &shown)?;
    *response.status_mut() = StatusCode::CONFLICT;
    Ok(reply::at_index(*index, response))
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

fn whole(of: &Variable) -> wire::Variable<'_> {
    let wire::VariableMetadata {
        namespace,
        path,
        create_index,
        modify_index,
        create_time,
        modify_time,
    } = metadata(of);
    let items = of.items.clone();
    wire::Variable { namespace, path, create_index, modify_index, create_time, modify_time, items }
}
