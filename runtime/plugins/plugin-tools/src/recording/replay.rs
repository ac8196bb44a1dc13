//! Makes a recorded call again: with the same component and the recorded answers, and without a
//! host behind it.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::trace::{Divergence, Player, SharedPlayer, Trace};
use super::{CallOutcome, RecordedCall, Recording};
use ostler_health::policy::FailurePolicy;
use ostler_model::clock::Timestamp;
use ostler_model::grants::Grants;
use ostler_model::json::JsonObject;
use ostler_plugin::by_name::{ByNameError, NamedCall};
use ostler_plugin::host::HostServices;
use ostler_plugin::manifest::{self, ManifestError};
use ostler_plugin::{PluginRuntime, PluginSpec};
use ostler_sandbox::without_last_words;

/// Why a call could not be made again at all.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file is no component.
    #[error("the component is not a plugin: {0}")]
    Component(#[source] ManifestError),
    /// The component is another than the recorded one.
    #[error(
        "another component: the recording is of sha256:{recorded}, this one is sha256:{given}; \
         give the right one, or --any-component to see where it departs"
    )]
    OtherComponent {
        /// The digest in the recording.
        recorded: String,
        /// The digest of the given file.
        given: String,
    },
    /// The recording is of a driver and the component is a device plugin, or the other way round.
    #[error("the recording is of another kind of plugin than the component")]
    OtherKind,
    /// The recording has no call of this number.
    #[error("there is no call {wanted}; the recording holds {there}")]
    NoCall {
        /// The number that was asked for, from 1.
        wanted: usize,
        /// The number of calls in the recording.
        there: usize,
    },
    /// The recorded configuration is no JSON object.
    #[error("the recorded configuration is no JSON object: {0}")]
    Config(#[source] serde_json::Error),
    /// The component does not load, or the call is not part of the contract.
    #[error(transparent)]
    Call(#[from] ByNameError),
}

/// How a replay compares with the recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayVerdict {
    /// The replay ended the same way.
    Same,
    /// The replay asked the host the same but ended in another way.
    Differs,
    /// The replay asked the host for something else on the way.
    Departed,
}

/// A call that was made again.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedCall {
    /// How the replay compares with the recorded call.
    pub verdict: ReplayVerdict,
    /// The name of the called function.
    pub function: String,
    /// How the recorded call ended.
    pub recorded: CallOutcome,
    /// How the replayed call ended.
    pub replayed: CallOutcome,
    /// The number of host calls of the recorded call.
    pub recorded_host_calls: u32,
    /// The number of host calls of the replay.
    pub host_calls: u32,
    /// Where the replay departed from the recording, as a text.
    pub divergence: Option<String>,
    /// Remarks on the comparison, for people.
    pub notes: Vec<String>,
}

/// Make call number `wanted` of a recording again, counted from 1. `None` means the last call.
///
/// # Errors
/// [`ReplayError`] when it cannot be begun; how it ends is in the answer.
pub async fn replay(
    services: &HostServices,
    recording: &Recording,
    wanted: Option<usize>,
    component: Arc<[u8]>,
    any_component: bool,
) -> Result<ReplayedCall, ReplayError> {
    let call = choose_call(recording, wanted)?;
    let manifest = manifest::read(&component).map_err(ReplayError::Component)?;
    if manifest.digest != recording.digest && !any_component {
        let recorded = recording.digest.clone();
        return Err(ReplayError::OtherComponent { recorded, given: manifest.digest });
    }
    if recording.kind != Some(manifest.kind) {
        return Err(ReplayError::OtherKind);
    }
    let other = manifest.digest != recording.digest;
    let config = serde_json::from_str::<serde_json::Map<_, _>>(&recording.config);
    let spec = PluginSpec {
        name: recording.plugin.clone(),
        config: JsonObject::from(config.map_err(ReplayError::Config)?),
        grants: Grants::default(),
        limits: recording.limits.limits(),
        failure: FailurePolicy::default(),
    };
    let (bytes, calls, cut) = (call.trace.clone(), call.host_calls, call.cut);
    let trace = Trace { bytes, calls, cut, secrets: Vec::new() };
    let player = Arc::new(Mutex::new(Player::new(trace)));
    let named = NamedCall {
        function: &call.function,
        arguments: &call.input,
        now: Timestamp::from_nanos(call.at.saturating_add(call.took)),
    };
    let runtime = PluginRuntime::new(services.clone()).map_err(ByNameError::Plugin)?;
    let host = Arc::new(SharedPlayer(Arc::clone(&player)));
    let end = runtime.call_by_name(spec, &manifest, component, named, host).await?;
    let outcome = CallOutcome::from(&end);
    let player = player.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(compare_calls(recording, call, outcome, &player, other))
}

fn choose_call(recording: &Recording, wanted: Option<usize>) -> Result<&RecordedCall, ReplayError> {
    let there = recording.calls.len();
    let wanted = wanted.unwrap_or(there);
    let call = wanted.checked_sub(1).and_then(|index| recording.calls.get(index));
    call.ok_or(ReplayError::NoCall { wanted, there })
}

/// Whether two outcomes are alike. Standard error is not replayed, so what a guest wrote there
/// before it ended does not count.
fn are_alike(recorded: &CallOutcome, replayed: &CallOutcome) -> bool {
    let [one, other] = [recorded, replayed]
        .map(|outcome| (&outcome.end, without_last_words(&outcome.text), &outcome.frames));
    one == other
}

fn compare_calls(
    recording: &Recording,
    call: &RecordedCall,
    replayed: CallOutcome,
    player: &Player,
    other: bool,
) -> ReplayedCall {
    let recorded = call.outcome.clone();
    let mut notes = Vec::new();
    if other {
        notes.push("the component is not the recorded one".to_owned());
    }
    if recording.redacted > 0 {
        let count = recording.redacted;
        notes.push(format!("{count} secret values were taken out of the recording"));
    }
    if let Some((at, asked)) = player.other_arguments {
        notes.push(format!("host call {at}, {asked}, has other arguments than the recorded one"));
    }
    if player.divergence.is_none() && player.calls_left() > 0 && !call.cut {
        notes.push(format!("{} recorded host calls were not made", player.calls_left()));
    }
    // This is where the recorded call was stopped, or as far as it is known.
    let at_its_end = matches!(
        player.divergence,
        Some(Divergence::GivenUp { .. } | Divergence::Longer { .. } | Divergence::Cut { .. })
    );
    let verdict = match &player.divergence {
        Some(_) if at_its_end && recorded.is_by_clock() => {
            notes.push(
                "it went the recorded way up to where the time of that call was over, and would \
                 have gone on"
                    .to_owned(),
            );
            ReplayVerdict::Same
        }
        Some(_) => ReplayVerdict::Departed,
        None if are_alike(&recorded, &replayed) => ReplayVerdict::Same,
        None => ReplayVerdict::Differs,
    };
    if recorded.is_by_clock() && player.divergence.is_none() {
        notes.push(
            "the recorded call ran out of time: whether this one does depends on this machine"
                .to_owned(),
        );
    }
    ReplayedCall {
        verdict,
        function: call.function.clone(),
        recorded,
        replayed,
        recorded_host_calls: call.host_calls,
        host_calls: player.calls(),
        divergence: player.divergence.as_ref().map(ToString::to_string),
        notes,
    }
}
