//! Which writes of the public state must be durable at once.
//!
//! What there may be of the task is known from its private record, which is always written durably
//! ([`crate::task::handle`]). The public state may lag behind it while the task lives: an event or a
//! start that a crash takes away is told by nothing else, and harms nothing. What must not be taken
//! back is what a restart of the agent decides by: that the task is dead, that it counts as failed,
//! how often it was restarted, that a restart of its run is under way.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::super::TaskScope;
use super::super::events;
use super::super::handle::{LocalRecord, durable};
use super::super::restart::RestartTracker;
use ostler_model::clock;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_state::Key;

/// Pauses before a write that was refused is tried again.
const WRITE_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Pause before a store that went on refusing is asked again.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// The part of the public state that is durable before the owner goes on to the next write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lasting {
    dead: bool,
    failed: bool,
    restarts: u64,
    restarting: bool,
}

impl Lasting {
    pub(super) fn of(state: &TaskState) -> Self {
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
pub(super) struct Plan {
    /// Restarts used.
    pub tracker: RestartTracker,
    /// It does not come before.
    pub delayed_until: Option<Timestamp>,
    /// Of the record, when it was decided.
    pub steps: u64,
}

/// Wait, but not while the owner is about to end.
pub(super) async fn pause(pause: Duration, closing: &CancellationToken) {
    tokio::select! {
        biased;
        () = clock::sleep(pause) => {}
        () = closing.cancelled() => {}
    }
}

/// Write the public state, durably when its lasting part is not `known` to be durable, and with it
/// the plan. A store that refuses is asked again, a few times, or once when `closing` is cancelled. What
/// is durable of it now; `None` when the store went on refusing.
pub(super) async fn write(
    scope: &TaskScope,
    record: &LocalRecord,
    public: &TaskState,
    plan: Plan,
    known: Lasting,
    closing: &CancellationToken,
) -> Option<Lasting> {
    let lasting = Lasting::of(public);
    let mut planned = None;
    for wait in WRITE_PAUSES.iter().map(Some).chain([None]) {
        // Together, so that they share a commit: a restart that is told is also counted.
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
    keep(scope, record, public).await;
    None
}

/// What the store refuses waits there until it can be written, or something newer comes: the owner may
/// end before.
async fn keep(scope: &TaskScope, record: &LocalRecord, public: &TaskState) {
    let key = Key::TaskState(scope.allocation.id, scope.task.name.clone());
    let kept = durable(scope.state.put_later(&key, public)).await;
    let planned = record.update_later(|_| {}).await;
    if !matches!(kept, Some(Ok(_))) || planned.is_err() {
        tracing::error!(task = %scope.task.name, "the state of the task is not kept for a later write either");
    }
}

async fn write_public(scope: &TaskScope, public: &TaskState, may_lag: bool) -> bool {
    let task = &scope.task.name;
    let key = Key::TaskState(scope.allocation.id, task.clone());
    let put = async {
        if may_lag {
            scope.state.put_later(&key, public).await
        } else {
            scope.state.put(&key, public).await
        }
    };
    match durable(put).await {
        Some(Ok(_)) => return true,
        Some(Err(error)) => tracing::error!(%task, %error, "task state not written"),
        None => tracing::error!(%task, "task state not written in time"),
    }
    false
}

/// `before`: how the try before this one ended. The record keeps what could not be written.
async fn write_plan(
    scope: &TaskScope,
    record: &LocalRecord,
    plan: Plan,
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

/// Make durable what lags.
pub(super) async fn flush(scope: &TaskScope) {
    let task = &scope.task.name;
    match durable(scope.state.flush()).await {
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
        assert_eq!(Lasting::of(&begun), Lasting::default());
        let back = TaskState { started_at: Some(Default::default()), ..TaskState::default() };
        assert_eq!(Lasting::of(&back), Lasting::default());
        let now = Timestamp::default();
        let mut told = begun.clone();
        let timeout = Duration::from_secs(5);
        told.push_event(events::restart_signaled(now, "wanted", timeout, events::Signals::Sent));
        assert_ne!(Lasting::of(&told), Lasting::default());
        told.push_event(events::started(now));
        assert_eq!(Lasting::of(&told), Lasting::default());
        for lasting in [
            TaskState { status: TaskStatus::Dead, ..TaskState::default() },
            TaskState { failed: true, ..TaskState::default() },
            TaskState { restarts: 1, ..TaskState::default() },
        ] {
            assert_ne!(Lasting::of(&lasting), Lasting::default(), "{lasting:?}");
        }
    }
}
