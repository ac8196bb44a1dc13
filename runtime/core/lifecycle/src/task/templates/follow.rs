//! Follows the templates of a running task, and acts when their contents change.
//!
//! ```text
//! look ─► something they used changed ─► quiet for `wait` ─► render again ─► same? look on
//!   ▲                                                            │ other: kept as not told, written
//!   │                                            splay ◄─────────┘
//!   └── noop, signal, script ◄── told ◄── the strongest of ──────┴─► restart: the next run renders again
//! ```
//! A change that an earlier agent wrote but did not tell the task (`untold`) counts as a change
//! in the first look of the next agent. Services and variables signal their changes; files are
//! looked at repeatedly. A template that cannot be rendered again leaves its file as it is, and
//! that is reported once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use xxhash_rust::xxh3::xxh3_128;

use super::outside::DependencyState;
use super::place::TemplateDirs;
use super::{RenderError, RenderedFile, Templates, TemplatesState, disk};
use crate::queue;
use crate::task::TaskScope;
use crate::task::calls;
use crate::task::events;
use crate::task::notes::{self, DriverNote};
use crate::task::run::TaskRun;
use ostler_model::cancellation::CancelFlag;
use ostler_model::clock;
use ostler_model::event::TaskEvent;
use ostler_model::limits::{
    TEMPLATE_LOOK_INTERVAL, TEMPLATE_SCRIPT_OUTPUT_BYTES_MAX, TEMPLATE_TOLD_PAUSE,
};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::template::{ChangeMode, ChangeScript, TaskTemplate};
use ostler_model::time::Timestamp;
use ostler_template::Dependency;
use ostler_template::limits::TEMPLATE_OUTPUT_BYTES_MAX;
use ostler_text::duration::short_duration;

/// What follows from a change of templates.
#[derive(Debug, Default)]
pub struct TemplateNews {
    /// Events for the task.
    pub events: Vec<TaskEvent>,
    /// What the owner is to do.
    pub then: TemplateFollowUp,
}

/// See [`TemplateNews`].
#[derive(Debug, Default)]
pub enum TemplateFollowUp {
    /// Follow the templates again.
    #[default]
    Follow,
    /// Restart the task, for this reason.
    Restart(String),
    /// Fail the task with this event.
    Fail(TaskEvent),
}

/// The result of rendering the templates again.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The templates whose contents changed and were written, also by an earlier agent that did not
    /// tell the task.
    pub(super) changed: Vec<TaskTemplate>,
    /// Why a template could not be rendered.
    pub(super) trouble: Option<String>,
}

impl Templates {
    /// Did any dependency of the templates change?
    pub(super) fn has_changes(&self) -> bool {
        let Ok(sandbox) = self.rendering.open_dirs() else { return false };
        let (known, sources) = (self.lock_state(), &self.rendering.sources);
        known
            .seen
            .iter()
            .any(|(what, seen)| DependencyState::read_now(what, &sandbox, sources) != *seen)
    }

    /// The present states of all dependencies.
    fn dependency_states(&self) -> Option<Vec<DependencyState>> {
        let sandbox = self.rendering.open_dirs().ok()?;
        let (known, sources) = (self.lock_state(), &self.rendering.sources);
        Some(
            known
                .seen
                .keys()
                .map(|what| DependencyState::read_now(what, &sandbox, sources))
                .collect(),
        )
    }

    /// Were all files of an earlier agent checked?
    fn is_looked_at(&self) -> bool {
        self.lock_state().files.len() == self.rendering.task.templates.len()
    }

    /// Render all templates again, and write those whose contents changed.
    pub(super) fn render_again(&self, now: Timestamp, wanted: &CancelFlag) -> Round {
        let mut known = self.lock_state();
        let mut round = match self.rendering.open_dirs() {
            Ok(sandbox) => self.render_all_again(&sandbox, &mut known, (now, wanted)),
            Err(error) => Round { trouble: Some(error.to_string()), ..Round::default() },
        };
        let told = std::mem::replace(&mut known.told, round.trouble.clone());
        // The same trouble is reported once.
        round.trouble = round.trouble.filter(|trouble| told.as_ref() != Some(trouble));
        round
    }

    fn render_all_again(
        &self,
        sandbox: &TemplateDirs,
        known: &mut TemplatesState,
        (now, wanted): (Timestamp, &CancelFlag),
    ) -> Round {
        let mut round = Round::default();
        // The present states, so that a template that fails is tried again when something changes.
        let sources = &self.rendering.sources;
        let now_seen =
            |what: &Dependency| (what.clone(), DependencyState::read_now(what, sandbox, sources));
        let mut seen: BTreeMap<_, _> = known.seen.keys().map(now_seen).collect();
        let templates = &self.rendering.task.templates;
        let first = known.files.len() != templates.len();
        let mut changed = if first { sandbox.read_untold() } else { BTreeSet::new() };
        let mut untold = changed.clone();
        for (index, template) in templates.iter().enumerate() {
            let made = known.files.get(&index);
            let which = (index, template);
            match self.render_one_again(sandbox, which, made, (now, wanted), &mut seen, &mut untold)
            {
                Ok(None) => {}
                Ok(Some((made, other))) => {
                    known.files.insert(index, made);
                    changed.extend(other.then_some(index));
                }
                Err(error) => {
                    // A file of an earlier agent stays as it is until a dependency changes.
                    known.files.entry(index).or_insert_with(|| RenderedFile::unknown(now));
                    round.trouble.get_or_insert(error.to_string());
                }
            }
        }
        known.seen = seen;
        round.changed = changed.iter().filter_map(|index| templates.get(*index)).cloned().collect();
        round
    }

    /// Render one template again. Returns its file and whether the content changed; `None`: nothing
    /// could change. A template that the task is to be told of is added to `untold`, which is kept
    /// before the file is written.
    fn render_one_again(
        &self,
        sandbox: &TemplateDirs,
        (index, template): (usize, &TaskTemplate),
        made: Option<&RenderedFile>,
        (now, wanted): (Timestamp, &CancelFlag),
        seen: &mut BTreeMap<Dependency, DependencyState>,
        untold: &mut BTreeSet<usize>,
    ) -> Result<Option<(RenderedFile, bool)>, RenderError> {
        let made = made.filter(|made| made.output.is_some());
        if made.is_some_and(|made| made.used.is_empty()) {
            return Ok(None);
        }
        let name = self.rendering.name(template)?;
        let (before, at) = match made {
            Some(made) => (made.output, made.at),
            None => {
                let found = sandbox.destination(&name).ok().and_then(|(dir, path)| {
                    disk::read_rendered(dir, &path, TEMPLATE_OUTPUT_BYTES_MAX as u64)
                });
                found.map_or((None, now), |(bytes, at)| (Some(xxh3_128(&bytes)), at))
            }
        };
        // Rendered as of the old time, because the time alone must not count as a change.
        let then = self.rendering.render_one(sandbox, template, &name, (at, wanted), seen)?;
        let fixed = made.is_none() && then.used.is_empty();
        let then = RenderedFile::from_rendered(then, at);
        if fixed || before == then.output {
            return Ok(Some((then, false)));
        }
        let rendered = self.rendering.render_one(sandbox, template, &name, (now, wanted), seen)?;
        if template.change != ChangeMode::Noop && untold.insert(index) {
            sandbox.keep_untold(untold, now).map_err(|error| RenderError::Disk {
                node: ostler_model::causes::is_of_the_node(&error),
                action: "write the note that its task is to be told, in",
                path: "the allocation's directory".to_owned(),
                error: error.to_string(),
                name: name.clone(),
            })?;
        }
        self.rendering.write(sandbox, template, &name, &rendered.output, now)?;
        Ok(Some((RenderedFile::from_rendered(rendered, now), true)))
    }

    /// How long the dependencies must be unchanged before the templates are rendered again, and how
    /// long to wait for that at most.
    fn quiet_bounds(&self) -> (Duration, Duration) {
        let waits = || self.rendering.task.templates.iter().filter_map(|template| template.wait);
        let min = waits().map(|wait| wait.min).max().unwrap_or_default();
        (min, waits().map(|wait| wait.max).max().unwrap_or_default())
    }
}

/// Follow the templates of a run until the task is to be told of a change. `None`: the
/// templates cannot change.
pub async fn follow(
    scope: Arc<TaskScope>,
    run: Arc<TaskRun>,
    templates: Arc<Templates>,
    notes: &queue::QueueSender<DriverNote>,
) -> Option<TemplateNews> {
    loop {
        if !templates.may_change() {
            return None;
        }
        if templates.is_looked_at() {
            wait_for_change(&templates).await;
            wait_for_quiet(&templates).await;
        } else {
            // The list of services is incomplete until the services that run on are in it.
            templates.rendering.sources.wait_restored().await;
        }
        let (again, now) = (Arc::clone(&templates), scope.node.clock.now());
        // The rendering is given up when the task is to end.
        let round =
            clock::run_blocking_cancellable(move |wanted| again.render_again(now, wanted)).await;
        let round = round.unwrap_or_default();
        let trouble =
            round.trouble.map(|text| events::template_trouble(scope.node.clock.now(), &text));
        if !templates.is_looked_at() {
            // The directories of the task cannot be opened now.
            clock::sleep(TEMPLATE_LOOK_INTERVAL).await;
        }
        if round.changed.is_empty() && trouble.is_none() {
            continue;
        }
        let mut news = tell_task(&scope, &run, &templates, &round.changed, notes).await;
        news.events.extend(trouble);
        return Some(news);
    }
}

/// Wait until a dependency of the templates changes.
async fn wait_for_change(templates: &Arc<Templates>) {
    let (sources, asks) = (&templates.rendering.sources, templates.asked_sources());
    loop {
        // Read before the look, so that a change in between ends the wait below.
        let since = sources.indexes();
        let look = Arc::clone(templates);
        if clock::run_blocking(move || look.has_changes()).await.unwrap_or(false) {
            return;
        }
        tokio::select! {
            () = sources.wait_changed(since, asks) => clock::sleep(TEMPLATE_TOLD_PAUSE).await,
            () = clock::sleep(TEMPLATE_LOOK_INTERVAL), if asks.files => {}
        }
    }
}

/// Wait until nothing changes any more, where the templates ask for that.
async fn wait_for_quiet(templates: &Arc<Templates>) {
    let (min, max) = templates.quiet_bounds();
    let waited = clock::Stopwatch::start();
    let seen = |templates: &Arc<Templates>| {
        let look = Arc::clone(templates);
        clock::run_blocking(move || look.dependency_states())
    };
    let mut before = seen(templates).await;
    while !min.is_zero() && waited.elapsed() < max {
        clock::sleep(min.min(max.saturating_sub(waited.elapsed()))).await;
        let now = seen(templates).await;
        if now.as_ref().ok() == before.as_ref().ok() {
            return;
        }
        before = now;
    }
}

/// Carry out the change modes of the changed templates, and record that. A restart is recorded when
/// the next run has rendered the templates.
async fn tell_task(
    scope: &Arc<TaskScope>,
    run: &Arc<TaskRun>,
    templates: &Arc<Templates>,
    changed: &[TaskTemplate],
    notes: &queue::QueueSender<DriverNote>,
) -> TemplateNews {
    let news = carry_out(scope, run, templates, changed, notes).await;
    if matches!(news.then, TemplateFollowUp::Follow) {
        let told = Arc::clone(templates);
        clock::run_blocking(move || told.mark_told()).await.unwrap_or_default();
    }
    news
}

/// Carry out the change modes of the changed templates.
async fn carry_out(
    scope: &Arc<TaskScope>,
    run: &Arc<TaskRun>,
    templates: &Templates,
    changed: &[TaskTemplate],
    notes: &queue::QueueSender<DriverNote>,
) -> TemplateNews {
    let loud = changed.iter().filter(|template| template.change != ChangeMode::Noop);
    let Some(splay) = loud.clone().map(|template| template.splay).max() else {
        return TemplateNews::default();
    };
    let nanos = u64::try_from(splay.as_nanos()).unwrap_or(u64::MAX);
    if nanos > 0 {
        clock::sleep(Duration::from_nanos(scope.node.rng.number_below(nanos))).await;
    }
    if loud.clone().any(|template| template.change == ChangeMode::Restart) {
        let reason = "Template with change_mode restart re-rendered".to_owned();
        return TemplateNews { events: Vec::new(), then: TemplateFollowUp::Restart(reason) };
    }
    let mut news = TemplateNews::default();
    let mut signals = BTreeSet::new();
    for template in loud {
        match &template.change {
            ChangeMode::Signal(name) if signals.insert(name.clone()) => {
                // The event comes before the signal, because the signal may end the task
                // and its followers.
                let event = events::template_signal(scope.node.clock.now(), name);
                notes::tell(Some(notes), event);
                if let Err(error) = calls::signal(scope, run, name.clone()).await {
                    let text = format!("Template failed to send signal {name}: {error}");
                    news.then = TemplateFollowUp::Fail(events::template_failed(
                        scope.node.clock.now(),
                        &text,
                    ));
                    return news;
                }
            }
            ChangeMode::Script(script) => {
                let ended = run_script(scope, run, templates, script).await;
                let (text, failed) = script_text(script, ended);
                let now = scope.node.clock.now();
                if failed && script.fail_on_error {
                    news.then = TemplateFollowUp::Fail(events::template_failed(now, &text));
                    return news;
                }
                news.events.push(events::template_trouble(now, &text));
            }
            _ => {}
        }
    }
    news
}

/// A sentence on how a script ended, and whether it failed.
fn script_text(script: &ChangeScript, ended: Result<(i32, String), String>) -> (String, bool) {
    let command = &script.command;
    match ended {
        Ok((0, _)) => (format!("Template re-rendered: script {command} succeeded"), false),
        Ok((code, output)) => {
            let output = output.trim();
            let said = if output.is_empty() { String::new() } else { format!(": {output}") };
            (
                format!(
                    "Template re-rendered: script {command} failed with exit code {code}{said}"
                ),
                true,
            )
        }
        Err(error) => {
            (format!("Template re-rendered: script {command} did not run: {error}"), true)
        }
    }
}

/// Run a script inside the task. Returns its exit code and the beginning of its error output.
async fn run_script(
    scope: &TaskScope,
    run: &TaskRun,
    templates: &Templates,
    script: &ChangeScript,
) -> Result<(i32, String), String> {
    let env = &templates.rendering.env;
    let words = std::iter::once(&script.command).chain(&script.args);
    let argv: Result<Vec<String>, _> = words.map(|word| env.interpolate(word)).collect();
    let argv = argv.map_err(|error| error.to_string())?;
    let command = ExecCommand { argv, terminal: None, on_node: Ok(()) };
    let session = calls::exec(scope, run, command).await.map_err(|error| error.to_string())?;
    let ExecSession { stdin, stdout, stderr, end, .. } = session;
    drop(stdin);
    let whole = async {
        let errors = async {
            match stderr {
                Some(stderr) => read_beginning(stderr).await,
                None => Vec::new(),
            }
        };
        let (_, errors, code) = tokio::join!(read_beginning(stdout), errors, end);
        code.map(|code| (code, String::from_utf8_lossy(&errors).into_owned()))
    };
    let late = || Err(format!("it did not end within {}", short_duration(script.timeout)));
    clock::timeout(script.timeout, whole).await.unwrap_or_else(late)
}

/// Read a stream to its end, and keep the beginning.
async fn read_beginning(mut from: Box<dyn AsyncRead + Send + Unpin>) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1_024]);
    while let Ok(count) = from.read(&mut buffer).await {
        let room = TEMPLATE_SCRIPT_OUTPUT_BYTES_MAX.saturating_sub(kept.len());
        let new = buffer.get(..count).unwrap_or_default();
        kept.extend_from_slice(new.get(..room).unwrap_or(new));
        if count == 0 {
            break;
        }
    }
    kept
}
