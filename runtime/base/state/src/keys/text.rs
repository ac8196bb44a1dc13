//! Keys as people write them: why a text is none, and the group around one.

use std::str::FromStr as _;

use super::KeyPrefix;
use super::shape::{ALLOC, JOB, MANAGER, META, NAMESPACE, NODE, PLUGIN, VARIABLE};
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
    #[error("no record can be called that")]
    Name(#[source] NameError),
    /// The text can be no namespace.
    #[error("no record can be called that")]
    Namespace(#[source] NotNamespace),
    /// No variable can have this path or namespace.
    #[error("no record can be called that")]
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
        if let Some(rest) = text.strip_prefix(ALLOC.text) {
            return match rest.get(..UUID_TEXT).map(AllocId::from_str) {
                Some(Ok(id)) => Self::Alloc(id),
                _ => Self::Allocs,
            };
        }
        let groups = [
            (META, Self::Meta),
            (PLUGIN, Self::Plugins),
            (NODE, Self::Node),
            (MANAGER, Self::Managers),
            (JOB, Self::Jobs),
            (VARIABLE, Self::Variables),
            (NAMESPACE, Self::Namespaces),
        ];
        let group = groups.into_iter().find(|(area, _)| text.starts_with(area.text));
        group.map_or(Self::All, |(_, group)| group)
    }
}

/// The number of characters in the text of an id.
const UUID_TEXT: usize = 36;
