//! The files of a task that are rendered from templates.
//!
//! ```text
//! before each run   [`Rendering`] ─► rendered in their order ─► written ─► lines of `env` files: environment
//!                        └── a variable that is not there: waited for
//! while it runs     [`follow`]: what they used changed ─► quiet ─► rendered again ─► reads otherwise?
//!                        ─► written ─► splay ─► signal, script, restart
//! agent restarted   rendered in memory, at the time of the file: written only where it reads otherwise;
//!                   of what was written and not told yet (`untold`) the task is told now
//! ```
//! Files that a template names are looked for only below the task's directory and the shared
//! one (`place`), whatever links a task puts there (`disk`). Templates read only variables
//! that the task may read (`sources`). Between two runs nothing is followed, because the next
//! run renders again.

mod disk;
mod env_file;
pub mod follow;
mod node_values;
mod outside;
mod place;
pub mod sources;
mod untold;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ostler_model::cancellation::CancelFlag;
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::AllocId;
use ostler_model::job::Task;
use ostler_model::ports::{FileOwner, FsIsolation};
use ostler_model::template::{TaskTemplate, TemplateSource};
use ostler_model::time::Timestamp;
use ostler_template::{
    Delimiters, Dependency, Options, RenderedTemplate, Template, TemplateError, TemplateProblem,
    limits,
};

use xxhash_rust::xxh3::xxh3_128;

use self::outside::{DependencyState, TaskOutside};
use self::place::TemplateDirs;
use self::sources::{AskedSources, Sources};
use super::env::{TaskDirs, TaskEnv};
use crate::alloc::owner;

/// Why templates could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template, or what it asks for, is wrong.
    #[error("template {0}")]
    Template(String),
    /// Something that the template needs is not there yet.
    #[error("template {name} waits for {what}")]
    Missing {
        /// Destination of the template.
        name: String,
        /// What is missing.
        what: String,
    },
    /// The disk refuses.
    #[error("template {name}: cannot {action} {path}: {error}")]
    Disk {
        /// Destination of the template.
        name: String,
        /// What was tried: `write`, `open` …
        action: &'static str,
        /// Path of the file or directory.
        path: String,
        /// The error of the operating system, with its causes.
        error: String,
        /// The fault is the node's, so a later try may succeed.
        node: bool,
    },
}

/// What is needed to render a task's templates. It is made anew for each run.
#[derive(Clone, Debug)]
pub struct Rendering {
    /// The task with its templates.
    pub task: CowArc<Task>,
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
    /// The id of the allocation.
    pub alloc: AllocId,
    /// The environment for `env` in templates and for references in paths.
    pub env: TaskEnv,
    /// The directories as the task sees them.
    pub dirs: TaskDirs,
    /// What the templates may ask of the node.
    pub sources: Sources,
    /// How the task is isolated from the node's files.
    pub sees: FsIsolation,
    /// The user of the task, who owns its files; `None`: the agent.
    pub owner: Option<FileOwner>,
}

/// The templates of a run, and the state of their files.
#[derive(Debug)]
pub struct Templates {
    rendering: Rendering,
    known: Mutex<TemplatesState>,
}

/// See [`Templates`].
#[derive(Debug, Default)]
struct TemplatesState {
    /// The file of each template. A missing file was made by an earlier agent and has not
    /// been checked yet.
    files: BTreeMap<usize, RenderedFile>,
    /// The state of each dependency just before templates read it.
    seen: BTreeMap<Dependency, DependencyState>,
    /// The trouble that was reported last.
    told: Option<String>,
}

/// The file that a template was rendered to.
#[derive(Debug)]
struct RenderedFile {
    /// The hash of the content; `None`: not known.
    output: Option<u128>,
    used: BTreeSet<Dependency>,
    /// When the template was rendered.
    at: Timestamp,
}

impl RenderedFile {
    fn from_rendered(rendered: RenderedTemplate, at: Timestamp) -> Self {
        Self { output: Some(xxh3_128(&rendered.output)), used: rendered.used, at }
    }

    /// The file of a template that this agent could not render.
    fn unknown(at: Timestamp) -> Self {
        Self { output: None, used: BTreeSet::new(), at }
    }
}

impl Templates {
    /// Render and write all templates before a run, as long as `wanted` says that the result
    /// is wanted. Blocks.
    ///
    /// # Errors
    /// The error of the first template that cannot be rendered; the templates before
    /// it are written.
    pub fn render(
        rendering: Rendering,
        now: Timestamp,
        wanted: &CancelFlag,
    ) -> Result<(Self, BTreeMap<String, String>), RenderError> {
        let sandbox = rendering.open_dirs()?;
        let (mut known, mut vars) = (TemplatesState::default(), BTreeMap::new());
        for (index, template) in rendering.task.templates.iter().enumerate() {
            let name = rendering.name(template)?;
            let rendered =
                rendering.render_one(&sandbox, template, &name, (now, wanted), &mut known.seen)?;
            rendering.write(&sandbox, template, &name, &rendered.output, now)?;
            if template.env {
                let secret = rendered.used.iter().any(is_secret);
                let lines = env_file::read(&rendered.output).map_err(|error| {
                    let said = if secret { error.without_text() } else { error.to_string() };
                    RenderError::Template(format!("{name}: {said}"))
                })?;
                vars.extend(lines);
            }
            known.files.insert(index, RenderedFile::from_rendered(rendered, now));
        }
        // The run begins with the new contents, so nothing is left to tell.
        sandbox.clear_untold();
        Ok((Self { rendering, known: Mutex::new(known) }, vars))
    }

    /// The templates of a run that an earlier agent started. Their files are not touched now.
    #[must_use]
    pub fn of_earlier_agent(rendering: Rendering) -> Self {
        Self { rendering, known: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, TemplatesState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does any template depend on something that may change, as far as that is known?
    #[must_use]
    pub fn may_change(&self) -> bool {
        let known = self.lock_state();
        let looked_at = known.files.len() == self.rendering.task.templates.len();
        !looked_at || !known.seen.is_empty()
    }

    /// Record that the task was told of all changes. Blocks.
    fn mark_told(&self) {
        match self.rendering.open_dirs() {
            Ok(sandbox) => sandbox.clear_untold(),
            Err(error) => tracing::warn!(%error, "a later agent tells the task once more"),
        }
    }

    /// The kinds of sources that the templates ask.
    fn asked_sources(&self) -> AskedSources {
        AskedSources::from_dependencies(self.lock_state().seen.keys())
    }
}

/// Is the answer a secret, which must not be shown?
fn is_secret(what: &Dependency) -> bool {
    matches!(what, Dependency::Variable { .. })
}

/// The text for people on a template that failed. The error of a template that read variables
/// may show their content. So `again`, a rendering of the same template without that content,
/// gives the text.
fn showable_text(
    error: &TemplateError,
    again: Option<Result<RenderedTemplate, TemplateError>>,
) -> String {
    let TemplateError { template, line, column, .. } = error;
    match again {
        None => error.to_string(),
        // Such an error has only a limit of the language in it, and nothing that was read.
        Some(_) if matches!(error.problem, TemplateProblem::Limit { .. }) => error.to_string(),
        Some(Err(again)) if (again.line, again.column) == (*line, *column) => again.to_string(),
        Some(_) => format!(
            "{template}:{line}:{column}: it fails with what is in the variables that it reads, which is \
             not shown"
        ),
    }
}

impl Rendering {
    fn open_dirs(&self) -> Result<TemplateDirs, RenderError> {
        TemplateDirs::open(&self.alloc_root, self.alloc, &self.task.name, &self.dirs, self.sees)
            .map_err(|error| RenderError::Disk {
                name: "of the task".to_owned(),
                action: "open",
                path: "its directories".to_owned(),
                error: ostler_model::causes::chain(&error),
                node: ostler_model::causes::is_of_the_node(&error),
            })
    }

    /// The name of a template for people: its destination.
    fn name(&self, template: &TaskTemplate) -> Result<String, RenderError> {
        let wrong = |error| {
            RenderError::Template(format!("{}: destination: {error}", template.destination))
        };
        self.env.interpolate(&template.destination).map_err(wrong)
    }

    /// The name of a template's source, and its text.
    fn source_text(
        &self,
        sandbox: &TemplateDirs,
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
        let text = sandbox.read(&path, limits::TEMPLATE_BYTES_MAX as u64).map_err(wrong)?;
        let text = String::from_utf8(text)
            .map_err(|_| RenderError::Template(format!("{path} is not UTF-8")))?;
        Ok((path, text))
    }

    /// Render one template as of a time, as long as that is wanted. The state of each dependency
    /// from before it was read goes to `seen`.
    fn render_one(
        &self,
        sandbox: &TemplateDirs,
        template: &TaskTemplate,
        name: &str,
        (now, wanted): (Timestamp, &CancelFlag),
        seen: &mut BTreeMap<Dependency, DependencyState>,
    ) -> Result<RenderedTemplate, RenderError> {
        let (source, text) = self.source_text(sandbox, template)?;
        let delimiters = Delimiters::new(&template.left_delimiter, &template.right_delimiter);
        let options =
            Options { error_on_missing_key: template.error_on_missing_key, ..Options::default() };
        let outside = TaskOutside::new(sandbox, &self.env, &self.sources, now, wanted);
        let parsed = Template::parse(&source, &text, &delimiters)
            .map_err(|error| RenderError::Template(error.to_string()))?;
        let rendered = parsed.render(&outside, options);
        // Dependencies of a template that failed count too: a change of them may mend it.
        let used = outside.into_dependencies();
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
            RenderError::Template(showable_text(&error, again))
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
        sandbox: &TemplateDirs,
        template: &TaskTemplate,
        name: &str,
        output: &[u8],
        now: Timestamp,
    ) -> Result<(), RenderError> {
        let (dir, path) = sandbox
            .destination(name)
            .map_err(|error| RenderError::Template(format!("{name}: destination: {error}")))?;
        let runs_as = self.owner.unwrap_or_else(owner::agent_owner);
        if template.uid == Some(0) && runs_as.uid != 0 {
            return Err(RenderError::Template(format!(
                "{name}: uid = 0 is for a task that runs as root, and this one runs as user {}; leave it \
                 out: the file is the task's own then",
                runs_as.uid
            )));
        }
        let attributes = disk::Attributes::from_template(template, self.owner, now);
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
