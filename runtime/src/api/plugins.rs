//! What is done to plugins.

use axum::extract::{Path, State};
use axum::response::Response;

use super::error::Failure;
use super::params::Params;
use super::reply;
use super::router::Shared;

/// `PUT /v1/ostler/plugin/NAME/lift`: end a quarantine.
pub(super) async fn lift(
    State(api): Shared,
    Path(name): Path<String>,
    params: Params,
) -> Result<Response, Failure> {
    let lifted = api.agent.lift_plugin(&name);
    if lifted.is_empty() {
        return Err(Failure::NoPlugin(name.chars().take(64).collect()));
    }
    reply::json(&params, &lifted)
}
