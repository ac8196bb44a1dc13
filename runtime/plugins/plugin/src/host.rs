//! Host functions and what they use: processes, WASM tasks, commands.
//!
//! ```text
//! plugin (guest) ── import ─► imports/<interface>.rs ─► ProcessHost · WasmTasks · command
//!                                 │ asks the grants and the task of the current call first
//!                                 ▼
//!                             CallState: lives as long as one call
//! ```
//! The host holds mechanism, and the plugin holds policy. Everything that lives longer than a call
//! (processes, WASM tasks, their output and exits) belongs to [`HostServices`]. It is named by ids
//! that are only valid together with the run they were made for. Only this module starts processes.

pub mod call_state;
pub mod imports;
pub mod log_meter;
mod network;
pub mod trace;
pub mod workloads;

use std::sync::Arc;

use ostler_model::clock::Clock;
use ostler_model::rng::Rng;
use ostler_sandbox::Sandbox;
use ostler_wasm_task::WasmTasks;

pub use call_state::{CallState, PluginContext};
pub use workloads::HostWorkloads;

/// What host functions use; one per agent.
#[derive(Clone)]
pub struct HostServices {
    /// Engines and guest threads.
    pub sandbox: Arc<Sandbox>,
    /// Native task processes.
    pub processes: ostler_process::ProcessHost,
    /// WASM tasks of the node.
    pub wasm_tasks: Arc<dyn WasmTasks>,
    /// Clock of the host.
    pub clock: Clock,
    /// Source of random numbers.
    pub rng: Rng,
    /// Runtime that drives timers and I/O.
    pub control: tokio::runtime::Handle,
}
