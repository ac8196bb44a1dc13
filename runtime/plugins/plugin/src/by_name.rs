//! Makes a call by the name of its function. The arguments are bytes, and a stand-in answers in
//! the host's place.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::bindings::since_0_1::device_world::DevicePluginPre;
use super::bindings::since_0_1::driver_world::DriverPluginPre;
use super::call::PluginCaller;
use super::convert::{self, DriverFingerprint};
use super::failure::CallFailure;
use super::functions::{AnswerSource, CallAnswer, PluginFunction, device, driver};
use super::observe::CallEnd;
use super::schema::{ConfigSchema, PluginDescription};
use super::{LinkedPlugin, PluginError, PluginRuntime, PluginSpec};
use crate::host::CallState;
use crate::host::trace::{HostStandIn, Tracer};
use ostler_device::source::DeviceFingerprint;
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::device::Reservation;
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::{InspectResult, StartedTask};
use ostler_model::session::ExecPlan;
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::ExitResult;

/// Why a call could not be made by its name.
#[derive(Debug, thiserror::Error)]
pub enum ByNameError {
    /// A function that the contract does not have.
    #[error("the contract has no function {function:?}")]
    NoFunction {
        /// The name that was asked for.
        function: String,
    },
    /// The recorded arguments cannot be read.
    #[error("the recorded arguments of {function} cannot be read: {reason}")]
    Arguments {
        /// Name of the function in the contract.
        function: String,
        /// Why the arguments cannot be read, for people.
        reason: String,
    },
    /// The plugin does not load.
    #[error(transparent)]
    Plugin(#[from] PluginError),
}

/// A call as an observer recorded it.
#[derive(Clone, Copy, Debug)]
pub struct NamedCall<'a> {
    /// Name of the function in the contract.
    pub function: &'a str,
    /// Arguments of the call, in the compact form of an observer.
    pub arguments: &'a [u8],
    /// The time against which times in the answer are checked.
    pub now: Timestamp,
}

impl PluginRuntime {
    /// Load a plugin and make one call of it, in which `host` answers in place of this agent's host
    /// functions. Nothing is granted, and the call counts for and against nobody.
    ///
    /// # Errors
    /// [`ByNameError`] when the call cannot be begun. How it ends is in the answer.
    pub async fn call_by_name(
        &self,
        spec: PluginSpec,
        manifest: &PluginManifest,
        bytes: Arc<[u8]>,
        call: NamedCall<'_>,
        host: Arc<dyn HostStandIn>,
    ) -> Result<CallEnd, ByNameError> {
        let tracer = Tracer::Playing(host);
        match self.link(spec, manifest, bytes, false).await? {
            LinkedPlugin::Driver(caller) => call_driver(&caller, &call, tracer).await,
            LinkedPlugin::Device(caller) => call_device(&caller, &call, tracer).await,
        }
    }
}

/// Make one call of the contract. `T` is the answer, which is checked.
async fn play<P, A, T>(
    caller: &PluginCaller<P>,
    call: &NamedCall<'_>,
    tracer: Tracer,
    function: PluginFunction<P, A, T::Contract>,
) -> Result<CallEnd, ByNameError>
where
    P: Send + Sync + 'static,
    A: DeserializeOwned + Send + 'static,
    T: CallAnswer,
{
    let arguments: A = postcard::from_bytes(call.arguments).map_err(|error| {
        let function = call.function.to_owned();
        ByNameError::Arguments { function, reason: error.to_string() }
    })?;
    let called = caller.play(tracer, move |pre, store| function(pre, store, arguments));
    Ok(match called.await.into_result() {
        Err(error) => CallEnd::Failed(error),
        Ok(Err(error)) => CallEnd::Refused(convert::plugin_error(error).to_string()),
        Ok(Ok(given)) => check_answer::<T>(given, call.now),
    })
}

fn check_answer<T: CallAnswer>(given: T::Contract, now: Timestamp) -> CallEnd {
    let Ok(plugin) = PluginName::new("called") else { return CallEnd::Answered };
    let source = AnswerSource { plugin: &plugin, clock: &Clock::fixed(now) };
    match T::check(given, &source) {
        Ok(_) => CallEnd::Answered,
        Err(error) => CallEnd::Broken(error.to_string()),
    }
}

/// How a call of `describe` ended.
fn describe_end(result: Result<(String, String, String, String), CallFailure>) -> CallEnd {
    let (name, version, own, task) = match result {
        Ok(described) => described,
        Err(error) => return CallEnd::Failed(error),
    };
    let own = PluginDescription::check(name, version, &own, Some(&JsonObject::default()));
    let task = ConfigSchema::new("task configuration schema", &task);
    match (own, task) {
        // The configuration is redacted, so it need not fit.
        (Ok(_) | Err(PluginError::Config(_)), Ok(_)) => CallEnd::Answered,
        (Err(error), _) | (_, Err(error)) => CallEnd::Broken(error.to_string()),
    }
}

fn no_function(call: &NamedCall<'_>) -> ByNameError {
    ByNameError::NoFunction { function: call.function.to_owned() }
}

async fn call_driver(
    caller: &PluginCaller<DriverPluginPre<CallState>>,
    call: &NamedCall<'_>,
    tracer: Tracer,
) -> Result<CallEnd, ByNameError> {
    macro_rules! play_row {
        ($(
            $(#[$doc:meta])+
            $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
        )+) => {
            match call.function {
                "describe" => {
                    let info = caller.play(tracer, driver::describe).await.into_result();
                    Ok(describe_end(info.map(|given| {
                        (given.name, given.version, given.config_schema, given.task_config_schema)
                    })))
                }
                "fingerprint" => {
                    play::<_, _, DriverFingerprint>(caller, call, tracer, driver::fingerprint).await
                }
                $($function => {
                    play::<_, _, $answer>(caller, call, tracer, driver::$method).await
                })+
                _ => Err(no_function(call)),
            }
        };
    }
    ostler_model::driver_calls!(play_row)
}

async fn call_device(
    caller: &PluginCaller<DevicePluginPre<CallState>>,
    call: &NamedCall<'_>,
    tracer: Tracer,
) -> Result<CallEnd, ByNameError> {
    macro_rules! play_row {
        ($(
            $(#[$doc:meta])+
            $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
        )+) => {
            match call.function {
                "describe" => {
                    let info = caller.play(tracer, device::describe).await.into_result();
                    Ok(describe_end(info.map(|given| {
                        (given.name, given.version, given.config_schema, String::new())
                    })))
                }
                $($function => {
                    play::<_, _, $answer>(caller, call, tracer, device::$method).await
                })+
                _ => Err(no_function(call)),
            }
        };
    }
    ostler_model::device_calls!(play_row)
}
