//! What Nomad's tools ask of servers. This agent is none and has none beside it: it answers as a server
//! that is alone, or says what only a cluster does.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{any, delete, get, post, put};
use serde_json::json;

use super::agent::{SELF_ADDRESS, shown};
use super::error::Failure;
use super::json::REGION;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use ostler_wire::{AgentMember, AgentMembers};

/// Port under which servers would gossip.
const MEMBER_PORT: u16 = 4648;

/// Every path of servers that the agent has something to say to.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/status/leader", shown(|_| SELF_ADDRESS))
        .route("/v1/status/peers", shown(|_| [SELF_ADDRESS]))
        .route("/v1/regions", shown(|_| [REGION]))
        .route("/v1/agent/members", get(members))
        .route("/v1/agent/servers", shown(|_| [SELF_ADDRESS]).put(alone).post(alone))
        .route("/v1/agent/join", put(alone).post(alone))
        .route("/v1/agent/force-leave", put(force_leave).post(force_leave))
        .route("/v1/operator/raft/configuration", get(raft))
        .route("/v1/operator/raft/peer", delete(of_cluster))
        .route(
            "/v1/operator/autopilot/configuration",
            get(autopilot).put(of_cluster).post(of_cluster),
        )
        .route("/v1/operator/autopilot/health", get(of_cluster))
        .route(
            "/v1/operator/scheduler/configuration",
            get(scheduler).put(of_cluster).post(of_cluster),
        )
        .route("/v1/operator/snapshot", any(of_cluster))
        .route("/v1/agent/keyring/{*what}", any(of_cluster))
        .route("/v1/job/{id}/dispatch", post(of_cluster).put(of_cluster))
        .route("/v1/job/{id}/periodic/force", post(of_cluster).put(of_cluster))
        .route("/v1/plugins", shown(|_| NOTHING))
        .route("/v1/volumes", shown(|_| NOTHING))
        .route("/v1/plugin/csi/{id}", get(|| async { Failure::NotThere("plugin") }))
        .route("/v1/volume/csi/{id}", get(no_volume).delete(no_volume).put(no_csi).post(no_csi))
        .route("/v1/volume/csi/{id}/detach", delete(no_volume))
        .route("/v1/system/reconcile/summaries", put(reconciled).post(reconciled))
        .route("/v1/quotas", any(enterprise))
        .route("/v1/quota", any(enterprise))
        .route("/v1/quota/{*name}", any(enterprise))
        .route("/v1/quota-usages", any(enterprise))
        .route("/v1/sentinel/{*what}", any(enterprise))
        .route("/v1/recommendation", any(enterprise))
        .route("/v1/recommendation/{id}", any(enterprise))
        .route("/v1/recommendations", any(enterprise))
        .route("/v1/recommendations/apply", any(enterprise))
        .route("/v1/operator/license", get(no_license).put(enterprise).post(enterprise))
}

/// A list of what a node alone has none of.
const NOTHING: [(); 0] = [];

async fn alone() -> Failure {
    Failure::Alone
}

async fn of_cluster() -> Failure {
    Failure::OfClusters
}

async fn enterprise() -> Failure {
    Failure::Enterprise
}

/// `PUT /v1/agent/force-leave?node=`: of a node alone there is nobody else who could be made to leave.
async fn force_leave(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let own = api.agent.node();
    let name = params.required("node")?;
    match name == own.name || name == format!("{}.{REGION}", own.name) {
        true => Err(Failure::Alone),
        false => Ok(reply::done()),
    }
}

async fn no_volume() -> Failure {
    Failure::NotThere("volume")
}

async fn no_csi() -> Failure {
    Failure::NoCsi
}

/// `GET /v1/operator/autopilot/configuration`: what servers begin with.
async fn autopilot(params: Params) -> Result<Response, Failure> {
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

/// `GET /v1/operator/scheduler/configuration`: how a node alone places, in the words of servers. No allocation is
/// stopped for one of a higher priority, and where there is one node, all algorithms choose it.
async fn scheduler(State(api): Shared, params: Params) -> Result<Response, Failure> {
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

/// `GET /v1/operator/license`: the stock command line knows by it that there is none.
async fn no_license() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// `PUT /v1/system/reconcile/summaries`: they are counted when they are asked for, so none is wrong.
async fn reconciled() -> Response {
    reply::done()
}

/// `GET /v1/agent/members`
async fn members(State(api): Shared, params: Params) -> Result<Response, Failure> {
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
async fn raft(State(api): Shared, params: Params) -> Result<Response, Failure> {
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
