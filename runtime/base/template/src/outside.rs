//! What a template may read of the world outside of it.

use std::time::SystemTime;

use crate::value::Value;

/// Something outside of the template that it reads and that may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    /// A file of the task, by its path.
    File(String),
    /// The instances of a service of this node, or some of them, chosen by a key.
    Service {
        /// The name of the service.
        name: String,
        /// The number of instances, and the key by which they are chosen; absent for all instances.
        choose: Option<(u64, String)>,
    },
    /// The names and tags of all services.
    Services,
    /// One variable.
    Variable {
        /// The path of the variable, without slashes around it.
        path: String,
        /// Whether the template waits for the variable while it is missing.
        required: bool,
    },
    /// The variables whose paths begin with a prefix.
    Variables {
        /// The prefix of the paths.
        prefix: String,
        /// Whether the template waits for a variable while there is none.
        required: bool,
    },
}

impl std::fmt::Display for Dependency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file({path})"),
            Self::Service { name, .. } => write!(f, "nomad.service({name})"),
            Self::Services => f.write_str("nomad.services"),
            Self::Variable { path, .. } => write!(f, "nomad.var({path})"),
            Self::Variables { prefix, .. } => write!(f, "nomad.var.list({prefix})"),
        }
    }
}

/// The answer of the outside to a question of a template.
#[derive(Clone, Debug)]
pub enum OutsideAnswer {
    /// The value that was asked for.
    Is(Value),
    /// The value does not exist yet: the template waits for it.
    Missing,
    /// The question is never answered, for this reason.
    Refused(String),
}

/// The world as a template sees it. Calls may block, because a template is rendered on a thread
/// that may block.
pub trait Outside {
    /// The current time of day, for `timestamp`.
    fn now(&self) -> SystemTime;
    /// A variable of the task's environment, or a fact of the node (`attr.…`, `meta.…`, `node.…`).
    fn variable(&self, name: &str) -> Option<String>;
    /// Ask for something that may change while the task runs.
    fn ask(&self, what: &Dependency) -> OutsideAnswer;
    /// Whether nobody waits for the output any more.
    fn is_given_up(&self) -> bool {
        false
    }
}
