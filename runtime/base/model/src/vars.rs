//! Variables that the agent keeps for tasks and people: settings and secrets, by path.
//!
//! ```text
//! nomad/jobs                      every job          items: host = db.internal
//! nomad/jobs/web                  job web                   password = (secret)
//! nomad/jobs/web/front            its group front
//! nomad/jobs/web/front/server     its task server
//! anything/else                   people and programs, over the API
//! ```
//! They are checked once, when they come in ([`VarPath`], [`check_items`]). The value of an item is a
//! [`Secret`], which debug output does not show.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::ids::{GroupName, JobId, Namespace, NotNamespace, TaskName};
use super::limits::{VAR_BYTES_MAX, VAR_ITEMS_MAX, VAR_PATH_CHARS_MAX};
use super::ports::BoxFuture;
use super::time::Timestamp;

/// First part of the paths that tasks may read.
const JOBS: &str = "nomad/jobs";

/// Why a path names no variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VarPathError {
    /// The path is empty.
    #[error("the path of a variable is empty; give one like nomad/jobs/web")]
    Empty,
    /// The path is longer than [`VAR_PATH_CHARS_MAX`].
    #[error(
        "the path of a variable has {len} characters; the longest allowed has {VAR_PATH_CHARS_MAX}"
    )]
    TooLong {
        /// Number of characters in the path.
        len: usize,
    },
    /// The path has a character that is not allowed.
    #[error(
        "the path {path:?} has the character {character:?}; the path of a variable has letters and \
         digits of ASCII, -, _, ~ and /"
    )]
    Character {
        /// The path that was given.
        path: String,
        /// The first character that is not allowed.
        character: char,
    },
    /// The path is reserved for Nomad.
    #[error(
        "the path {path:?} is reserved: below nomad/ there are nomad/jobs, and what is below that"
    )]
    Reserved {
        /// The path that was given.
        path: String,
    },
    /// The name of the namespace is not valid.
    #[error(transparent)]
    Namespace(NotNamespace),
}

/// The path of a variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct VarPath(Arc<str>);

impl VarPath {
    /// Make a path from a text, which is checked.
    ///
    /// # Errors
    /// When it is empty, too long, reserved, or has characters that it cannot have.
    pub fn new(path: impl Into<String>) -> Result<Self, VarPathError> {
        let path = path.into();
        if path.is_empty() {
            return Err(VarPathError::Empty);
        }
        let len = path.chars().count();
        if len > VAR_PATH_CHARS_MAX {
            return Err(VarPathError::TooLong { len });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '~' | '/');
        if let Some(character) = path.chars().find(|c| !allowed(*c)) {
            return Err(VarPathError::Character { path, character });
        }
        let mut parts = path.split('/');
        if parts.next() == Some("nomad") && parts.next() != Some("jobs") {
            return Err(VarPathError::Reserved { path });
        }
        Ok(Self(path.into()))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VarPath {
    type Error = VarPathError;

    fn try_from(path: String) -> Result<Self, VarPathError> {
        Self::new(path)
    }
}

// By hand, as names are: `into = "String"` would copy it at every write.
impl Serialize for VarPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for VarPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Namespace and path of a variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarKey {
    /// Namespace of the variable.
    pub namespace: Namespace,
    /// Path of the variable in its namespace.
    pub path: VarPath,
}

impl VarKey {
    /// Make a key from a namespace and a path, which are checked.
    ///
    /// # Errors
    /// When one of them is not valid.
    pub fn new(namespace: &str, path: impl Into<String>) -> Result<Self, VarPathError> {
        let namespace = Namespace::new(namespace).map_err(VarPathError::Namespace)?;
        Ok(Self { namespace, path: VarPath::new(path)? })
    }
}

impl fmt::Display for VarKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in namespace {}", self.path, self.namespace)
    }
}

/// A secret text. Debug output does not show it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Make a secret of a text.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The secret text itself, for code that must have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The items of a variable: values by name.
pub type Items = BTreeMap<String, Secret>;

/// Why items are not valid for a variable. The messages have names but never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemsError {
    /// There are no items.
    #[error("a variable needs at least one item; to remove one, purge it")]
    Empty,
    /// There are more items than [`VAR_ITEMS_MAX`].
    #[error("a variable has at most {VAR_ITEMS_MAX} items, not {count}")]
    TooMany {
        /// Number of items that were given.
        count: usize,
    },
    /// The name of an item is empty or has a control character.
    #[error("an item of a variable has a name without control characters, not {name:?}")]
    Name {
        /// The name, cut to a readable length.
        name: String,
    },
    /// Names and values have more than [`VAR_BYTES_MAX`] bytes together.
    #[error(
        "names and values of a variable have at most {VAR_BYTES_MAX} bytes together, not {bytes}"
    )]
    TooLarge {
        /// Number of bytes that were given.
        bytes: usize,
    },
}

/// Number of bytes of all names and values together.
#[must_use]
pub fn items_size(items: &Items) -> usize {
    items.iter().map(|(name, text)| name.len().saturating_add(text.reveal().len())).sum()
}

/// Check the items of a variable.
///
/// # Errors
/// When there are no items, too many or too large ones, or one without a valid name.
pub fn check_items(items: Items) -> Result<Items, ItemsError> {
    if items.is_empty() {
        return Err(ItemsError::Empty);
    }
    if items.len() > VAR_ITEMS_MAX {
        return Err(ItemsError::TooMany { count: items.len() });
    }
    let no_name = |name: &&String| name.is_empty() || name.chars().any(char::is_control);
    if let Some(name) = items.keys().find(no_name) {
        return Err(ItemsError::Name { name: name.chars().take(64).collect() });
    }
    match items_size(&items) {
        bytes if bytes > VAR_BYTES_MAX => Err(ItemsError::TooLarge { bytes }),
        _ => Ok(items),
    }
}

/// A variable that the agent keeps, with its items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Namespace of the variable.
    pub namespace: Namespace,
    /// Path of the variable in its namespace.
    pub path: VarPath,
    /// The items of the variable.
    pub items: Items,
    /// Index of all variables when this one was created.
    pub create_index: u64,
    /// Index of all variables when this one was written last.
    pub modify_index: u64,
    /// When the variable was created.
    pub created: Timestamp,
    /// When the variable was written last.
    pub modified: Timestamp,
}

impl Variable {
    /// Namespace and path of the variable.
    #[must_use]
    pub fn key(&self) -> VarKey {
        VarKey { namespace: self.namespace.clone(), path: self.path.clone() }
    }
}

/// The result of a query for variables, at one moment.
#[derive(Clone, Debug, Default)]
pub struct VarList {
    /// Grows with each change of any variable; see [`VariableStore::wait_for_change`].
    pub index: u64,
    /// The variables, sorted by namespace and path.
    pub found: Vec<Arc<Variable>>,
}

/// The store of the variables of this node.
pub trait VariableStore: Send + Sync {
    /// One variable, with the index of all variables.
    fn get(&self, key: &VarKey) -> (u64, Option<Arc<Variable>>);
    /// The variables of a namespace, or of all namespaces, whose paths begin with `prefix`.
    fn list(&self, namespace: Option<&str>, prefix: &str) -> VarList;
    /// The index of the last change of any variable.
    fn index(&self) -> u64;
    /// Wait until the index is another one. Never ends where no change comes any more. The future
    /// may be dropped and the call repeated.
    fn wait_for_change(&self, index: u64) -> BoxFuture<'static, ()>;
}

/// Paths of the variables that a task may read without a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadablePaths(Vec<String>);

impl ReadablePaths {
    /// The paths of a task. A job that servers made of a parent job has the paths of the parent. A
    /// job whose id has a `/` has no paths of its own, because they would be those of a group or a
    /// task of another job.
    #[must_use]
    pub fn for_task(
        job: &JobId,
        parent: Option<&JobId>,
        group: &GroupName,
        task: &TaskName,
    ) -> Self {
        let job = parent.unwrap_or(job).as_str();
        if job.contains('/') {
            return Self(vec![JOBS.to_owned()]);
        }
        let of_job = format!("{JOBS}/{job}");
        let of_group = format!("{of_job}/{group}");
        let of_task = format!("{of_group}/{task}");
        Self(vec![JOBS.to_owned(), of_job, of_group, of_task])
    }

    /// Whether the task may read this path.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.0.iter().any(|own| own == path)
    }

    /// Whether the task may read a path that begins with `prefix`.
    #[must_use]
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.0.iter().any(|own| own.starts_with(prefix))
    }
}

impl fmt::Display for ReadablePaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_job_whose_id_has_a_slash_reads_nothing_of_the_group_or_task_that_it_is_called_like() {
        let (group, task) = (GroupName::new("t").unwrap(), TaskName::new("x").unwrap());
        let sly = JobId::new("leak/g-secret").unwrap();
        let readable = ReadablePaths::for_task(&sly, None, &group, &task);
        for path in ["nomad/jobs/leak/g-secret", "nomad/jobs/leak/g-secret/t"] {
            assert!(!readable.contains(path), "{path}");
        }
        assert!(readable.contains("nomad/jobs"));
        // A job that servers made of another one has the paths of that one.
        let parent = JobId::new("leak").unwrap();
        let child = JobId::new("leak/dispatch-1").unwrap();
        assert!(
            ReadablePaths::for_task(&child, Some(&parent), &group, &task)
                .contains("nomad/jobs/leak/t/x")
        );
    }

    fn given(of: &[(&str, &str)]) -> Items {
        of.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect()
    }

    #[test]
    fn paths_are_those_of_nomad_and_what_is_reserved_there_is_refused() {
        let longest = "a".repeat(VAR_PATH_CHARS_MAX);
        for path in
            ["a", "a/b~c_d-e", "nomad/jobs", "nomad/jobs/web", "nomads", "jobs/nomad", &longest]
        {
            assert_eq!(VarPath::new(path).unwrap().as_str(), path);
        }
        let too_long = VarPathError::TooLong { len: VAR_PATH_CHARS_MAX + 1 };
        assert_eq!(VarPath::new(format!("{longest}a")), Err(too_long));
        assert_eq!(VarPath::new(""), Err(VarPathError::Empty));
        for path in ["nomad", "nomad/", "nomad/job", "nomad/jobsx", "nomad//jobs", "nomad/acl/x"] {
            let refused = VarPath::new(path).unwrap_err();
            assert!(matches!(refused, VarPathError::Reserved { .. }), "{path}: {refused}");
        }
        for path in ["a b", "a.b", "a@default", "ä", "a\0", "../a"] {
            let refused = VarPath::new(path).unwrap_err();
            assert!(matches!(refused, VarPathError::Character { .. }), "{path}: {refused}");
        }
    }

    #[test]
    fn items_are_bounded_in_number_and_in_size_together() {
        assert_eq!(check_items(Items::new()), Err(ItemsError::Empty));
        let most = "x".repeat(VAR_BYTES_MAX - 1);
        assert!(check_items(given(&[("k", &most)])).is_ok());
        let bytes = VAR_BYTES_MAX + 1;
        assert_eq!(check_items(given(&[("kk", &most)])), Err(ItemsError::TooLarge { bytes }));
        let many: Items =
            (0..=VAR_ITEMS_MAX).map(|number| (number.to_string(), Secret::default())).collect();
        assert_eq!(check_items(many), Err(ItemsError::TooMany { count: VAR_ITEMS_MAX + 1 }));
        for name in ["", "a\nb", "\0"] {
            let refused = check_items(given(&[(name, "v")])).unwrap_err();
            assert!(matches!(refused, ItemsError::Name { .. }), "{name:?}: {refused}");
        }
    }

    #[test]
    fn nothing_that_prints_a_variable_for_debugging_shows_what_is_in_it() {
        let variable = Variable {
            namespace: Namespace::default(),
            path: VarPath::new("a").unwrap(),
            items: given(&[("password", "hunter2")]),
            create_index: 1,
            modify_index: 2,
            created: Timestamp::default(),
            modified: Timestamp::default(),
        };
        let shown = format!(
            "{variable:?} {:#?}",
            VarList { index: 1, found: vec![variable.clone().into()] }
        );
        assert!(shown.contains("password") && shown.contains("(secret)"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        let too_large = check_items(given(&[("k", &"hunter2".repeat(VAR_BYTES_MAX))])).unwrap_err();
        assert!(!format!("{too_large} {too_large:?}").contains("hunter2"));
    }

    #[test]
    fn a_task_reads_the_paths_of_its_job_group_and_itself() {
        let (job, parent) = (JobId::new("web/periodic-1").unwrap(), JobId::new("web").unwrap());
        let (group, task) = (GroupName::new("g").unwrap(), TaskName::new("t").unwrap());
        let own = ReadablePaths::for_task(&job, Some(&parent), &group, &task);
        for path in ["nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/g", "nomad/jobs/web/g/t"] {
            assert!(own.contains(path), "{path}");
        }
        for path in ["nomad", "nomad/jobs/", "nomad/jobs/webs", "nomad/jobs/web/g/t/x", "a", ""] {
            assert!(!own.contains(path), "{path}");
        }
        assert!(own.has_prefix("") && own.has_prefix("nomad/jobs/web/"));
        assert!(!own.has_prefix("nomad/jobs/x") && !own.has_prefix("a"));
        assert_eq!(
            own.to_string(),
            "nomad/jobs, nomad/jobs/web, nomad/jobs/web/g, nomad/jobs/web/g/t"
        );
    }

    proptest! {
        #[test]
        fn what_is_a_path_stays_one_when_it_is_written_and_read(path in "[a-z/~._-]{0,12}|nomad/[a-z/]{0,8}") {
            if let Ok(path) = VarPath::new(path) {
                let text = serde_json::to_string(&path).unwrap();
                prop_assert_eq!(serde_json::from_str::<VarPath>(&text).unwrap(), path);
            }
        }
    }
}
