//! A recorded call made again: the same component, the recorded answers, no host behind it.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::input::Start;
use super::{CallOutcome, RecordedCall, Recording};
use crate::Failure;
use crate::bindings::since_0_1::device_world::DevicePluginPre;
use crate::bindings::since_0_1::driver_world::DriverPluginPre;
use crate::bindings::since_0_1::host::types as wit;
use crate::bindings::since_0_1::{device_export as dev, driver_export as drv};
use crate::call::{Called, Caller};
use crate::host::trace::{Departure, Player, Trace, Tracer};
use crate::host::{CallState, HostServices};
use crate::manifest::{self, ManifestError};
use crate::schema::{ConfigSchema, Described};
use crate::{Linked, PluginError, PluginRuntime, PluginSpec, convert, driver};
use ostler_health::policy::FailurePolicy;
use ostler_model::clock::Timestamp;
use ostler_model::grants::Grants;
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_sandbox::without_last_words;

/// Why a call could not be made again at all.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The component is none.
    #[error("the component is no plugin: {0}")]
    Component(#[source] ManifestError),
    /// Another component than the recorded one.
    #[error(
        "another component: the recording is of sha256:{recorded}, this one is sha256:{given}; \
         give the right one, or --any-component to see where it departs"
    )]
    OtherComponent {
        /// Digest in the recording.
        recorded: String,
        /// Digest of the file.
        given: String,
    },
    /// A driver for a device plugin, or the other way round.
    #[error("the recording is of another kind of plugin than the component")]
    OtherKind,
    /// No call of this number.
    #[error("there is no call {wanted}; the recording holds {there}")]
    NoCall {
        /// Asked for, from 1.
        wanted: usize,
        /// How many there are.
        there: usize,
    },
    /// A function that the contract does not have.
    #[error("the contract has no function {function:?}")]
    NoFunction {
        /// The name in the recording.
        function: String,
    },
    /// The arguments cannot be read.
    #[error("the recorded arguments of {function} cannot be read: {reason}")]
    Input {
        /// The function.
        function: String,
        /// Why.
        reason: String,
    },
    /// The recorded configuration is no JSON object.
    #[error("the recorded configuration is no JSON object: {0}")]
    Config(#[source] serde_json::Error),
    /// It does not load.
    #[error(transparent)]
    Plugin(#[from] PluginError),
}

/// How the replay compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayVerdict {
    /// It ended the same way.
    Same,
    /// It asked the host the same and ended otherwise.
    Differs,
    /// It asked the host for something else on the way.
    Departed,
}

/// A call that was made again.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// How it compares.
    pub verdict: ReplayVerdict,
    /// The function.
    pub function: String,
    /// How the recorded call ended.
    pub recorded: CallOutcome,
    /// How this one did.
    pub replayed: CallOutcome,
    /// Host calls of the recorded call.
    pub recorded_host_calls: u32,
    /// Host calls of this one.
    pub host_calls: u32,
    /// Where it departed.
    pub departure: Option<String>,
    /// What is to be known about the comparison.
    pub notes: Vec<String>,
}

/// Make call number `wanted` of a recording again (from 1; the last one unless given).
///
/// # Errors
/// [`ReplayError`] when it cannot be begun; how it ends is in the answer.
pub async fn replay(
    services: &HostServices,
    recording: &Recording,
    wanted: Option<usize>,
    component: Arc<[u8]>,
    any_component: bool,
) -> Result<Replayed, ReplayError> {
    let call = choose(recording, wanted)?;
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
    let linked =
        PluginRuntime::new(services.clone())?.link(spec, &manifest, component, false).await?;
    let (bytes, calls, cut) = (call.trace.clone(), call.host_calls, call.cut);
    let trace = Trace { bytes, calls, cut, secrets: Vec::new() };
    let player = Arc::new(Mutex::new(Player::new(trace)));
    let tracer = Tracer::Playing(Arc::clone(&player));
    let outcome = match linked {
        Linked::Driver(caller) => of_driver(&caller, call, tracer).await?,
        Linked::Device(caller) => of_device(&caller, call, tracer).await?,
    };
    let player = player.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(compare(recording, call, outcome, &player, other))
}

fn choose(recording: &Recording, wanted: Option<usize>) -> Result<&RecordedCall, ReplayError> {
    let there = recording.calls.len();
    let wanted = wanted.unwrap_or(there);
    let call = wanted.checked_sub(1).and_then(|index| recording.calls.get(index));
    call.ok_or(ReplayError::NoCall { wanted, there })
}

fn arguments<T: DeserializeOwned>(call: &RecordedCall) -> Result<T, ReplayError> {
    postcard::from_bytes(&call.input).map_err(|error| ReplayError::Input {
        function: call.function.clone(),
        reason: error.to_string(),
    })
}

/// How a call ended whose answer is checked by `check`.
fn outcome<T, E: ToString>(
    called: Called<Result<T, wit::PluginError>>,
    check: impl FnOnce(T) -> Result<(), E>,
) -> CallOutcome {
    match called.into_result() {
        Err(error) => CallOutcome::from(&error),
        Ok(Err(error)) => CallOutcome::refused(convert::plugin_error(error).to_string()),
        Ok(Ok(answer)) => checked(check(answer)),
    }
}

fn checked<E: ToString>(check: Result<(), E>) -> CallOutcome {
    match check {
        Ok(()) => CallOutcome::answered(),
        Err(error) => CallOutcome::broken(error.to_string()),
    }
}

/// How `describe` ended.
fn described(result: Result<(String, String, String, String), Failure>) -> CallOutcome {
    let (name, version, own, task) = match result {
        Ok(described) => described,
        Err(error) => return CallOutcome::from(&error),
    };
    let own = Described::check(name, version, &own, &JsonObject::default());
    let task = ConfigSchema::new("task configuration schema", &task);
    match (own, task) {
        // The configuration is redacted, so it need not fit.
        (Ok(_) | Err(PluginError::Config(_)), Ok(_)) => CallOutcome::answered(),
        (Err(error), _) | (_, Err(error)) => CallOutcome::broken(error.to_string()),
    }
}

fn fine<T>(_answer: T) -> Result<(), String> {
    Ok(())
}

/// Make one call of the contract with these arguments.
macro_rules! play {
    ($caller:ident, $tracer:ident, $export:ident, $function:ident $(, $arg:expr)*) => {
        $caller.play($tracer, move |pre, store| Box::pin(async move {
            let plugin = pre.instantiate_async(&mut *store).await?;
            plugin.$export().$function(store $(, $arg)*).await
        })).await
    };
}

macro_rules! driver {
    ($caller:ident, $tracer:ident, $function:ident $(, $arg:expr)*) => {
        play!($caller, $tracer, ostler_plugin_driver, $function $(, $arg)*)
    };
}

macro_rules! device {
    ($caller:ident, $tracer:ident, $function:ident $(, $arg:expr)*) => {
        play!($caller, $tracer, ostler_plugin_device, $function $(, $arg)*)
    };
}

type Told = (drv::Handle,);

async fn of_driver(
    caller: &Caller<DriverPluginPre<CallState>>,
    call: &RecordedCall,
    tracer: Tracer,
) -> Result<CallOutcome, ReplayError> {
    Ok(match call.function.as_str() {
        "describe" => {
            let info = driver!(caller, tracer, call_describe).into_result();
            described(info.map(|i| (i.name, i.version, i.config_schema, i.task_config_schema)))
        }
        "fingerprint" => {
            let called = driver!(caller, tracer, call_fingerprint);
            outcome(called, |found| convert::driver_fingerprint(found).map(drop))
        }
        "start" => {
            let (task,) = arguments::<Start>(call)?;
            outcome(driver!(caller, tracer, call_start, &task), |s| {
                driver::started("", s).map(drop)
            })
        }
        "recover" => {
            let (handle,) = arguments::<Told>(call)?;
            let called = driver!(caller, tracer, call_recover, &handle);
            outcome(called, |started| driver::started("", started).map(drop))
        }
        "exited" => {
            let (handle, exit) = arguments::<(drv::Handle, drv::RawExit)>(call)?;
            let called = driver!(caller, tracer, call_exited, &handle, &exit);
            outcome(called, |result| driver::exit_result(result).map(drop))
        }
        "stop" => {
            type Stop = (drv::Handle, Option<String>, u64);
            let (handle, signal, timeout) = arguments::<Stop>(call)?;
            outcome(driver!(caller, tracer, call_stop, &handle, signal.as_deref(), timeout), fine)
        }
        "kill" => {
            let (handle,) = arguments::<Told>(call)?;
            outcome(driver!(caller, tracer, call_kill, &handle), fine)
        }
        "destroy" => {
            let (handle, force) = arguments::<(drv::Handle, bool)>(call)?;
            outcome(driver!(caller, tracer, call_destroy, &handle, force), fine)
        }
        "inspect" => {
            let (handle,) = arguments::<Told>(call)?;
            let called = driver!(caller, tracer, call_inspect, &handle);
            outcome(called, |status| driver::inspected(status).map(drop))
        }
        "signal" => {
            let (handle, signal) = arguments::<(drv::Handle, String)>(call)?;
            outcome(driver!(caller, tracer, call_signal, &handle, &signal), fine)
        }
        other => return Err(ReplayError::NoFunction { function: other.to_owned() }),
    })
}

async fn of_device(
    caller: &Caller<DevicePluginPre<CallState>>,
    call: &RecordedCall,
    tracer: Tracer,
) -> Result<CallOutcome, ReplayError> {
    Ok(match call.function.as_str() {
        "describe" => {
            let info = device!(caller, tracer, call_describe).into_result();
            described(info.map(|i| (i.name, i.version, i.config_schema, String::new())))
        }
        "fingerprint" => {
            let called = device!(caller, tracer, call_fingerprint);
            outcome(called, |found| match PluginName::new("replayed") {
                Ok(name) => convert::device_fingerprint(&name, found).map(drop),
                Err(_) => Ok(()),
            })
        }
        "reserve" => {
            let (claim,) = arguments::<(dev::Claim,)>(call)?;
            let called = device!(caller, tracer, call_reserve, &claim);
            outcome(called, |answer| convert::reservation(answer).map(drop))
        }
        "release" => {
            let (claim,) = arguments::<(dev::Claim,)>(call)?;
            outcome(device!(caller, tracer, call_release, &claim), fine)
        }
        "stats" => {
            // Times in the answer are held against the time of the recorded call.
            let now = Timestamp::from_nanos(call.at.saturating_add(call.took));
            let called = device!(caller, tracer, call_stats);
            outcome(called, |groups| convert::device_stats(groups, now).map(drop))
        }
        other => return Err(ReplayError::NoFunction { function: other.to_owned() }),
    })
}

/// Standard error is not played: what a guest wrote there before it ended does not count.
fn alike(recorded: &CallOutcome, replayed: &CallOutcome) -> bool {
    let [one, other] = [recorded, replayed]
        .map(|outcome| (&outcome.end, without_last_words(&outcome.text), &outcome.frames));
    one == other
}

fn compare(
    recording: &Recording,
    call: &RecordedCall,
    replayed: CallOutcome,
    player: &Player,
    other: bool,
) -> Replayed {
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
    if player.departure.is_none() && player.left_over() > 0 && !call.cut {
        notes.push(format!("{} recorded host calls were not made", player.left_over()));
    }
    // Where the recorded call was ended, or as far as it is known.
    let at_its_end = matches!(
        player.departure,
        Some(Departure::GivenUp { .. } | Departure::Longer { .. } | Departure::Cut { .. })
    );
    let verdict = match &player.departure {
        Some(_) if at_its_end && recorded.by_the_clock() => {
            notes.push(
                "it went the recorded way up to where the time of that call was over, and would \
                 have gone on"
                    .to_owned(),
            );
            ReplayVerdict::Same
        }
        Some(_) => ReplayVerdict::Departed,
        None if alike(&recorded, &replayed) => ReplayVerdict::Same,
        None => ReplayVerdict::Differs,
    };
    if recorded.by_the_clock() && player.departure.is_none() {
        notes.push(
            "the recorded call ran out of time: whether this one does depends on this machine"
                .to_owned(),
        );
    }
    Replayed {
        verdict,
        function: call.function.clone(),
        recorded,
        replayed,
        recorded_host_calls: call.host_calls,
        host_calls: player.calls(),
        departure: player.departure.as_ref().map(ToString::to_string),
        notes,
    }
}
