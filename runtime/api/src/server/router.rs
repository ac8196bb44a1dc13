//! The routes, and what applies to all of them: region, deadline, body size.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use tokio_util::sync::CancellationToken;

use super::access::{Hosts, admit};
use super::agent::get_view;
use super::client::CpuSamples;
use super::compute_pool::ComputePool;
use super::drain::drain_request;
use super::error::RequestFailure;
use super::event_render::EventCache;
use super::gzip::pack_answer;
use super::host::CoreSamples;
use super::index::ListIndex;
use super::params::Params;
use super::shares::{CallerShares, limit_bodies};
use super::stub_render::StubCache;
use super::{
    agent, allocs, blocked, client, debug, deployments, evaluations, event_stream, events, exec,
    fs, fs_stream, host, jobs, json, live, logs, metrics, monitor, namespaces, nodes, plugins,
    scaling, search, servers, services, snapshot, tokens, ui, variables,
};
use crate::agent_log::AgentLog;
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
        let began_at = agent.index();
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

/// The router of all paths.
pub(super) fn router(api: Arc<Api>) -> Router {
    let jobs = Router::new()
        .route("/v1/jobs", get(jobs::list).post(jobs::register).put(jobs::register))
        .route("/v1/jobs/parse", post(jobs::parse).put(jobs::parse))
        .route("/v1/validate/job", post(jobs::validate).put(jobs::validate))
        .route(
            "/v1/job/{id}",
            get(jobs::read).post(jobs::update).put(jobs::update).delete(jobs::stop),
        )
        .route("/v1/job/{id}/plan", post(jobs::plan).put(jobs::plan))
        .route("/v1/job/{id}/summary", get(jobs::summary))
        .route("/v1/job/{id}/evaluate", post(jobs::evaluate).put(jobs::evaluate))
        .route("/v1/job/{id}/versions", get(jobs::versions))
        .route("/v1/job/{id}/allocations", get(allocs::list_of_job))
        .route("/v1/job/{id}/evaluations", get(evaluations::list_of_job))
        .route("/v1/job/{id}/deployments", get(deployments::list_of_job))
        .route("/v1/job/{id}/deployment", get(deployments::newest_of_job))
        .route("/v1/job/{id}/revert", post(deployments::revert).put(deployments::revert))
        .route("/v1/job/{id}/stable", post(deployments::stable).put(deployments::stable))
        .route("/v1/job/{id}/scale", get(scaling::status).post(scaling::scale).put(scaling::scale))
        .route("/v1/scaling/policies", get(scaling::policies))
        .route("/v1/scaling/policy/{id}", get(scaling::policy))
        .route("/v1/evaluations", get(evaluations::list))
        .route("/v1/evaluation/{id}", get(evaluations::read))
        .route("/v1/evaluation/{id}/allocations", get(evaluations::allocations))
        .route("/v1/ostler/job/{id}/blocked", get(blocked::read))
        .merge(deployment_routes());
    let jobs =
        jobs.route_layer(middleware::from_fn_with_state(Arc::clone(&api), wait_until_restored));
    let allocs = Router::new()
        .route("/v1/allocations", get(allocs::list))
        .route("/v1/allocation/{id}", get(allocs::read))
        .route("/v1/allocation/{id}/stop", post(allocs::stop).put(allocs::stop))
        .route("/v1/client/allocation/{id}/stats", get(client::stats))
        .route("/v1/client/allocation/{id}/checks", get(services::checks))
        .route("/v1/client/allocation/{id}/exec", get(exec::run))
        .route("/v1/client/allocation/{id}/restart", post(client::restart).put(client::restart))
        .route("/v1/client/allocation/{id}/signal", post(client::signal).put(client::signal))
        .route("/v1/client/allocation/{id}/gc", get(client::collect_one))
        .route("/v1/client/allocation/{id}/snapshot", get(snapshot::read))
        .route("/v1/client/gc", get(client::collect_all))
        .route("/v1/client/fs/logs/{id}", get(logs::read))
        .route("/v1/client/fs/ls/{id}", get(fs::list))
        .route("/v1/client/fs/stat/{id}", get(fs::stat))
        .route("/v1/client/fs/cat/{id}", get(fs::cat))
        .route("/v1/client/fs/readat/{id}", get(fs::read_at))
        .route("/v1/client/fs/stream/{id}", get(fs_stream::read))
        .route("/v1/node/{id}/allocations", get(allocs::list_of_node))
        .route("/v1/search", put(search::search).post(search::search))
        .route("/v1/event/stream", get(event_stream::read))
        .route("/v1/services", get(services::list))
        .route("/v1/service/{name}", get(services::read))
        .route("/v1/system/gc", put(agent::collect).post(agent::collect))
        .route("/v1/metrics", get(metrics::read));
    let allocs =
        allocs.route_layer(middleware::from_fn_with_state(Arc::clone(&api), wait_until_restored));
    let plugins = Router::new()
        .route("/v1/ostler/plugin/{name}/lift", put(plugins::lift).post(plugins::lift))
        .route("/v1/ostler/plugin/{name}/record", put(plugins::record).post(plugins::record))
        .route("/v1/ostler/plugin/{name}/upgrade", put(plugins::upgrade).post(plugins::upgrade))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), wait_until_loaded));
    // These are answered from the beginning, while the agent starts.
    let node = Router::new()
        .merge(debug::routes())
        .merge(nodes::routes())
        .merge(namespaces::routes())
        .route("/v1/client/stats", get(host::stats))
        .route("/v1/agent/self", get(agent::agent_self))
        .route("/v1/agent/health", get(agent::health))
        .route("/v1/agent/monitor", get(monitor::read))
        .merge(servers::routes())
        .merge(tokens::routes())
        .route("/v1/ostler/node", get_view(|api| api.agent.node()))
        .route("/v1/ostler/plugins", get_view(|api| api.agent.plugins_now()))
        .route("/v1/ostler/plugins/status", get_view(|api| api.agent.plugins_status()))
        .route("/v1/ostler/watches", get_view(|api| api.agent.watch_report()))
        .route("/v1/ostler/devices", get_view(|api| api.agent.devices()))
        .route("/v1/ostler/state", get_view(|api| api.agent.state_stats()))
        .route("/v1/ostler/runs", get_view(|api| api.agent.held_report()))
        .route("/v1/ostler/run/{run}/end", put(agent::end_run).post(agent::end_run))
        .route("/v1/ostler/live", get(live::read))
        .route("/v1/ostler/log", get(monitor::last_lines))
        .route("/v1/ostler/events", get(events::read))
        .route("/v1/ostler/readiness", get_view(|api| api.agent.readiness()))
        .route("/v1/ostler/reload", get_view(|api| api.agent.last_reload()))
        .route("/v1/ostler/jobs-dir", get_view(|api| api.agent.jobs_dir()));
    // Variables are known from the beginning.
    let variables = Router::new().route("/v1/vars", get(variables::list)).route(
        "/v1/var/{*path}",
        get(variables::read).put(variables::put).post(variables::put).delete(variables::delete),
    );
    jobs.merge(allocs)
        .merge(variables)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), check_namespace))
        .merge(plugins)
        .merge(node)
        .merge(ui::routes())
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

fn deployment_routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/deployments", get(deployments::list))
        .route("/v1/deployment/{id}", get(deployments::read))
        .route("/v1/deployment/allocations/{id}", get(deployments::allocations))
        .route("/v1/deployment/promote/{id}", post(deployments::promote).put(deployments::promote))
        .route("/v1/deployment/fail/{id}", post(deployments::fail).put(deployments::fail))
        .route("/v1/deployment/pause/{id}", post(deployments::pause).put(deployments::pause))
        .route("/v1/deployment/unblock/{id}", post(deployments::unblock).put(deployments::unblock))
        .route(
            "/v1/deployment/allocation-health/{id}",
            post(deployments::judge).put(deployments::judge),
        )
}

/// Middleware: a request about jobs or allocations waits, for a while, until all of them are
/// restored.
async fn wait_until_restored(State(api): ApiState, request: Request, next: Next) -> Response {
    let mut stages = api.agent.stages();
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
