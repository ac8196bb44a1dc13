//! Reads the values of records by their kind: here those that the state crate cannot read, or that
//! hold secrets.

use serde_json::Value;

use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::access::TokenRecords;
use ostler_model::vars::{Secret, Variable};
use ostler_state::RecordKey;
use ostler_state::inspect::{InspectedRecord, ValueError};
use ostler_state::keys::RecordKind;

/// The name of a record's kind, also if the key is no key.
pub(super) fn name_of(entry: &InspectedRecord<'_>) -> &'static str {
    entry.key().map(RecordKey::kind).map_or("unknown", RecordKind::name)
}

/// The value of a record, read as the type that its key names.
pub(super) fn value(entry: &InspectedRecord<'_>) -> Result<Value, ValueError> {
    match entry.key().map(RecordKey::kind) {
        Some(RecordKind::TaskLocal) => entry.json_as::<LocalState>(),
        Some(RecordKind::DeviceLedger) => entry.json_as::<DeviceLedger>(),
        Some(RecordKind::Variable) => Ok(hide_secrets(entry.decode()?)?),
        Some(RecordKind::Tokens) => Ok(hide_hashes(entry.decode()?)?),
        _ => Ok(entry.json()?.unwrap_or_else(|| "(not shown)".into())),
    }
}

/// A variable without the values of its items, because dumps go into bug reports.
fn hide_secrets(mut variable: Variable) -> Result<Value, serde_json::Error> {
    variable.items.values_mut().for_each(|item| *item = Secret::new("(secret)"));
    serde_json::to_value(variable)
}

/// The tokens without the hashes of their secrets.
fn hide_hashes(mut kept: TokenRecords) -> Result<Value, serde_json::Error> {
    kept.tokens.iter_mut().for_each(|token| token.secret = [0; 32]);
    serde_json::to_value(kept)
}
