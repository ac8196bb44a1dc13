//! The state that all handlers share, and what a handler gets of it.
//!
//! ```text
//! types of the parts: shares, caches, histories, samples ─► Api ─► handlers ─► router
//! ```
//! A part has its type in a file of its own that knows nothing of this one, so that no file of a handler is
//! needed to say what the state is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::compute_pool::ComputePool;
use super::evaluated_change::PurgedJobs;
use super::event_cache::EventCache;
use super::hosts::Hosts;
use super::index::ListIndex;
use super::live_snapshot::LiveSnapshotCache;
use super::node_state::LastNodeState;
use super::params::Params;
use super::samples::{CoreSamples, CpuSamples};
use super::scaling_history::ScalingHistory;
use super::sessions::Sessions;
use super::shares::CallerShares;
use super::stub_render::StubCache;
use crate::agent_log::AgentLog;
use ostler_access::Tokens;
use ostler_agent::AgentHandle;
use ostler_model::clock::Clock;
use ostler_model::ids::JobId;
use ostler_model::rng::Rng;

/// The state that all handlers share.
pub(super) struct Api {
    pub agent: AgentHandle,
    /// The tokens, which say who may do what.
    pub tokens: Tokens,
    /// The names by which requests over TCP may address the API.
    pub hosts: Hosts,
    /// The log of the agent.
    pub log: Arc<AgentLog>,
    /// Cancelled when the API ends, so that nothing waits any longer.
    pub leaving: CancellationToken,
    pub clock: Clock,
    pub rng: Rng,
    /// The places for streams.
    pub streams: CallerShares,
    /// The places for queries that wait.
    pub waits: CallerShares,
    /// The places for large bodies.
    pub bodies: CallerShares,
    /// The threads for long computations.
    pub computing: ComputePool,
    /// The events that several streams share.
    pub rendered: EventCache,
    /// The commands that run inside tasks.
    pub sessions: Sessions,
    /// The last snapshot of the node, for clients that follow it.
    pub live: LiveSnapshotCache,
    /// The short forms of allocations in lists.
    pub stubs: Arc<StubCache>,
    seen_jobs: Mutex<ListIndex<JobId>>,
    processor: Mutex<CpuSamples>,
    cores: Mutex<CoreSamples>,
    scalings: Mutex<ScalingHistory>,
    purged: Mutex<PurgedJobs>,
    nodes: Mutex<LastNodeState>,
    /// The agent's index when the API started.
    pub began_at: u64,
}

/// The state of the API as handlers get it.
pub(super) type ApiState = axum::extract::State<Arc<Api>>;

impl Api {
    pub fn new(
        agent: AgentHandle,
        tokens: Tokens,
        hosts: Vec<String>,
        leaving: CancellationToken,
    ) -> Arc<Self> {
        let began_at = agent.control().index();
        Arc::new(Self {
            agent,
            tokens,
            hosts: Hosts::new(hosts),
            log: AgentLog::for_process(),
            leaving,
            clock: Clock::system(),
            rng: Rng::system(),
            streams: CallerShares::for_streams(),
            waits: CallerShares::for_waits(),
            bodies: CallerShares::for_bodies(),
            computing: ComputePool::new(),
            rendered: EventCache::default(),
            sessions: Sessions::default(),
            live: LiveSnapshotCache::default(),
            stubs: Arc::default(),
            seen_jobs: Mutex::new(ListIndex::new(began_at)),
            processor: Mutex::default(),
            cores: Mutex::default(),
            scalings: Mutex::default(),
            purged: Mutex::default(),
            nodes: Mutex::default(),
            began_at,
        })
    }

    /// The index of the list of jobs.
    pub fn seen_jobs(&self) -> MutexGuard<'_, ListIndex<JobId>> {
        self.seen_jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn processor(&self) -> MutexGuard<'_, CpuSamples> {
        self.processor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn scalings(&self) -> MutexGuard<'_, ScalingHistory> {
        self.scalings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn purged(&self) -> MutexGuard<'_, PurgedJobs> {
        self.purged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn nodes(&self) -> MutexGuard<'_, LastNodeState> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cores(&self) -> MutexGuard<'_, CoreSamples> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a handler gets if its path names an object: the API, that name and the query.
pub(super) struct NamedRequest<P = String> {
    pub api: Arc<Api>,
    pub id: P,
    pub params: Params,
}

impl<P: DeserializeOwned + Send> FromRequestParts<Arc<Api>> for NamedRequest<P> {
    type Rejection = PathRejection;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, PathRejection> {
        let Path(id) = Path::from_request_parts(parts, api).await?;
        Ok(Self { api: Arc::clone(api), id, params: Params::from_parts(parts) })
    }
}
