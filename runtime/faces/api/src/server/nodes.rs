//! Requests about the one node.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;

use super::body::{self, Body};
use super::error::RequestFailure;
use super::json::node::{NodeStatusFields, full, stub};
use super::node_state::{stage_word, unready_reason};
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::{DrainAsk, NodeAsk, Readiness};
use ostler_model::scheduling::NodeScheduling;
use ostler_wire::{DrainRequest, DrainSpec, EligibilityRequest, NodeUpdateResponse};

/// Check that `id` is the id of this node, or its beginning.
pub(super) fn check_id(api: &Api, id: &str) -> Result<(), RequestFailure> {
    let own = api.agent.node().id.to_string();
    if !id.is_empty() && own.starts_with(&id.to_ascii_lowercase()) {
        Ok(())
    } else {
        Err(RequestFailure::NotThere("node"))
    }
}

/// The condition of the node, which answers show in addition to its view.
struct NodeCondition {
    readiness: Readiness,
    scheduling: NodeScheduling,
    description: String,
    index: u64,
    created: u64,
}

impl NodeCondition {
    fn from_api(api: &Api) -> Self {
        let readiness = api.agent.readiness();
        let description = unready_reason(&readiness);
        let scheduling = api.agent.control().scheduling();
        let index = api.nodes().index((&api.agent, api.began_at), &readiness, &scheduling);
        Self { readiness, scheduling, description, index, created: api.began_at }
    }

    fn status(&self) -> NodeStatusFields<'_> {
        NodeStatusFields {
            status: stage_word(self.readiness.stage),
            description: &self.description,
            index: self.index,
            created: self.created,
            scheduling: &self.scheduling,
        }
    }
}

/// The node as in lists, with its resources but without the indices, which change with everything.
pub(super) fn node_stub_json(api: &Api) -> serde_json::Value {
    let (node, told) = (api.agent.node(), NodeCondition::from_api(api));
    let status = NodeStatusFields { index: 0, created: 0, ..told.status() };
    // It has only texts and numbers, which can always be written as JSON.
    serde_json::to_value(stub(&node, status, true)).unwrap_or_default()
}

/// `GET /v1/nodes`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let resources = params.flag("resources")?;
    wait::answer(
        &api,
        &params,
        || find_node(&api),
        |told| {
            let node = api.agent.node();
            let wanted = node.id.to_string().starts_with(params.prefix());
            let stub = wanted.then(|| stub(&node, told.status(), resources));
            let stubs: Vec<_> = stub.into_iter().collect();
            reply::json(&params, &stubs)
        },
    )
    .await
}

fn find_node(api: &Api) -> IndexedValue<NodeCondition> {
    let told = NodeCondition::from_api(api);
    IndexedValue { index: told.index, value: Ok(told) }
}

/// `GET /v1/node/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    check_id(&api, &id)?;
    let show = |told: NodeCondition| reply::json(&params, &full(&api.agent.node(), told.status()));
    wait::answer(&api, &params, || find_node(&api), show).await
}

/// The node as in its events.
pub(super) fn node_json(api: &Api) -> serde_json::Value {
    let told = NodeCondition::from_api(api);
    let node = api.agent.node();
    // It has only texts and numbers, which can always be written as JSON.
    serde_json::to_value(full(&node, told.status())).unwrap_or_default()
}

/// `PUT /v1/node/ID/eligibility`
pub(super) async fn eligibility(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    check_id(&api, &id)?;
    let EligibilityRequest { node_id, eligibility } = body::read(&params, body)?;
    let eligible = match eligibility.as_str() {
        "eligible" => true,
        "ineligible" => false,
        other => {
            let other: String = other.chars().take(64).collect();
            let text = format!("Eligibility is {other:?}; it must be eligible or ineligible");
            return Err(RequestFailure::BadRequest(text));
        }
    };
    schedule_node(&api, &params, &id, &node_id, NodeAsk::Eligible(eligible)).await
}

/// `PUT /v1/node/ID/drain`
pub(super) async fn drain(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    check_id(&api, &id)?;
    let DrainRequest { node_id, drain_spec, mark_eligible } = body::read(&params, body)?;
    let asked = match drain_spec {
        None => NodeAsk::EndDrain { eligible: mark_eligible },
        Some(DrainSpec { deadline, ignore_system_jobs }) => NodeAsk::Drain(DrainAsk {
            deadline: match u64::try_from(deadline) {
                Ok(0) => None,
                Ok(nanos) => Some(Duration::from_nanos(nanos)),
                Err(_) => Some(Duration::ZERO),
            },
            ignore_system: ignore_system_jobs,
        }),
    };
    schedule_node(&api, &params, &id, &node_id, asked).await
}

/// `PUT /v1/node/ID/evaluate`. Its jobs are evaluated at each change anyway.
pub(super) async fn evaluate(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    check_id(&api, &id)?;
    change_answer(&params, api.agent.control().index())
}

/// `PUT /v1/node/ID/purge`
pub(super) async fn purge(
    NamedRequest { api, id, .. }: NamedRequest,
) -> Result<Response, RequestFailure> {
    check_id(&api, &id)?;
    Err(RequestFailure::OwnNode)
}

async fn schedule_node(
    api: &Api,
    params: &Params,
    id: &str,
    named: &str,
    asked: NodeAsk,
) -> Result<Response, RequestFailure> {
    if !named.is_empty() && check_id(api, named).is_err() {
        let text = format!(
            "NodeID in the body differs from that in the path, {id}: they must be the same"
        );
        return Err(RequestFailure::BadRequest(text));
    }
    change_answer(params, api.agent.schedule(asked).await?)
}

fn change_answer(params: &Params, index: u64) -> Result<Response, RequestFailure> {
    let answer =
        NodeUpdateResponse { node_modify_index: index, index, ..NodeUpdateResponse::default() };
    Ok(reply::with_index(index, reply::json(params, &answer)?))
}
