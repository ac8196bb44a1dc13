//! Effects of the machine, as calls beside the owner.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::Runner;
use super::answer::{Answer, Call};
use crate::task::TaskScope;
use crate::task::calls::{self, Run, StartError};
use crate::task::first_byte;
use crate::task::machine::{TaskEffect, TaskInput};
use crate::task::recovery::{self, Recovery};
use crate::task::templates::follow::{self, TemplateNews, Then};
use ostler_model::clock;
use ostler_model::task::TaskStatus;
use ostler_trace::{child_of, run_in};

/// The span of a call about a run of the task.
fn span(scope: &TaskScope, name: &'static str) -> Span {
    let (ids, task) = (child_of(&scope.trace), scope.task.name.as_str());
    let driver = scope.task.driver.as_str();
    ostler_trace::span!(ids, "task call", otel.name = name, task, driver, error = Empty)
}

impl Runner {
    /// Do what the machine says.
    pub(super) fn act(&mut self, effect: TaskEffect) {
        let scope = Arc::clone(&self.scope);
        match effect {
            TaskEffect::Prepare => {
                self.number += 1;
                let (record, intent) = (self.record.clone(), self.intent.take());
                let notes = self.notes.clone();
                self.call(Call::Prepare, async move {
                    let prepared = calls::prepare(&scope, &record, intent, notes).await;
                    Answer::Prepared(Box::new(prepared))
                });
            }
            TaskEffect::AbandonPrepare => self.abort(Call::Prepare),
            TaskEffect::Start => self.start(),
            TaskEffect::AbandonStart => {
                if let Some(run) = &self.run {
                    run.abandon();
                }
                self.abort(Call::Start);
            }
            TaskEffect::KillRun => {
                if let Some(run) = &self.run {
                    scope.workloads.kill_run(&run.id);
                }
            }
            TaskEffect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
            TaskEffect::CancelTimer => self.timer = None,
            TaskEffect::End => {
                let (record, run) = (self.record.clone(), self.run.take());
                self.call(Call::End, async move {
                    calls::end(&scope, &record, run.as_deref()).await;
                    Answer::Ended
                });
            }
            // The next agent makes driver and host forget the run.
            TaskEffect::Leave => self.forget_due = false,
            TaskEffect::Recover => self.recover(),
            TaskEffect::AbandonRecover => self.abort(Call::Recover),
            // Done when the public state is durable, see `forget_if_due`.
            TaskEffect::Forget => self.forget_due = true,
            TaskEffect::Clear => self.clear(),
            TaskEffect::Watch
            | TaskEffect::Stop(_)
            | TaskEffect::Kill
            | TaskEffect::ReadExit
            | TaskEffect::TellUndead => {
                self.act_on_run(effect);
            }
        }
    }

    fn start(&mut self) {
        // What it was fetched to is read while it starts.
        let mut modules = Vec::new();
        let run = self.preparation.take().and_then(|mut preparation| {
            modules = std::mem::take(&mut preparation.modules);
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
            let starting = calls::start(&scope, &record, &run);
            let started =
                run_in(span(&scope, "task start"), starting, |failed| &failed.error).await;
            drop((guard, modules));
            Answer::Started(started)
        });
    }

    fn act_on_run(&mut self, effect: TaskEffect) {
        let Some(run) = self.run.clone() else { return };
        let scope = Arc::clone(&self.scope);
        match effect {
            TaskEffect::Watch => {
                if !std::mem::replace(&mut self.heard, true) {
                    first_byte::watch(&scope, scope.clock.now());
                }
                self.call(Call::Watch, async move {
                    calls::watch(&scope, &run).await;
                    Answer::WorkloadEnded
                });
                self.follow_templates();
            }
            TaskEffect::Stop(timeout) => self.call(Call::Stop, async move {
                let span = span(&scope, "task stop");
                Answer::Stopped(calls::stop(&scope, &run, timeout).instrument(span).await)
            }),
            TaskEffect::Kill => self
                .call(Call::Kill, async move { Answer::Killed(calls::kill(&scope, &run).await) }),
            TaskEffect::ReadExit => {
                self.abort(Call::Templates);
                self.call(Call::ReadExit, async move {
                    if calls::never_ran(&scope, &run) {
                        return Answer::Recovered(Recovery::NeverRan);
                    }
                    let span = span(&scope, "task exit");
                    let (exit, trouble) = calls::finish_run(&scope, &run).instrument(span).await;
                    Answer::ExitRead(exit, trouble)
                });
            }
            TaskEffect::TellUndead if self.machine.killed_for_good() && calls::is_polled(&run) => {
                let error = calls::give_up(&scope, &run);
                self.call(Call::Tell, async move { Answer::GivenUp(error) });
            }
            TaskEffect::TellUndead => {
                let what = calls::undead(&scope, &run);
                tracing::warn!(task = %scope.task.name, run = %run.id, what, "killed and not ended");
                self.call(Call::Tell, async move { Answer::Undead(what) });
            }
            _ => {}
        }
    }

    /// Follow the templates of the present run, unless they are.
    pub(super) fn follow_templates(&mut self) {
        let Some(run) = self.run.clone().filter(|run| self.followed.as_ref() != Some(&run.id))
        else {
            return;
        };
        let Some(templates) = run.templates().filter(|templates| templates.may_change()) else {
            return;
        };
        self.followed = Some(run.id.clone());
        let (scope, templates) = (Arc::clone(&self.scope), Arc::clone(templates));
        let notes = self.notes.clone();
        self.call(Call::Templates, async move {
            Answer::Templates(follow::follow(scope, run, templates, &notes).await.map(Box::new))
        });
    }

    /// Templates read otherwise. What came too late for the run is the next one's.
    pub(super) fn templates_changed(&mut self, news: Option<Box<TemplateNews>>) {
        let Some(news) = news else { return };
        for event in news.events {
            self.feed(TaskInput::Note(event));
        }
        match news.then {
            Then::Follow => {
                self.followed = None;
                self.follow_templates();
            }
            Then::Restart(reason) => {
                self.feed(TaskInput::Restart { reason, failure: false });
            }
            Then::Fail(event) => {
                let (event, reason) = (Some(event), "Template failed".to_owned());
                self.feed(TaskInput::Kill { event, reason, skip_delay: true });
            }
        }
    }

    fn recover(&mut self) {
        let Some(run) = self.run.clone() else {
            // Not reached: only a task with a recorded run is recovered.
            self.call(Call::Recover, async { Answer::Recovered(Recovery::NeverRan) });
            return;
        };
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        let notes = self.notes.clone();
        self.call(Call::Recover, async move {
            Answer::Recovered(recovery::recover(&scope, &record, &run, notes).await)
        });
    }

    fn clear(&mut self) {
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        // `self.run` stays until nothing is left of the run.
        let run = self.run.clone();
        self.call(Call::Clear, async move {
            Answer::Cleared(match run {
                Some(run) => recovery::clear(&scope, &record, &run).await,
                None => true,
            })
        });
    }

    /// Make driver and host forget the run, once what follows it is durable.
    pub(super) fn forget_if_due(&mut self) {
        if !self.forget_due {
            return;
        }
        if self.writing || self.dirty {
            // After a kill for good nothing follows, so an older record is enough for the next
            // start.
            if !(self.refused && self.machine.killed_for_good()) {
                return;
            }
        }
        self.forget_due = false;
        let (scope, record, run) = (Arc::clone(&self.scope), self.record.clone(), self.run.clone());
        let over = !self.refused && self.machine.public().status == TaskStatus::Dead;
        self.call(Call::Forget, async move {
            if let Some(run) = run {
                calls::forget_run(&scope, &record, &run, over).await;
            }
            Answer::Forgotten
        });
    }

    /// Run a call beside the owner; its answer carries the number of the present run.
    pub(super) fn call(
        &mut self,
        call: Call,
        future: impl Future<Output = Answer> + Send + 'static,
    ) {
        let number = self.number;
        // Not an async block around it, which would have room for the future twice.
        let abort = self.calls.spawn(future.map(move |answer| (number, answer)));
        self.kinds.insert((number, call), abort);
    }

    pub(super) fn abort(&mut self, call: Call) {
        self.kinds.abort(|(_, known)| *known == call);
    }
}
