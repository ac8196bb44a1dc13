//! What is done to plugins.

use axum::response::Response;

use super::body;
use super::error::Failure;
use super::jobs::Body;
use super::params::Asked;
use super::reply;
use ostler_agent::UpgradeOptions;

/// `PUT /v1/ostler/plugin/NAME/lift`: end a quarantine.
pub(super) async fn lift(Asked { api, id: name, params }: Asked) -> Result<Response, Failure> {
    let lifted = api.agent.lift_plugin(&name);
    if lifted.is_empty() {
        return Err(Failure::NoPlugin(name.chars().take(64).collect()));
    }
    reply::json(&params, &lifted)
}

/// `PUT /v1/ostler/plugin/NAME/record`: write down its last calls.
pub(super) async fn record(Asked { api, id: name, params }: Asked) -> Result<Response, Failure> {
    let recorded = api.agent.record_plugin(&name).await;
    if recorded.is_empty() {
        return Err(Failure::NoPlugin(name.chars().take(64).collect()));
    }
    reply::json(&params, &recorded)
}

/// `PUT /v1/ostler/plugin/NAME/upgrade`: put another version in its place. That it is refused, or
/// needs consent, is an answer.
pub(super) async fn upgrade(
    Asked { api, id: name, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let options: UpgradeOptions = body::read(&params, body)?;
    reply::json(&params, &api.agent.upgrade_plugin(&name, options).await?)
}
