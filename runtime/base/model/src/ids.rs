//! Names and identifiers, which are checked once when they enter the agent. Copies share their
//! text, because each allocation holds dozens of them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::limits::NAME_BYTES_MAX;
use crate::printable;

pub use super::job_id::{JobId, NAMESPACE, Namespace, NotNamespace, UnknownNamespace};

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("{what} must not be empty")]
    Empty {
        /// The kind of the name: `job name`, `task name` …
        what: &'static str,
    },
    /// The name is longer than [`NAME_BYTES_MAX`].
    #[error("{what} has {len} bytes; the longest allowed is {NAME_BYTES_MAX}")]
    TooLong {
        /// The kind of the name.
        what: &'static str,
        /// Bytes given.
        len: usize,
    },
    /// The name has a character that cannot be in a directory name or would confuse a person.
    #[error("{what} {name:?} contains {character:?}; names become directory names")]
    Character {
        /// The kind of the name.
        what: &'static str,
        /// The name given.
        name: String,
        /// The first character refused.
        character: char,
    },
    /// The name has a character that is invisible or turns the text around it, so that two names
    /// could look alike.
    #[error(
        "{what} \"{}\" contains {}, a character that is invisible or changes how others are shown; leave it out",
        printable::printable_line(name.as_str(), usize::MAX),
        printable::code_point(*character)
    )]
    Hidden {
        /// The kind of the name.
        what: &'static str,
        /// The name given.
        name: String,
        /// The first character refused.
        character: char,
    },
    /// The name is `.` or `..`.
    #[error("{what} {name:?} is a directory reference, not a name")]
    Reserved {
        /// The kind of the name.
        what: &'static str,
        /// The name given.
        name: String,
    },
    /// The text is no UUID.
    #[error("{given:?} is not an allocation id (a UUID)")]
    NotUuid {
        /// The text given.
        given: String,
    },
}

/// Characters that are in no name of a directory.
const SEPARATORS: &[char] = &['/', '\\'];
/// Characters that are in no id of a job. A slash may be: servers name jobs that they make of
/// others `job/periodic-TIME`.
pub(super) const BACKSLASH: &[char] = &['\\'];

pub(super) fn check(what: &'static str, name: &str, refused: &[char]) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { what, len: name.len() });
    }
    if let Some(character) =
        name.chars().find(|c| c.is_control() || c.is_whitespace() || refused.contains(c))
    {
        return Err(NameError::Character { what, name: name.to_owned(), character });
    }
    if let Some(character) = printable::first_unseen(name) {
        return Err(NameError::Hidden { what, name: name.to_owned(), character });
    }
    if name == "." || name == ".." {
        return Err(NameError::Reserved { what, name: name.to_owned() });
    }
    Ok(())
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        // By hand: `into = "String"` would copy the name at every write of the state.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl $name {
            /// Make a name from a text, which is checked.
            ///
            /// # Errors
            /// When it is empty, too long, a directory reference, or has characters that are
            /// not allowed.
            pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
                let name = name.into();
                check($what, &name, SEPARATORS)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }
    )*};
}

names! {
    /// A task group's name, unique in its job.
    GroupName = "task group name";
    /// A task's name, unique in its group.
    TaskName = "task name";
    /// A plugin's name, which jobs write in `driver = "…"` and the agent's `plugin` block has.
    PluginName = "plugin name";
}

/// An allocation's id (a UUID). The default, the nil UUID, belongs to no allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct AllocId(uuid::Uuid);

impl Serialize for AllocId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = uuid::Uuid::encode_buffer();
        serializer.serialize_str(self.0.hyphenated().encode_lower(&mut text))
    }
}

impl AllocId {
    /// From a UUID.
    #[must_use]
    pub const fn new(id: uuid::Uuid) -> Self {
        Self(id)
    }

    /// The sixteen bytes of the UUID, in the order of its text.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The first eight hex digits, as people see it.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(8).collect()
    }
}

impl fmt::Display for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for AllocId {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        uuid::Uuid::parse_str(text)
            .map(Self)
            .map_err(|_| NameError::NotUuid { given: text.chars().take(64).collect() })
    }
}

impl TryFrom<String> for AllocId {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<AllocId> for String {
    fn from(id: AllocId) -> Self {
        id.to_string()
    }
}

/// Identity of a node over restarts (a UUID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(uuid::Uuid);

impl NodeId {
    /// From a UUID.
    #[must_use]
    pub const fn new(id: uuid::Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The text is not a node id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a node id (a UUID)")]
pub struct NotNodeId {
    /// The text given, cut to a readable length.
    pub given: String,
}

impl FromStr for NodeId {
    type Err = NotNodeId;
    fn from_str(text: &str) -> Result<Self, NotNodeId> {
        uuid::Uuid::try_parse(text)
            .map(Self)
            .map_err(|_| NotNodeId { given: text.chars().take(64).collect() })
    }
}

impl TryFrom<String> for NodeId {
    type Error = NotNodeId;
    fn try_from(text: String) -> Result<Self, NotNodeId> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.to_string()
    }
}

/// Id of one start of one task, `<alloc id>/<task>/<8 hex>`. Each start gets a new one, so that
/// late news of an earlier run are not taken for those of this run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId(Arc<str>);

impl RunId {
    /// Make the id of one start from the allocation, the task and a random number.
    #[must_use]
    pub fn new(alloc: AllocId, task: &TaskName, random: u32) -> Self {
        Self(format!("{alloc}/{task}/{random:08x}").into())
    }

    /// Id of the allocation; `None` for an id that was made in another way.
    #[must_use]
    pub fn alloc(&self) -> Option<AllocId> {
        self.0.split('/').next()?.parse().ok()
    }

    /// `<alloc id>/<task>`, the part that all starts of one task share.
    #[must_use]
    pub fn of_task(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(task, _)| task)
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
