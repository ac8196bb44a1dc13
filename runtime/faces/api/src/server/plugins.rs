//! Requests that change plugins.

use axum::response::Response;

use super::body::{self, Body};
use super::error::RequestFailure;
use super::reply;
use super::state::NamedRequest;
use ostler_agent::UpgradeOptions;

/// `PUT /v1/ostler/plugin/NAME/lift`: end a quarantine.
pub(super) async fn lift(
    NamedRequest { api, id: name, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let lifted = api.agent.lift_plugin(&name);
    if lifted.is_empty() {
        return Err(RequestFailure::NoPlugin(name.chars().take(64).collect()));
    }
    reply::json(&params, &lifted)
}

/// `PUT /v1/ostler/plugin/NAME/record`: write the last calls of a plugin to a file.
pub(super) async fn record(
    NamedRequest { api, id: name, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let recorded = api.agent.record_plugin(&name).await;
    if recorded.is_empty() {
        return Err(RequestFailure::NoPlugin(name.chars().take(64).collect()));
    }
    reply::json(&params, &recorded)
}

/// `PUT /v1/ostler/plugin/NAME/upgrade`: replace a plugin by another version. A refusal, or the
/// need for consent, is an answer and no error.
pub(super) async fn upgrade(
    NamedRequest { api, id: name, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let options: UpgradeOptions = body::read(&params, body)?;
    reply::json(&params, &api.agent.upgrade_plugin(&name, options).await?)
}
