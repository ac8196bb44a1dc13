//! Blocking queries: answered when the result changed, at the client's deadline, or at the end.
//!
//! ```text
//! look ─ index above the one asked, or none asked ─► answer
//!  ▲ └── else ─► changes of the agent │ deadline │ agent leaves ─► (last two) answer as it is
//!  └────────────── a moment later ────┘
//! ```
//! When many wait, the moment is longer: they must not keep the agent from what they wait for.
//!
//! A client that hangs up drops the future, wherever it is.

use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use tokio::sync::watch;

use super::error::Failure;
use super::params::{Params, Wait};
use super::reply;
use super::router::Api;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{
    API_HEARTBEAT, API_LOOK_INTERVAL, API_LOOK_INTERVAL_MAX, API_LOOKS_SHARE,
};

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

/// What came of looking at a part of what is to be told.
pub(super) enum Part<T> {
    /// Something to tell.
    Tell(T),
    /// Nothing that is wanted; there may be more.
    Passed,
    /// All has been looked at.
    End,
}

/// Look at one part after the other until there is something to tell; none at the end. Others have their turn on
/// this thread before each, however much there is to be looked at.
pub(super) async fn in_parts<T>(mut look: impl FnMut() -> Part<T>) -> Option<T> {
    loop {
        tokio::task::yield_now().await;
        match look() {
            Part::Tell(found) => return Some(found),
            Part::Passed => {}
            Part::End => return None,
        }
    }
}

/// From one look of a waiting query to the next, when a look took so long and so many wait: all their looks together
/// take a share of a core.
fn pause(took: Duration, waiting: usize) -> Duration {
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    let fair = took.saturating_mul(waiting).saturating_mul(API_LOOKS_SHARE);
    fair.clamp(API_LOOK_INTERVAL, API_LOOK_INTERVAL_MAX)
}

/// Answer a query with what `look` finds, when it is as new as the client wants it.
pub(super) async fn answer<V>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> Found<V>,
    show: impl FnOnce(V) -> Result<Response, Failure>,
) -> Result<Response, Failure> {
    answer_on(api, params, params.wait()?, api.agent.changes(), look, show).await
}

/// The same of what may be long, as whole jobs and lists are: `show` runs where its length holds nobody up.
pub(super) async fn answer_whole<V: Send + 'static>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> Found<V>,
    show: impl FnOnce(V) -> Result<Response, Failure> + Send + 'static,
) -> Result<Response, Failure> {
    answer_whole_on(api, params, params.wait()?, api.agent.changes(), look, show).await
}

/// The same as [`answer_whole`] of what has changes of its own.
pub(super) async fn answer_whole_on<V: Send + 'static>(
    api: &Api,
    params: &Params,
    wait: Option<Wait>,
    changes: watch::Receiver<u64>,
    look: impl Fn() -> Found<V>,
    show: impl FnOnce(V) -> Result<Response, Failure> + Send + 'static,
) -> Result<Response, Failure> {
    let found = found_on(api, params, wait, changes, look).await?;
    let response = match found.value {
        Ok(value) => api.computing.answer(params.access().caller(), move || show(value)).await?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::read_at(found.index, response))
}

/// The same as [`answer`] of what has changes of its own.
pub(super) async fn answer_on<V>(
    api: &Api,
    params: &Params,
    wait: Option<Wait>,
    changes: watch::Receiver<u64>,
    look: impl Fn() -> Found<V>,
    show: impl FnOnce(V) -> Result<Response, Failure>,
) -> Result<Response, Failure> {
    let found = found_on(api, params, wait, changes, look).await?;
    let response = match found.value {
        Ok(value) => show(value)?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::read_at(found.index, response))
}

/// What `look` finds, when it is as new as the client wants it.
pub(super) async fn found<V>(
    api: &Api,
    params: &Params,
    look: impl Fn() -> Found<V>,
) -> Result<Found<V>, Failure> {
    found_on(api, params, params.wait()?, api.agent.changes(), look).await
}

async fn found_on<V>(
    api: &Api,
    params: &Params,
    wait: Option<Wait>,
    mut changes: watch::Receiver<u64>,
    look: impl Fn() -> Found<V>,
) -> Result<Found<V>, Failure> {
    Ok(match wait {
        None => look(),
        Some(wait) => {
            let _share = api.waits.take(params.access().caller())?;
            let limit = wait.with_jitter(api.rng.next_u64());
            let mut last = None;
            let changed = async {
                loop {
                    // Seen before looking: what comes later wakes the wait below.
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
        let mut caught_up = pin!(in_parts(|| {
            looked += 1;
            if looked > 100 { Part::Tell(looked) } else { Part::Passed }
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
        assert_eq!(in_parts(|| Part::<()>::End).await, None);
    }
}
