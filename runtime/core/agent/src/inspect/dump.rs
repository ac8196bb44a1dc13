//! Shows every record of a state file, one after the other.

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{ClaimedInspection, InspectError, Target, open, values};
use ostler_state::inspect::InspectedRecord;
use ostler_state::keys::KeyPrefix;

/// The number of bytes that are shown of a record that cannot be read.
const FIRST_BYTES: usize = 32;

/// An open state file whose records are shown.
pub struct Dump(ClaimedInspection);

/// A record, readable or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DumpRecord {
    /// The key in words, or in hexadecimal digits if it is no key.
    pub key: String,
    /// The kind of the record; `unknown` if the key is no key.
    pub kind: &'static str,
    /// Bytes of the key and the record.
    pub bytes: u64,
    /// The value of the record; `None` if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Why the value cannot be read; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The first bytes in hexadecimal digits, if the value cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bytes: Option<String>,
}

impl DumpRecord {
    fn from_entry(entry: &InspectedRecord<'_>) -> Self {
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

/// A function that is called with each record. It breaks to end early.
pub type Show<'a> = &'a mut dyn FnMut(DumpRecord) -> ControlFlow<()>;

impl Dump {
    /// Open a state file without changing it.
    ///
    /// # Errors
    /// When there is no such file, an agent runs, or the file is damaged or cannot be read.
    pub fn open(target: &Target) -> Result<Self, InspectError> {
        open(target).map(Self)
    }

    /// The path of the state file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.inspection.path()
    }

    /// The schema of the file's content. Values are shown in the schema of this agent.
    #[must_use]
    pub fn schema(&self) -> Option<u16> {
        self.0.inspection.schema()
    }

    /// Show every record whose key, in words, starts with `prefix`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn show_records(&self, prefix: &str, show: Show<'_>) -> Result<(), InspectError> {
        let look = &mut |entry: &InspectedRecord<'_>| show_entry(entry, prefix, show);
        let scanned = self.0.inspection.scan(&KeyPrefix::covering(prefix), look);
        scanned.map_err(InspectError::from_state_error)
    }

    /// Show every record in quarantine whose key, in words, starts with `prefix`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn show_quarantined(&self, prefix: &str, show: Show<'_>) -> Result<(), InspectError> {
        let look = &mut |entry: &InspectedRecord<'_>| show_entry(entry, prefix, show);
        self.0.inspection.quarantine(look).map_err(InspectError::from_state_error)
    }
}

fn show_entry(entry: &InspectedRecord<'_>, prefix: &str, show: Show<'_>) -> ControlFlow<()> {
    if entry.shown_key().starts_with(prefix) {
        show(DumpRecord::from_entry(entry))
    } else {
        ControlFlow::Continue(())
    }
}
