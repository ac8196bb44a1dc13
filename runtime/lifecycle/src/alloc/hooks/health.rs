//! Watches an allocation until it is judged healthy or not.
//!
//! The decision is [`crate::alloc::health`]'s; here its inputs are brought together: the task states
//! from the owner, the results of the checks, the timer.

use std::sync::Arc;

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::health::{CheckResult, HealthEffect, HealthInput, HealthMachine};
use crate::fire;
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
            begin(scope);
            Ok(())
        })
    }

    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.prerun(scope)
    }

    /// What ends because it was asked to is not held against it. What had failed before is: the
    /// watch may not have seen it yet.
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

fn begin(scope: &AllocScope) {
    match watcher(scope) {
        Some(watcher) => scope.background.run(NAME, watcher.watch()),
        None => scope.background.stop(NAME),
    }
}

/// Something to judge by, where somebody asked for a verdict and there is none.
fn watcher(scope: &AllocScope) -> Option<Watcher> {
    let allocation = &scope.allocation;
    let judged = scope.state.borrow().health.as_ref().is_some_and(|known| {
        known.healthy.is_some() && known.deployment.as_deref() == allocation.deployment_id()
    });
    let group = allocation.task_group().filter(|_| !judged)?;
    let since = allocation.deployment.as_ref().map(|deployment| deployment.since);
    // A server that placed it may have another time of day.
    let since = since.unwrap_or(allocation.created_at).min(scope.clock.now());
    Some(Watcher {
        scope: scope.clone(),
        machine: HealthMachine::new(group.health?, group, since),
        results: scope.services.results.subscribe(),
        timer: None,
    })
}

struct Watcher {
    scope: AllocScope,
    machine: HealthMachine,
    /// What the checks of its services say.
    results: watch::Subscriber<Arc<[CheckResult]>>,
    timer: Option<BoxFuture<'static, ()>>,
}

impl Watcher {
    async fn watch(mut self) {
        let mut states = self.scope.state.clone();
        let now = states.borrow_and_update().clone();
        let results = Arc::clone(&self.results.borrow_and_update());
        let mut judged = self.feed(HealthInput::Checks(&results)).await || self.tasks(&now).await;
        while !judged {
            judged = tokio::select! {
                biased;
                changed = states.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = states.borrow_and_update().clone();
                    self.tasks(&now).await
                }
                results = changed(&mut self.results) => self.feed(HealthInput::Checks(&results)).await,
                () = fire(&mut self.timer) => {
                    self.timer = None;
                    self.feed(HealthInput::TimerFired).await
                }
            };
        }
    }

    async fn tasks(&mut self, state: &AllocState) -> bool {
        self.feed(HealthInput::Tasks(&state.tasks)).await
    }

    /// One step; has it been judged?
    async fn feed(&mut self, input: HealthInput<'_>) -> bool {
        for effect in self.machine.step(self.scope.clock.now(), input) {
            match effect {
                HealthEffect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
                HealthEffect::Verdict(verdict) => {
                    let (healthy, reasons) = (verdict.healthy, verdict.tasks);
                    self.scope.tell(News::Verdict { healthy, reasons }).await;
                }
            }
        }
        self.machine.is_judged()
    }
}

async fn changed(results: &mut watch::Subscriber<Arc<[CheckResult]>>) -> Arc<[CheckResult]> {
    if results.changed().await.is_ok() {
        return Arc::clone(&results.borrow_and_update());
    }
    std::future::pending().await
}
