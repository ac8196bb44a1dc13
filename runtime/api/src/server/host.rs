//! What the machine uses now.

use std::path::Path;

use axum::extract::State;
use axum::response::Response;

use super::client::{SPAN_MIN, core_mhz};
use super::error::RequestFailure;
use super::json;
use super::nodes::check_id;
use super::params::Params;
use super::reply;
use super::router::{Api, ApiState};
use ostler_model::time::Timestamp;
use ostler_node::usage::{self, CoreShare, CoreTime, HostUsage};

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

/// The last measurement of the cores. Two measurements make a percentage.
#[derive(Debug, Default)]
pub(super) struct CoreSamples {
    last: Option<(Timestamp, Vec<CoreTime>)>,
    /// The last shares, for requests that come again at once.
    told: Vec<CoreShare>,
}

impl CoreSamples {
    /// The share of each core since the last request, or since the machine started for the first
    /// one.
    fn shares(&mut self, cores: &[CoreTime], now: Timestamp) -> Vec<CoreShare> {
        let before = match &self.last {
            Some((at, _)) if now.since(*at) < SPAN_MIN && self.told.len() == cores.len() => {
                return self.told.clone();
            }
            Some((_, before)) => before.as_slice(),
            None => &[],
        };
        let of = |core: &CoreTime| before.iter().find(|before| before.name == core.name);
        self.told = cores.iter().map(|core| core.share_since(of(core))).collect();
        self.last = Some((now, cores.to_vec()));
        self.told.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_since_the_last_question() {
        let core = |idle, total| {
            vec![CoreTime { name: "cpu0".to_owned(), idle, total, ..CoreTime::default() }]
        };
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut cores = CoreSamples::default();
        let mut busy = |idle, total, millis| {
            let shares = cores.shares(&core(idle, total), at(millis));
            shares.first().map(|share| share.busy)
        };
        assert_eq!(busy(50, 100, 1_000), Some(50.0), "since the start");
        assert_eq!(busy(50, 200, 2_000), Some(100.0));
        assert_eq!(busy(55, 205, 2_001), Some(100.0), "asked again at once");
        assert_eq!(busy(150, 300, 3_000), Some(0.0));
    }
}
