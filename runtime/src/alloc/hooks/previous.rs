//! Waits until the allocation whose place this one takes runs nothing any more.
//!
//! ```text
//!   not known on this node, or its owner has ended ─► go on
//!   finished (tasks dead, post-run hooks done) ─────► go on
//!   the agent leaves (its tasks run on) ────────────► wait: this one leaves too
//! ```
//! The phase is a watch: one that ended before anybody looked is seen to have ended (nomad #12779),
//! and one whose owner is gone is not waited for (nomad #28191).

use std::time::Duration;

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::machine::AllocPhase;
use crate::model::event::{EventKind, TaskEvent};

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
            // It was waited for before the first task was started.
            let Some(previous) = scope.previous.as_ref().filter(|_| !scope.started_before) else {
                return Ok(());
            };
            let mut phase = previous.phase.clone();
            if phase.borrow_and_update().finished() && *phase.borrow() != AllocPhase::Left {
                return Ok(());
            }
            let what = format!("waiting for previous allocation {}", previous.id);
            let event = TaskEvent::new(EventKind::HookMessage, scope.clock.now(), what.clone())
                .detail("previous_alloc", previous.id);
            scope.tell(News::Say(event)).await;
            scope.tell(News::Waiting(Some(what))).await;
            let over = |phase: &AllocPhase| phase.finished() && *phase != AllocPhase::Left;
            let owner_gone = phase.wait_for(over).await.is_err();
            if owner_gone && *previous.phase.borrow() == AllocPhase::Left {
                std::future::pending::<()>().await;
            }
            scope.tell(News::Waiting(None)).await;
            Ok(())
        })
    }
}
