//! Answers to what Nomad's tools ask of servers. This agent is no server of a cluster. It answers
//! as a single server would, or says that only a cluster does this.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use super::agent::SELF_ADDRESS;
use super::error::RequestFailure;
use super::json::REGION;
use super::params::Params;
use super::reply;
use super::state::ApiState;
use ostler_wire::{AgentMember, AgentMembers};

/// The port on which servers would gossip.
const MEMBER_PORT: u16 = 4648;

/// An empty list, for what a node alone does not have.
pub(super) const NOTHING: [(); 0] = [];

pub(super) async fn no_csi_plugin() -> RequestFailure {
    RequestFailure::NotThere("plugin")
}

pub(super) async fn refuse_alone() -> RequestFailure {
    RequestFailure::Alone
}

pub(super) async fn refuse_without_cluster() -> RequestFailure {
    RequestFailure::OfClusters
}

pub(super) async fn refuse_enterprise() -> RequestFailure {
    RequestFailure::Enterprise
}

/// `PUT /v1/agent/force-leave?node=`. A node alone has no other member that could be made to leave.
pub(super) async fn force_leave(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    let own = api.agent.node();
    let name = params.required("node")?;
    if name == own.name || name == format!("{}.{REGION}", own.name) {
        Err(RequestFailure::Alone)
    } else {
        Ok(reply::empty_answer())
    }
}

pub(super) async fn no_volume() -> RequestFailure {
    RequestFailure::NotThere("volume")
}

pub(super) async fn no_csi() -> RequestFailure {
    RequestFailure::NoCsi
}

/// `GET /v1/operator/autopilot/configuration`: the default settings of servers.
pub(super) async fn autopilot(params: Params) -> Result<Response, RequestFailure> {
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
pub(super) async fn scheduler(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
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
    let index = api.agent.control().index();
    let answer = json!({
        "Index": index,
        "KnownLeader": true,
        "LastContact": 0,
        "SchedulerConfig": settings,
    });
    reply::json(&params, &answer)
}

/// `GET /v1/operator/license`: tells Nomad's command line that there is no license.
pub(super) async fn no_license() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// `PUT /v1/system/reconcile/summaries`. Summaries are counted for each request, so none of them
/// can be wrong.
pub(super) async fn reconcile_summaries() -> Response {
    reply::empty_answer()
}

/// `GET /v1/agent/members`
pub(super) async fn members(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
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
pub(super) async fn raft(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let node = api.agent.node();
    let server = json!({
        "ID": node.id.to_string(),
        "Node": format!("{}.{REGION}", node.name),
        "Address": SELF_ADDRESS,
        "Leader": true,
        "Voter": true,
        "RaftProtocol": "none",
    });
    reply::json(&params, &json!({ "Index": api.agent.control().index(), "Servers": [server] }))
}
