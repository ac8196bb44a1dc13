//! Blocking queries: answered when the result changed, at the client's deadline, or at the end.
//!
//! ```text
//! look ─ index above the one asked, or none asked ─► answer
//!  ▲ └── else ─► changes of the agent │ deadline │ agent leaves ─► (last two) answer as it is
//!  └────────────── a moment later ────┘
//! ```
//! A client that hangs up drops the future, wherever it is.

use axum::response::{IntoResponse as _, Response};
use tokio::sync::watch;

use super::error::Failure;
use super::params::{Params, Wait};
use super::reply;
use super::router::Api;
use ostler_model::clock;
use ostler_model::limits::{API_HEARTBEAT, API_LOOK_INTERVAL};

/// Something read from the agent.
pub(super) struct Found<V> {
    /// When it last changed.
    pub index: u64,
    /// It, or why there is none.
    pub value: Result<V, Failure>,
}

/// What came of waiting for more to be told.
pub(super) enum Grown {
    /// There is more.
    More,
    /// There was none for [`API_HEARTBEAT`]: whoever listens hears a sign of life.
    Not,
}

/// Wait until a stream has more to tell; none when the agent leaves.
pub(super) async fn grown(api: &Api, changes: &mut watch::Receiver<u64>) -> Option<Grown> {
    let changed = clock::timeout(API_HEARTBEAT, changes.changed());
    match api.leaving.run_until_cancelled(changed).await? {
        Some(changed) => changed.ok().map(|()| Grown::More),
        None => Some(Grown::Not),
    }
}

/// Answer a query with what `look` finds, when it is as new as the client wants it.
pub(super) async fn answer<V>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> Found<V>,
    show: impl FnOnce(V) -> Result<Response, Failure>,
) -> Result<Response, Failure> {
    answer_on(api, params.wait()?, api.agent.changes(), look, show).await
}

/// The same of what has changes of its own.
pub(super) async fn answer_on<V>(
    api: &Api,
    wait: Option<Wait>,
    mut changes: watch::Receiver<u64>,
    look: impl Fn() -> Found<V>,
    show: impl FnOnce(V) -> Result<Response, Failure>,
) -> Result<Response, Failure> {
    let found = match wait {
        None => look(),
        Some(wait) => {
            let limit = wait.with_jitter(api.rng.next_u64());
            let mut last = None;
            let changed = async {
                loop {
                    // Seen before looking: what comes later wakes the wait below.
                    changes.borrow_and_update();
                    let found = look();
                    if found.index > wait.index {
                        return found;
                    }
                    last = Some(found);
                    if changes.changed().await.is_err() {
                        // The agent is gone.
                        std::future::pending::<()>().await;
                    }
                    clock::sleep(API_LOOK_INTERVAL).await;
                }
            };
            let newest = tokio::select! {
                newest = clock::timeout(limit, changed) => newest,
                () = api.leaving.cancelled() => None,
            };
            newest.or(last).unwrap_or_else(look)
        }
    };
    let response = match found.value {
        Ok(value) => show(value)?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::read_at(found.index, response))
}
