//! What the node uses now.

use std::path::Path;

use axum::extract::State;
use axum::response::Response;

use super::client::{SPAN_MIN, core_mhz};
use super::error::Failure;
use super::json;
use super::nodes::check_id;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use ostler_model::time::Timestamp;
use ostler_node::usage::{self, CoreShare, CoreTime, HostUsage};

/// `GET /v1/client/stats`
pub(super) async fn stats(State(api): Shared, params: Params) -> Result<Response, Failure> {
    if let Some(id) = params.text("node_id") {
        check_id(&api, id)?;
    }
    let (usage, shares, now) = look(&api).await?;
    let devices = api.agent.device_stats();
    reply::json(&params, &json::stats::host(usage, &shares, core_mhz(&api), now, &devices))
}

/// What is used now, and what each core did since somebody asked last.
pub(super) async fn look(api: &Api) -> Result<(HostUsage, Vec<CoreShare>, Timestamp), Failure> {
    let data_dir = api.agent.data_dir().to_owned();
    let looking = tokio::task::spawn_blocking(move || usage::look(Path::new("/"), &data_dir));
    let usage = looking.await.map_err(|error| Failure::Internal(error.to_string()))?;
    let now = api.clock.now();
    let shares = api.cores().shares(&usage.cores, now);
    Ok((usage, shares, now))
}

/// Processor time at two moments makes a percentage: what was seen last.
#[derive(Debug, Default)]
pub(super) struct Cores {
    last: Option<(Timestamp, Vec<CoreTime>)>,
    /// What was told then, for those who ask again at once.
    told: Vec<CoreShare>,
}

impl Cores {
    /// Of each core since the last question; since the machine started for the first one.
    fn shares(&mut self, cores: &[CoreTime], now: Timestamp) -> Vec<CoreShare> {
        let before = match &self.last {
            Some((at, _)) if now.since(*at) < SPAN_MIN && self.told.len() == cores.len() => {
                return self.told.clone();
            }
            Some((_, before)) => before.as_slice(),
            None => &[],
        };
        let of = |core: &CoreTime| before.iter().find(|before| before.name == core.name);
        self.told = cores.iter().map(|core| core.since(of(core))).collect();
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
        let mut cores = Cores::default();
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
