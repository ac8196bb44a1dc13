//! Waits until the allocations that had the place of this one before run nothing any more.
//!
//! ```text
//!   not known on this node, or its owner has ended ─► go on
//!   finished (tasks dead, post-run hooks done) ─────► go on
//!   the agent leaves (its tasks run on) ────────────► wait: this one leaves too
//! ```
//! One that is stopped while it waits is over only when those before it are that are to stop as well:
//! until then its place is not free. So is one that an earlier agent left in this state. One
//! that is to run on (the change that was to replace it was taken back) may run for ever: the stop does
//! not wait for it, but whoever has the place next does.
//!
//! One of another node is over when the servers say so, or do not know it any more.
//!
//! The phase is a watch: one that ended before anybody looked is seen to have ended (nomad #12779),
//! and one whose owner is gone is not waited for (nomad #28191).

use std::time::Duration;

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::PreviousAlloc;
use crate::alloc::machine::AllocPhase;
use ostler_model::alloc::DesiredStatus;
use ostler_model::clock;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::AllocId;
use ostler_model::planted::planted;

/// Servers answer at once for what has ended: of that nobody needs to hear.
const SOON: Duration = Duration::from_secs(1);

pub(super) struct PreviousHook;

impl AllocHook for PreviousHook {
    fn name(&self) -> &'static str {
        "await_previous"
    }

    /// A task may take as long to end as its job says; a stop drops the wait.
    fn wall(&self) -> Option<Duration> {
        None
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            for previous in waited_for(scope) {
                let what = format!("waiting for previous allocation {}", previous.id);
                say(scope, previous.id, what.clone()).await;
                wait(scope, previous, what).await;
            }
            wait_elsewhere(scope).await;
            Ok(())
        })
    }

    /// Nothing of this one runs. A removal and the end of the agent drop the wait.
    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let stops =
                |previous: &&PreviousAlloc| previous.asked.borrow().desired == DesiredStatus::Stop;
            let stopping = waited_for(scope).filter(stops);
            for previous in stopping.filter(|_| !planted("first-before-alone")) {
                let id = previous.id;
                tracing::debug!(alloc = %scope.allocation.id, previous = %id, "over when that one is");
                wait(scope, previous, format!("over when previous allocation {id} is")).await;
            }
            Ok(())
        })
    }
}

/// The previous allocations that may run something, each looked at when the one before was waited for.
fn waited_for(scope: &AllocScope) -> impl Iterator<Item = &PreviousAlloc> {
    // They were waited for before the first task was started.
    let waits = !scope.started_before && !planted("previous-not-awaited");
    let previous = scope.previous.iter().filter(move |_| waits);
    previous.filter(|previous| !is_over(*previous.phase.borrow()))
}

async fn wait(scope: &AllocScope, previous: &PreviousAlloc, what: String) {
    scope.tell(News::Waiting(Some(what))).await;
    let mut phase = previous.phase.clone();
    let owner_gone = phase.wait_for(|phase| is_over(*phase)).await.is_err();
    if owner_gone && *previous.phase.borrow() == AllocPhase::Left {
        std::future::pending::<()>().await;
    }
    scope.tell(News::Waiting(None)).await;
}

/// The previous allocation, where it is one of another node.
async fn wait_elsewhere(scope: &AllocScope) {
    let known = |id: &AllocId| scope.previous.iter().any(|previous| previous.id == *id);
    let Some(id) = scope.allocation.previous.filter(|id| !scope.started_before && !known(id))
    else {
        return;
    };
    let Some(others) = scope.elsewhere(id) else { return };
    let mut over = others.over(id);
    let soon = clock::timeout(SOON, &mut over).await;
    let told = match soon {
        Some(told) => told,
        None => {
            let what = format!("waiting for previous allocation {id} on another node");
            say(scope, id, what.clone()).await;
            scope.tell(News::Waiting(Some(what))).await;
            let told = over.await;
            scope.tell(News::Waiting(None)).await;
            told
        }
    };
    if let Err(why) = told {
        let what = format!("whether previous allocation {id} has ended is not known: {why}");
        say(scope, id, what).await;
    }
}

async fn say(scope: &AllocScope, previous: AllocId, what: String) {
    let event = TaskEvent::new(EventKind::HookMessage, scope.clock.now(), what)
        .detail("previous_alloc", previous);
    scope.tell(News::Say(event)).await;
}

fn is_over(phase: AllocPhase) -> bool {
    phase.ended() && phase != AllocPhase::Left
}
