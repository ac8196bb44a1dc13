//! The keys of a file → [`Job`](ostler_model::job::Job) or the agent's configuration. Beside each
//! block's description stands the code that turns its keys into the model's values and checks that the
//! values fit each other. Nothing stops at the first problem: a value that cannot be used is reported and
//! counts as not given.

mod acl;
pub(crate) mod agent;
pub(crate) mod artifact;
pub(crate) mod check;
mod client;
pub(crate) mod constraint;
mod grants;
pub(crate) mod group;
pub(crate) mod health;
mod http;
pub(crate) mod job;
mod log;
mod namespaces;
pub(crate) mod network;
pub(crate) mod placement;
pub(crate) mod reschedule;
pub(crate) mod resources;
pub(crate) mod restart;
pub(crate) mod service;
pub(crate) mod task;
mod task_path;
mod telemetry;
pub(crate) mod template;
pub(crate) mod trust;
mod update;
pub(crate) mod volume;

pub(crate) use agent::agent_config;
pub use agent::{agent_key, agent_key_paths};
pub(crate) use constraint::RulesCost;
pub(crate) use job::job;
pub use trust::parse_trust_file;

use std::fmt::Display;

use crate::diagnostic::Span;
use crate::keys::Context;

/// The name, if it is valid; otherwise its problem is reported.
fn accept_name<T, E: Display>(name: Result<T, E>, at: Span, cx: &mut Context<'_>) -> Option<T> {
    name.map_err(|error| cx.error(at, error.to_string())).ok()
}

/// The first byte of a span, for messages that are written later.
fn offset(span: Span) -> u32 {
    u32::try_from(span.start).unwrap_or(u32::MAX)
}
