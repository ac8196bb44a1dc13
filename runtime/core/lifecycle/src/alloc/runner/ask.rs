//! Restarts, signals and commands: passes them to tasks and answers the asker.

use super::{AllocCall, AllocRunnerLoop, send_answer};
use crate::alloc::machine::{AllocInput, RestartRefusal};
use crate::alloc::{Reply, RestartScope};
use crate::task::{ExecRequest, RequestError, TaskHandle};
use ostler_model::ids::TaskName;
use ostler_model::ports::BoxFuture;
use ostler_model::task::TaskStatus;

impl AllocRunnerLoop {
    pub(super) fn restart(&mut self, scope: RestartScope, reason: String, reply: Reply) {
        if let Some(refusal) = self.machine.restart_refusal() {
            send_answer(reply, Err(refusal_error(refusal)));
            return;
        }
        let task = match scope {
            RestartScope::All => {
                self.restart = Some(reply);
                self.feed(AllocInput::RestartAll { reason });
                return;
            }
            RestartScope::Running => None,
            RestartScope::Task(task) => Some(task),
        };
        self.ask_tasks(task.as_ref(), reply, move |handle| {
            let reason = reason.clone();
            Box::pin(async move { handle.restart(&reason).await })
        });
    }

    /// The hooks before a restart of all are done.
    pub(super) fn restart_ready(&mut self, result: Result<(), String>) {
        let ok = result.is_ok();
        if let Err(error) = result
            && let Some(reply) = self.restart.take()
        {
            send_answer(reply, Err(RequestError::Hook(error)));
        }
        // The machine asks the tasks, unless a stop came meanwhile.
        self.feed(AllocInput::RestartReady { ok });
        if let Some(reply) = self.restart.take() {
            send_answer(reply, Err(RequestError::Stopping));
        }
    }

    /// Tell every task to run again, beside the owner.
    pub(super) fn force_restart(&mut self, reason: String) {
        let targets: Vec<TaskHandle> = self.tasks.values().cloned().collect();
        let reply = self.restart.take();
        self.call(AllocCall::ForceRestart, async move {
            let mut errors = Vec::new();
            for target in targets {
                errors.extend(target.force_restart(&reason).await.err());
            }
            if let Some(reply) = reply {
                send_answer(reply, join_errors(errors));
            }
            Ok(())
        });
    }

    /// Run a command inside a task, beside the owner.
    pub(super) fn exec(&mut self, task: &TaskName, request: ExecRequest) {
        let ExecRequest { command, reply } = request;
        let Some(handle) = self.tasks.get(task).cloned() else {
            // An error means that the asker has left.
            let _gone = reply.send(Err(RequestError::UnknownTask { task: task.clone() }));
            return;
        };
        self.call(AllocCall::Request, async move {
            let _gone = reply.send(handle.exec(command).await);
            Ok(())
        });
    }

    /// Ask one task, or every running one, beside the owner.
    pub(super) fn ask_tasks(
        &mut self,
        task: Option<&TaskName>,
        reply: Reply,
        ask: impl Fn(TaskHandle) -> BoxFuture<'static, Result<(), RequestError>> + Send + 'static,
    ) {
        let targets: Vec<TaskHandle> = match task {
            Some(name) => match self.tasks.get(name) {
                Some(handle) => vec![handle.clone()],
                None => {
                    send_answer(reply, Err(RequestError::UnknownTask { task: name.clone() }));
                    return;
                }
            },
            None => {
                let runs = |task: &TaskHandle| task.state().status == TaskStatus::Running;
                let all = self.tasks.values();
                all.filter(|task| runs(task)).cloned().collect()
            }
        };
        if targets.is_empty() {
            send_answer(reply, Err(RequestError::NothingRunning));
            return;
        }
        self.call(AllocCall::Request, async move {
            let mut errors = Vec::new();
            for target in targets {
                errors.extend(ask(target).await.err());
            }
            send_answer(reply, join_errors(errors));
            Ok(())
        });
    }
}

fn refusal_error(refusal: RestartRefusal) -> RequestError {
    match refusal {
        RestartRefusal::Ended => RequestError::Gone,
        RestartRefusal::Ending => RequestError::Stopping,
        RestartRefusal::Restarting => RequestError::Restarting,
    }
}

fn join_errors(mut errors: Vec<RequestError>) -> Result<(), RequestError> {
    match (errors.pop(), errors.is_empty()) {
        (None, _) => Ok(()),
        (Some(error), true) => Err(error),
        (Some(last), false) => {
            errors.push(last);
            Err(RequestError::Several(errors))
        }
    }
}
