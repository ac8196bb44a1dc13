//! Loads plugins, from their bytes to typed, bounded calls.
//!
//! ```text
//! bytes ─► manifest (imports, exports; nothing run) ─► capability (ask ∧ grant) ─► code cache
//!       ─► Plugin { pre-linked code, context } ─► call: new store, one call, store dropped
//!                                                   └─► convert: answer checked, then model types
//! ```
//! A call is a function of its inputs: what one call leaves in memory never reaches the next. A
//! trap, a hang, a memory bomb or a broken answer is a typed error of that one call.
//!
//! This crate holds no state of tasks. Start with `call.rs`. What a plugin may ask of the machine
//! is in [`host`]; how the node sees drivers is in [`drivers`].

pub mod bindings;
pub mod by_name;
pub mod call;
pub mod convert;
pub mod device;
pub mod driver;
pub mod drivers;
mod failure;
mod functions;
#[doc(hidden)]
pub mod fuzz;
pub mod host;
pub mod manifest;
pub mod observe;
pub mod schema;
mod schema_cost;
mod schema_patterns;
mod slots;

use std::sync::Arc;

use wasmtime::component::Linker;

use crate::host::{CallState, HostServices, PluginContext, imports};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::limits::{GUEST_ERROR_BYTES_MAX, PluginLimits};
use ostler_model::ports::Diagnostic;
use ostler_model::printable::printable_line;
use ostler_sandbox::{CodeAsk, EngineKind, LoadError, StoreLimits, WasmFormat};

use bindings::since_0_1::device_world::DevicePluginPre;
use bindings::since_0_1::driver_world::DriverPluginPre;
use call::PluginCaller;
pub use failure::CallFailure;
use manifest::ManifestError;
use observe::{PluginIdentity, PluginObserver};
use ostler_health::meter::PluginMeter;
use ostler_health::policy::FailurePolicy;
use ostler_model::grants::{Authority, Grants, NotGranted};
use ostler_model::plugin::{PluginKind, PluginManifest};

/// What the configuration says about a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginSpec {
    /// Name of the plugin in the configuration. Its drivers or devices are also reported under it.
    pub name: String,
    /// Configuration that is given to the plugin as it is.
    pub config: JsonObject,
    /// What the plugin may do.
    pub grants: Grants,
    /// How much one call may use.
    pub limits: PluginLimits,
    /// How the plugin is treated when it fails.
    pub failure: FailurePolicy,
}

/// Why a plugin is not usable.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file is not a plugin.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The plugin asks for more than it was granted.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The plugin could not be compiled or loaded.
    #[error(transparent)]
    Code(#[from] LoadError),
    /// An import has the right name and the wrong type.
    #[error("does not fit the interface: {0}")]
    Link(String),
    /// A call of the plugin failed.
    #[error("call of {call} failed: {source}")]
    Call {
        /// Name of the function that was called.
        call: &'static str,
        /// Why the call failed.
        #[source]
        source: CallFailure,
    },
    /// An answer of the plugin breaks the rules of the interface.
    #[error(transparent)]
    Answer(#[from] convert::AnswerError),
    /// The configuration of the plugin does not fit the plugin's own schema.
    #[error("its configuration is wrong: {}", schema::one_line(.0))]
    Config(Vec<Diagnostic>),
    /// A schema of the plugin is not a JSON Schema.
    #[error("its {which} is not a JSON Schema: {reason}")]
    Schema {
        /// Which of the plugin's schemas it is, for people.
        which: &'static str,
        /// Why it is not a schema, for people.
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

/// A plugin that is linked, so that it can be called, and was not called yet.
enum LinkedPlugin {
    Driver(PluginCaller<DriverPluginPre<CallState>>),
    Device(PluginCaller<DevicePluginPre<CallState>>),
}

/// A loaded plugin of either kind.
pub enum Plugin {
    /// A plugin that exports `driver`.
    Driver(driver::LoadedDriver),
    /// A plugin that exports `device`.
    Device(device::LoadedDevice),
}

impl Plugin {
    /// What was read from the plugin's file.
    #[must_use]
    pub const fn manifest(&self) -> &PluginManifest {
        match self {
            Self::Driver(plugin) => &plugin.manifest,
            Self::Device(plugin) => &plugin.manifest,
        }
    }

    /// The name that the plugin gives itself.
    #[must_use]
    pub const fn name(&self) -> &PluginName {
        match self {
            Self::Driver(plugin) => &plugin.name,
            Self::Device(plugin) => &plugin.name,
        }
    }

    /// The version that the plugin gives itself.
    #[must_use]
    pub fn version(&self) -> &str {
        match self {
            Self::Driver(plugin) => &plugin.version,
            Self::Device(plugin) => &plugin.version,
        }
    }

    /// Counts of the plugin's calls so far, and how the plugin does.
    #[must_use]
    pub fn meter(&self) -> &Arc<PluginMeter> {
        match self {
            Self::Driver(plugin) => plugin.meter(),
            Self::Device(plugin) => plugin.meter(),
        }
    }
}

/// An error of linking. Its text has names of imports, which the plugin chose, so it is made
/// safe to show.
fn link_error(error: wasmtime::Error) -> PluginError {
    PluginError::Link(printable_line(format!("{error:#}"), GUEST_ERROR_BYTES_MAX))
}

impl PluginRuntime {
    /// Link the host interfaces.
    ///
    /// # Errors
    /// When they cannot be linked: a mistake in this agent.
    pub fn new(services: HostServices) -> Result<Self, PluginError> {
        let mut linker = Linker::new(services.sandbox.engine(EngineKind::Plugin));
        imports::link(&mut linker).map_err(link_error)?;
        let calls = ostler_model::limits::PLUGIN_INSTANCES_MAX as usize;
        Ok(Self {
            services,
            linker: Arc::new(linker),
            calls: Arc::new(tokio::sync::Semaphore::new(calls)),
            observer: None,
        })
    }

    /// Set an observer, which is told of the calls of all plugins that are loaded from now on.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn PluginObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Check a plugin, compile it where needed, link it, and ask it who it is. `manifest` was read
    /// from `bytes`. Nothing of the plugin runs before it is known that all it asks for is granted.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load(
        &self,
        spec: PluginSpec,
        manifest: PluginManifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        self.load_granted(spec, manifest, bytes, false).await
    }

    /// As [`PluginRuntime::load`], for a dry run: calls of the plugin see what there is
    /// and change nothing.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load_dry(
        &self,
        spec: PluginSpec,
        manifest: PluginManifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        self.load_granted(spec, manifest, bytes, true).await
    }

    async fn load_granted(
        &self,
        spec: PluginSpec,
        manifest: PluginManifest,
        bytes: Arc<[u8]>,
        dry: bool,
    ) -> Result<Plugin, PluginError> {
        if let Some(missing) = spec.grants.find_missing(&spec.name, &manifest) {
            return Err(missing.into());
        }
        let config = Some(spec.config.clone());
        self.describe(spec, config, manifest, bytes, dry).await
    }

    /// As [`PluginRuntime::load`], for a plugin whose configuration comes later. It says who it is
    /// and has its schemas. To be used, it is loaded again with its configuration.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load_unconfigured(
        &self,
        spec: PluginSpec,
        manifest: PluginManifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        if let Some(missing) = spec.grants.find_missing(&spec.name, &manifest) {
            return Err(missing.into());
        }
        self.describe(spec, None, manifest, bytes, false).await
    }

    /// As [`PluginRuntime::load`], for a plugin that lacks grants: what is not granted is refused
    /// call by call. This is for inspecting a plugin, not for using it.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn load_denying(
        &self,
        spec: PluginSpec,
        manifest: PluginManifest,
        bytes: Arc<[u8]>,
    ) -> Result<Plugin, PluginError> {
        let config = Some(spec.config.clone());
        self.describe(spec, config, manifest, bytes, false).await
    }

    /// Link a plugin and ask it who it is. `config` is checked against the plugin's schema.
    async fn describe(
        &self,
        spec: PluginSpec,
        config: Option<JsonObject>,
        manifest: PluginManifest,
        bytes: Arc<[u8]>,
        dry: bool,
    ) -> Result<Plugin, PluginError> {
        Ok(match self.link(spec, &manifest, bytes, dry).await? {
            LinkedPlugin::Driver(caller) => {
                Plugin::Driver(driver::LoadedDriver::describe(caller, manifest, config).await?)
            }
            LinkedPlugin::Device(caller) => {
                Plugin::Device(device::LoadedDevice::describe(caller, manifest, config).await?)
            }
        })
    }

    /// Compile a plugin where needed and link it. Nothing of it runs.
    async fn link(
        &self,
        spec: PluginSpec,
        manifest: &PluginManifest,
        bytes: Arc<[u8]>,
        dry: bool,
    ) -> Result<LinkedPlugin, PluginError> {
        let sandbox = &self.services.sandbox;
        let compile = spec.limits.compile;
        let code = sandbox.code();
        let say = |text: &str| tracing::info!(plugin = %spec.name, "the plugin {text}");
        let (kind, format) = (EngineKind::Plugin, WasmFormat::Component);
        let owner = format!("plugin {}", spec.name);
        let ask = CodeAsk { kind, format, within: compile, owner: &owner, say: Some(&say) };
        let code = code.load_for(bytes, &ask).await?;
        let component =
            code.component().ok_or_else(|| PluginError::Link("no component".to_owned()))?;
        let pre = if has_denied_unknown(&spec.grants, manifest) {
            // An interface that this agent does not have cannot answer, so a call of it ends with a
            // trap.
            let mut linker = Linker::clone(&self.linker);
            linker.define_unknown_imports_as_traps(component).map_err(link_error)?;
            linker.instantiate_pre(component)
        } else {
            self.linker.instantiate_pre(component)
        };
        let pre = pre.map_err(link_error)?;
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
        let observer =
            observer.and_then(|observer| observer.observe_plugin(identity, &spec.limits));
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
                let pre = DriverPluginPre::new(pre).map_err(link_error)?;
                LinkedPlugin::Driver(PluginCaller::new(
                    pre, context, limits, services, calls, meter, observer,
                ))
            }
            PluginKind::Device => {
                let pre = DevicePluginPre::new(pre).map_err(link_error)?;
                LinkedPlugin::Device(PluginCaller::new(
                    pre, context, limits, services, calls, meter, observer,
                ))
            }
        })
    }
}

/// Does the plugin import an interface that this agent does not have, and may it load
/// without that interface?
fn has_denied_unknown(grants: &Grants, manifest: &PluginManifest) -> bool {
    let mut unknown =
        manifest.imports.iter().filter(|import| Authority::of_import(import) == Authority::Unknown);
    unknown.any(|import| grants.denies(import))
}
