//! Keys as people write them: why a text is none, and the group around one.

use std::str::FromStr as _;

use super::KeyPrefix;
use ostler_model::ids::{AllocId, NameError, NotNamespace};
use ostler_model::vars::VarPathError;

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// No key is written this way.
    #[error("no record is called {given:?}; a dump of the state lists those there are")]
    Unknown {
        /// The text, cut to a hundred characters.
        given: String,
    },
    /// The id or the name in it is not valid.
    #[error("no record is called so")]
    Name(#[source] NameError),
    /// The text can be no namespace.
    #[error("no record is called so")]
    Namespace(#[source] NotNamespace),
    /// No variable can have this path or namespace.
    #[error("no record is called so")]
    Variable(#[source] VarPathError),
}

impl KeyTextError {
    pub(crate) fn unknown(text: &str) -> Self {
        Self::Unknown { given: text.chars().take(100).collect() }
    }
}

impl KeyPrefix {
    /// A small group that holds every key whose text starts with `text`. Read it instead of
    /// everything, then compare the texts.
    #[must_use]
    pub fn covering(text: &str) -> Self {
        let Some((area, rest)) = text.split_once('/') else { return Self::All };
        match area {
            "meta" => Self::Meta,
            "allocation" => match rest.get(..UUID_TEXT).map(AllocId::from_str) {
                Some(Ok(id)) => Self::Alloc(id),
                _ => Self::Allocs,
            },
            "plugin" => Self::Plugins,
            "node" => Self::Node,
            "manager" => Self::Managers,
            "job" => Self::Jobs,
            "variable" => Self::Variables,
            "namespace" => Self::Namespaces,
            _ => Self::All,
        }
    }
}

/// The number of characters in the text of an id.
const UUID_TEXT: usize = 36;
