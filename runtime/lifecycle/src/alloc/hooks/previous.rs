//! Waits until the allocation whose place this one takes runs nothing any more.
//!
//! ```text
//!   not known on this node, or its owner has ended ─► go on
//!   finished (tasks dead, post-run hooks done) ─────► go on
//!   the agent leaves (its tasks run on) ────────────► wait: this one leaves too
//! ```
//! Waiting is inherited: one that is stopped while it waits is over only when the other one is, so
//! that whoever has its place next, and waits for it alone, starts beside neither. So does one that
//! an earlier agent left in this state.
//!
//! The phase is a watch: one that ended before anybody looked is seen to have ended (nomad #12779),
//! and one whose owner is gone is not waited for (nomad #28191).

use std::time::Duration;

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::PreviousAlloc;
use crate::alloc::machine::AllocPhase;
use ostler_model::event::{EventKind, TaskEvent};

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
            let Some(previous) = waited_for(scope) else { return Ok(()) };
            let what = format!("waiting for previous allocation {}", previous.id);
            let event = TaskEvent::new(EventKind::HookMessage, scope.clock.now(), what.clone())
                .detail("previous_alloc", previous.id);
            scope.tell(News::Say(event)).await;
            wait(scope, previous, what).await;
            Ok(())
        })
    }

    /// Nothing of this one runs. A removal and the end of the agent drop the wait.
    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let Some(previous) = waited_for(scope) else { return Ok(()) };
            let id = previous.id;
            tracing::debug!(alloc = %scope.allocation.id, previous = %id, "over when that one is");
            wait(scope, previous, format!("over when previous allocation {id} is")).await;
            Ok(())
        })
    }
}

/// The previous allocation, while it may run something.
fn waited_for(scope: &AllocScope) -> Option<&PreviousAlloc> {
    // It was waited for before the first task was started.
    let previous = scope.previous.as_ref().filter(|_| !scope.started_before)?;
    (!is_over(*previous.phase.borrow())).then_some(previous)
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

fn is_over(phase: AllocPhase) -> bool {
    phase.finished() && phase != AllocPhase::Left
}
