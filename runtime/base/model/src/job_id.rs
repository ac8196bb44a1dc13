//! Jobs and the namespaces that keep them apart.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::ids::{BACKSLASH, NameError, check};
use super::limits::NAMESPACE_BYTES_MAX;

/// The namespace of jobs that name none; always there.
pub const NAMESPACE: &str = "default";

/// Character between namespace and id in [`JobId::qualified_id`]; it is in no name.
const SEPARATOR: char = ' ';

/// The text is no name of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a valid namespace name: give 1 to {NAMESPACE_BYTES_MAX} letters, digits and dashes"
)]
pub struct NotNamespace {
    /// The text, cut to a readable length.
    pub given: String,
}

/// A job is in a namespace that the agent does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no namespace {name:?}; add namespace {name:?} {{ }} to the agent's configuration and restart it, \
     or leave the namespace out"
)]
pub struct UnknownNamespace {
    name: String,
}

impl UnknownNamespace {
    /// The error for a namespace of this name, which need not be a valid name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.chars().take(64).collect() }
    }
}

/// The name of a namespace: letters, digits and dashes, as in Nomad.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Make a namespace from a name, which is checked.
    ///
    /// # Errors
    /// When the text is no name of a namespace.
    pub fn new(name: &str) -> Result<Self, NotNamespace> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if name.is_empty() || name.len() > NAMESPACE_BYTES_MAX || !name.chars().all(allowed) {
            return Err(NotNamespace { given: name.chars().take(64).collect() });
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(NAMESPACE.into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Namespace {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Namespace {
    type Err = NotNamespace;
    fn from_str(text: &str) -> Result<Self, NotNamespace> {
        Self::new(text)
    }
}

impl TryFrom<String> for Namespace {
    type Error = NotNamespace;
    fn try_from(text: String) -> Result<Self, NotNamespace> {
        Self::new(&text)
    }
}

impl From<Namespace> for String {
    fn from(name: Namespace) -> Self {
        name.as_str().to_owned()
    }
}

/// A job's id in its namespace, unique on the node. Never a part of a path.
///
/// One text holds both: the id alone in namespace [`NAMESPACE`], otherwise the namespace before it.
/// People see the id ([`JobId::as_str`], `Display`); records and maps by job use the whole text
/// ([`JobId::qualified_id`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct JobId(Arc<str>);

// By hand: `into = "String"` would copy the name at every write of the state.
impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl JobId {
    /// Make the id of a job in namespace [`NAMESPACE`] from a text, which is checked.
    ///
    /// # Errors
    /// When it is empty, too long, a directory reference, or has characters that it cannot have.
    pub fn new(id: impl Into<String>) -> Result<Self, NameError> {
        let id = id.into();
        check("job id", &id, BACKSLASH)?;
        Ok(Self(id.into()))
    }

    /// Make the id of a job in a namespace from a text, which is checked.
    ///
    /// # Errors
    /// As [`JobId::new`].
    pub fn in_namespace(namespace: &Namespace, id: impl Into<String>) -> Result<Self, NameError> {
        let id = Self::new(id)?;
        if namespace.as_str() == NAMESPACE {
            return Ok(id);
        }
        Ok(Self(format!("{namespace}{SEPARATOR}{}", id.0).into()))
    }

    /// Read a text that [`JobId::qualified_id`] returned.
    ///
    /// # Errors
    /// When the text has another form.
    pub fn from_qualified(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        let Some((namespace, id)) = text.split_once(SEPARATOR) else { return Self::new(text) };
        match Namespace::new(namespace) {
            Ok(namespace) if namespace.as_str() != NAMESPACE => Self::in_namespace(&namespace, id),
            _ => Err(NameError::Character {
                what: "job id",
                name: text.clone(),
                character: SEPARATOR,
            }),
        }
    }

    /// The id as people see it, without its namespace.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(&*self.0, |(_, id)| id)
    }

    /// The namespace of the job.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(NAMESPACE, |(namespace, _)| namespace)
    }

    /// Namespace and id in one text that no other job has.
    #[must_use]
    pub fn qualified_id(&self) -> &str {
        &self.0
    }

    /// The id of another job in the same namespace.
    ///
    /// # Errors
    /// As [`JobId::new`].
    pub fn sibling(&self, id: impl Into<String>) -> Result<Self, NameError> {
        match Namespace::new(self.namespace()) {
            Ok(namespace) => Self::in_namespace(&namespace, id),
            Err(_) => Self::new(id),
        }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Borrows the whole text, so that maps by id are looked up with it.
impl std::borrow::Borrow<str> for JobId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobId {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::from_qualified(text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn prod() -> Namespace {
        Namespace::new("prod").unwrap()
    }

    #[test]
    fn jobs_of_one_id_in_two_namespaces_are_two_jobs() {
        let (here, there) =
            (JobId::new("web").unwrap(), JobId::in_namespace(&prod(), "web").unwrap());
        assert_ne!(here, there);
        assert_eq!((here.as_str(), there.as_str()), ("web", "web"));
        assert_eq!((here.namespace(), there.namespace()), ("default", "prod"));
        assert_eq!(here, JobId::in_namespace(&Namespace::default(), "web").unwrap());
        assert_eq!(there.sibling("db").unwrap(), JobId::in_namespace(&prod(), "db").unwrap());
    }

    #[test]
    fn a_record_of_a_job_id_is_read_as_the_same_id() {
        for id in
            [JobId::new("web").unwrap(), JobId::in_namespace(&prod(), "web/periodic-1").unwrap()]
        {
            assert_eq!(JobId::from_qualified(id.qualified_id()), Ok(id.clone()));
            let text = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<JobId>(&text).unwrap(), id);
        }
    }

    #[test]
    fn no_two_texts_are_one_job_id() {
        for wrong in ["default web", " web", "a_b web", "prod ", "prod a b", "prod .."] {
            assert!(JobId::from_qualified(wrong).is_err(), "{wrong:?}");
        }
        JobId::new("prod web").unwrap_err();
    }

    #[test]
    fn namespaces_have_letters_digits_and_dashes() {
        for wrong in ["", "a b", "a/b", "a_b", "ü", &"x".repeat(129)] {
            Namespace::new(wrong).unwrap_err();
        }
        assert_eq!(Namespace::new("Team-1").unwrap().to_string(), "Team-1");
    }
}
