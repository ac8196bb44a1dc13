//! Writes the public state, and decides which writes must be durable at once.
//!
//! The private record, which is always written durably ([`crate::task::handle`]), says which run of
//! the task there may be. The public state may lag behind it while the task lives: a crash may take
//! an event or a start away without harm. What must not be taken back is what the next agent
//! decides by: that the task is dead, that it counts as failed, how often it was restarted, and
//! that a restart of its run is under way.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::super::TaskScope;
use super::super::events;
use super::super::handle::{LocalRecord, await_write};
use super::super::restart::RestartTracker;
use ostler_model::clock;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_state::records::TaskStateKey;

/// Pauses before a write that was refused is tried again.
const WRITE_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Pause before a store is asked again that went on refusing.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// The part of the public state that is durable before the owner goes on to the next write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastingState {
    dead: bool,
    failed: bool,
    restarts: u64,
    restarting: bool,
}

impl LastingState {
    pub(super) fn from_state(state: &TaskState) -> Self {
        Self {
            dead: state.status == TaskStatus::Dead,
            failed: state.failed,
            restarts: state.restarts,
            restarting: events::restart_under_way(state).is_some(),
        }
    }
}

/// What is decided about the next start.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartPlan {
    /// The restarts used so far.
    pub tracker: RestartTracker,
    /// The next start does not come before this time.
    pub delayed_until: Option<Timestamp>,
    /// The number of steps of the record when the plan was made.
    pub steps: u64,
}

/// Wait, unless the owner is about to end.
pub(super) async fn pause(pause: Duration, closing: &CancellationToken) {
    tokio::select! {
        biased;
        () = clock::sleep(pause) => {}
        () = closing.cancelled() => {}
    }
}

/// Write the public state and the plan. The write is durable unless the lasting part of the
/// state is `known` to be durable. A store that refuses is asked again a few times, or once
/// when `closing` is cancelled. Returns the part that is durable now; `None` when the store
/// went on refusing.
pub(super) async fn write(
    scope: &TaskScope,
    record: &LocalRecord,
    public: &TaskState,
    plan: StartPlan,
    known: LastingState,
    closing: &CancellationToken,
) -> Option<LastingState> {
    let lasting = LastingState::from_state(public);
    let mut planned = None;
    for wait in WRITE_PAUSES.iter().map(Some).chain([None]) {
        // Both together, so that they share a commit: a restart that is published is also counted.
        let (written, plan_written) = tokio::join!(
            write_public(scope, public, lasting == known),
            write_plan(scope, record, plan, planned),
        );
        planned = Some(plan_written);
        let over = written && plan_written || closing.is_cancelled();
        match wait {
            Some(wait) if !over => pause(*wait, closing).await,
            _ if written => return Some(lasting),
            _ => break,
        }
    }
    keep_for_later(scope, record, public).await;
    None
}

/// Leave a state that the store refuses with the store. It is written when that is possible, unless
/// a newer one comes. The owner may end before.
async fn keep_for_later(scope: &TaskScope, record: &LocalRecord, public: &TaskState) {
    let key = TaskStateKey::of(scope.allocation.id, scope.task.name.clone());
    let kept = await_write(scope.node.state.put_later(&key, public)).await;
    let planned = record.update_later(|_| {}).await;
    if !matches!(kept, Some(Ok(_))) || planned.is_err() {
        tracing::error!(task = %scope.task.name, "the state of the task is not kept for a later write either");
    }
}

async fn write_public(scope: &TaskScope, public: &TaskState, may_lag: bool) -> bool {
    let task = &scope.task.name;
    let key = TaskStateKey::of(scope.allocation.id, task.clone());
    let put = async {
        if may_lag {
            scope.node.state.put_later(&key, public).await
        } else {
            scope.node.state.put(&key, public).await
        }
    };
    match await_write(put).await {
        Some(Ok(_)) => return true,
        Some(Err(error)) => tracing::error!(%task, %error, "task state not written"),
        None => tracing::error!(%task, "task state not written in time"),
    }
    false
}

/// Write the plan. `before` says whether the try before this one succeeded. The record keeps what
/// could not be written.
async fn write_plan(
    scope: &TaskScope,
    record: &LocalRecord,
    plan: StartPlan,
    before: Option<bool>,
) -> bool {
    let written = match before {
        None => record.set_plan(plan.tracker, plan.delayed_until, plan.steps).await,
        Some(true) => Ok(()),
        Some(false) => record.update(|_| {}).await,
    };
    if let Err(error) = &written {
        let task = &scope.task.name;
        tracing::error!(%task, error = %error.text(), "restart tracker not written");
    }
    written.is_ok()
}

/// Make all writes durable that lag.
pub(super) async fn flush(scope: &TaskScope) {
    let task = &scope.task.name;
    match await_write(scope.node.state.flush()).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::error!(%task, %error, "task state not durable"),
        None => tracing::error!(%task, "task state not durable in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_and_a_start_may_lag_and_an_end_a_failure_and_a_restart_may_not() {
        let begun = TaskState { status: TaskStatus::Running, ..TaskState::default() };
        assert_eq!(LastingState::from_state(&begun), LastingState::default());
        let back = TaskState { started_at: Some(Default::default()), ..TaskState::default() };
        assert_eq!(LastingState::from_state(&back), LastingState::default());
        let now = Timestamp::default();
        let mut told = begun.clone();
        let timeout = Duration::from_secs(5);
        told.push_event(events::restart_signaled_event(
            now,
            "wanted",
            timeout,
            events::Signals::Sent,
        ));
        assert_ne!(LastingState::from_state(&told), LastingState::default());
        told.push_event(events::started_event(now));
        assert_eq!(LastingState::from_state(&told), LastingState::default());
        for lasting in [
            TaskState { status: TaskStatus::Dead, ..TaskState::default() },
            TaskState { failed: true, ..TaskState::default() },
            TaskState { restarts: 1, ..TaskState::default() },
        ] {
            assert_ne!(LastingState::from_state(&lasting), LastingState::default(), "{lasting:?}");
        }
    }
}
