//! What a record holds, by its kind. Whoever adds a kind is made to say here how it is read.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::access::KeptTokens;
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
use ostler_state::inspect::Entry;
use ostler_state::keys::Kind;
use ostler_state::{Key, Stats};

/// Name of a kind, for people and in JSON.
pub(super) const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Meta => "schema",
        Kind::Alloc => "allocation",
        Kind::AllocState => "allocation-state",
        Kind::TaskLocal => "task-local",
        Kind::TaskState => "task-state",
        Kind::DeviceLedger => "device-ledger",
        Kind::PluginHandle => "plugin-handle",
        Kind::NodeRegistration => "node-registration",
        Kind::NodeBoot => "node-boot",
        Kind::Counters => "counters",
        Kind::DeploymentStatus => "deployment-status",
        Kind::NetworkStatus => "network-status",
        Kind::AcknowledgedState => "acknowledged-state",
        Kind::DriverManager => "driver-manager",
        Kind::DeviceManager => "device-manager",
        Kind::Job => "job",
        Kind::EndedPlaces => "ended-places",
        Kind::JobVersions => "job-versions",
        Kind::JobDeployments => "job-deployments",
        Kind::Variable => "variable",
        Kind::VariablesIndex => "variables-index",
        Kind::Tokens => "tokens",
        Kind::NodeScheduling => "node-scheduling",
        Kind::Namespace => "namespace",
    }
}

/// Name of a record's kind; of one whose key is none, too.
pub(super) fn name_of(entry: &Entry<'_>) -> &'static str {
    entry.key().map(Key::kind).map_or("unknown", name)
}

/// Why a record has no value to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    /// It cannot be read.
    #[error("{}", chain(.0))]
    Codec(#[from] CodecError),
    /// It was read and has no JSON.
    #[error("cannot be shown as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

/// The value of a record, read as what its key says it is.
pub(super) fn value(entry: &Entry<'_>) -> Result<Value, ValueError> {
    let Some(key) = entry.key() else {
        // The error says what is wrong with the key.
        return json::<()>(entry);
    };
    match key.kind() {
        Kind::Meta => json::<u16>(entry),
        Kind::Alloc => json::<Allocation>(entry),
        Kind::AllocState => json::<SavedAllocState>(entry),
        Kind::TaskLocal => json::<LocalState>(entry),
        Kind::TaskState => json::<TaskState>(entry),
        Kind::DeviceLedger => json::<DeviceLedger>(entry),
        Kind::PluginHandle => json::<PluginHandle>(entry),
        Kind::NodeRegistration => json::<NodeRegistration>(entry),
        Kind::NodeBoot => json::<NodeBoot>(entry),
        Kind::Counters => json::<Stats>(entry),
        Kind::DeploymentStatus => json::<DeploymentStatus>(entry),
        Kind::NetworkStatus => json::<NetworkStatus>(entry),
        Kind::AcknowledgedState => json::<AcknowledgedState>(entry),
        Kind::DriverManager => json::<DriverManagerState>(entry),
        Kind::DeviceManager => json::<DeviceManagerState>(entry),
        Kind::Job => json::<JobRecord>(entry),
        Kind::EndedPlaces => json::<EndedPlaces>(entry),
        Kind::JobVersions => json::<JobVersions>(entry),
        Kind::JobDeployments => json::<JobDeployments>(entry),
        Kind::Variable => Ok(without_secrets(entry.decode()?)?),
        Kind::VariablesIndex => json::<u64>(entry),
        Kind::Tokens => Ok(without_hashes(entry.decode()?)?),
        Kind::NodeScheduling => json::<NodeScheduling>(entry),
        Kind::Namespace => json::<NamespaceRecord>(entry),
    }
}

/// A variable, what is in its items left out: dumps go into reports of mistakes.
fn without_secrets(mut variable: Variable) -> Result<Value, serde_json::Error> {
    variable.items.values_mut().for_each(|item| *item = Secret::new("(secret)"));
    serde_json::to_value(variable)
}

/// Tokens, what is kept of their secrets left out.
fn without_hashes(mut kept: KeptTokens) -> Result<Value, serde_json::Error> {
    kept.tokens.iter_mut().for_each(|token| token.secret = [0; 32]);
    serde_json::to_value(kept)
}

fn json<T: DeserializeOwned + Serialize>(entry: &Entry<'_>) -> Result<Value, ValueError> {
    Ok(serde_json::to_value(entry.decode::<T>()?)?)
}
