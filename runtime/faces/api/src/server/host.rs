//! What the machine uses now.

use std::path::Path;

use axum::extract::State;
use axum::response::Response;

use super::client::core_mhz;
use super::error::RequestFailure;
use super::json;
use super::nodes::check_id;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState};
use ostler_model::time::Timestamp;
use ostler_node::usage::{self, CoreShare, HostUsage};

/// `GET /v1/client/stats`
pub(super) async fn stats(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    if let Some(id) = params.text("node_id") {
        check_id(&api, id)?;
    }
    let (usage, shares, now) = measure_usage(&api).await?;
    let devices = api.agent.device_stats();
    reply::json(&params, &json::stats::host(usage, &shares, core_mhz(&api), now, &devices))
}

/// What the machine uses now, and the share of each core since the last request.
pub(super) async fn measure_usage(
    api: &Api,
) -> Result<(HostUsage, Vec<CoreShare>, Timestamp), RequestFailure> {
    let data_dir = api.agent.data_dir().to_owned();
    let looking =
        tokio::task::spawn_blocking(move || usage::read_host_usage(Path::new("/"), &data_dir));
    let usage = looking.await.map_err(|error| RequestFailure::Internal(error.to_string()))?;
    let now = api.clock.now();
    let shares = api.cores().shares(&usage.cores, now);
    Ok((usage, shares, now))
}
