//! The one node.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, put};

use super::body;
use super::error::Failure;
use super::jobs::Body;
use super::json::node::{NodeStatus, full, stub};
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::{DrainAsk, NodeAsk, Readiness, Stage};
use ostler_model::scheduling::NodeScheduling;
use ostler_node::NodeView;
use ostler_wire::{DrainRequest, DrainSpec, EligibilityRequest, NodeChanged};

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

/// What the answers say of the node beside its view.
struct Told {
    readiness: Readiness,
    scheduling: NodeScheduling,
    description: String,
    index: u64,
    created: u64,
}

impl Told {
    fn of(api: &Api) -> Self {
        let readiness = api.agent.readiness();
        let description = told(&readiness);
        let scheduling = api.agent.scheduling();
        let index = api.nodes().index(api, &readiness, &scheduling);
        Self { readiness, scheduling, description, index, created: api.began_at }
    }

    fn status(&self) -> NodeStatus<'_> {
        NodeStatus {
            status: word(self.readiness.stage),
            description: &self.description,
            index: self.index,
            created: self.created,
            scheduling: &self.scheduling,
        }
    }
}

/// How the node was when it was last asked for, and the index of its last change.
#[derive(Default)]
pub(super) struct NodeSeen {
    view: Option<Arc<NodeView>>,
    readiness: Readiness,
    index: u64,
}

impl NodeSeen {
    /// The index of the last change. What only the view says has the index at which it was first seen so.
    fn index(&mut self, api: &Api, readiness: &Readiness, scheduling: &NodeScheduling) -> u64 {
        let view = api.agent.node();
        let same = self.view.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &view));
        if !same || self.readiness != *readiness {
            self.index = if self.view.is_some() { api.agent.index() } else { api.began_at };
            (self.view, self.readiness) = (Some(view), readiness.clone());
        }
        self.index.max(scheduling.modify_index)
    }
}

/// The node as lists have it, with what it has; without the indices, which change with everything.
pub(super) fn own(api: &Api) -> serde_json::Value {
    let (node, told) = (api.agent.node(), Told::of(api));
    let status = NodeStatus { index: 0, created: 0, ..told.status() };
    // It has texts and numbers alone, which are always JSON.
    serde_json::to_value(stub(&node, status, true)).unwrap_or_default()
}

/// `GET /v1/nodes`
async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let resources = params.flag("resources")?;
    wait::answer(
        &api,
        &params,
        || look(&api),
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

fn look(api: &Api) -> Found<Told> {
    let told = Told::of(api);
    Found { index: told.index, value: Ok(told) }
}

/// `GET /v1/node/ID`
async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    check_id(&api, &id)?;
    let show = |told: Told| reply::json(&params, &full(&api.agent.node(), told.status()));
    wait::answer(&api, &params, || look(&api), show).await
}

/// The node as its events have it.
pub(super) fn shown(api: &Api) -> serde_json::Value {
    let told = Told::of(api);
    let node = api.agent.node();
    // It has texts and numbers alone, which are always JSON.
    serde_json::to_value(full(&node, told.status())).unwrap_or_default()
}

/// Every path of nodes that is answered while the agent starts.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/nodes", get(list))
        .route("/v1/node/{id}", get(read))
        .route("/v1/node/{id}/eligibility", put(eligibility).post(eligibility))
        .route("/v1/node/{id}/drain", put(drain).post(drain))
        .route("/v1/node/{id}/evaluate", put(evaluate).post(evaluate))
        .route("/v1/node/{id}/purge", put(purge).post(purge))
}

/// `PUT /v1/node/ID/eligibility`
async fn eligibility(Asked { api, id, params }: Asked, body: Body) -> Result<Response, Failure> {
    check_id(&api, &id)?;
    let EligibilityRequest { node_id, eligibility } = body::read(&params, body)?;
    let eligible = match eligibility.as_str() {
        "eligible" => true,
        "ineligible" => false,
        other => {
            let other: String = other.chars().take(64).collect();
            let text = format!("Eligibility is {other:?}; it must be eligible or ineligible");
            return Err(Failure::BadRequest(text));
        }
    };
    changed(&api, &params, &id, &node_id, NodeAsk::Eligible(eligible)).await
}

/// `PUT /v1/node/ID/drain`
async fn drain(Asked { api, id, params }: Asked, body: Body) -> Result<Response, Failure> {
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
    changed(&api, &params, &id, &node_id, asked).await
}

/// `PUT /v1/node/ID/evaluate`: its jobs are looked at again at each change anyway.
async fn evaluate(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    check_id(&api, &id)?;
    answered(&params, api.agent.index())
}

/// `PUT /v1/node/ID/purge`
async fn purge(Asked { api, id, .. }: Asked) -> Result<Response, Failure> {
    check_id(&api, &id)?;
    Err(Failure::OwnNode)
}

async fn changed(
    api: &Api,
    params: &Params,
    id: &str,
    named: &str,
    asked: NodeAsk,
) -> Result<Response, Failure> {
    if !named.is_empty() && check_id(api, named).is_err() {
        let text =
            format!("the body has another NodeID than the path, {id}: they must be the same");
        return Err(Failure::BadRequest(text));
    }
    answered(params, api.agent.schedule(asked).await?)
}

fn answered(params: &Params, index: u64) -> Result<Response, Failure> {
    let answer = NodeChanged { node_modify_index: index, index, ..NodeChanged::default() };
    Ok(reply::at_index(index, reply::json(params, &answer)?))
}
