//! Ends an allocation that has run as long as it may.
//!
//! The time counts from when the allocation was placed, so that a restart of the agent gives it no
//! more, and a deadline that passed meanwhile ends it at once.

use super::{AllocHook, AllocScope, HookResult, News};
use crate::task::events::short_duration;
use ostler_model::alloc::ClientStatus;
use ostler_model::clock;

const NAME: &str = "max_run_duration";

pub(super) struct MaxRunHook;

impl AllocHook for MaxRunHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            watch(scope);
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

fn watch(scope: &AllocScope) {
    let Some(most) = scope.allocation.task_group().and_then(|g| g.max_run_duration) else {
        scope.background.stop(NAME);
        return;
    };
    let deadline = scope.allocation.created_at.plus(most);
    let owner = scope.owner.clone();
    // A server that placed it may have another time of day.
    let left = deadline.since(scope.clock.now()).min(most);
    scope.background.run(NAME, async move {
        clock::sleep(left).await;
        let description = format!("Allocation ran as long as it may: {}", short_duration(most));
        let force = News::Force { status: ClientStatus::Complete, description, event: None };
        // The owner is gone: it has ended already.
        let _gone = owner.send(Box::new(force)).await;
    });
}
