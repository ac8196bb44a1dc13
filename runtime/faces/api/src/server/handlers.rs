//! The handler of each route, from the table in [`crate::table`].

use std::future::{Ready, ready};
use std::sync::Arc;

use axum::extract::State;
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, any, on};
use serde::Serialize;

use super::error::RequestFailure;
use super::params::Params;
use super::state::{Api, ApiState};
use super::{
    agent, allocs, blocked, client, debug, deployments, evaluations, event_stream, events, exec,
    fs, fs_stream, host, jobs, json, live, logs, metrics, monitor, namespaces, nodes, plugins,
    reply, scaling, search, servers, services, snapshot, tokens, ui, variables,
};
use crate::routes::{Route, RouteMethods};
use crate::table::for_each_route;

/// Make [`handler`] from the table.
macro_rules! handlers {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $methods:ident $path:literal [$($key:ident)*] $($input:ty)? => $output:ty,
            $need:expr, $gate:ident, $handler:expr;
    )*) => {
        /// What answers the requests of a route.
        pub(super) fn handler(route: Route) -> MethodRouter<Arc<Api>> {
            match route { $(Route::$name => with_methods(route, $handler),)* }
        }
    };
}

fn with_methods<H, T>(route: Route, handler: H) -> MethodRouter<Arc<Api>>
where
    H: Handler<T, Arc<Api>>,
    T: 'static,
{
    let put = MethodFilter::PUT.or(MethodFilter::POST);
    match route.methods() {
        RouteMethods::Any => any(handler),
        RouteMethods::Get => on(MethodFilter::GET, handler),
        RouteMethods::Put => on(put, handler),
        RouteMethods::Delete => on(MethodFilter::DELETE, handler),
        RouteMethods::PutDelete => on(put.or(MethodFilter::DELETE), handler),
    }
}

/// Answer with a view of the agent, as JSON.
fn view<T: Serialize>(
    look: impl Fn(&Api) -> T + Clone + Send + Sync + 'static,
) -> impl Fn(ApiState, Params) -> Ready<Result<Response, RequestFailure>> + Clone + Send + Sync + 'static
{
    move |State(api), params| ready(reply::json(&params, &look(&api)))
}

for_each_route!(handlers);
