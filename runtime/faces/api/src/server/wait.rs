//! Blocking queries. They are answered when the result has changed, at the client's deadline, or
//! when the agent leaves.
//!
//! ```text
//! look ─ index above the one asked, or none asked ─► answer
//!  ▲ └── else ─► changes of the agent │ deadline │ agent leaves ─► (last two) answer as it is
//!  └────────────── a moment later ────┘
//! ```
//! When many queries wait, the moment is longer, so that they do not keep the agent from the change
//! that they wait for.
//!
//! A client that hangs up drops the future, wherever it is.

use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use tokio::sync::watch;

use super::error::RequestFailure;
use super::params::{Params, WaitQuery};
use super::reply;
use super::state::Api;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{
    API_HEARTBEAT, API_LOOK_INTERVAL, API_LOOK_INTERVAL_MAX, API_LOOKS_SHARE,
};

/// An object read from the agent, with its index.
pub(super) struct IndexedValue<V> {
    /// The index of its last change.
    pub index: u64,
    /// The object, or why there is none.
    pub value: Result<V, RequestFailure>,
}

/// The result of waiting for more to send.
pub(super) enum WaitOutcome {
    /// There is more to send.
    More,
    /// There was nothing for [`API_HEARTBEAT`], so the listener gets a sign of life.
    Not,
}

/// Wait until a stream has more to send; none when the agent leaves.
pub(super) async fn wait_for_more(
    api: &Api,
    changes: &mut watch::Receiver<u64>,
) -> Option<WaitOutcome> {
    let changed = clock::timeout(API_HEARTBEAT, changes.changed());
    match api.leaving.run_until_cancelled(changed).await? {
        Some(changed) => changed.ok().map(|()| WaitOutcome::More),
        None => Some(WaitOutcome::Not),
    }
}

/// The result of reading one part of what is to be sent.
pub(super) enum LookOutcome<T> {
    /// There is something to send.
    Tell(T),
    /// Nothing in this part is wanted; there may be more parts.
    Passed,
    /// All parts have been read.
    End,
}

/// Read one part after the other until there is something to send; none at the end. Before each
/// part, other tasks on this thread get their turn, however much there is to read.
pub(super) async fn look_in_parts<T>(mut look: impl FnMut() -> LookOutcome<T>) -> Option<T> {
    loop {
        tokio::task::yield_now().await;
        match look() {
            LookOutcome::Tell(found) => return Some(found),
            LookOutcome::Passed => {}
            LookOutcome::End => return None,
        }
    }
}

/// The pause between two readings of a waiting query. It depends on how long a reading took and on
/// how many queries wait, so that all readings together take a bounded share of a core.
fn pause(took: Duration, waiting: usize) -> Duration {
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    let fair = took.saturating_mul(waiting).saturating_mul(API_LOOKS_SHARE);
    fair.clamp(API_LOOK_INTERVAL, API_LOOK_INTERVAL_MAX)
}

/// Answer a query with what `look` finds, as soon as it is as new as the client wants it.
pub(super) async fn answer<V>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> IndexedValue<V>,
    show: impl FnOnce(V) -> Result<Response, RequestFailure>,
) -> Result<Response, RequestFailure> {
    answer_on(api, params, params.wait()?, api.agent.control().changes(), look, show).await
}

/// As [`answer`], for long answers such as whole jobs and lists. `show` runs in the compute pool,
/// so that its length delays nobody.
pub(super) async fn answer_whole<V: Send + 'static>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> IndexedValue<V>,
    show: impl FnOnce(V) -> Result<Response, RequestFailure> + Send + 'static,
) -> Result<Response, RequestFailure> {
    answer_whole_on(api, params, params.wait()?, api.agent.control().changes(), look, show).await
}

/// As [`answer_whole`], for an object with an index of its own.
pub(super) async fn answer_whole_on<V: Send + 'static>(
    api: &Api,
    params: &Params,
    wait: Option<WaitQuery>,
    changes: watch::Receiver<u64>,
    look: impl Fn() -> IndexedValue<V>,
    show: impl FnOnce(V) -> Result<Response, RequestFailure> + Send + 'static,
) -> Result<Response, RequestFailure> {
    let found = find_newer_on(api, params, wait, changes, look).await?;
    let response = match found.value {
        Ok(value) => api.computing.answer(params.access().caller(), move || show(value)).await?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::with_read_index(found.index, response))
}

/// As [`answer`], for an object with an index of its own.
pub(super) async fn answer_on<V>(
    api: &Api,
    params: &Params,
    wait: Option<WaitQuery>,
    changes: watch::Receiver<u64>,
    look: impl Fn() -> IndexedValue<V>,
    show: impl FnOnce(V) -> Result<Response, RequestFailure>,
) -> Result<Response, RequestFailure> {
    let found = find_newer_on(api, params, wait, changes, look).await?;
    let response = match found.value {
        Ok(value) => show(value)?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::with_read_index(found.index, response))
}

/// Return what `look` finds, as soon as it is as new as the client wants it.
pub(super) async fn find_newer<V>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> IndexedValue<V>,
) -> Result<IndexedValue<V>, RequestFailure> {
    find_newer_on(api, params, params.wait()?, api.agent.control().changes(), look).await
}

async fn find_newer_on<V>(
    api: &Api,
    params: &Params,
    wait: Option<WaitQuery>,
    mut changes: watch::Receiver<u64>,
    look: impl Fn() -> IndexedValue<V>,
) -> Result<IndexedValue<V>, RequestFailure> {
    Ok(match wait {
        None => look(),
        Some(wait) => {
            let _share = api.waits.take(params.access().caller())?;
            let limit = wait.with_jitter(api.rng.next_u64());
            let mut last = None;
            let changed = async {
                loop {
                    // The change is marked as seen before the reading, so that a later change wakes
                    // the wait below.
                    changes.borrow_and_update();
                    let watch = Stopwatch::start();
                    let found = look();
                    let took = watch.elapsed();
                    if found.index > wait.index {
                        return found;
                    }
                    last = Some(found);
                    if changes.changed().await.is_err() {
                        // The agent is gone.
                        std::future::pending::<()>().await;
                    }
                    clock::sleep(pause(took, api.waits.count())).await;
                }
            };
            let newest = tokio::select! {
                newest = clock::timeout(limit, changed) => newest,
                () = api.leaving.cancelled() => None,
            };
            newest.or(last).unwrap_or_else(look)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn whoever_catches_up_with_much_leaves_the_thread_between_two_parts() {
        let mut looked = 0;
        let mut caught_up = pin!(look_in_parts(|| {
            looked += 1;
            if looked > 100 { LookOutcome::Tell(looked) } else { LookOutcome::Passed }
        }));
        for _ in 0..100 {
            assert!(poll!(&mut caught_up).is_pending(), "it looked at more than one part");
        }
        // Each turn begins with the part for which the one before left.
        assert_eq!(poll!(&mut caught_up), std::task::Poll::Pending);
        assert_eq!(caught_up.await, Some(101));
    }

    #[test]
    fn the_more_wait_and_the_longer_a_look_takes_the_rarer_it_is() {
        let micros = Duration::from_micros;
        assert_eq!(pause(micros(100), 10), API_LOOK_INTERVAL, "few of them look soon");
        assert_eq!(pause(micros(100), 500), Duration::from_millis(200));
        assert_eq!(pause(Duration::from_secs(1), 500), API_LOOK_INTERVAL_MAX);
    }

    #[tokio::test]
    async fn at_the_end_there_is_nothing_to_tell() {
        assert_eq!(look_in_parts(|| LookOutcome::<()>::End).await, None);
    }
}
