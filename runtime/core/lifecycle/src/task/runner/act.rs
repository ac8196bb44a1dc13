//! Carries out the effects of the machine, as calls beside the owner.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::TaskRunner;
use super::answer::{TaskCall, TaskCallAnswer};
use crate::task::TaskScope;
use crate::task::calls::{self, TaskRun, TaskStartError};
use crate::task::first_byte;
use crate::task::machine::{TaskEffect, TaskInput};
use crate::task::recovery::{self, Recovery};
use crate::task::templates::follow::{self, TemplateFollowUp, TemplateNews};
use ostler_model::clock;
use ostler_model::task::TaskStatus;
use ostler_trace::{child_span, run_in};

/// The span of a call about a run of the task.
fn span(scope: &TaskScope, name: &'static str) -> Span {
    let (ids, task) = (child_span(&scope.context.trace), scope.task.name.as_str());
    let driver = scope.task.driver.as_str();
    ostler_trace::span!(ids, "task call", otel.name = name, task, driver, error = Empty)
}

impl TaskRunner {
    /// Carry out one effect of the machine.
    pub(super) fn act(&mut self, effect: TaskEffect) {
        let scope = Arc::clone(&self.scope);
        match effect {
            TaskEffect::Prepare => {
                self.number += 1;
                let (record, intent) = (self.record.clone(), self.intent.take());
                let notes = self.notes.clone();
                self.call(TaskCall::Prepare, async move {
                    let prepared = calls::prepare(&scope, &record, intent, notes).await;
                    TaskCallAnswer::Prepared(Box::new(prepared))
                });
            }
            TaskEffect::AbandonPrepare => self.abort(TaskCall::Prepare),
            TaskEffect::Start => self.start(),
            TaskEffect::AbandonStart => {
                if let Some(run) = &self.run {
                    run.abandon();
                }
                self.abort(TaskCall::Start);
            }
            TaskEffect::KillRun => {
                if let Some(run) = &self.run {
                    scope.node.workloads.kill_run(&run.id);
                }
            }
            TaskEffect::Timer(after) => self.timer = Some(Box::pin(clock::sleep(after))),
            TaskEffect::CancelTimer => self.timer = None,
            TaskEffect::End => {
                let (record, run) = (self.record.clone(), self.run.take());
                self.call(TaskCall::End, async move {
                    calls::end(&scope, &record, run.as_deref()).await;
                    TaskCallAnswer::Ended
                });
            }
            // The next agent makes driver and host forget the run.
            TaskEffect::Leave => self.forget_due = false,
            TaskEffect::Recover => self.recover(),
            TaskEffect::AbandonRecover => self.abort(TaskCall::Recover),
            // Done when the public state is durable, see `forget_if_due`.
            TaskEffect::Forget => self.forget_due = true,
            TaskEffect::Clear => self.clear(),
            TaskEffect::Watch
            | TaskEffect::Stop(_)
            | TaskEffect::Kill
            | TaskEffect::ReadExit
            | TaskEffect::ReportUndead => {
                self.act_on_run(effect);
            }
        }
    }

    fn start(&mut self) {
        // The files of the modules are kept, because the driver reads them during the start.
        let mut modules = Vec::new();
        let run = self.preparation.take().and_then(|mut preparation| {
            modules = std::mem::take(&mut preparation.modules);
            TaskRun::new(&self.scope, &self.record, self.notes.clone(), preparation)
        });
        let Some(run) = run.map(Arc::new) else {
            // The standard hooks never lead here: each fails rather than leave a part out.
            let error = "the prestart hooks left the preparation incomplete".to_owned();
            let failed = TaskCallAnswer::Started(Err(TaskStartError { error, recoverable: false }));
            self.call(TaskCall::Start, async move { failed });
            return;
        };
        self.run = Some(Arc::clone(&run));
        let (scope, record, guard) =
            (Arc::clone(&self.scope), self.record.clone(), run.start_guard());
        self.call(TaskCall::Start, async move {
            let starting = calls::start(&scope, &record, &run);
            let started =
                run_in(span(&scope, "task start"), starting, |failed| &failed.error).await;
            drop((guard, modules));
            TaskCallAnswer::Started(started)
        });
    }

    fn act_on_run(&mut self, effect: TaskEffect) {
        let Some(run) = self.run.clone() else { return };
        let scope = Arc::clone(&self.scope);
        match effect {
            TaskEffect::Watch => {
                if !std::mem::replace(&mut self.heard, true) {
                    first_byte::trace_first_byte(&scope, scope.node.clock.now());
                }
                scope.node.late_dirs.add(&scope.dirs);
                self.call(TaskCall::Watch, async move {
                    calls::watch(&scope, &run).await;
                    TaskCallAnswer::WorkloadEnded
                });
                self.follow_templates();
            }
            TaskEffect::Stop(timeout) => self.call(TaskCall::Stop, async move {
                let span = span(&scope, "task stop");
                TaskCallAnswer::Stopped(calls::stop(&scope, &run, timeout).instrument(span).await)
            }),
            TaskEffect::Kill => self.call(TaskCall::Kill, async move {
                TaskCallAnswer::Killed(calls::kill(&scope, &run).await)
            }),
            TaskEffect::ReadExit => {
                self.abort(TaskCall::Templates);
                scope.dirs.note_end();
                self.call(TaskCall::ReadExit, async move {
                    if calls::never_ran(&scope, &run) {
                        return TaskCallAnswer::Recovered(Recovery::NeverRan);
                    }
                    let span = span(&scope, "task exit");
                    let (exit, trouble) = calls::finish_run(&scope, &run).instrument(span).await;
                    TaskCallAnswer::ExitRead(exit, trouble)
                });
            }
            TaskEffect::ReportUndead
                if self.machine.is_killed_for_good() && calls::is_polled(&run) =>
            {
                let error = calls::give_up(&scope, &run);
                self.call(TaskCall::Tell, async move { TaskCallAnswer::GivenUp(error) });
            }
            TaskEffect::ReportUndead => {
                let what = calls::undead_text(&scope, &run);
                tracing::warn!(task = %scope.task.name, run = %run.id, what, "killed and not ended");
                self.call(TaskCall::Tell, async move { TaskCallAnswer::Undead(what) });
            }
            _ => {}
        }
    }

    /// Follow the templates of the present run, unless they are followed already.
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
        self.call(TaskCall::Templates, async move {
            TaskCallAnswer::Templates(
                follow::follow(scope, run, templates, &notes).await.map(Box::new),
            )
        });
    }

    /// Take changes of templates. The next run sees what came too late for this one.
    pub(super) fn take_template_news(&mut self, news: Option<Box<TemplateNews>>) {
        let Some(news) = news else { return };
        for event in news.events {
            self.feed(TaskInput::Note(event));
        }
        match news.then {
            TemplateFollowUp::Follow => {
                self.followed = None;
                self.follow_templates();
            }
            TemplateFollowUp::Restart(reason) => {
                self.feed(TaskInput::Restart { reason, failure: false });
            }
            TemplateFollowUp::Fail(event) => {
                let (event, reason) = (Some(event), "Template failed".to_owned());
                self.feed(TaskInput::Kill { event, reason, skip_delay: true });
            }
        }
    }

    fn recover(&mut self) {
        let Some(run) = self.run.clone() else {
            // This is never reached, because only a task with a recorded run is recovered.
            self.call(TaskCall::Recover, async { TaskCallAnswer::Recovered(Recovery::NeverRan) });
            return;
        };
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        let notes = self.notes.clone();
        self.call(TaskCall::Recover, async move {
            TaskCallAnswer::Recovered(recovery::recover(&scope, &record, &run, notes).await)
        });
    }

    fn clear(&mut self) {
        let (scope, record) = (Arc::clone(&self.scope), self.record.clone());
        // `self.run` stays until nothing is left of the run.
        let run = self.run.clone();
        self.call(TaskCall::Clear, async move {
            TaskCallAnswer::Cleared(match run {
                Some(run) => recovery::clear_run(&scope, &record, &run).await,
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
            // After a kill for good nothing follows, so an older record is enough for
            // the next start.
            if !(self.refused && self.machine.is_killed_for_good()) {
                return;
            }
        }
        self.forget_due = false;
        let (scope, record, run) = (Arc::clone(&self.scope), self.record.clone(), self.run.clone());
        let over = !self.refused && self.machine.public().status == TaskStatus::Dead;
        self.call(TaskCall::Forget, async move {
            if let Some(run) = run {
                calls::forget_run(&scope, &record, &run, over).await;
            }
            TaskCallAnswer::Forgotten
        });
    }

    /// Run a call beside the owner; its answer carries the number of the present run.
    pub(super) fn call(
        &mut self,
        call: TaskCall,
        future: impl Future<Output = TaskCallAnswer> + Send + 'static,
    ) {
        let number = self.number;
        // No async block around the future: that would take room for the future twice.
        let abort = self.calls.spawn(future.map(move |answer| (number, answer)));
        self.kinds.insert((number, call), abort);
    }

    pub(super) fn abort(&mut self, call: TaskCall) {
        self.kinds.abort(|(_, known)| *known == call);
    }
}
