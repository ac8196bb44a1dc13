//! Namespaces of jobs. Those of the configuration can only be read here; others can also be
//! created, changed and removed.

use axum::extract::State;
use axum::response::Response;

use super::body::{self, Body};
use super::error::RequestFailure;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::KnownNamespace;
use ostler_model::access::AccessLevel;
use ostler_model::ids::Namespace as Name;
use ostler_wire::{NamespaceRequest, WireNamespace};

fn namespace_json<'a>((name, known): (&'a Name, &'a KnownNamespace)) -> WireNamespace<'a> {
    WireNamespace {
        name: name.as_str().into(),
        description: (&known.description).into(),
        create_index: known.create_index,
        modify_index: known.modify_index,
        configured: known.configured,
        ..WireNamespace::default()
    }
}

fn index(api: &Api) -> u64 {
    *api.agent.node_namespaces().indexes().borrow()
}

/// `GET /v1/namespaces`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let changes = api.agent.node_namespaces().indexes();
    let wait = params.wait_from(index(&api))?;
    let look = || IndexedValue { index: index(&api), value: Ok(api.agent.namespaces()) };
    wait::answer_on(&api, &params, wait, changes, look, |all| {
        let may_see = |name: &Name| params.access().allow(AccessLevel::Read, name.as_str());
        let wanted = |name: &Name| name.as_str().starts_with(params.prefix()) && may_see(name);
        let all: Vec<_> = all.iter().filter(|(name, _)| wanted(name)).map(namespace_json).collect();
        reply::json(&params, &all)
    })
    .await
}

/// `GET /v1/namespace/NAME`
pub(super) async fn read(
    NamedRequest { api, id: name, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    params.access().require(AccessLevel::Read, &name)?;
    let all = api.agent.namespaces();
    let found = all.get_key_value(name.as_str()).ok_or(RequestFailure::NotThere("namespace"))?;
    Ok(reply::with_read_index(found.1.modify_index, reply::json(&params, &namespace_json(found))?))
}

/// `PUT /v1/namespace`: the body names the namespace.
pub(super) async fn make(
    State(api): ApiState,
    params: Params,
    body: Body,
) -> Result<Response, RequestFailure> {
    put_as(&api, None, body::read_shown::<_, WireNamespace<'_>>(&params, body)?).await
}

/// `PUT /v1/namespace/NAME`
pub(super) async fn change(
    NamedRequest { api, id: name, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    put_as(&api, Some(name), body::read_shown::<_, WireNamespace<'_>>(&params, body)?).await
}

async fn put_as(
    api: &Api,
    path: Option<String>,
    request: NamespaceRequest,
) -> Result<Response, RequestFailure> {
    let NamespaceRequest { name, description, quota } = request;
    if !quota.is_empty() {
        return Err(RequestFailure::Enterprise);
    }
    let named = match path {
        Some(path) if !name.is_empty() && name != path => {
            let text = "Name in the body differs from that in the path: they must be the same";
            return Err(RequestFailure::BadRequest(text.to_owned()));
        }
        Some(path) => path,
        None => name,
    };
    let name = Name::new(&named).map_err(|error| RequestFailure::BadRequest(error.to_string()))?;
    let index = api.agent.node_namespaces().put(name, description).await?;
    Ok(reply::with_index(index, reply::empty_answer()))
}

/// `DELETE /v1/namespace/NAME`
pub(super) async fn remove(
    NamedRequest { api, id: name, .. }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let name = Name::new(&name).map_err(|_| RequestFailure::NotThere("namespace"))?;
    let index = api.agent.remove_namespace(name).await?;
    Ok(reply::with_index(index, reply::empty_answer()))
}
