//! Any plugin: from bytes to typed, bounded calls.
//!
//! ```text
//! bytes ─► manifest (imports, exports; nothing run) ─► capability (ask ∧ grant) ─► code cache
//!       ─► Plugin { pre-linked code, context } ─► call: new store, one call, store dropped
//!                                                   └─► convert: answer checked, then model types
//! ```
//! A call is a function of its inputs: what one leaves in memory never reaches the next. A trap, a
//! hang, a memory bomb or a broken answer is a typed error of that one call.
//!
//! Holds no state of tasks. Start with `call.rs`; what a plugin may ask of the machine is in [`host`], how
//! the node knows drivers in [`drivers`].

pub mod bindings;
pub mod by_name;
pub mod call;
pub mod convert;
pub mod device;
pub mod driver;
pub mod drivers;
mod failure;
#[doc(hidden)]
pub mod fuzz;
pub mod host;
pub mod manifest;
pub mod observe;
pub mod schema;
mod schema_cost;
mod schema_patterns;
mod slots;
mod weigh;

use std::sync::Arc;

use wasmtime::component::Linker;

use crate::host::{CallState, HostServices, PluginContext, imports};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::limits::{GUEST_ERROR_BYTES_MAX, PluginLimits};
use ostler_model::ports::Diagnostic;
use ostler_model::shown::shown;
use ostler_sandbox::{CodeAsk, EngineKind, Format, LoadError, StoreLimits};

use bindings::since_0_1::device_world::DevicePluginPre;
use bindings::since_0_1::driver_world::DriverPluginPre;
use call::Caller;
pub use failure::Failure;
use manifest::ManifestError;
use observe::{PluginIdentity, PluginObserver};
use ostler_health::meter::PluginMeter;
use ostler_health::policy::FailurePolicy;
use ostler_model::grants::{Authority, Grants, NotGranted};
use ostler_model::plugin::{Manifest, PluginKind};

/// What the configuration says of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginSpec {
    /// Name in the configuration; also the name its drivers or devices are reported under.
    pub name: String,
    /// Given to the plugin as it is.
    pub config: JsonObject,
    /// What it may do.
    pub grants: Grants,
    /// What one call may use.
    pub limits: PluginLimits,
    /// How it is treated when it fails.
    pub failure: FailurePolicy,
}

/// Why a plugin is not usable.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// Not a plugin.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It asks for more than it was granted.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// It was not compiled or loaded.
    #[error(transparent)]
    Code(#[from] LoadError),
    /// An import has the right name and the wrong type.
    #[error("does not fit the interface: {0}")]
    Link(String),
    /// A call failed.
    #[error("call of {call} failed: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// Why.
        #[source]
        source: Failure,
    },
    /// It answered against the rules of the interface.
    #[error(transparent)]
    Answer(#[from] convert::AnswerError),
    /// Its configuration does not fit its own schema.
    #[error("its configuration is wrong: {}", schema::one_line(.0))]
    Config(Vec<Diagnostic>),
    /// Its schema is not one.
    #[error("its {which} is not a JSON Schema: {reason}")]
    Schema {
        /// Which of the two.
        which: &'static str,
        /// Why.
        reason: String,
    },
}

/// Loads plugins; one per agent.
#[derive(Clone)]
pub struct PluginRuntime {
    services: HostServices,
    linker: Arc<Linker<CallState>>,
    calls: Arc<tokio::sync::Semaphore>,
    observer: Option<Arc<dyn PluginObserver>>,
}

/// A plugin that can be called and was not.
enum Linked {
    Driver(Caller<DriverPluginPre<CallState>>),
    Device(Caller<DevicePluginPre<CallState>>),
}

/// A loaded plugin of either kind.
pub enum Plugin {
    /// Exports `driver`.
    Driver(driver::DriverPlugin),
    /// Exports `device`.
    Device(device::DevicePlugin),
}

impl Plugin {
    /// What is read off its file.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        match self {
            Self::Driver(plugin) => &plugin.manifest,
            Self::Device(plugin) => &plugin.manifest,
        }
    }

    /// The name it gives itself.
    #[must_use]
    pub const fn name(&self) -> &PluginName {
        match self {
            Self::Driver(plugin) => &plugin.name,
            Self::Device(plugin) => &plugin.name,
        }
    }

    /// The version it gives itself.
    #[must_use]
    pub fn version(&self) -> &str {
        match self {
            Self::Driver(plugin) => &plugin.version,
            Self::Device(plugin) => &plugin.version,
        }
    }

    /// How it does.
    #[must_use]
    pub fn meter(&self) -> &Arc<PluginMeter> {
        match self {
            Self::Driver(plugin) => plugin.meter(),
            Self::Device(plugin) => plugin.meter(),
        }
    }
}

/// Wasmtime tells the names of imports, which are the plugin's.
fn unlinked(error: wasmtime::Error) -> PluginError {
    PluginError::Link(shown(format!("{error:#}"), GUEST_ERROR_BYTES_MAX))
}

impl PluginRuntime {
    /// Link the host interfaces.
    ///
    /// # Errors
    /// When they cannot be linked: a mistake in this agent.
    pub fn new(services: HostServices) -> Result<Self, PluginError> {
        let mut linker = Linker::new(services.sandbox.engine(EngineKind::Plugin));
        imports::link(&mut linker).map_err(unlinked)?;
        let calls = ostler_model::limits::PLUGIN_INSTANCES_MAX as usize;
        Ok(Self {
            services,
            linker: Arc::new(linker),
            calls: Arc::new(tokio::sync::Semaphore::new(calls)),
            observer: None,
        })
    }

    /// Tell somebody of the calls of all plugins that are loaded from now on.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn PluginObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Check, compile where needed, link and describe a plugin. `manifest` is what was read from
    /// `bytes`. Nothing of it runs before its asks are known to be granted.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load(
        &self,
        spec: PluginSpec,
        manifest: Manifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        self.load_for(spec, manifest, bytes, false).await
    }

    /// The same for a dry run: its calls see what there is and change nothing.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load_dry(
        &self,
        spec: PluginSpec,
        manifest: Manifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        self.load_for(spec, manifest, bytes, true).await
    }

    async fn load_for(
        &self,
        spec: PluginSpec,
        manifest: Manifest,
        bytes: Arc<[u8]>,
        dry: bool,
    ) -> Result<Plugin, PluginError> {
        if let Some(missing) = spec.grants.missing(&spec.name, &manifest) {
            return Err(missing.into());
        }
        let config = Some(spec.config.clone());
        self.describe(spec, config, manifest, bytes, dry).await
    }

    /// [`PluginRuntime::load`] for a plugin whose configuration comes later: what it says of itself, its
    /// schemas among it. Loaded again with its configuration it can be used.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load_unconfigured(
        &self,
        spec: PluginSpec,
        manifest: Manifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        if let Some(missing) = spec.grants.missing(&spec.name, &manifest) {
            return Err(missing.into());
        }
        self.describe(spec, None, manifest, bytes, false).await
    }

    /// [`PluginRuntime::load`] for a plugin that lacks grants: what is not granted is refused call by
    /// call. For looking at a plugin, not for using it.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load_denying(
        &self,
        spec: PluginSpec,
        manifest: Manifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        let config = Some(spec.config.clone());
        self.describe(spec, config, manifest, bytes, false).await
    }

    /// Link it and ask it who it is; `config` is checked against its schema.
    async fn describe(
        &self,
        spec: PluginSpec,
        config: Option<JsonObject>,
        manifest: Manifest,
        bytes: Arc<[u8]>,
        dry: bool,
    ) -> Result<Plugin, PluginError> {
        Ok(match self.link(spec, &manifest, bytes, dry).await? {
            Linked::Driver(caller) => {
                Plugin::Driver(driver::DriverPlugin::describe(caller, manifest, config).await?)
            }
            Linked::Device(caller) => {
                Plugin::Device(device::DevicePlugin::describe(caller, manifest, config).await?)
            }
        })
    }

    /// Compile where needed and link; nothing of it runs.
    async fn link(
        &self,
        spec: PluginSpec,
        manifest: &Manifest,
        bytes: Arc<[u8]>,
        dry: bool,
    ) -> Result<Linked, PluginError> {
        let sandbox = &self.services.sandbox;
        let compile = spec.limits.compile;
        let code = sandbox.code();
        let say = |text: &str| tracing::info!(plugin = %spec.name, "the plugin {text}");
        let (kind, format) = (EngineKind::Plugin, Format::Component);
        let owner = format!("plugin {}", spec.name);
        let ask = CodeAsk { kind, format, within: compile, owner: &owner, say: Some(&say) };
        let code = code.load_for(bytes, &ask).await?;
        let component =
            code.component().ok_or_else(|| PluginError::Link("no component".to_owned()))?;
        let pre = match denied_unknown(&spec.grants, manifest) {
            false => self.linker.instantiate_pre(component),
            // What this agent does not have cannot answer: a call of it ends with a trap.
            true => {
                let mut linker = Linker::clone(&self.linker);
                linker.define_unknown_imports_as_traps(component).map_err(unlinked)?;
                linker.instantiate_pre(component)
            }
        };
        let pre = pre.map_err(unlinked)?;
        let limits = StoreLimits::from(&spec.limits);
        let meter =
            Arc::new(PluginMeter::new(&spec.name, spec.failure, self.services.clock.clone()));
        let identity = PluginIdentity {
            plugin: spec.name.clone(),
            kind: manifest.kind,
            interface_version: manifest.interface_version.clone(),
            digest: manifest.digest.clone(),
            config: spec.config.text().to_owned(),
        };
        let observer = self.observer.as_ref();
        let observer = observer.and_then(|observer| observer.loaded(identity, &spec.limits));
        let context = PluginContext::new(
            spec.name,
            spec.config.text().to_owned(),
            spec.grants,
            spec.limits,
            &self.services.clock,
        );
        let context = Arc::new(if dry { context.for_dry_run() } else { context });
        let (calls, services) = (Arc::clone(&self.calls), self.services.clone());
        Ok(match manifest.kind {
            PluginKind::Driver => {
                let pre = DriverPluginPre::new(pre).map_err(unlinked)?;
                Linked::Driver(Caller::new(pre, context, limits, services, calls, meter, observer))
            }
            PluginKind::Device => {
                let pre = DevicePluginPre::new(pre).map_err(unlinked)?;
                Linked::Device(Caller::new(pre, context, limits, services, calls, meter, observer))
            }
        })
    }
}

/// Does it import what this agent does not have, and may it load without?
fn denied_unknown(grants: &Grants, manifest: &Manifest) -> bool {
    let mut unknown =
        manifest.imports.iter().filter(|import| Authority::of_import(import) == Authority::Unknown);
    unknown.any(|import| grants.denies(import))
}
