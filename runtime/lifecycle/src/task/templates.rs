//! Files of a task that are made of templates.
//!
//! ```text
//! before each run   [`Rendering`] ─► rendered in their order ─► written ─► lines of `env` files: environment
//!                        └── a variable that is not there: waited for
//! while it runs     [`follow`]: what they used changed ─► quiet ─► rendered again ─► reads otherwise?
//!                        ─► written ─► splay ─► signal, script, restart
//! agent restarted   rendered in memory, at the time of the file: written only where it reads otherwise;
//!                   of what was written and not told yet (`untold`) the task is told now
//! ```
//! What a template names is looked for below the task's directory and the shared one and nowhere else
//! (`place`), whatever links a task puts there (`disk`); of variables they read the task's own (`sources`).
//! Between two runs nothing is followed: the next one renders again.

mod disk;
mod env_file;
pub mod follow;
mod outside;
mod place;
pub mod sources;
mod untold;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ostler_model::held_once::HeldOnce;
use ostler_model::ids::AllocId;
use ostler_model::job::Task;
use ostler_model::limits::TEMPLATE_BYTES_MAX;
use ostler_model::ports::{FileOwner, FsIsolation};
use ostler_model::template::{TaskTemplate, TemplateSource};
use ostler_model::time::Timestamp;
use ostler_model::wanted::Awaited;
use ostler_template::{
    Delimiters, Dependency, Options, Rendered, Template, TemplateError, TemplateProblem,
};

use xxhash_rust::xxh3::xxh3_128;

use self::outside::{Seen, TaskOutside};
use self::place::Sandbox;
use self::sources::{Asks, Sources};
use super::env::{TaskDirs, TaskEnv};
use crate::alloc::owner;

/// Why templates could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template, or what it asks for, is wrong.
    #[error("template {0}")]
    Template(String),
    /// What it needs is not there yet.
    #[error("template {name} waits for {what}")]
    Missing {
        /// Which.
        name: String,
        /// For what.
        what: String,
    },
    /// The disk refuses.
    #[error("template {name}: cannot {action} {path}: {error}")]
    Disk {
        /// Which.
        name: String,
        /// What failed.
        action: &'static str,
        /// Which path.
        path: String,
        /// Why.
        error: String,
        /// It is the node's trouble: a later try may work.
        node: bool,
    },
}

/// What rendering a task's templates needs. Made anew for each run.
#[derive(Clone, Debug)]
pub struct Rendering {
    /// The task.
    pub task: HeldOnce<Task>,
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
    /// The allocation.
    pub alloc: AllocId,
    /// What `env` answers and paths may refer to.
    pub env: TaskEnv,
    /// Directories as the task sees them.
    pub dirs: TaskDirs,
    /// What they may ask of the node.
    pub sources: Sources,
    /// What the task sees of its directory.
    pub sees: FsIsolation,
    /// Whom it runs as, and whose its files are; absent: the agent.
    pub owner: Option<FileOwner>,
}

/// The templates of a run, and what is known of their files.
#[derive(Debug)]
pub struct Templates {
    rendering: Rendering,
    known: Mutex<Known>,
}

/// See [`Templates`].
#[derive(Debug, Default)]
struct Known {
    /// By template; absent: made by an earlier agent, and not looked at yet.
    files: BTreeMap<usize, Made>,
    /// What templates read, as it was before.
    seen: BTreeMap<Dependency, Seen>,
    /// The trouble that was told last.
    told: Option<String>,
}

/// What a template was made into.
#[derive(Debug)]
struct Made {
    /// Its hash. Absent: not known.
    output: Option<u128>,
    used: BTreeSet<Dependency>,
    /// When it was rendered.
    at: Timestamp,
}

impl Made {
    fn of(rendered: Rendered, at: Timestamp) -> Self {
        Self { output: Some(xxh3_128(&rendered.output)), used: rendered.used, at }
    }

    /// Of a template that could not be rendered in the time of this agent.
    fn unknown(at: Timestamp) -> Self {
        Self { output: None, used: BTreeSet::new(), at }
    }
}

impl Templates {
    /// Render and write them all, before a run, while that is wanted. Blocks.
    ///
    /// # Errors
    /// The first that cannot be; those before it are written.
    pub fn render(
        rendering: Rendering,
        now: Timestamp,
        wanted: &Awaited,
    ) -> Result<(Self, BTreeMap<String, String>), RenderError> {
        let sandbox = rendering.sandbox()?;
        let (mut known, mut vars) = (Known::default(), BTreeMap::new());
        for (index, template) in rendering.task.templates.iter().enumerate() {
            let name = rendering.name(template)?;
            let rendered =
                rendering.one(&sandbox, template, &name, (now, wanted), &mut known.seen)?;
            rendering.write(&sandbox, template, &name, &rendered.output, now)?;
            if template.env {
                let secret = rendered.used.iter().any(is_secret);
                let lines = env_file::read(&rendered.output).map_err(|error| {
                    let said = if secret { error.without_text() } else { error.to_string() };
                    RenderError::Template(format!("{name}: {said}"))
                })?;
                vars.extend(lines);
            }
            known.files.insert(index, Made::of(rendered, now));
        }
        // The run begins with all that they read.
        sandbox.clear_untold();
        Ok((Self { rendering, known: Mutex::new(known) }, vars))
    }

    /// Those of a run that an earlier agent started: nothing is touched now.
    #[must_use]
    pub fn of_earlier_agent(rendering: Rendering) -> Self {
        Self { rendering, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does any of them depend on something that may change, as far as that is known?
    #[must_use]
    pub fn may_change(&self) -> bool {
        let known = self.known();
        let looked_at = known.files.len() == self.rendering.task.templates.len();
        !looked_at || !known.seen.is_empty()
    }

    /// The task was told of what is written. Blocks.
    fn told(&self) {
        match self.rendering.sandbox() {
            Ok(sandbox) => sandbox.clear_untold(),
            Err(error) => tracing::warn!(%error, "a later agent tells the task once more"),
        }
    }

    /// What they ask for.
    fn asks(&self) -> Asks {
        Asks::of(self.known().seen.keys())
    }
}

/// Is what it answers not to be shown?
fn is_secret(what: &Dependency) -> bool {
    matches!(what, Dependency::Variable { .. })
}

/// What is said of a template that failed. One that read variables may say what is in them: then it is what
/// the same one says that does not see it.
fn showable(error: &TemplateError, again: Option<Result<Rendered, TemplateError>>) -> String {
    let TemplateError { template, line, column, .. } = error;
    match again {
        None => error.to_string(),
        // Says a number of the language, and nothing of what was read.
        Some(_) if matches!(error.problem, TemplateProblem::Limit { .. }) => error.to_string(),
        Some(Err(again)) if (again.line, again.column) == (*line, *column) => again.to_string(),
        Some(_) => format!(
            "{template}:{line}:{column}: it fails with what is in the variables that it reads, which is \
             not shown"
        ),
    }
}

impl Rendering {
    fn sandbox(&self) -> Result<Sandbox, RenderError> {
        Sandbox::open(&self.alloc_root, self.alloc, &self.task.name, &self.dirs, self.sees).map_err(
            |error| RenderError::Disk {
                name: "of the task".to_owned(),
                action: "open",
                path: "its directories".to_owned(),
                error: ostler_model::causes::chain(&error),
                node: ostler_model::causes::is_of_the_node(&error),
            },
        )
    }

    /// What people call a template: its destination.
    fn name(&self, template: &TaskTemplate) -> Result<String, RenderError> {
        let wrong = |error| {
            RenderError::Template(format!("{}: destination: {error}", template.destination))
        };
        self.env.interpolate(&template.destination).map_err(wrong)
    }

    /// The text of a template.
    fn text(
        &self,
        sandbox: &Sandbox,
        template: &TaskTemplate,
    ) -> Result<(String, String), RenderError> {
        let path = match &template.source {
            TemplateSource::Data(text) => {
                return Ok((self.name(template)?, text.clone()));
            }
            TemplateSource::File(path) => self.env.interpolate(path),
        };
        let destination = &template.destination;
        let wrong =
            |error: String| RenderError::Template(format!("{destination}: source: {error}"));
        let path = path.map_err(|error| wrong(error.to_string()))?;
        let text = sandbox.read(&path, TEMPLATE_BYTES_MAX as u64).map_err(wrong)?;
        let text = String::from_utf8(text)
            .map_err(|_| RenderError::Template(format!("{path} is no UTF-8")))?;
        Ok((path, text))
    }

    /// Render one as of a time, while that is wanted, and keep how what it reads was before.
    fn one(
        &self,
        sandbox: &Sandbox,
        template: &TaskTemplate,
        name: &str,
        (now, wanted): (Timestamp, &Awaited),
        seen: &mut BTreeMap<Dependency, Seen>,
    ) -> Result<Rendered, RenderError> {
        let (source, text) = self.text(sandbox, template)?;
        let delimiters = Delimiters::new(&template.left_delimiter, &template.right_delimiter);
        let options =
            Options { error_on_missing_key: template.error_on_missing_key, ..Options::default() };
        let outside = TaskOutside::new(sandbox, &self.env, &self.sources, now, wanted);
        let parsed = Template::parse(&source, &text, &delimiters)
            .map_err(|error| RenderError::Template(error.to_string()))?;
        let rendered = parsed.render(&outside, options);
        // Also of one that failed: what it reads may come to be what it should.
        let used = outside.into_seen();
        let secret = used.keys().any(is_secret);
        for (what, was) in used {
            seen.entry(what).or_insert(was);
        }
        let rendered = rendered.map_err(|error| {
            let again = secret.then(|| {
                let sources = self.sources.without_secrets();
                let outside = TaskOutside::new(sandbox, &self.env, &sources, now, wanted);
                parsed.render(&outside, options)
            });
            RenderError::Template(showable(&error, again))
        })?;
        if !rendered.missing.is_empty() {
            let mut missing: Vec<_> = rendered.missing.iter().map(ToString::to_string).collect();
            missing.dedup();
            missing.truncate(3);
            let (name, what) = (name.to_owned(), missing.join(", "));
            return Err(RenderError::Missing { name, what });
        }
        Ok(rendered)
    }

    fn write(
        &self,
        sandbox: &Sandbox,
        template: &TaskTemplate,
        name: &str,
        output: &[u8],
        now: Timestamp,
    ) -> Result<(), RenderError> {
        let (dir, path) = sandbox
            .destination(name)
            .map_err(|error| RenderError::Template(format!("{name}: destination: {error}")))?;
        let runs_as = self.owner.unwrap_or_else(owner::agent);
        if template.uid == Some(0) && runs_as.uid != 0 {
            return Err(RenderError::Template(format!(
                "{name}: uid = 0 is for a task that runs as root, and this one runs as user {}; leave it \
                 out: the file is the task's own then",
                runs_as.uid
            )));
        }
        let attributes = disk::Attributes::of(template, self.owner, now);
        disk::write(dir, &path, output, &attributes).map_err(|error| RenderError::Disk {
            name: name.to_owned(),
            action: "write",
            path: path.display().to_string(),
            node: ostler_model::causes::is_of_the_node(&error),
            error: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests;
