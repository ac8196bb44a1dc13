//! Which path is answered by what, and what holds for all of them: region, deadline, body size.

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
use super::agent::shown;
use super::client::Processor;
use super::computing::Computing;
use super::drain::drained;
use super::error::Failure;
use super::event_render::Rendered;
use super::gzip::packed;
use super::host::Cores;
use super::index::Table;
use super::params::Params;
use super::shares::{Shares, with_room};
use super::stub_render::Stubs;
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

/// What the handlers share.
pub(super) struct Api {
    pub agent: AgentHandle,
    /// Who may do what.
    pub tokens: Tokens,
    /// By which names it may be asked for over TCP.
    pub hosts: Hosts,
    /// What it logs.
    pub log: Arc<AgentLog>,
    /// The API ends: nothing waits any longer.
    pub leaving: CancellationToken,
    pub clock: Clock,
    pub rng: Rng,
    /// Places for streams.
    pub streams: Shares,
    /// And for queries that wait.
    pub waits: Shares,
    /// And for large bodies.
    pub bodies: Shares,
    /// Who computes what takes long.
    pub computing: Computing,
    /// Events that several streams tell.
    pub rendered: Rendered,
    /// Commands inside tasks.
    pub sessions: exec::Sessions,
    /// How the node is, for those who follow it.
    pub live: live::Looks,
    /// Allocations as they are in lists.
    pub stubs: Arc<Stubs>,
    seen_jobs: Mutex<Table<JobId>>,
    processor: Mutex<Processor>,
    cores: Mutex<Cores>,
    scalings: Mutex<scaling::Noted>,
    purged: Mutex<evaluations::Purged>,
    nodes: Mutex<nodes::NodeSeen>,
    /// The agent's index when the API began.
    pub began_at: u64,
}

/// The handlers' state.
pub(super) type Shared = axum::extract::State<Arc<Api>>;

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
            log: AgentLog::of_process(),
            leaving,
            clock: Clock::system(),
            rng: Rng::system(),
            streams: Shares::of_streams(),
            waits: Shares::of_waits(),
            bodies: Shares::of_bodies(),
            computing: Computing::new(),
            rendered: Rendered::default(),
            sessions: exec::Sessions::default(),
            live: live::Looks::default(),
            stubs: Arc::default(),
            seen_jobs: Mutex::new(Table::new(began_at)),
            processor: Mutex::default(),
            cores: Mutex::default(),
            scalings: Mutex::default(),
            purged: Mutex::default(),
            nodes: Mutex::default(),
            began_at,
        })
    }

    /// What was last seen of the list of jobs.
    pub fn seen_jobs(&self) -> MutexGuard<'_, Table<JobId>> {
        self.seen_jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn processor(&self) -> MutexGuard<'_, Processor> {
        self.processor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn scalings(&self) -> MutexGuard<'_, scaling::Noted> {
        self.scalings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn purged(&self) -> MutexGuard<'_, evaluations::Purged> {
        self.purged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn nodes(&self) -> MutexGuard<'_, nodes::NodeSeen> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cores(&self) -> MutexGuard<'_, Cores> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every path.
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
        .route("/v1/job/{id}/allocations", get(allocs::of_job))
        .route("/v1/job/{id}/evaluations", get(evaluations::of_job))
        .route("/v1/job/{id}/deployments", get(deployments::of_job))
        .route("/v1/job/{id}/deployment", get(deployments::newest_of))
        .route("/v1/job/{id}/revert", post(deployments::revert).put(deployments::revert))
        .route("/v1/job/{id}/stable", post(deployments::stable).put(deployments::stable))
        .route("/v1/job/{id}/scale", get(scaling::status).post(scaling::scale).put(scaling::scale))
        .route("/v1/scaling/policies", get(scaling::policies))
        .route("/v1/scaling/policy/{id}", get(scaling::policy))
        .route("/v1/evaluations", get(evaluations::list))
        .route("/v1/evaluation/{id}", get(evaluations::read))
        .route("/v1/evaluation/{id}/allocations", get(evaluations::allocations))
        .route("/v1/ostler/job/{id}/blocked", get(blocked::read))
        .merge(of_deployments());
    let jobs = jobs.route_layer(middleware::from_fn_with_state(Arc::clone(&api), when_restored));
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
        .route("/v1/node/{id}/allocations", get(allocs::of_node))
        .route("/v1/search", put(search::search).post(search::search))
        .route("/v1/event/stream", get(event_stream::read))
        .route("/v1/services", get(services::list))
        .route("/v1/service/{name}", get(services::read))
        .route("/v1/system/gc", put(agent::collect).post(agent::collect))
        .route("/v1/metrics", get(metrics::read));
    let allocs =
        allocs.route_layer(middleware::from_fn_with_state(Arc::clone(&api), when_restored));
    let plugins = Router::new()
        .route("/v1/ostler/plugin/{name}/lift", put(plugins::lift).post(plugins::lift))
        .route("/v1/ostler/plugin/{name}/record", put(plugins::record).post(plugins::record))
        .route("/v1/ostler/plugin/{name}/upgrade", put(plugins::upgrade).post(plugins::upgrade))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), when_loaded));
    // Answered from the beginning, all the while the agent starts.
    let node = Router::new()
        .merge(debug::routes())
        .merge(nodes::routes())
        .merge(namespaces::routes())
        .route("/v1/client/stats", get(host::stats))
        .route("/v1/agent/self", get(agent::own))
        .route("/v1/agent/health", get(agent::health))
        .route("/v1/agent/monitor", get(monitor::read))
        .merge(servers::routes())
        .merge(tokens::routes())
        .route("/v1/ostler/node", shown(|api| api.agent.node()))
        .route("/v1/ostler/plugins", shown(|api| api.agent.plugins_now()))
        .route("/v1/ostler/plugins/status", shown(|api| api.agent.plugins_status()))
        .route("/v1/ostler/watches", shown(|api| api.agent.watches()))
        .route("/v1/ostler/devices", shown(|api| api.agent.devices()))
        .route("/v1/ostler/state", shown(|api| api.agent.state_stats()))
        .route("/v1/ostler/runs", shown(|api| api.agent.held()))
        .route("/v1/ostler/run/{run}/end", put(agent::end_run).post(agent::end_run))
        .route("/v1/ostler/live", get(live::read))
        .route("/v1/ostler/log", get(monitor::last))
        .route("/v1/ostler/events", get(events::read))
        .route("/v1/ostler/readiness", shown(|api| api.agent.readiness()))
        .route("/v1/ostler/reload", shown(|api| api.agent.last_reload()))
        .route("/v1/ostler/jobs-dir", shown(|api| api.agent.jobs_dir()));
    // Known from the beginning on.
    let variables = Router::new().route("/v1/vars", get(variables::list)).route(
        "/v1/var/{*path}",
        get(variables::read).put(variables::put).post(variables::put).delete(variables::delete),
    );
    jobs.merge(allocs)
        .merge(variables)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), in_a_namespace))
        .merge(plugins)
        .merge(node)
        .merge(ui::routes())
        .fallback(|| async { Failure::NoPath })
        .method_not_allowed_fallback(|| async { Failure::Method })
        .layer(middleware::from_fn_with_state(Arc::clone(&api), with_room))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn(in_this_region))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), packed))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), admit))
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .layer(middleware::from_fn(drained))
        .with_state(api)
}

fn of_deployments() -> Router<Arc<Api>> {
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

/// What is asked of jobs and allocations waits, for a while, until all of them are known.
async fn when_restored(State(api): Shared, request: Request, next: Next) -> Response {
    let mut stages = api.agent.stages();
    let restored = async { drop(stages.wait_for(|stage| stage.restored()).await) };
    when(&api, restored, request, next).await
}

/// What is asked of a plugin waits, for a while, until all are loaded.
async fn when_loaded(State(api): Shared, request: Request, next: Next) -> Response {
    when(&api, api.agent.plugins_looked_for(), request, next).await
}

async fn when(
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
        // What it knew is let go of: nobody is to hear that it is not there.
        Some(()) if api.agent.is_leaving() => Failure::Leaving.into_response(),
        Some(()) => next.run(request).await,
        None => Failure::Starting(nodes::told(&api.agent.readiness())).into_response(),
    }
}

/// Every request has an end. A stream counts as answered when it begins.
async fn in_time(request: Request, next: Next) -> Response {
    let limit = deadline(request.method());
    clock::timeout(limit, next.run(request))
        .await
        .unwrap_or_else(|| Failure::TooSlow.into_response())
}

/// A read may be one that waits for a change: for its longest time, jitter included, and then the
/// usual.
fn deadline(method: &Method) -> Duration {
    if method == Method::GET {
        API_WAIT_MAX + API_WAIT_MAX / 16 + API_REQUEST_WALL_MAX
    } else {
        API_REQUEST_WALL_MAX
    }
}

/// What changes jobs or allocations names a namespace that is there. What only reads finds nothing in
/// others.
async fn in_a_namespace(
    State(api): Shared,
    params: Params,
    request: Request,
    next: Next,
) -> Response {
    match params.text("namespace") {
        Some(other) if !api.agent.has_namespace(other) && request.method() != Method::GET => {
            Failure::other_namespace(other).into_response()
        }
        _ => next.run(request).await,
    }
}

async fn in_this_region(params: Params, request: Request, next: Next) -> Response {
    match params.text("region") {
        Some(region) if region != json::REGION => {
            Failure::OtherRegion(region.chars().take(64).collect()).into_response()
        }
        _ => next.run(request).await,
    }
}
