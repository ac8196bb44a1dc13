//! Namespaces of jobs: those of the configuration are looked at here, others are made, changed and removed too.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, put};

use super::body;
use super::error::Failure;
use super::jobs::Body;
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::KnownNamespace;
use ostler_model::access::Level;
use ostler_model::ids::Namespace as Name;
use ostler_wire::{Namespace, NamespaceRequest};

/// Every path of namespaces.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/namespaces", get(list))
        .route("/v1/namespace", put(make).post(make))
        .route("/v1/namespace/{name}", get(read).put(change).post(change).delete(remove))
}

fn described<'a>((name, known): (&'a Name, &'a KnownNamespace)) -> Namespace<'a> {
    Namespace {
        name: name.as_str().into(),
        description: (&known.description).into(),
        create_index: known.create_index,
        modify_index: known.modify_index,
        configured: known.configured,
        ..Namespace::default()
    }
}

fn index(api: &Api) -> u64 {
    *api.agent.node_namespaces().indexes().borrow()
}

/// `GET /v1/namespaces`
async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let changes = api.agent.node_namespaces().indexes();
    let wait = params.wait_from(index(&api))?;
    let look = || Found { index: index(&api), value: Ok(api.agent.namespaces()) };
    wait::answer_on(&api, &params, wait, changes, look, |all| {
        let may_see = |name: &Name| params.access().allow(Level::Read, name.as_str());
        let wanted = |name: &Name| name.as_str().starts_with(params.prefix()) && may_see(name);
        let all: Vec<_> = all.iter().filter(|(name, _)| wanted(name)).map(described).collect();
        reply::json(&params, &all)
    })
    .await
}

/// `GET /v1/namespace/NAME`
async fn read(Asked { api, id: name, params }: Asked) -> Result<Response, Failure> {
    params.access().require(Level::Read, &name)?;
    let all = api.agent.namespaces();
    let found = all.get_key_value(name.as_str()).ok_or(Failure::NotThere("namespace"))?;
    Ok(reply::read_at(found.1.modify_index, reply::json(&params, &described(found))?))
}

/// `PUT /v1/namespace`: the body names it.
async fn make(State(api): Shared, params: Params, body: Body) -> Result<Response, Failure> {
    put_as(&api, None, body::read_shown::<_, Namespace<'_>>(&params, body)?).await
}

/// `PUT /v1/namespace/NAME`
async fn change(Asked { api, id: name, params }: Asked, body: Body) -> Result<Response, Failure> {
    put_as(&api, Some(name), body::read_shown::<_, Namespace<'_>>(&params, body)?).await
}

async fn put_as(
    api: &Api,
    path: Option<String>,
    request: NamespaceRequest,
) -> Result<Response, Failure> {
    let NamespaceRequest { name, description, quota } = request;
    if !quota.is_empty() {
        return Err(Failure::Enterprise);
    }
    let named = match path {
        Some(path) if !name.is_empty() && name != path => {
            let text = "the body has another Name than the path: they must be the same";
            return Err(Failure::BadRequest(text.to_owned()));
        }
        Some(path) => path,
        None => name,
    };
    let name = Name::new(&named).map_err(|error| Failure::BadRequest(error.to_string()))?;
    let index = api.agent.node_namespaces().put(name, description).await?;
    Ok(reply::at_index(index, reply::done()))
}

/// `DELETE /v1/namespace/NAME`
async fn remove(Asked { api, id: name, .. }: Asked) -> Result<Response, Failure> {
    let name = Name::new(&name).map_err(|_| Failure::NotThere("namespace"))?;
    let index = api.agent.remove_namespace(name).await?;
    Ok(reply::at_index(index, reply::done()))
}
