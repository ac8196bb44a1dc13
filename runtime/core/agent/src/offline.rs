//! Operations on a plugin without an agent: there is no state, no node and no manager.

use std::path::PathBuf;
use std::sync::Arc;

use super::AgentError;
use ostler_model::clock::Clock;
use ostler_model::rng::Rng;
use ostler_plugin::host::HostServices;
use ostler_plugin_tools::conformance::Bench;
use ostler_plugin_tools::recording::ReplayError;
use ostler_process::{ProcessHost, ProcessOptions, Supervision};
use ostler_sandbox::{Sandbox, SandboxConfig};
use ostler_wasm_task::WasmTaskHost;

pub use ostler_plugin_tools::conformance::{
    ConformanceReport, Costs, Finding, RuleVerdict, Subject,
};
pub use ostler_plugin_tools::recording::file::{FileError, decode as recording};
pub use ostler_plugin_tools::recording::{
    CallOutcome, RecordedCall, Recording, ReplayVerdict, ReplayedCall,
};

/// The number of plugin calls at once. Each command makes one call after the other.
const INSTANCES: u32 = 16;

/// The directories and programs for running plugins without an agent.
#[derive(Clone, Debug)]
pub struct OfflinePlace {
    /// The directory of compiled code.
    pub code_dir: PathBuf,
    /// The program that compiles. `None` means this program.
    pub compiler: Option<PathBuf>,
}

/// A sandbox, and the services on top of it. Call this on the control runtime. Processes that a
/// plugin starts end with this one.
///
/// # Errors
/// When the sandbox, the processes' or the tasks' host cannot be had.
fn services(place: OfflinePlace) -> Result<HostServices, AgentError> {
    let records = place.code_dir.join("exits");
    let mut config = SandboxConfig::new(place.code_dir)?;
    let supervision = Supervision {
        program: place.compiler.clone().unwrap_or_else(|| "/proc/self/exe".into()),
        records,
    };
    if let Some(compiler) = place.compiler {
        config.compiler = compiler;
    }
    config.plugin_instances = INSTANCES;
    config.task_instances = INSTANCES;
    let sandbox = Arc::new(Sandbox::new(config)?);
    let control = tokio::runtime::Handle::current();
    let (clock, rng) = (Clock::system(), Rng::system());
    let processes = ProcessHost::new(ProcessOptions {
        control: control.clone(),
        kill_with_agent: true,
        supervision: Some(supervision),
        cgroup_parent: None,
        clock: clock.clone(),
    })
    .map_err(|error| AgentError::Processes(error.to_string()))?;
    let wasm_tasks =
        WasmTaskHost::new(Arc::clone(&sandbox), control.clone(), clock.clone(), rng.clone(), None)?;
    let wasm_tasks = Arc::new(wasm_tasks);
    Ok(HostServices { sandbox, processes, wasm_tasks, clock, rng, control })
}

/// Run the conformance suite over a plugin.
///
/// # Errors
/// When the sandbox cannot be had. What is wrong with the plugin is in the report.
pub async fn check(
    subject: &Subject,
    place: OfflinePlace,
) -> Result<ConformanceReport, AgentError> {
    let bench = Bench::new(services(place)?)?;
    Ok(ostler_plugin_tools::conformance::check(&bench, subject).await)
}

/// Why a recorded call could not be made again.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The sandbox cannot be had.
    #[error(transparent)]
    Place(#[from] AgentError),
    /// The recording or the component cannot be used.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// The options for making a recorded call again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayOptions {
    /// The number of the call in the recording, from 1. `None` means the last call.
    pub call: Option<usize>,
    /// Whether a component other than the recorded one may be used.
    pub any_component: bool,
}

/// Make a recorded call again.
///
/// # Errors
/// When the call cannot be started. How it went is in the answer.
pub async fn replay(
    recording: &Recording,
    component: Arc<[u8]>,
    again: ReplayOptions,
    place: OfflinePlace,
) -> Result<ReplayedCall, OfflineError> {
    let services = services(place)?;
    let ReplayOptions { call, any_component } = again;
    Ok(ostler_plugin_tools::recording::replay(&services, recording, call, component, any_component)
        .await?)
}
