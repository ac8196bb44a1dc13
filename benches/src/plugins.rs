//! Plugins without an agent around them, and the same component in bare wasmtime.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostler_device::manager::{DeviceManager, DeviceOptions};
use ostler_health::policy::FailurePolicy;
use ostler_health::refresh::Refresher;
use ostler_model::clock::Clock;
use ostler_model::grants::Grants;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::rng::Rng;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodeId, NodePublisher, NodeView};
use ostler_plugin::device::LoadedDevice;
use ostler_plugin::host::HostServices;
use ostler_plugin::{Plugin, PluginRuntime, PluginSpec};
use ostler_process::{ProcessHost, ProcessOptions};
use ostler_sandbox::{Sandbox, SandboxConfig};
use ostler_wasm_task::WasmTaskHost;

/// Loads plugins, with code kept in `code`. To be called on the control runtime.
///
/// # Panics
/// When the sandbox cannot be had.
#[must_use]
pub fn plugin_runtime(code: &Path) -> PluginRuntime {
    PluginRuntime::new(host_services(code)).expect("the host's interfaces link")
}

/// What host functions stand on, with code kept in `code`. To be called on the control runtime.
///
/// # Panics
/// When the sandbox cannot be had.
#[must_use]
pub fn host_services(code: &Path) -> HostServices {
    let control = tokio::runtime::Handle::current();
    let config = SandboxConfig::new(code.to_owned()).expect("the path of this program");
    let sandbox = Arc::new(Sandbox::new(config).expect("a sandbox"));
    let (clock, rng) = (Clock::system(), Rng::system());
    let processes = ProcessHost::new(ProcessOptions {
        control: control.clone(),
        kill_with_agent: true,
        supervision: None,
        cgroup_parent: None,
        clock: clock.clone(),
    });
    let wasm_tasks =
        WasmTaskHost::new(Arc::clone(&sandbox), control.clone(), clock.clone(), rng.clone(), None);
    HostServices {
        sandbox,
        processes: processes.expect("processes"),
        wasm_tasks: Arc::new(wasm_tasks.expect("WASM tasks")),
        clock,
        rng,
        control,
    }
}

/// A manager over a node of its own.
#[must_use]
pub fn device_manager() -> (DeviceManager, NodePublisher) {
    let rng = Rng::system();
    let node = NodePublisher::new(NodeView::new(NodeId::new(rng.uuid()), "bench"));
    let options = DeviceOptions { clock: Clock::system(), ..DeviceOptions::default() };
    let refresher = Refresher::new(ChangeWatcher::new(), rng);
    (DeviceManager::new(node.clone(), options, refresher), node)
}

/// Load a device plugin with this configuration, without grants.
///
/// # Panics
/// When it is refused.
pub async fn load(runtime: &PluginRuntime, bytes: &Arc<[u8]>, config: &JsonObject) -> LoadedDevice {
    load_with(
        runtime,
        bytes,
        config,
        Grants::default(),
        PluginLimits::default(),
        FailurePolicy::default(),
    )
    .await
}

/// Load a device plugin with this configuration and these grants.
///
/// # Panics
/// When it is refused.
pub async fn load_granted(
    runtime: &PluginRuntime,
    bytes: &Arc<[u8]>,
    config: &JsonObject,
    grants: Grants,
) -> LoadedDevice {
    load_with(runtime, bytes, config, grants, PluginLimits::default(), FailurePolicy::default())
        .await
}

/// [`load`] with limits of its own, and never in quarantine: what fails again and again is called
/// again and again.
///
/// # Panics
/// When it is refused.
pub async fn load_within(
    runtime: &PluginRuntime,
    bytes: &Arc<[u8]>,
    config: &JsonObject,
    limits: PluginLimits,
) -> LoadedDevice {
    let failure = FailurePolicy { strike_window: Duration::ZERO, ..FailurePolicy::default() };
    load_with(runtime, bytes, config, Grants::default(), limits, failure).await
}

async fn load_with(
    runtime: &PluginRuntime,
    bytes: &Arc<[u8]>,
    config: &JsonObject,
    grants: Grants,
    limits: PluginLimits,
    failure: FailurePolicy,
) -> LoadedDevice {
    let manifest = ostler_plugin::manifest::read(bytes).expect("a plugin");
    let spec =
        PluginSpec { name: "bench".to_owned(), config: config.clone(), grants, limits, failure };
    match runtime.load(spec, manifest, Arc::clone(bytes)).await {
        Ok(Plugin::Device(plugin)) => plugin,
        Ok(Plugin::Driver(_)) => panic!("the plugin is a driver"),
        Err(error) => panic!("the plugin is refused: {error}"),
    }
}

/// The same component as another file: a custom section more.
#[must_use]
pub fn variant(bytes: &[u8], number: u8) -> Arc<[u8]> {
    let section = [0, 4, 2, b'n', b'r', number];
    bytes.iter().copied().chain(section).collect()
}
