//! What becomes of a running task whose templates read otherwise.
//!
//! ```text
//! look ─► something they used changed ─► quiet for `wait` ─► render again ─► same? look on
//!   ▲                                                            │ other: kept as not told, written
//!   │                                            splay ◄─────────┘
//!   └── noop, signal, script ◄── told ◄── the strongest of ──────┴─► restart: the next run renders again
//! ```
//! What an earlier agent wrote and did not tell any more (`untold`) counts as changed in the first
//! look of the next one.
//! Services and variables tell when they change; files are looked at. A template that cannot be rendered
//! again leaves its file as it is; that is said once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use xxhash_rust::xxh3::xxh3_128;

use super::outside::Seen;
use super::place::Sandbox;
use super::{Known, Made, RenderError, Templates, disk};
use crate::queue;
use crate::task::TaskScope;
use crate::task::calls;
use crate::task::events;
use crate::task::notes::{self, DriverNote};
use crate::task::run::Run;
use ostler_model::clock;
use ostler_model::event::TaskEvent;
use ostler_model::limits::{
    TEMPLATE_LOOK_INTERVAL, TEMPLATE_OUTPUT_BYTES_MAX, TEMPLATE_SCRIPT_OUTPUT_BYTES_MAX,
    TEMPLATE_TOLD_PAUSE,
};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::template::{ChangeMode, ChangeScript, TaskTemplate};
use ostler_model::time::Timestamp;
use ostler_model::wanted::Awaited;
use ostler_template::Dependency;

/// What a change came to.
#[derive(Debug, Default)]
pub struct TemplateNews {
    /// For the task's events.
    pub events: Vec<TaskEvent>,
    /// What is left to do.
    pub then: Then,
}

/// See [`TemplateNews`].
#[derive(Debug, Default)]
pub enum Then {
    /// Follow them again.
    #[default]
    Follow,
    /// Start the task again, for this reason.
    Restart(String),
    /// The task fails.
    Fail(TaskEvent),
}

/// What rendering again came to.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Those that read otherwise and were written; also by an earlier agent that did not tell the task.
    pub(super) changed: Vec<TaskTemplate>,
    /// Why one could not be rendered.
    pub(super) trouble: Option<String>,
}

impl Templates {
    /// Did anything that they read change?
    pub(super) fn anything_changed(&self) -> bool {
        let Ok(sandbox) = self.rendering.sandbox() else { return false };
        let (known, sources) = (self.known(), &self.rendering.sources);
        known.seen.iter().any(|(what, seen)| Seen::now(what, &sandbox, sources) != *seen)
    }

    /// How all that they read is now.
    fn all_seen(&self) -> Option<Vec<Seen>> {
        let sandbox = self.rendering.sandbox().ok()?;
        let (known, sources) = (self.known(), &self.rendering.sources);
        Some(known.seen.keys().map(|what| Seen::now(what, &sandbox, sources)).collect())
    }

    /// Were those of an earlier agent looked at?
    fn looked_at(&self) -> bool {
        self.known().files.len() == self.rendering.task.templates.len()
    }

    /// Render again, and write what reads otherwise.
    pub(super) fn again(&self, now: Timestamp, wanted: &Awaited) -> Round {
        let mut known = self.known();
        let mut round = match self.rendering.sandbox() {
            Ok(sandbox) => self.all_again(&sandbox, &mut known, (now, wanted)),
            Err(error) => Round { trouble: Some(error.to_string()), ..Round::default() },
        };
        let told = std::mem::replace(&mut known.told, round.trouble.clone());
        // Once is enough.
        round.trouble = round.trouble.filter(|trouble| told.as_ref() != Some(trouble));
        round
    }

    fn all_again(
        &self,
        sandbox: &Sandbox,
        known: &mut Known,
        (now, wanted): (Timestamp, &Awaited),
    ) -> Round {
        let mut round = Round::default();
        // As they are now: what fails is tried again when something changes.
        let sources = &self.rendering.sources;
        let now_seen = |what: &Dependency| (what.clone(), Seen::now(what, sandbox, sources));
        let mut seen: BTreeMap<_, _> = known.seen.keys().map(now_seen).collect();
        let templates = &self.rendering.task.templates;
        let first = known.files.len() != templates.len();
        let mut changed = if first { sandbox.untold() } else { BTreeSet::new() };
        let mut untold = changed.clone();
        for (index, template) in templates.iter().enumerate() {
            let made = known.files.get(&index);
            let which = (index, template);
            match self.one_again(sandbox, which, made, (now, wanted), &mut seen, &mut untold) {
                Ok(None) => {}
                Ok(Some((made, other))) => {
                    known.files.insert(index, made);
                    changed.extend(other.then_some(index));
                }
                Err(error) => {
                    // One of an earlier agent stays as it is until something that it reads changes.
                    known.files.entry(index).or_insert_with(|| Made::unknown(now));
                    round.trouble.get_or_insert(error.to_string());
                }
            }
        }
        known.seen = seen;
        round.changed = changed.iter().filter_map(|index| templates.get(*index)).cloned().collect();
        round
    }

    /// One template again: what it is now, and whether it reads otherwise. `None`: as it was. One that the task
    /// is to be told of is among `untold`, and that is kept before its file is written.
    fn one_again(
        &self,
        sandbox: &Sandbox,
        (index, template): (usize, &TaskTemplate),
        made: Option<&Made>,
        (now, wanted): (Timestamp, &Awaited),
        seen: &mut BTreeMap<Dependency, Seen>,
        untold: &mut BTreeSet<usize>,
    ) -> Result<Option<(Made, bool)>, RenderError> {
        let made = made.filter(|made| made.output.is_some());
        if made.is_some_and(|made| made.used.is_empty()) {
            return Ok(None);
        }
        let name = self.rendering.name(template)?;
        let (before, at) = match made {
            Some(made) => (made.output, made.at),
            None => {
                let found = sandbox.destination(&name).ok().and_then(|(dir, path)| {
                    disk::rendered(dir, &path, TEMPLATE_OUTPUT_BYTES_MAX as u64)
                });
                found.map_or((None, now), |(bytes, at)| (Some(xxh3_128(&bytes)), at))
            }
        };
        // As of then: the time alone changes nothing.
        let then = self.rendering.one(sandbox, template, &name, (at, wanted), seen)?;
        let fixed = made.is_none() && then.used.is_empty();
        let then = Made::of(then, at);
        if fixed || before == then.output {
            return Ok(Some((then, false)));
        }
        let rendered = self.rendering.one(sandbox, template, &name, (now, wanted), seen)?;
        if template.change != ChangeMode::Noop && untold.insert(index) {
            sandbox.keep_untold(untold, now).map_err(|error| RenderError::Disk {
                node: ostler_model::causes::is_of_the_node(&error),
                action: "keep that its task is to be told, in",
                path: "the allocation's directory".to_owned(),
                error: error.to_string(),
                name: name.clone(),
            })?;
        }
        self.rendering.write(sandbox, template, &name, &rendered.output, now)?;
        Ok(Some((Made::of(rendered, now), true)))
    }

    /// How long it has to be quiet before they are rendered again, and how long that may take.
    fn quiet(&self) -> (Duration, Duration) {
        let waits = || self.rendering.task.templates.iter().filter_map(|template| template.wait);
        let min = waits().map(|wait| wait.min).max().unwrap_or_default();
        (min, waits().map(|wait| wait.max).max().unwrap_or_default())
    }
}

/// Follow the templates of a run until the task is to be told something. `None`: nothing of them can change.
pub async fn follow(
    scope: Arc<TaskScope>,
    run: Arc<Run>,
    templates: Arc<Templates>,
    notes: &queue::Sender<DriverNote>,
) -> Option<TemplateNews> {
    loop {
        if !templates.may_change() {
            return None;
        }
        if templates.looked_at() {
            changed(&templates).await;
            settled(&templates).await;
        } else {
            // What they read of services is not there before those that run on are.
            templates.rendering.sources.restored().await;
        }
        let (again, now) = (Arc::clone(&templates), scope.clock.now());
        // When the task is to end, nobody waits for it.
        let round = clock::blocking_while_wanted(move |wanted| again.again(now, wanted)).await;
        let round = round.unwrap_or_default();
        let trouble = round.trouble.map(|text| events::template_trouble(scope.clock.now(), &text));
        if !templates.looked_at() {
            // Its directories cannot be opened now.
            clock::sleep(TEMPLATE_LOOK_INTERVAL).await;
        }
        if round.changed.is_empty() && trouble.is_none() {
            continue;
        }
        let mut news = tell(&scope, &run, &templates, &round.changed, notes).await;
        news.events.extend(trouble);
        return Some(news);
    }
}

/// Wait until something that they read is another one.
async fn changed(templates: &Arc<Templates>) {
    let (sources, asks) = (&templates.rendering.sources, templates.asks());
    loop {
        // Before the look: what changes meanwhile ends the wait below.
        let since = sources.indexes();
        let look = Arc::clone(templates);
        if clock::blocking(move || look.anything_changed()).await.unwrap_or(false) {
            return;
        }
        tokio::select! {
            () = sources.changed(since, asks) => clock::sleep(TEMPLATE_TOLD_PAUSE).await,
            () = clock::sleep(TEMPLATE_LOOK_INTERVAL), if asks.files => {}
        }
    }
}

/// Wait until nothing more changes, where that is asked for.
async fn settled(templates: &Arc<Templates>) {
    let (min, max) = templates.quiet();
    let waited = clock::Stopwatch::start();
    let seen = |templates: &Arc<Templates>| {
        let look = Arc::clone(templates);
        clock::blocking(move || look.all_seen())
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

/// Do what the changed ones ask for, and have it on record that it was done. A restart is not done before the
/// next run has rendered them.
async fn tell(
    scope: &Arc<TaskScope>,
    run: &Arc<Run>,
    templates: &Arc<Templates>,
    changed: &[TaskTemplate],
    notes: &queue::Sender<DriverNote>,
) -> TemplateNews {
    let news = carry_out(scope, run, templates, changed, notes).await;
    if matches!(news.then, Then::Follow) {
        let told = Arc::clone(templates);
        clock::blocking(move || told.told()).await.unwrap_or_default();
    }
    news
}

/// What [`tell`] does.
async fn carry_out(
    scope: &Arc<TaskScope>,
    run: &Arc<Run>,
    templates: &Templates,
    changed: &[TaskTemplate],
    notes: &queue::Sender<DriverNote>,
) -> TemplateNews {
    let loud = changed.iter().filter(|template| template.change != ChangeMode::Noop);
    let Some(splay) = loud.clone().map(|template| template.splay).max() else {
        return TemplateNews::default();
    };
    let nanos = u64::try_from(splay.as_nanos()).unwrap_or(u64::MAX);
    if nanos > 0 {
        clock::sleep(Duration::from_nanos(scope.rng.below(nanos))).await;
    }
    if loud.clone().any(|template| template.change == ChangeMode::Restart) {
        let reason = "Template with change_mode restart re-rendered".to_owned();
        return TemplateNews { events: Vec::new(), then: Then::Restart(reason) };
    }
    let mut news = TemplateNews::default();
    let mut signals = BTreeSet::new();
    for template in loud {
        match &template.change {
            ChangeMode::Signal(name) if signals.insert(name.clone()) => {
                // Before the signal: the task may end by it, and who follows it with that.
                let event = events::template_signal(scope.clock.now(), name);
                notes::tell(Some(notes), event);
                if let Err(error) = calls::signal(scope, run, name.clone()).await {
                    let text = format!("Template failed to send signal {name}: {error}");
                    news.then = Then::Fail(events::template_failed(scope.clock.now(), &text));
                    return news;
                }
            }
            ChangeMode::Script(script) => {
                let ended = run_script(scope, run, templates, script).await;
                let (text, failed) = said(script, ended);
                let now = scope.clock.now();
                if failed && script.fail_on_error {
                    news.then = Then::Fail(events::template_failed(now, &text));
                    return news;
                }
                news.events.push(events::template_trouble(now, &text));
            }
            _ => {}
        }
    }
    news
}

/// What a script ended with, as a sentence, and whether it failed.
fn said(script: &ChangeScript, ended: Result<(i32, String), String>) -> (String, bool) {
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

/// Run a script inside the task: its exit code, and the beginning of what it said as errors.
async fn run_script(
    scope: &TaskScope,
    run: &Run,
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
                Some(stderr) => beginning(stderr).await,
                None => Vec::new(),
            }
        };
        let (_, errors, code) = tokio::join!(beginning(stdout), errors, end);
        code.map(|code| (code, String::from_utf8_lossy(&errors).into_owned()))
    };
    let late = || Err(format!("it did not end within {}", events::short_duration(script.timeout)));
    clock::timeout(script.timeout, whole).await.unwrap_or_else(late)
}

/// Read to the end, and keep the beginning.
async fn beginning(mut from: Box<dyn AsyncRead + Send + Unpin>) -> Vec<u8> {
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
