//! Where plugins are loaded for the suite: one sandbox, several surroundings.

use super::Subject;
use ostler_health::policy::FailurePolicy;
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::grants::Grants;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::plugin::Manifest;
use ostler_model::ports::PluginCallError;
use ostler_model::rng::Rng;
use ostler_plugin::host::HostServices;
use ostler_plugin::{Plugin, PluginError, PluginRuntime, PluginSpec};

/// Time of day in the other surroundings: 2001-09-09.
const LONG_AGO: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000_000);
/// Seed of the random numbers there.
const SEED: u64 = 0x0571_e600;

/// What a plugin sees of time and chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surroundings {
    /// This machine's.
    Here,
    /// Another time, that stands still, and other random numbers.
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
        let (clock, rng) = (Clock::fixed(LONG_AGO), Rng::seeded(SEED));
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
        manifest: &Manifest,
        surroundings: Surroundings,
    ) -> Result<Plugin, PluginError> {
        let runtime = match surroundings {
            Surroundings::Here => &self.here,
            Surroundings::Elsewhere => &self.elsewhere,
        };
        let spec = PluginSpec {
            name: subject.name.clone(),
            config: subject.config.clone(),
            grants: subject.grants.clone(),
            limits: PluginLimits { recorded_calls_max: 0, ..subject.limits.clone() },
            // What is tried here fails often, and is asked again.
            failure: FailurePolicy { strikes_max: u32::MAX, ..FailurePolicy::default() },
        };
        runtime.load_denying(spec, manifest.clone(), subject.bytes.clone()).await
    }

    /// The same plugin with another configuration, which its schema need not allow: `None` when the
    /// schema does not, as an agent would not run it.
    pub(super) async fn load_with(
        &self,
        subject: &Subject,
        manifest: &Manifest,
        config: JsonObject,
    ) -> Option<Plugin> {
        let subject = Subject { config, ..subject.clone() };
        self.load(&subject, manifest, Surroundings::Here).await.ok()
    }

    /// The same plugin without any grant.
    pub(super) async fn load_bare(&self, subject: &Subject, manifest: &Manifest) -> Option<Plugin> {
        let subject = Subject { grants: Grants::default(), ..subject.clone() };
        self.load(&subject, manifest, Surroundings::Here).await.ok()
    }
}

/// What a call came to that may be refused but must not fail.
pub(super) enum Said<T> {
    /// It answered.
    Yes(T),
    /// It answered that it cannot.
    No(PluginCallError),
}

/// The answer or the plugin's own refusal; the text of a trap, a deadline or a broken answer.
pub(super) fn said<T>(what: &str, result: Result<T, PluginCallError>) -> Result<Said<T>, String> {
    match result {
        Ok(answer) => Ok(Said::Yes(answer)),
        Err(PluginCallError::CallFailed { call, reason, .. }) => {
            Err(format!("{what}: {call} failed: {reason}"))
        }
        Err(error) => Ok(Said::No(error)),
    }
}
