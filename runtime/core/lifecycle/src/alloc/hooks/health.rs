//! Watches an allocation until there is a verdict on its health.
//!
//! [`crate::alloc::health`] decides. This hook brings the inputs together: the task states from the
//! owner, the results of the checks and the timer.

use std::sync::Arc;

use super::{AllocHook, AllocScope, HookNews, HookResult};
use crate::alloc::health::{CheckResult, HealthEffect, HealthInput, HealthMachine};
use crate::wait_for_timer;
use crate::watch;
use ostler_model::alloc::AllocState;
use ostler_model::clock;
use ostler_model::ports::BoxFuture;

const NAME: &str = "health";

pub(super) struct HealthHook;

impl AllocHook for HealthHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            start_watching(scope);
            Ok(())
        })
    }

    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.prerun(scope)
    }

    /// A task that ends because it was asked to does not count against the allocation. A task that
    /// failed before does: the watch may not have seen it yet.
    fn pre_kill<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.background.stop(NAME);
            let state = scope.state.borrow().clone();
            if state.tasks.values().any(|task| task.failed)
                && let Some(mut watcher) = watcher(scope)
            {
                watcher.feed(HealthInput::Tasks(&state.tasks)).await;
            }
            Ok(())
        })
    }
}

fn start_watching(scope: &AllocScope) {
    match watcher(scope) {
        Some(watcher) => scope.background.run(NAME, watcher.watch()),
        None => scope.background.stop(NAME),
    }
}

/// A watcher, where the group asks for a verdict and there is none yet.
fn watcher(scope: &AllocScope) -> Option<HealthWatcher> {
    let allocation = &scope.allocation;
    let judged = scope.state.borrow().health.as_ref().is_some_and(|known| {
        known.healthy.is_some() && known.deployment.as_deref() == allocation.deployment_id()
    });
    let group = allocation.task_group().filter(|_| !judged)?;
    let since = allocation.deployment.as_ref().map(|deployment| deployment.since);
    // The clock of the server that placed the allocation may differ from this node's.
    let since = since.unwrap_or(allocation.created_at).min(scope.node.clock.now());
    Some(HealthWatcher {
        scope: scope.clone(),
        machine: HealthMachine::new(group.health?, group, since),
        results: scope.services.results.subscribe(),
        timer: None,
    })
}

struct HealthWatcher {
    scope: AllocScope,
    machine: HealthMachine,
    /// Follows the results of the checks.
    results: watch::Subscriber<Arc<[CheckResult]>>,
    timer: Option<BoxFuture<'static, ()>>,
}

impl HealthWatcher {
    async fn watch(mut self) {
        let mut states = self.scope.state.clone();
        let now = states.borrow_and_update().clone();
        let results = Arc::clone(&self.results.borrow_and_update());
        let mut judged =
            self.feed(HealthInput::Checks(&results)).await || self.feed_tasks(&now).await;
        while !judged {
            judged = tokio::select! {
                biased;
                changed = states.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = states.borrow_and_update().clone();
                    self.feed_tasks(&now).await
                }
                results = next_results(&mut self.results) => self.feed(HealthInput::Checks(&results)).await,
                () = wait_for_timer(&mut self.timer) => {
                    self.timer = None;
                    self.feed(HealthInput::TimerFired).await
                }
            };
        }
    }

    async fn feed_tasks(&mut self, state: &AllocState) -> bool {
        self.feed(HealthInput::Tasks(&state.tasks)).await
    }

    /// One step of the machine. Returns whether there is a verdict.
    async fn feed(&mut self, input: HealthInput<'_>) -> bool {
        for effect in self.machine.step(self.scope.node.clock.now(), input) {
            match effect {
                HealthEffect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
                HealthEffect::Verdict(verdict) => {
                    let (healthy, reasons) = (verdict.healthy, verdict.tasks);
                    self.scope.tell(HookNews::Verdict { healthy, reasons }).await;
                }
            }
        }
        self.machine.is_judged()
    }
}

async fn next_results(results: &mut watch::Subscriber<Arc<[CheckResult]>>) -> Arc<[CheckResult]> {
    if results.changed().await.is_ok() {
        return Arc::clone(&results.borrow_and_update());
    }
    std::future::pending().await
}
