//! What is told of a reload.

use serde::{Deserialize, Serialize};

use ostler_model::time::Timestamp;

/// What became of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "reason")]
pub enum KeyVerdict {
    /// It holds from now on.
    Applied,
    /// What the agent began with holds until it is started anew.
    NeedsRestart,
    /// What was there before stays, and why.
    Refused(String),
}

/// A key that differs, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    /// As it is written: `gc.interval`, `plugin "nvidia"`.
    pub key: String,
    /// What became of it.
    #[serde(flatten)]
    pub verdict: KeyVerdict,
}

/// How a reload went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// When.
    pub at: Timestamp,
    /// Why nothing was taken; absent where the file could be read.
    pub refused: Option<String>,
    /// What differs from what holds, in the order of the reference.
    pub keys: Vec<KeyReport>,
}

impl ReloadReport {
    /// One line for each key, or one that says that there is none.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        if let Some(why) = &self.refused {
            return vec![format!("refused; the configuration stays as it was: {why}")];
        }
        if self.keys.is_empty() {
            return vec!["nothing in it differs from what holds".to_owned()];
        }
        let line = |one: &KeyReport| match &one.verdict {
            KeyVerdict::Applied => format!("{}: applied", one.key),
            KeyVerdict::NeedsRestart => format!("{}: needs a restart of the agent", one.key),
            KeyVerdict::Refused(why) => format!("{}: refused, stays as it was: {why}", one.key),
        };
        self.keys.iter().map(line).collect()
    }
}
