//! The agent as a whole: its health, its counts, and what Nomad's tools ask of any agent.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::client::collect_answer;
use super::error::RequestFailure;
use super::json;
use super::node_state::unready_reason;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use ostler_agent::AgentStage;
use ostler_model::alloc::ClientStatus;

/// The address under which Nomad's tools know the one server, which is this agent.
pub(super) const SELF_ADDRESS: &str = "127.0.0.1:4647";

/// `GET /v1/agent/health`: status 200 as soon as the agent takes jobs.
pub(super) async fn health(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    let readiness = api.agent.readiness();
    let told = unready_reason(&readiness);
    let ready = readiness.stage == AgentStage::Ready;
    let message = if told.is_empty() { "ok" } else { &told };
    let mut response = reply::json(&params, &json::agent::health(ready, message))?;
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

/// `GET /v1/agent/self`
pub(super) async fn agent_self(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    let (node, state) = (api.agent.node(), json!(api.agent.state_stats()));
    let data_dir = api.agent.data_dir().display().to_string();
    // There is nothing to count before everything is restored.
    let restored = api.agent.readiness().stage.is_restored();
    let counts = if restored { counts(&api) } else { json!({}) };
    reply::json(&params, &json::agent::agent_self(&node, &data_dir, counts, state))
}

/// The number of jobs, and of allocations by state.
pub(super) fn counts(api: &Api) -> Value {
    let allocs = api.agent.control().allocs();
    let of = |status| allocs.iter().filter(|view| view.state.client_status == status).count();
    json!({
        "jobs": api.agent.control().jobs().len(),
        "num_allocations": allocs.len(),
        "allocations_pending": of(ClientStatus::Pending),
        "allocations_running": of(ClientStatus::Running),
        "allocations_complete": of(ClientStatus::Complete),
        "allocations_failed": of(ClientStatus::Failed),
        "index": api.agent.control().index(),
    })
}

/// `PUT /v1/system/gc`
pub(super) async fn collect(State(api): ApiState) -> Result<Response, RequestFailure> {
    collect_answer(api.agent.control().collect(None).await?)
}

/// `PUT /v1/ostler/run/NAME/end`: end a run that is held back.
pub(super) async fn end_run(
    NamedRequest { api, id: name, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    reply::json(&params, &api.agent.end_run(&name).await?)
}
