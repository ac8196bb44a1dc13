//! Carries out the effects of the machine, as calls beside the owner.

use futures_util::FutureExt as _;

use super::{AllocCall, AllocCallFailure, AllocRunnerLoop, HookTurn};
use crate::alloc::hooks::{self, AllocScope};
use crate::alloc::machine::AllocEffect;
use crate::task::handle::await_write;
use crate::task::{KillRequest, TaskHandle};
use ostler_model::clock;
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;

impl AllocRunnerLoop {
    /// Carry out one effect of the machine.
    pub(super) fn act(&mut self, effect: AllocEffect) {
        match effect {
            AllocEffect::AbandonPreHooks => self.abort(AllocCall::Pre),
            AllocEffect::AbandonPostHooks => self.abort(AllocCall::Post),
            AllocEffect::UpdateHooks => match self.update_hooks {
                HookTurn::Idle => self.run_update_hooks(),
                HookTurn::Running | HookTurn::Again => self.update_hooks = HookTurn::Again,
            },
            AllocEffect::PreHooks
            | AllocEffect::PreHooksAfter(_)
            | AllocEffect::RestartHooks
            | AllocEffect::PreKillHooks
            | AllocEffect::PostHooks
            | AllocEffect::DestroyHooks => self.run_hooks(&effect),
            AllocEffect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
            AllocEffect::SaveHealth(verdict) => self.save_health(verdict),
            AllocEffect::Gates(changes) => {
                for (task, gate) in changes {
                    if let Some(seen) = self.gates.get(&task) {
                        seen.send_replace(gate);
                    }
                }
            }
            AllocEffect::Kill { tasks, event, reason, skip_shutdown_delay } => {
                for task in tasks {
                    let kill = KillRequest {
                        event: event.clone(),
                        reason: reason.clone(),
                        skip_shutdown_delay,
                    };
                    self.send(&task, |handle| async move { handle.kill_with(kill).await });
                }
            }
            AllocEffect::ForceRestart { reason } => self.force_restart(reason),
            AllocEffect::FinishTasks => {
                for task in self.task_names() {
                    self.send(&task, |handle| async move { handle.finish().await });
                }
            }
            AllocEffect::Notes(notes) => self.note(notes),
            AllocEffect::LeaveTasks => {
                self.scope.background.close();
                for task in self.task_names() {
                    self.send(&task, |handle| async move { handle.shutdown().await });
                }
            }
        }
    }

    fn run_hooks(&mut self, effect: &AllocEffect) {
        let scope = self.scope.clone();
        match effect {
            AllocEffect::PreHooks => self.call(AllocCall::Pre, async move {
                hooks::prerun(&scope).await.map_err(AllocCallFailure::from)
            }),
            AllocEffect::PreHooksAfter(pause) => {
                let pause = clock::sleep(*pause);
                self.call(AllocCall::Pre, async move {
                    pause.await;
                    hooks::prerun(&scope).await.map_err(AllocCallFailure::from)
                });
            }
            AllocEffect::RestartHooks => self.call(AllocCall::RestartHooks, async move {
                hooks::pre_restart(&scope).await.map_err(AllocCallFailure::from)
            }),
            AllocEffect::PreKillHooks => self.call(AllocCall::PreKill, async move {
                hooks::pre_kill(&scope).await;
                Ok(())
            }),
            AllocEffect::PostHooks => self.call(AllocCall::Post, async move {
                hooks::postrun(&scope).await;
                Ok(())
            }),
            AllocEffect::DestroyHooks => {
                self.call(AllocCall::Destroy, async move {
                    destroy(&scope).await;
                    Ok(())
                });
            }
            _ => {}
        }
    }

    /// Run the update hooks with the newest copy. One call runs at a time.
    pub(super) fn run_update_hooks(&mut self) {
        self.update_hooks = HookTurn::Running;
        let scope = self.scope.clone();
        self.call(AllocCall::Update, async move {
            hooks::update(&scope).await;
            Ok(())
        });
    }

    pub(super) fn note(&mut self, notes: Vec<(TaskName, TaskEvent)>) {
        for (task, event) in notes {
            self.send(&task, |handle| async move { handle.note(event).await });
        }
    }

    fn task_names(&self) -> Vec<TaskName> {
        self.tasks.keys().cloned().collect()
    }

    /// Send something to a task. This runs beside the owner, because the queue of the task
    /// may be full.
    fn send<F>(&mut self, task: &TaskName, send: impl FnOnce(TaskHandle) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(handle) = self.tasks.get(task) else {
            return;
        };
        let sending = send(handle.clone());
        self.call(AllocCall::Request, async move {
            sending.await;
            Ok(())
        });
    }

    pub(super) fn call(
        &mut self,
        call: AllocCall,
        future: impl Future<Output = Result<(), AllocCallFailure>> + Send + 'static,
    ) {
        // No async block around the future: that would take room for the future twice.
        let abort = self.calls.spawn(future.map(move |result| (call, result)));
        self.kinds.insert(call, abort);
    }

    fn abort(&mut self, call: AllocCall) {
        self.kinds.abort(|known| *known == call);
    }
}

/// Remove what is left of an allocation: first the directory, then the records. The records go
/// last, so that after a crash in between the directory can still be found. No record can come
/// back, because the store drops every later write of the allocation.
async fn destroy(scope: &AllocScope) {
    hooks::destroy(scope).await;
    let id = scope.allocation.id;
    match await_write(scope.node.state.destroy_alloc(id)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::error!(alloc = %id, %error, "records not removed"),
        None => tracing::error!(alloc = %id, "records not removed in time"),
    }
}
