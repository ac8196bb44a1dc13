//! Loads plugins for the suite: in one sandbox, with different times and random numbers.

use super::Subject;
use ostler_health::policy::FailurePolicy;
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::grants::Grants;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::PluginCallError;
use ostler_model::rng::Rng;
use ostler_plugin::host::HostServices;
use ostler_plugin::{Plugin, PluginError, PluginRuntime, PluginSpec};

/// The time of day in the other surroundings: 2001-09-09.
const LONG_AGO: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000_000);
/// The seed of the random numbers in the other surroundings.
const SEED: u64 = 0x0571_e600;

/// The time and the random numbers that a plugin sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BenchSurroundings {
    /// Those of this machine.
    Here,
    /// Another time, which stands still, and other random numbers.
    Elsewhere,
}

/// Loads plugins for the suite.
pub struct Bench {
    services: HostServices,
    here: PluginRuntime,
    elsewhere: PluginRuntime,
}

impl Bench {
    /// A bench over these services.
    ///
    /// # Errors
    /// When the host's interfaces cannot be linked: a mistake in this agent.
    pub fn new(services: HostServices) -> Result<Self, PluginError> {
        let (clock, rng) = (Clock::fixed(LONG_AGO), Rng::from_seed(SEED));
        let elsewhere = HostServices { clock, rng, ..services.clone() };
        Ok(Self {
            here: PluginRuntime::new(services.clone())?,
            elsewhere: PluginRuntime::new(elsewhere)?,
            services,
        })
    }

    pub(super) fn services(&self) -> &HostServices {
        &self.services
    }

    pub(super) async fn load(
        &self,
        subject: &Subject,
        manifest: &PluginManifest,
        surroundings: BenchSurroundings,
    ) -> Result<Plugin, PluginError> {
        let runtime = match surroundings {
            BenchSurroundings::Here => &self.here,
            BenchSurroundings::Elsewhere => &self.elsewhere,
        };
        let spec = PluginSpec {
            name: subject.name.clone(),
            config: subject.config.clone(),
            grants: subject.grants.clone(),
            limits: PluginLimits { recorded_calls_max: 0, ..subject.limits.clone() },
            // The calls here fail often, and the plugin must still be asked again.
            failure: FailurePolicy { strikes_max: u32::MAX, ..FailurePolicy::default() },
        };
        runtime.load_denying(spec, manifest.clone(), subject.bytes.clone()).await
    }

    /// The same plugin with another configuration, which its schema need not allow. Returns `None`
    /// if the schema does not, because an agent would not run it.
    pub(super) async fn load_with(
        &self,
        subject: &Subject,
        manifest: &PluginManifest,
        config: JsonObject,
    ) -> Option<Plugin> {
        let subject = Subject { config, ..subject.clone() };
        self.load(&subject, manifest, BenchSurroundings::Here).await.ok()
    }

    /// The same plugin without any grant.
    pub(super) async fn load_bare(
        &self,
        subject: &Subject,
        manifest: &PluginManifest,
    ) -> Option<Plugin> {
        let subject = Subject { grants: Grants::default(), ..subject.clone() };
        self.load(&subject, manifest, BenchSurroundings::Here).await.ok()
    }
}

/// The result of a call that may be refused but must not fail.
pub(super) enum CallReply<T> {
    /// The plugin answered.
    Yes(T),
    /// The plugin answered that it cannot do this.
    No(PluginCallError),
}

/// The answer, or the plugin's own refusal. The error is the text of a trap, a deadline or a
/// broken answer.
pub(super) fn call_reply<T>(
    what: &str,
    result: Result<T, PluginCallError>,
) -> Result<CallReply<T>, String> {
    match result {
        Ok(answer) => Ok(CallReply::Yes(answer)),
        Err(PluginCallError::CallFailed { call, reason, .. }) => {
            Err(format!("{what}: {call} failed: {reason}"))
        }
        Err(error) => Ok(CallReply::No(error)),
    }
}
