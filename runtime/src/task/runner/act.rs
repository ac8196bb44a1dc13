//! Effects of the machine, as calls beside the owner.

use std::sync::Arc;

use super::Runner;
use super::answer::{Answer, Call};
use crate::clock;
use crate::task::calls::{self, Run, StartError};
use crate::task::hooks;
use crate::task::machine::Effect;

impl Runner {
    /// Do what the machine says.
    pub(super) fn act(&mut self, effect: Effect) {
        let scope = Arc::clone(&self.scope);
        match effect {
            Effect::Prepare => {
                self.number += 1;
                self.call(Call::Prepare, async move {
                    Answer::Prepared(Box::new(hooks::prestart(&scope).await))
                });
            }
            Effect::AbandonPrepare => self.abort(Call::Prepare),
            Effect::Start => self.start(),
            Effect::AbandonStart => {
                if let Some(run) = &self.run {
                    run.abandon();
                }
                self.abort(Call::Start);
            }
            Effect::KillRun => {
                if let Some(run) = &self.run {
                    scope.workloads.kill_run(&run.id);
                }
            }
            Effect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
            Effect::CancelTimer => self.timer = None,
            Effect::End => {
                let (record, run) = (self.record.clone(), self.run.take());
                let gave_up = self.gave_up;
                self.call(Call::End, async move {
                    calls::end(&scope, &record, run.as_deref(), gave_up).await;
                    Answer::Ended
                });
            }
            Effect::Leave => {}
            Effect::Watch | Effect::Stop(_) | Effect::Kill | Effect::Settle { .. } => {
                self.act_on_run(effect);
            }
        }
    }

    fn start(&mut self) {
        let run = self.preparation.take().and_then(|preparation| {
            Run::new(&self.scope, &self.record, self.notes.clone(), preparation)
        });
        let Some(run) = run.map(Arc::new) else {
            // Not reached with the standard hooks: each fails rather than leave a part out.
            let error = "the prestart hooks left the preparation incomplete".to_owned();
            let failed = Answer::Started(Err(StartError { error, recoverable: false }));
            self.call(Call::Start, async move { failed });
            return;
        };
        self.run = Some(Arc::clone(&run));
        let (scope, record, guard) =
            (Arc::clone(&self.scope), self.record.clone(), run.start_guard());
        self.call(Call::Start, async move {
            let answer = calls::start(&scope, &record, &run).await;
            drop(guard);
            Answer::Started(answer)
        });
    }

    fn act_on_run(&mut self, effect: Effect) {
        let Some(run) = self.run.clone() else { return };
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        match effect {
            Effect::Watch => self.call(Call::Watch, async move {
                calls::watch(&scope, &run).await;
                Answer::WorkloadEnded
            }),
            Effect::Stop(timeout) => self.call(Call::Stop, async move {
                Answer::Stopped(calls::stop(&scope, &run, timeout).await)
            }),
            Effect::Kill => self
                .call(Call::Kill, async move { Answer::Killed(calls::kill(&scope, &run).await) }),
            Effect::Settle { gave_up } => {
                self.gave_up |= gave_up;
                self.call(Call::Settle, async move {
                    let (exit, trouble) = calls::settle(&scope, &record, &run, gave_up).await;
                    Answer::Settled(exit, trouble)
                });
            }
            _ => {}
        }
    }

    /// Run a call beside the owner; its answer carries the number of the present run.
    pub(super) fn call(
        &mut self,
        call: Call,
        future: impl Future<Output = Answer> + Send + 'static,
    ) {
        let number = self.number;
        let abort = self.calls.spawn(async move { (number, future.await) });
        self.kinds.insert(abort.id(), (number, call, abort));
    }

    fn abort(&mut self, call: Call) {
        for (_, known, abort) in self.kinds.values() {
            if *known == call {
                abort.abort();
            }
        }
    }
}
