//! The routes, and what applies to all of them: region, deadline, body size.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;

use super::access::RequestCaller;
use super::admit::admit;
use super::drain::drain_request;
use super::error::RequestFailure;
use super::gzip::pack_answer;
use super::handlers::handler;
use super::json;
use super::node_state::unready_reason;
use super::params::Params;
use super::state::{Api, ApiState};
use crate::routes::{Route, RouteGate};
use ostler_model::clock;
use ostler_model::limits::{
    API_BODY_BYTES_MAX, API_BODY_SMALL_BYTES_MAX, API_REQUEST_WALL_MAX, API_START_WAIT,
    API_WAIT_MAX,
};

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

/// Middleware: a request about jobs or allocations waits, for a while, until all of them are restored.
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
        None => RequestFailure::Starting(unready_reason(&api.agent.readiness())).into_response(),
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

/// Middleware: a request whose body may be large takes a place, or is refused.
async fn limit_bodies(State(api): ApiState, request: Request, next: Next) -> Response {
    let size = request.body().size_hint();
    let small = size.upper().is_some_and(|most| most <= API_BODY_SMALL_BYTES_MAX);
    // No handler of a GET reads a body.
    if small || [Method::GET, Method::HEAD].contains(request.method()) {
        return next.run(request).await;
    }
    match api.bodies.take(RequestCaller::from_request(&request)) {
        Ok(_share) => next.run(request).await,
        Err(full) => full.into_response(),
    }
}
