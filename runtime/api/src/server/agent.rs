//! The agent as a whole: how it is, what it has, and what Nomad's tools ask of any agent.

use std::future::ready;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::collected;
use super::error::Failure;
use super::json;
use super::nodes::told;
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use ostler_agent::Stage;
use ostler_model::alloc::ClientStatus;

/// Name under which the one server, this agent, is known to Nomad's tools.
pub(super) const SELF_ADDRESS: &str = "127.0.0.1:4647";

/// `GET` of something that the agent knows at once.
pub(super) fn shown<T: Serialize>(
    look: impl Fn(&Api) -> T + Clone + Send + Sync + 'static,
) -> MethodRouter<Arc<Api>> {
    get(move |State(api): Shared, params: Params| ready(reply::json(&params, &look(&api))))
}

/// `GET /v1/agent/health`: 200 as soon as jobs are taken.
pub(super) async fn health(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let readiness = api.agent.readiness();
    let told = told(&readiness);
    let ready = readiness.stage == Stage::Ready;
    let message = if told.is_empty() { "ok" } else { &told };
    let mut response = reply::json(&params, &json::agent::health(ready, message))?;
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

/// `GET /v1/agent/self`
pub(super) async fn own(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let (node, state) = (api.agent.node(), json!(api.agent.state_stats()));
    let data_dir = api.agent.data_dir().display().to_string();
    // Before all is restored there is nothing to count.
    let restored = api.agent.readiness().stage.restored();
    let counts = if restored { counts(&api) } else { json!({}) };
    reply::json(&params, &json::agent::own(&node, &data_dir, counts, state))
}

/// How many there are of what.
pub(super) fn counts(api: &Api) -> Value {
    let allocs = api.agent.allocs();
    let of = |status| allocs.iter().filter(|view| view.state.client_status == status).count();
    json!({
        "jobs": api.agent.jobs().len(),
        "num_allocations": allocs.len(),
        "allocations_pending": of(ClientStatus::Pending),
        "allocations_running": of(ClientStatus::Running),
        "allocations_complete": of(ClientStatus::Complete),
        "allocations_failed": of(ClientStatus::Failed),
        "index": api.agent.index(),
    })
}

/// `PUT /v1/system/gc`
pub(super) async fn collect(State(api): Shared) -> Result<Response, Failure> {
    collected(api.agent.collect(None).await?)
}

/// `PUT /v1/ostler/run/NAME/end`: end one of them.
pub(super) async fn end_run(Asked { api, id: name, params }: Asked) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.end_run(&name).await?)
}
