//! Waits until the allocations that had the place of this one before it run nothing any more.
//!
//! ```text
//!   not known on this node, or its owner has ended ─► go on
//!   finished (tasks dead, post-run hooks done) ─────► go on
//!   the agent leaves (its tasks run on) ────────────► wait: this one leaves too
//! ```
//! An allocation that is stopped while it waits is over only when those previous allocations are
//! over that are to stop as well: until then its place is not free. The same holds for an
//! allocation that an earlier agent left in this state. A previous allocation that is to run on
//! (the change that was to replace it was taken back) may run for ever. The stop does not wait for
//! it, but whoever has the place next does.
//!
//! A previous allocation of another node is over when the servers say so, or no longer know it.
//!
//! The phase is a watch. So an allocation that ended before anybody looked is seen to have ended
//! (nomad #12779), and nobody waits for an allocation whose owner is gone (nomad #28191).

use std::time::Duration;

use super::{AllocHook, AllocScope, HookNews, HookResult};
use crate::alloc::PreviousAlloc;
use crate::alloc::machine::AllocPhase;
use ostler_model::alloc::DesiredStatus;
use ostler_model::clock;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::AllocId;
use ostler_model::planted::planted;

/// Servers answer within this time for an allocation that has ended. Such a short wait
/// is not reported.
const SOON: Duration = Duration::from_secs(1);

pub(super) struct PreviousHook;

impl AllocHook for PreviousHook {
    fn name(&self) -> &'static str {
        "await_previous"
    }

    /// No bound, because a task may take as long to end as its job says. A stop drops the wait.
    fn wall(&self) -> Option<Duration> {
        None
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            for previous in running_previous(scope) {
                let what = format!("waiting for previous allocation {}", previous.id);
                report_wait(scope, previous.id, what.clone()).await;
                wait_for_alloc(scope, previous, what).await;
            }
            wait_elsewhere(scope).await;
            Ok(())
        })
    }

    /// Nothing of this allocation runs any more. A removal, or the end of the agent,
    /// drops the wait.
    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let stops =
                |previous: &&PreviousAlloc| previous.asked.borrow().desired == DesiredStatus::Stop;
            let stopping = running_previous(scope).filter(stops);
            for previous in stopping.filter(|_| !planted("first-before-alone")) {
                let id = previous.id;
                tracing::debug!(alloc = %scope.allocation.id, previous = %id, "over when that one is");
                wait_for_alloc(scope, previous, format!("over when previous allocation {id} is"))
                    .await;
            }
            Ok(())
        })
    }
}

/// The previous allocations that may still run something. Each is looked at after the wait for the
/// one before it.
fn running_previous(scope: &AllocScope) -> impl Iterator<Item = &PreviousAlloc> {
    // An earlier agent waited for them before it started the first task.
    let waits = !scope.started_before && !planted("previous-not-awaited");
    let previous = scope.context.previous.iter().filter(move |_| waits);
    previous.filter(|previous| !is_over(*previous.phase.borrow()))
}

async fn wait_for_alloc(scope: &AllocScope, previous: &PreviousAlloc, what: String) {
    scope.tell(HookNews::Waiting(Some(what))).await;
    let mut phase = previous.phase.clone();
    let owner_gone = phase.wait_for(|phase| is_over(*phase)).await.is_err();
    if owner_gone && *previous.phase.borrow() == AllocPhase::Left {
        std::future::pending::<()>().await;
    }
    scope.tell(HookNews::Waiting(None)).await;
}

/// Wait for the previous allocation, where it is one of another node.
async fn wait_elsewhere(scope: &AllocScope) {
    let known = |id: &AllocId| scope.context.previous.iter().any(|previous| previous.id == *id);
    let Some(id) = scope.allocation.previous.filter(|id| !scope.started_before && !known(id))
    else {
        return;
    };
    let Some(others) = scope.other_nodes_for(id) else { return };
    let mut over = others.wait_until_over(id);
    let soon = clock::timeout(SOON, &mut over).await;
    let told = match soon {
        Some(told) => told,
        None => {
            let what = format!("waiting for previous allocation {id} on another node");
            report_wait(scope, id, what.clone()).await;
            scope.tell(HookNews::Waiting(Some(what))).await;
            let told = over.await;
            scope.tell(HookNews::Waiting(None)).await;
            told
        }
    };
    if let Err(why) = told {
        let what = format!("whether previous allocation {id} has ended is not known: {why}");
        report_wait(scope, id, what).await;
    }
}

async fn report_wait(scope: &AllocScope, previous: AllocId, what: String) {
    let event = TaskEvent::new(EventKind::HookMessage, scope.node.clock.now(), what)
        .detail("previous_alloc", previous);
    scope.tell(HookNews::Say(event)).await;
}

fn is_over(phase: AllocPhase) -> bool {
    phase.has_ended() && phase != AllocPhase::Left
}
