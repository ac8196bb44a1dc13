//! Makes a call by the name of its function. The arguments are bytes, and a stand-in answers in
//! the host's place.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::bindings::since_0_1::device_world::DevicePluginPre;
use super::bindings::since_0_1::driver_world::DriverPluginPre;
use super::bindings::since_0_1::host::types as wit;
use super::bindings::since_0_1::{device_export as dev, driver_export as drv};
use super::call::{CallReport, PluginCaller};
use super::failure::CallFailure;
use super::observe::CallEnd;
use super::schema::{ConfigSchema, PluginDescription};
use super::{LinkedPlugin, PluginError, PluginRuntime, PluginSpec, convert, driver};
use crate::host::CallState;
use crate::host::trace::{HostStandIn, Tracer};
use ostler_model::clock::Timestamp;
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::plugin::PluginManifest;

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

fn arguments<T: DeserializeOwned>(call: &NamedCall<'_>) -> Result<T, ByNameError> {
    postcard::from_bytes(call.arguments).map_err(|error| ByNameError::Arguments {
        function: call.function.to_owned(),
        reason: error.to_string(),
    })
}

/// How a call ended. `check` checks its answer.
fn outcome<T, E: ToString>(
    called: CallReport<Result<T, wit::PluginError>>,
    check: impl FnOnce(T) -> Result<(), E>,
) -> CallEnd {
    match called.into_result() {
        Err(error) => CallEnd::Failed(error),
        Ok(Err(error)) => CallEnd::Refused(convert::plugin_error(error).to_string()),
        Ok(Ok(answer)) => check_end(check(answer)),
    }
}

fn check_end<E: ToString>(check: Result<(), E>) -> CallEnd {
    match check {
        Ok(()) => CallEnd::Answered,
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

fn accept_any<T>(_answer: T) -> Result<(), String> {
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

type HandleArgument = (drv::Handle,);

async fn call_driver(
    caller: &PluginCaller<DriverPluginPre<CallState>>,
    call: &NamedCall<'_>,
    tracer: Tracer,
) -> Result<CallEnd, ByNameError> {
    Ok(match call.function {
        "describe" => {
            let info = driver!(caller, tracer, call_describe).into_result();
            describe_end(info.map(|i| (i.name, i.version, i.config_schema, i.task_config_schema)))
        }
        "fingerprint" => {
            let called = driver!(caller, tracer, call_fingerprint);
            outcome(called, |found| convert::driver_fingerprint(found).map(drop))
        }
        "start" => {
            let (task,) = arguments::<(drv::TaskConfig,)>(call)?;
            outcome(driver!(caller, tracer, call_start, &task), |s| {
                driver::parse_started("", s).map(drop)
            })
        }
        "recover" => {
            let (handle,) = arguments::<HandleArgument>(call)?;
            let called = driver!(caller, tracer, call_recover, &handle);
            outcome(called, |started| driver::parse_started("", started).map(drop))
        }
        "exited" => {
            let (handle, exit) = arguments::<(drv::Handle, drv::RawExit)>(call)?;
            let called = driver!(caller, tracer, call_exited, &handle, &exit);
            outcome(called, |result| driver::parse_exit(result).map(drop))
        }
        "stop" => {
            type Stop = (drv::Handle, Option<String>, u64);
            let (handle, signal, timeout) = arguments::<Stop>(call)?;
            outcome(
                driver!(caller, tracer, call_stop, &handle, signal.as_deref(), timeout),
                accept_any,
            )
        }
        "kill" => {
            let (handle,) = arguments::<HandleArgument>(call)?;
            outcome(driver!(caller, tracer, call_kill, &handle), accept_any)
        }
        "destroy" => {
            let (handle, force) = arguments::<(drv::Handle, bool)>(call)?;
            outcome(driver!(caller, tracer, call_destroy, &handle, force), accept_any)
        }
        "inspect" => {
            let (handle,) = arguments::<HandleArgument>(call)?;
            let called = driver!(caller, tracer, call_inspect, &handle);
            outcome(called, |status| driver::parse_inspected(status).map(drop))
        }
        "signal" => {
            let (handle, signal) = arguments::<(drv::Handle, String)>(call)?;
            outcome(driver!(caller, tracer, call_signal, &handle, &signal), accept_any)
        }
        "exec" => {
            let (handle, argv, terminal) = arguments::<(drv::Handle, Vec<String>, bool)>(call)?;
            let called = driver!(caller, tracer, call_exec, &handle, &argv, terminal);
            outcome(called, accept_any)
        }
        other => return Err(ByNameError::NoFunction { function: other.to_owned() }),
    })
}

async fn call_device(
    caller: &PluginCaller<DevicePluginPre<CallState>>,
    call: &NamedCall<'_>,
    tracer: Tracer,
) -> Result<CallEnd, ByNameError> {
    Ok(match call.function {
        "describe" => {
            let info = device!(caller, tracer, call_describe).into_result();
            describe_end(info.map(|i| (i.name, i.version, i.config_schema, String::new())))
        }
        "fingerprint" => {
            let called = device!(caller, tracer, call_fingerprint);
            outcome(called, |found| match PluginName::new("called") {
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
            outcome(device!(caller, tracer, call_release, &claim), accept_any)
        }
        "stats" => {
            let (called, now) = (device!(caller, tracer, call_stats), call.now);
            outcome(called, |groups| convert::device_stats(groups, now).map(drop))
        }
        other => return Err(ByNameError::NoFunction { function: other.to_owned() }),
    })
}
