//! The functions that plugins export, made from the table of calls (`ostler_model::calls`).
//!
//! ```text
//! arguments of the agent ─ CallArgument ─► types of the contract ─┬─► a function of this file:
//!                                           (recordings have them) │   new instance, one call
//! answer of the agent ◄─ CallAnswer: checked ◄─ type of the contract ◄─┘
//! ```
//! A new call needs nothing here. A type that it is the first to use needs an implementation of one of
//! the two traits, beside the others.

mod answers;
mod arguments;

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasmtime::Store;

use super::bindings::since_0_1::device_world::DevicePluginPre;
use super::bindings::since_0_1::driver_world::DriverPluginPre;
use super::bindings::since_0_1::host::types as wit;
use super::bindings::since_0_1::{device_export as dev, driver_export as drv};
use super::call::InStore;
use super::convert::{AnswerError, DriverFingerprint};
use crate::host::CallState;
use ostler_device::source::DeviceFingerprint;
use ostler_model::clock::Clock;
use ostler_model::device::Reservation;
use ostler_model::ids::PluginName;
use ostler_model::ports::{InspectResult, PluginCallError, StartedTask, TaskConfig};
use ostler_model::resources::AllocatedDevice;
use ostler_model::session::ExecPlan;
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::{DriverHandle, ExitResult, RawExit};

/// A type of the agent that calls have as an argument.
pub(super) trait CallArgument {
    /// Its type in the contract.
    type Contract: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What a function borrows of that.
    type Lent<'a>;

    /// Convert it for the plugin that calls itself so.
    ///
    /// # Errors
    /// It is of another plugin.
    fn into_contract(self, plugin: &PluginName) -> Result<Self::Contract, PluginCallError>;

    /// Lend it to a function.
    fn lend(given: &Self::Contract) -> Self::Lent<'_>;
}

/// The plugin that has answered, and the time against which times in its answer are checked.
pub(super) struct AnswerSource<'a> {
    /// The name that the plugin gives itself.
    pub(super) plugin: &'a PluginName,
    /// The clock of the host.
    pub(super) clock: &'a Clock,
}

/// A type of the agent that calls have as their answer.
pub(super) trait CallAnswer: Sized {
    /// Its type in the contract.
    type Contract: Serialize + DeserializeOwned + Send + 'static;

    /// Let `scrub` take the secrets out of each text that is for people.
    fn scrub(_given: &mut Self::Contract, _scrub: &mut dyn FnMut(&mut String)) {}

    /// Convert an answer that keeps to the rules of the contract.
    ///
    /// # Errors
    /// The rule that it breaks, and where.
    fn check(given: Self::Contract, source: &AnswerSource<'_>) -> Result<Self, AnswerError>;
}

/// A function of a plugin. `P` is the pre-linked code of the plugin's world, `A` has the arguments as a
/// tuple, and `C` is the answer, all as in the contract.
pub(super) type PluginFunction<P, A, C> =
    for<'a> fn(&'a P, &'a mut Store<CallState>, A) -> InStore<'a, Result<C, wit::PluginError>>;

/// One function for each row of a table, with the name of its method.
macro_rules! functions {
    ($pre:ty, $export:ident; $(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident($($argument:ident: $type:ty),*) -> $answer:ty;
    )+) => {$(
        pub(crate) fn $method<'a>(
            pre: &'a $pre,
            store: &'a mut Store<CallState>,
            arguments: ($(<$type as CallArgument>::Contract,)*),
        ) -> InStore<'a, Result<<$answer as CallAnswer>::Contract, wit::PluginError>> {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                let ($($argument,)*) = &arguments;
                let called = plugin.$export().$call(
                    store,
                    $(<$type as CallArgument>::lend($argument),)*
                );
                called.await
            })
        }
    )+};
}

/// The functions of drivers.
pub(super) mod driver {
    use super::*;

    type Pre = DriverPluginPre<CallState>;

    macro_rules! driver_functions {
        ($($rows:tt)+) => { functions! { Pre, ostler_plugin_driver; $($rows)+ } };
    }

    ostler_model::driver_calls!(driver_functions);

    driver_functions! {
        /// What the driver finds on this node.
        fingerprint "fingerprint" call_fingerprint() -> DriverFingerprint;
    }

    /// Who the driver says it is.
    pub(crate) fn describe<'a>(
        pre: &'a Pre,
        store: &'a mut Store<CallState>,
    ) -> InStore<'a, drv::DriverInfo> {
        Box::pin(async move {
            let plugin = pre.instantiate_async(&mut *store).await?;
            plugin.ostler_plugin_driver().call_describe(store).await
        })
    }
}

/// The functions of device plugins.
pub(super) mod device {
    use super::*;

    type Pre = DevicePluginPre<CallState>;

    macro_rules! device_functions {
        ($($rows:tt)+) => { functions! { Pre, ostler_plugin_device; $($rows)+ } };
    }

    ostler_model::device_calls!(device_functions);

    /// Who the plugin says it is.
    pub(crate) fn describe<'a>(
        pre: &'a Pre,
        store: &'a mut Store<CallState>,
    ) -> InStore<'a, dev::DeviceInfo> {
        Box::pin(async move {
            let plugin = pre.instantiate_async(&mut *store).await?;
            plugin.ostler_plugin_device().call_describe(store).await
        })
    }
}
