//! Answers to what Nomad's tools ask of servers. This agent is no server of a cluster. It answers
//! as a single server would, or says that only a cluster does this.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{any, delete, get, post, put};
use serde_json::json;

use super::agent::{SELF_ADDRESS, get_view};
use super::error::RequestFailure;
use super::json::REGION;
use super::params::Params;
use super::reply;
use super::router::{Api, ApiState};
use ostler_wire::{AgentMember, AgentMembers};

/// The port on which servers would gossip.
const MEMBER_PORT: u16 = 4648;

/// All paths of servers that the agent answers.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/status/leader", get_view(|_| SELF_ADDRESS))
        .route("/v1/status/peers", get_view(|_| [SELF_ADDRESS]))
        .route("/v1/regions", get_view(|_| [REGION]))
        .route("/v1/agent/members", get(members))
        .route(
            "/v1/agent/servers",
            get_view(|_| [SELF_ADDRESS]).put(refuse_alone).post(refuse_alone),
        )
        .route("/v1/agent/join", put(refuse_alone).post(refuse_alone))
        .route("/v1/agent/force-leave", put(force_leave).post(force_leave))
        .route("/v1/operator/raft/configuration", get(raft))
        .route("/v1/operator/raft/peer", delete(refuse_without_cluster))
        .route(
            "/v1/operator/autopilot/configuration",
            get(autopilot).put(refuse_without_cluster).post(refuse_without_cluster),
        )
        .route("/v1/operator/autopilot/health", get(refuse_without_cluster))
        .route(
            "/v1/operator/scheduler/configuration",
            get(scheduler).put(refuse_without_cluster).post(refuse_without_cluster),
        )
        .route("/v1/operator/snapshot", any(refuse_without_cluster))
        .route("/v1/agent/keyring/{*what}", any(refuse_without_cluster))
        .route("/v1/job/{id}/dispatch", post(refuse_without_cluster).put(refuse_without_cluster))
        .route(
            "/v1/job/{id}/periodic/force",
            post(refuse_without_cluster).put(refuse_without_cluster),
        )
        .route("/v1/plugins", get_view(|_| NOTHING))
        .route("/v1/volumes", get_view(|_| NOTHING))
        .route("/v1/plugin/csi/{id}", get(|| async { RequestFailure::NotThere("plugin") }))
        .route("/v1/volume/csi/{id}", get(no_volume).delete(no_volume).put(no_csi).post(no_csi))
        .route("/v1/volume/csi/{id}/detach", delete(no_volume))
        .route("/v1/system/reconcile/summaries", put(reconcile_summaries).post(reconcile_summaries))
        .route("/v1/quotas", any(refuse_enterprise))
        .route("/v1/quota", any(refuse_enterprise))
        .route("/v1/quota/{*name}", any(refuse_enterprise))
        .route("/v1/quota-usages", any(refuse_enterprise))
        .route("/v1/sentinel/{*what}", any(refuse_enterprise))
        .route("/v1/recommendation", any(refuse_enterprise))
        .route("/v1/recommendation/{id}", any(refuse_enterprise))
        .route("/v1/recommendations", any(refuse_enterprise))
        .route("/v1/recommendations/apply", any(refuse_enterprise))
        .route(
            "/v1/operator/license",
            get(no_license).put(refuse_enterprise).post(refuse_enterprise),
        )
}

/// An empty list, for what a node alone does not have.
const NOTHING: [(); 0] = [];

async fn refuse_alone() -> RequestFailure {
    RequestFailure::Alone
}

async fn refuse_without_cluster() -> RequestFailure {
    RequestFailure::OfClusters
}

async fn refuse_enterprise() -> RequestFailure {
    RequestFailure::Enterprise
}

/// `PUT /v1/agent/force-leave?node=`. A node alone has no other member that could be made to leave.
async fn force_leave(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let own = api.agent.node();
    let name = params.required("node")?;
    if name == own.name || name == format!("{}.{REGION}", own.name) {
        Err(RequestFailure::Alone)
    } else {
        Ok(reply::empty_answer())
    }
}

async fn no_volume() -> RequestFailure {
    RequestFailure::NotThere("volume")
}

async fn no_csi() -> RequestFailure {
    RequestFailure::NoCsi
}

/// `GET /v1/operator/autopilot/configuration`: the default settings of servers.
async fn autopilot(params: Params) -> Result<Response, RequestFailure> {
    let settings = json!({
        "CleanupDeadServers": true,
        "CreateIndex": 0,
        "DisableUpgradeMigration": false,
        "EnableCustomUpgrades": false,
        "EnableRedundancyZones": false,
        "LastContactThreshold": "200ms",
        "MaxTrailingLogs": 250,
        "MinQuorum": 0,
        "ModifyIndex": 0,
        "ServerStabilizationTime": "10s",
    });
    reply::json(&params, &settings)
}

/// `GET /v1/operator/scheduler/configuration`: how a node alone places allocations, in the settings
/// of servers. No allocation is stopped for one of a higher priority, and all algorithms choose the
/// only node.
async fn scheduler(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let preemption = json!({
        "BatchSchedulerEnabled": false,
        "ServiceSchedulerEnabled": false,
        "SystemSchedulerEnabled": false,
    });
    let settings = json!({
        "CreateIndex": 0,
        "ModifyIndex": 0,
        "PreemptionConfig": preemption,
        "SchedulerAlgorithm": "binpack",
    });
    let index = api.agent.index();
    let answer = json!({
        "Index": index,
        "KnownLeader": true,
        "LastContact": 0,
        "SchedulerConfig": settings,
    });
    reply::json(&params, &answer)
}

/// `GET /v1/operator/license`: tells Nomad's command line that there is no license.
async fn no_license() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// `PUT /v1/system/reconcile/summaries`. Summaries are counted for each request, so none of them
/// can be wrong.
async fn reconcile_summaries() -> Response {
    reply::empty_answer()
}

/// `GET /v1/agent/members`
async fn members(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let node = api.agent.node();
    let id = node.id.to_string();
    let tags = BTreeMap::from([
        ("role".into(), "nomad".into()),
        ("region".into(), REGION.into()),
        ("dc".into(), (&node.datacenter).into()),
        ("build".into(), env!("CARGO_PKG_VERSION").into()),
        ("id".into(), (&id).into()),
        ("rpc_addr".into(), "127.0.0.1".into()),
        ("port".into(), "4647".into()),
        ("bootstrap".into(), "1".into()),
        ("expect".into(), "1".into()),
    ]);
    let member = AgentMember {
        name: format!("{}.{REGION}", node.name).into(),
        addr: node.host_ip.to_string().into(),
        port: MEMBER_PORT,
        tags,
        status: "alive".into(),
        ..AgentMember::default()
    };
    let all = AgentMembers {
        server_name: (&node.name).into(),
        server_region: REGION.into(),
        server_dc: (&node.datacenter).into(),
        members: vec![member],
    };
    reply::json(&params, &all)
}

/// `GET /v1/operator/raft/configuration`
async fn raft(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let node = api.agent.node();
    let server = json!({
        "ID": node.id.to_string(),
        "Node": format!("{}.{REGION}", node.name),
        "Address": SELF_ADDRESS,
        "Leader": true,
        "Voter": true,
        "RaftProtocol": "none",
    });
    reply::json(&params, &json!({ "Index": api.agent.index(), "Servers": [server] }))
}
