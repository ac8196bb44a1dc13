//! What a template may ask of the world.

use ostler_model::time::Timestamp;

use crate::value::Value;

/// Something outside that a template reads, and that may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    /// A file of the task.
    File(String),
    /// The instances of a service of this node; with how many of them, chosen by a key, where it says.
    Service {
        /// The service.
        name: String,
        /// How many, and by which key they are chosen.
        choose: Option<(u64, String)>,
    },
    /// The names and tags of all services.
    Services,
    /// One variable.
    Variable {
        /// Its path.
        path: String,
        /// Where it is not there, the template waits for it.
        required: bool,
    },
    /// The variables whose paths begin so.
    Variables {
        /// How they begin.
        prefix: String,
        /// Where there is none, the template waits for one.
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

/// What the outside says to a question.
#[derive(Clone, Debug)]
pub enum OutsideAnswer {
    /// This.
    Is(Value),
    /// It is not there yet: the template waits for it.
    Missing,
    /// It is never answered.
    Refused(String),
}

/// The world as a template sees it. Calls may block: a template is rendered on a thread that may.
pub trait Outside {
    /// Time of day, for `timestamp`.
    fn now(&self) -> Timestamp;
    /// A variable of the task's environment, or a fact of the node (`attr.…`, `meta.…`, `node.…`).
    fn variable(&self, name: &str) -> Option<String>;
    /// Anything that may change while the task runs.
    fn ask(&self, what: &Dependency) -> OutsideAnswer;
    /// Does nobody wait for the output any more?
    fn is_given_up(&self) -> bool {
        false
    }
}
