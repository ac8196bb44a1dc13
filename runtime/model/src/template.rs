//! Files of a task that are made of templates.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The largest permission bits of a file that is made: those of owner, group and others. What changes who
/// runs it is not among them.
pub const TEMPLATE_MODE_MAX: u32 = 0o777;

/// A `template` block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTemplate {
    /// The template.
    pub source: TemplateSource,
    /// The file that is made, below the task's directory or in the shared one. `${…}` not yet replaced.
    pub destination: String,
    /// What happens when it reads otherwise while the task runs.
    pub change: ChangeMode,
    /// A wait of up to this, at random, before that happens.
    pub splay: Duration,
    /// Permission bits of the file.
    pub mode: u32,
    /// Owner of the file; otherwise that of the directory it is in.
    pub uid: Option<u32>,
    /// Its group; likewise.
    pub gid: Option<u32>,
    /// The file is also read as the task's environment.
    pub env: bool,
    /// Stands before actions.
    pub left_delimiter: String,
    /// Stands behind actions.
    pub right_delimiter: String,
    /// A key that a map lacks is an error.
    pub error_on_missing_key: bool,
    /// How long things are quiet before it is rendered again.
    pub wait: Option<TemplateWait>,
}

impl TaskTemplate {
    /// May it call a function whose name begins so? Of a text that is not in the job this is not known.
    #[must_use]
    pub fn may_call(&self, function: &str) -> bool {
        match &self.source {
            TemplateSource::Data(text) => text.contains(function),
            TemplateSource::File(_) => true,
        }
    }

    /// May it wait for something before the task runs?
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_call("nomadVar")
    }
}

/// Where the text of a template is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateSource {
    /// In the job.
    Data(String),
    /// In a file of the task. `${…}` not yet replaced.
    File(String),
}

/// What happens to a task whose template reads otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeMode {
    /// Nothing: the file is another.
    Noop,
    /// It is started again.
    Restart,
    /// It gets this signal.
    Signal(String),
    /// A command runs inside it.
    Script(ChangeScript),
}

/// See [`ChangeMode::Script`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeScript {
    /// The program. `${…}` not yet replaced.
    pub command: String,
    /// Its arguments. `${…}` not yet replaced.
    pub args: Vec<String>,
    /// It is ended after this.
    pub timeout: Duration,
    /// The task fails when it does.
    pub fail_on_error: bool,
}

/// How long changes are waited for that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateWait {
    /// Without another one.
    pub min: Duration,
    /// At most, from the first one on.
    pub max: Duration,
}
