//! Files of a task that are rendered from templates.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The permission bits that a rendered file may have: those of owner, group and others, but not
/// those that change the user or group of a program.
pub const TEMPLATE_MODE_MAX: u32 = 0o777;

/// A `template` block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTemplate {
    /// Where the text of the template comes from.
    pub source: TemplateSource,
    /// Path of the rendered file, below the task's directory or in the shared one. `${…}` not
    /// yet replaced.
    pub destination: String,
    /// What happens when the output changes while the task runs.
    pub change: ChangeMode,
    /// Longest random wait before that happens.
    pub splay: Duration,
    /// Permission bits of the file.
    pub mode: u32,
    /// Owner of the file; by default that of the directory it is in.
    pub uid: Option<u32>,
    /// Group of the file; by default that of the directory it is in.
    pub gid: Option<u32>,
    /// The file is also read as variables for the task's environment.
    pub env: bool,
    /// Text before each action of the template.
    pub left_delimiter: String,
    /// Text behind each action of the template.
    pub right_delimiter: String,
    /// A key that a map lacks is an error.
    pub error_on_missing_key: bool,
    /// How long to wait for further changes before the template is rendered again.
    pub wait: Option<TemplateWait>,
}

impl TaskTemplate {
    /// Whether the template may call a function whose name begins with `function`. Always `true`
    /// for a text that is not in the job, because it is not known.
    #[must_use]
    pub fn may_call(&self, function: &str) -> bool {
        match &self.source {
            TemplateSource::Data(text) => text.contains(function),
            TemplateSource::File(_) => true,
        }
    }

    /// Whether the template may have to wait for data before the task runs.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_call("nomadVar")
    }
}

/// Where the text of a template is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateSource {
    /// The text itself, from the job.
    Data(String),
    /// Path of a file of the task. `${…}` not yet replaced.
    File(String),
}

/// What happens to a task when the output of a template changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeMode {
    /// Only the file changes.
    Noop,
    /// The task is restarted.
    Restart,
    /// The task gets this signal.
    Signal(String),
    /// A command runs inside the task.
    Script(ChangeScript),
}

/// The command of [`ChangeMode::Script`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeScript {
    /// The program to run. `${…}` not yet replaced.
    pub command: String,
    /// Arguments of the program. `${…}` not yet replaced.
    pub args: Vec<String>,
    /// Time after which the command is ended.
    pub timeout: Duration,
    /// The task fails when the command fails.
    pub fail_on_error: bool,
}

/// How long to wait for changes that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateWait {
    /// Time without a further change.
    pub min: Duration,
    /// Longest wait from the first change on.
    pub max: Duration,
}
