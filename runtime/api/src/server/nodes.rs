//! The one node.

use axum::extract::State;
use axum::response::Response;

use super::error::Failure;
use super::json::node::{NodeStatus, full, stub};
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use ostler_agent::{Readiness, Stage};

/// The node's id, in full or its beginning, is meant.
pub(super) fn check_id(api: &Api, id: &str) -> Result<(), Failure> {
    let own = api.agent.node().id.to_string();
    if !id.is_empty() && own.starts_with(&id.to_ascii_lowercase()) {
        Ok(())
    } else {
        Err(Failure::NotThere("node"))
    }
}

/// What keeps the agent from being ready; empty when nothing does.
pub(super) fn told(readiness: &Readiness) -> String {
    let stage = match readiness.stage {
        Stage::Starting => "starting".to_owned(),
        Stage::Restoring { done, total } => format!("restoring {done} of {total} allocations"),
        Stage::Ready => String::new(),
        Stage::Leaving => "leaving".to_owned(),
    };
    let waiting: Vec<&str> = readiness.waiting.iter().map(|name| name.as_str()).collect();
    let lists = [
        ("loading plugins", readiness.loading.join(", ")),
        ("waiting for plugins", waiting.join(", ")),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let lists = lists.map(|(what, names)| format!("{what}: {names}"));
    let parts: Vec<String> =
        Some(stage).filter(|stage| !stage.is_empty()).into_iter().chain(lists).collect();
    parts.join("; ")
}

/// How the node is, in the words of Nomad's lists.
pub(super) const fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Starting | Stage::Restoring { .. } => "initializing",
        Stage::Ready => "ready",
        Stage::Leaving => "down",
    }
}

fn status<'a>(api: &Api, readiness: &Readiness, description: &'a str) -> NodeStatus<'a> {
    let status = word(readiness.stage);
    // The node has no index of its own: each change of anything may be one of the node.
    NodeStatus { status, description, index: api.agent.index(), created: api.began_at }
}

/// `GET /v1/nodes`
pub(super) async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let (node, readiness) = (api.agent.node(), api.agent.readiness());
    let description = told(&readiness);
    let status = status(&api, &readiness, &description);
    let stub = stub(&node, status, params.flag("resources")?);
    let wanted = node.id.to_string().starts_with(params.prefix());
    let stubs: Vec<_> = wanted.then_some(stub).into_iter().collect();
    Ok(reply::read_at(status.index, reply::json(&params, &stubs)?))
}

/// `GET /v1/node/ID`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    check_id(&api, &id)?;
    let (node, readiness) = (api.agent.node(), api.agent.readiness());
    let description = told(&readiness);
    let status = status(&api, &readiness, &description);
    Ok(reply::read_at(status.index, reply::json(&params, &full(&node, status))?))
}
