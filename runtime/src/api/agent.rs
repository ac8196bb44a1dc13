//! The agent as a whole: how it is, what it has, and what Nomad's tools ask of any agent.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::client::collected;
use super::error::Failure;
use super::json::REGION;
use super::json::agent::{HealthJson, MetricsJson, OwnJson};
use super::nodes::told;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use crate::agent::Stage;
use ostler_model::alloc::ClientStatus;

/// Name under which the one server, this agent, is known to Nomad's tools.
const SELF_ADDRESS: &str = "127.0.0.1:4647";

/// Lists of what a node without a cluster does not have.
pub(super) async fn nothing(State(api): Shared, params: Params) -> Result<Response, Failure> {
    Ok(reply::read_at(api.began_at, reply::json(&params, &[(); 0])?))
}

/// `GET /v1/agent/health`: 200 as soon as jobs are taken.
pub(super) async fn health(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let readiness = api.agent.readiness();
    let told = told(&readiness);
    let ready = readiness.stage == Stage::Ready;
    let message = if told.is_empty() { "ok" } else { &told };
    let mut response = reply::json(&params, &HealthJson::new(ready, message))?;
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
    reply::json(&params, &OwnJson::new(&node, &data_dir, counts, state))
}

fn counts(api: &Api) -> Value {
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

/// `GET /v1/status/leader`
pub(super) async fn leader(params: Params) -> Result<Response, Failure> {
    reply::json(&params, SELF_ADDRESS)
}

/// `GET /v1/status/peers`
pub(super) async fn peers(params: Params) -> Result<Response, Failure> {
    reply::json(&params, &[SELF_ADDRESS])
}

/// `GET /v1/regions`
pub(super) async fn regions(params: Params) -> Result<Response, Failure> {
    reply::json(&params, &[REGION])
}

/// The one namespace there is.
fn default_namespace() -> Value {
    json!({
        "Name": DEFAULT_NAMESPACE,
        "Description": "Default shared namespace",
        "CreateIndex": 1,
        "ModifyIndex": 1,
    })
}

const DEFAULT_NAMESPACE: &str = "default";

/// `GET /v1/namespaces`
pub(super) async fn namespaces(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let begins = DEFAULT_NAMESPACE.starts_with(params.prefix());
    let all: Vec<Value> = begins.then(default_namespace).into_iter().collect();
    Ok(reply::read_at(api.began_at, reply::json(&params, &all)?))
}

/// `GET /v1/namespace/NAME`
pub(super) async fn namespace(
    State(api): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, Failure> {
    if name != DEFAULT_NAMESPACE {
        return Err(Failure::NoNamespace);
    }
    Ok(reply::read_at(api.began_at, reply::json(&params, &default_namespace())?))
}

/// `PUT /v1/system/gc`
pub(super) async fn collect(State(api): Shared) -> Result<Response, Failure> {
    collected(api.agent.collect(None).await?)
}

/// `GET /v1/metrics`
pub(super) async fn metrics(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let objects = [("client", counts(&api)), ("state", json!(api.agent.state_stats()))];
    reply::json(&params, &MetricsJson::new(api.clock.now(), &objects))
}

/// `GET /v1/ostler/node`: everything known about the node.
pub(super) async fn node(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &*api.agent.node())
}

/// `GET /v1/ostler/plugins`
pub(super) async fn plugins(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.plugins_now())
}

/// `GET /v1/ostler/plugins/status`: how every plugin does, and what its calls cost.
pub(super) async fn plugins_status(
    State(api): Shared,
    params: Params,
) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.plugins_status())
}

/// `GET /v1/ostler/watches`: what wakes fingerprints, and what of it does not work.
pub(super) async fn watches(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.watches())
}

/// `GET /v1/ostler/devices`: every device with its holder and what it measures.
pub(super) async fn devices(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.devices())
}

/// `GET /v1/ostler/state`: what the state store did so far.
pub(super) async fn state(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.state_stats())
}

/// `GET /v1/ostler/runs`: what lives and is held back.
pub(super) async fn runs(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.held())
}

/// `PUT /v1/ostler/run/SUPERVISOR/end`: end one of them.
pub(super) async fn end_run(
    State(api): Shared,
    Path(supervisor): Path<u32>,
    params: Params,
) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.end_run(supervisor).await?)
}

/// `GET /v1/ostler/readiness`
pub(super) async fn readiness(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.readiness())
}

/// `GET /v1/ostler/jobs-dir`: `null` without one.
pub(super) async fn jobs_dir(State(api): Shared, params: Params) -> Result<Response, Failure> {
    reply::json(&params, &api.agent.jobs_dir())
}
