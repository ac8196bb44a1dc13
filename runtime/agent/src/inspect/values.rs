//! Reads the values of records by their kind. A new kind does not compile until it is added here.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::access::TokenRecords;
use ostler_model::alloc::Allocation;
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::{
    AcknowledgedState, DeploymentStatus, DeviceManagerState, DriverManagerState, EndedPlaces,
    JobRecord, NamespaceRecord, NetworkStatus, NodeBoot, NodeRegistration, PluginHandle,
    SavedAllocState,
};
use ostler_model::scheduling::NodeScheduling;
use ostler_model::task::TaskState;
use ostler_model::vars::{Secret, Variable};
use ostler_state::codec::CodecError;
use ostler_state::inspect::InspectedRecord;
use ostler_state::keys::RecordKind;
use ostler_state::{RecordKey, Stats};

/// The name of a kind, for people and in JSON.
pub(super) const fn name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Meta => "schema",
        RecordKind::Alloc => "allocation",
        RecordKind::AllocState => "allocation-state",
        RecordKind::TaskLocal => "task-local",
        RecordKind::TaskState => "task-state",
        RecordKind::DeviceLedger => "device-ledger",
        RecordKind::PluginHandle => "plugin-handle",
        RecordKind::NodeRegistration => "node-registration",
        RecordKind::NodeBoot => "node-boot",
        RecordKind::Counters => "counters",
        RecordKind::DeploymentStatus => "deployment-status",
        RecordKind::NetworkStatus => "network-status",
        RecordKind::AcknowledgedState => "acknowledged-state",
        RecordKind::DriverManager => "driver-manager",
        RecordKind::DeviceManager => "device-manager",
        RecordKind::Job => "job",
        RecordKind::EndedPlaces => "ended-places",
        RecordKind::JobVersions => "job-versions",
        RecordKind::JobDeployments => "job-deployments",
        RecordKind::Variable => "variable",
        RecordKind::VariablesIndex => "variables-index",
        RecordKind::Tokens => "tokens",
        RecordKind::NodeScheduling => "node-scheduling",
        RecordKind::Namespace => "namespace",
    }
}

/// The name of a record's kind, also if the key is no key.
pub(super) fn name_of(entry: &InspectedRecord<'_>) -> &'static str {
    entry.key().map(RecordKey::kind).map_or("unknown", name)
}

/// Why a record has no value to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    /// The record cannot be read.
    #[error("{}", error_chain(.0))]
    Codec(#[from] CodecError),
    /// The record was read but cannot be shown as JSON.
    #[error("cannot be shown as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", error_chain(cause)),
        None => error.to_string(),
    }
}

/// The value of a record, read as the type that its key names.
pub(super) fn value(entry: &InspectedRecord<'_>) -> Result<Value, ValueError> {
    let Some(key) = entry.key() else {
        // The error says what is wrong with the key.
        return json::<()>(entry);
    };
    match key.kind() {
        RecordKind::Meta => json::<u16>(entry),
        RecordKind::Alloc => json::<Allocation>(entry),
        RecordKind::AllocState => json::<SavedAllocState>(entry),
        RecordKind::TaskLocal => json::<LocalState>(entry),
        RecordKind::TaskState => json::<TaskState>(entry),
        RecordKind::DeviceLedger => json::<DeviceLedger>(entry),
        RecordKind::PluginHandle => json::<PluginHandle>(entry),
        RecordKind::NodeRegistration => json::<NodeRegistration>(entry),
        RecordKind::NodeBoot => json::<NodeBoot>(entry),
        RecordKind::Counters => json::<Stats>(entry),
        RecordKind::DeploymentStatus => json::<DeploymentStatus>(entry),
        RecordKind::NetworkStatus => json::<NetworkStatus>(entry),
        RecordKind::AcknowledgedState => json::<AcknowledgedState>(entry),
        RecordKind::DriverManager => json::<DriverManagerState>(entry),
        RecordKind::DeviceManager => json::<DeviceManagerState>(entry),
        RecordKind::Job => json::<JobRecord>(entry),
        RecordKind::EndedPlaces => json::<EndedPlaces>(entry),
        RecordKind::JobVersions => json::<JobVersions>(entry),
        RecordKind::JobDeployments => json::<JobDeployments>(entry),
        RecordKind::Variable => Ok(hide_secrets(entry.decode()?)?),
        RecordKind::VariablesIndex => json::<u64>(entry),
        RecordKind::Tokens => Ok(hide_hashes(entry.decode()?)?),
        RecordKind::NodeScheduling => json::<NodeScheduling>(entry),
        RecordKind::Namespace => json::<NamespaceRecord>(entry),
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

fn json<T: DeserializeOwned + Serialize>(entry: &InspectedRecord<'_>) -> Result<Value, ValueError> {
    Ok(serde_json::to_value(entry.decode::<T>()?)?)
}
