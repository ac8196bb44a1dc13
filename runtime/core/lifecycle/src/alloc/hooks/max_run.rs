//! Ends an allocation that has run for its `max_run_duration`.
//!
//! The time counts from when the allocation was placed. So a restart of the agent gives it no more
//! time, and a deadline that passed while no agent ran ends it at once.

use super::{AllocHook, AllocScope, HookNews, HookResult};
use ostler_model::alloc::ClientStatus;
use ostler_model::clock;
use ostler_text::duration::short_duration;

const NAME: &str = "max_run_duration";

pub(super) struct MaxRunHook;

impl AllocHook for MaxRunHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            start_deadline(scope);
            Ok(())
        })
    }

    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.prerun(scope)
    }

    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.background.stop(NAME);
            Ok(())
        })
    }
}

fn start_deadline(scope: &AllocScope) {
    let Some(most) = scope.allocation.task_group().and_then(|g| g.max_run_duration) else {
        scope.background.stop(NAME);
        return;
    };
    let deadline = scope.allocation.created_at.plus(most);
    let owner = scope.owner.clone();
    // The clock of the server that placed the allocation may differ from this node's.
    let left = deadline.since(scope.node.clock.now()).min(most);
    scope.background.run(NAME, async move {
        clock::sleep(left).await;
        let description = format!("Allocation ran as long as it may: {}", short_duration(most));
        let force = HookNews::Force { status: ClientStatus::Complete, description, event: None };
        // The owner is gone: it has ended already.
        let _gone = owner.send(Box::new(force)).await;
    });
}
