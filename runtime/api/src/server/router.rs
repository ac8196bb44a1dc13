//! The routes, and what applies to all of them: region, deadline, body size.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use tokio_util::sync::CancellationToken;

use super::access::admit;
use super::client::CpuSamples;
use super::compute_pool::ComputePool;
use super::drain::drain_request;
use super::error::RequestFailure;
use super::event_render::EventCache;
use super::gzip::pack_answer;
use super::handlers::handler;
use super::host::CoreSamples;
use super::hosts::Hosts;
use super::index::ListIndex;
use super::params::Params;
use super::shares::{CallerShares, limit_bodies};
use super::stub_render::StubCache;
use super::{evaluations, exec, json, live, nodes, scaling};
use crate::agent_log::AgentLog;
use crate::routes::{Route, RouteGate};
use ostler_access::Tokens;
use ostler_agent::AgentHandle;
use ostler_model::clock::{self, Clock};
use ostler_model::ids::JobId;
use ostler_model::limits::{
    API_BODY_BYTES_MAX, API_REQUEST_WALL_MAX, API_START_WAIT, API_WAIT_MAX,
};
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
    pub sessions: exec::Sessions,
    /// The last snapshot of the node, for clients that follow it.
    pub live: live::LiveSnapshotCache,
    /// The short forms of allocations in lists.
    pub stubs: Arc<StubCache>,
    seen_jobs: Mutex<ListIndex<JobId>>,
    processor: Mutex<CpuSamples>,
    cores: Mutex<CoreSamples>,
    scalings: Mutex<scaling::ScalingHistory>,
    purged: Mutex<evaluations::PurgedJobs>,
    nodes: Mutex<nodes::LastNodeState>,
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
            sessions: exec::Sessions::default(),
            live: live::LiveSnapshotCache::default(),
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

    pub fn scalings(&self) -> MutexGuard<'_, scaling::ScalingHistory> {
        self.scalings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn purged(&self) -> MutexGuard<'_, evaluations::PurgedJobs> {
        self.purged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn nodes(&self) -> MutexGuard<'_, nodes::LastNodeState> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cores(&self) -> MutexGuard<'_, CoreSamples> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The router of all routes.
pub(super) fn router(api: Arc<Api>) -> Router {
    let mut routes = Router::new();
    for route in Route::ALL {
        routes = routes.route(route.path(), behind_gate(&api, route.gate(), handler(*route)));
    }
    routes
        .fallback(|| async { RequestFailure::NoPath })
        .method_not_allowed_fallback(|| async { RequestFailure::Method })
        .layer(middleware::from_fn_with_state(Arc::clone(&api), limit_bodies))
        .layer(middleware::from_fn(limit_time))
        .layer(middleware::from_fn(check_region))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), pack_answer))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), admit))
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .layer(middleware::from_fn(drain_request))
        .with_state(api)
}

fn behind_gate(
    api: &Arc<Api>,
    gate: RouteGate,
    handler: MethodRouter<Arc<Api>>,
) -> MethodRouter<Arc<Api>> {
    let state = || Arc::clone(api);
    let namespace = middleware::from_fn_with_state(state(), check_namespace);
    match gate {
        RouteGate::Open => handler,
        RouteGate::Namespace => handler.route_layer(namespace),
        RouteGate::Restored => {
            let restored = middleware::from_fn_with_state(state(), wait_until_restored);
            handler.route_layer(restored).route_layer(namespace)
        }
        RouteGate::Loaded => {
            handler.route_layer(middleware::from_fn_with_state(state(), wait_until_loaded))
        }
    }
}

/// Middleware: a request about jobs or allocations waits, for a while, until all of them are
/// restored.
async fn wait_until_restored(State(api): ApiState, request: Request, next: Next) -> Response {
    let mut stages = api.agent.control().stages();
    let restored = async { drop(stages.wait_for(|stage| stage.is_restored()).await) };
    run_when_ready(&api, restored, request, next).await
}

/// Middleware: a request about a plugin waits, for a while, until all plugins are loaded.
async fn wait_until_loaded(State(api): ApiState, request: Request, next: Next) -> Response {
    run_when_ready(&api, api.agent.wait_plugins_loaded(), request, next).await
}

async fn run_when_ready(
    api: &Api,
    ready: impl Future<Output = ()>,
    request: Request,
    next: Next,
) -> Response {
    let ready = tokio::select! {
        ready = clock::timeout(API_START_WAIT, ready) => ready,
        () = api.leaving.cancelled() => Some(()),
    };
    match ready {
        // The agent drops its state when it leaves. A client must not conclude that objects do not
        // exist.
        Some(()) if api.agent.is_leaving() => RequestFailure::Leaving.into_response(),
        Some(()) => next.run(request).await,
        None => {
            RequestFailure::Starting(nodes::unready_reason(&api.agent.readiness())).into_response()
        }
    }
}

/// Middleware: every request has a deadline. A stream counts as answered when it begins.
async fn limit_time(request: Request, next: Next) -> Response {
    let limit = deadline(request.method());
    clock::timeout(limit, next.run(request))
        .await
        .unwrap_or_else(|| RequestFailure::TooSlow.into_response())
}

/// The deadline of a request. A GET may wait for a change, so it has the longest waiting time,
/// jitter included, in addition to the usual time.
fn deadline(method: &Method) -> Duration {
    if method == Method::GET {
        API_WAIT_MAX + API_WAIT_MAX / 16 + API_REQUEST_WALL_MAX
    } else {
        API_REQUEST_WALL_MAX
    }
}

/// Middleware: a request that changes jobs or allocations must name a namespace that exists. A
/// request that only reads finds nothing in others.
async fn check_namespace(
    State(api): ApiState,
    params: Params,
    request: Request,
    next: Next,
) -> Response {
    match params.text("namespace") {
        Some(other) if !api.agent.has_namespace(other) && request.method() != Method::GET => {
            RequestFailure::other_namespace(other).into_response()
        }
        _ => next.run(request).await,
    }
}

async fn check_region(params: Params, request: Request, next: Next) -> Response {
    match params.text("region") {
        Some(region) if region != json::REGION => {
            RequestFailure::OtherRegion(region.chars().take(64).collect()).into_response()
        }
        _ => next.run(request).await,
    }
}
