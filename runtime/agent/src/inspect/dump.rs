//! Every record of a state file, one after the other.

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{InspectError, Opened, Target, open, values};
use ostler_state::inspect::Entry;
use ostler_state::keys::Prefix;

/// Bytes shown of a record that cannot be read.
const FIRST_BYTES: usize = 32;

/// A state file whose records are shown.
pub struct Dump(Opened);

/// A record, readable or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DumpRecord {
    /// Its key in words or, when it is none, in hexadecimal digits.
    pub key: String,
    /// Its kind; `unknown` when the key is none.
    pub kind: &'static str,
    /// Bytes of the key and the record.
    pub bytes: u64,
    /// Its value; absent when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its first bytes in hexadecimal digits, when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bytes: Option<String>,
}

impl DumpRecord {
    fn of(entry: &Entry<'_>) -> Self {
        let (value, error) = match values::value(entry) {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            key: entry.shown_key(),
            kind: values::name_of(entry),
            bytes: entry.bytes(),
            first_bytes: error.is_some().then(|| entry.first_bytes(FIRST_BYTES)),
            value,
            error,
        }
    }
}

/// Called with each record; breaks to end early.
pub type Show<'a> = &'a mut dyn FnMut(DumpRecord) -> ControlFlow<()>;

impl Dump {
    /// Open a state file without changing it.
    ///
    /// # Errors
    /// When there is no such file, an agent runs, or the file is damaged or cannot be read.
    pub fn open(target: &Target) -> Result<Self, InspectError> {
        open(target).map(Self)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.inspection.path()
    }

    /// Schema of its content. Values are shown in this agent's.
    #[must_use]
    pub fn schema(&self) -> Option<u16> {
        self.0.inspection.schema()
    }

    /// Every record whose key, in words, starts with `prefix`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records(&self, prefix: &str, show: Show<'_>) -> Result<(), InspectError> {
        let look = &mut |entry: &Entry<'_>| shown(entry, prefix, show);
        let scanned = self.0.inspection.scan(&Prefix::around(prefix), look);
        scanned.map_err(InspectError::state)
    }

    /// Likewise every record in quarantine.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn quarantined(&self, prefix: &str, show: Show<'_>) -> Result<(), InspectError> {
        let look = &mut |entry: &Entry<'_>| shown(entry, prefix, show);
        self.0.inspection.quarantine(look).map_err(InspectError::state)
    }
}

fn shown(entry: &Entry<'_>, prefix: &str, show: Show<'_>) -> ControlFlow<()> {
    match entry.shown_key().starts_with(prefix) {
        true => show(DumpRecord::of(entry)),
        false => ControlFlow::Continue(()),
    }
}
