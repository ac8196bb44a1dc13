//! The report of a reload.

use serde::{Deserialize, Serialize};

use ostler_model::time::Timestamp;

/// The result of a reload for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "reason")]
pub enum KeyVerdict {
    /// The new value is in effect from now on.
    Applied,
    /// The value from the start of the agent stays in effect until the next start.
    NeedsRestart,
    /// The value before stays, for this reason.
    Refused(String),
}

/// A key that differs, with the result for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    /// The key as it is written: `gc.interval`, `plugin "nvidia"`.
    pub key: String,
    /// The result of the reload for this key.
    #[serde(flatten)]
    pub verdict: KeyVerdict,
}

/// The result of one reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// The time of the reload, by the agent's clock.
    pub at: Timestamp,
    /// Why nothing was taken; `None` if the file could be read.
    pub refused: Option<String>,
    /// The keys that differ from the configuration in effect, in the order of the reference.
    pub keys: Vec<KeyReport>,
}

impl ReloadReport {
    /// One line for each key, or one line that says that no key differs.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        if let Some(why) = &self.refused {
            return vec![format!("refused; the configuration stays as it was: {why}")];
        }
        if self.keys.is_empty() {
            return vec!["nothing in it differs from the configuration in use".to_owned()];
        }
        let line = |one: &KeyReport| match &one.verdict {
            KeyVerdict::Applied => format!("{}: applied", one.key),
            KeyVerdict::NeedsRestart => format!("{}: needs a restart of the agent", one.key),
            KeyVerdict::Refused(why) => format!("{}: refused, stays as it was: {why}", one.key),
        };
        self.keys.iter().map(line).collect()
    }
}
