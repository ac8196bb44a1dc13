//! The functions that a plugin may ask of the agent.
//!
//! On `wasm32` these functions call the imports of the component; natively they call the
//! fake of [`testing`](crate::testing). A component imports only what its code can reach,
//! and each import except `log`, `config`, `events`, `clock` and `random` needs a grant in
//! the agent's configuration.

#[cfg(target_arch = "wasm32")]
use crate::bindings::driver::ostler::plugin as imports;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::imports;

/// The agent's log.
pub mod log {
    use super::imports;
    pub use crate::bindings::driver::ostler::plugin::log::Level;

    /// Write one message. A message longer than 8 KiB is cut.
    pub fn log(level: Level, message: &str) {
        imports::log::log(level, message);
    }

    /// Write a message for people who look for a fault.
    pub fn debug(message: impl AsRef<str>) {
        log(Level::Debug, message.as_ref());
    }

    /// Write a message for people who run the node.
    pub fn info(message: impl AsRef<str>) {
        log(Level::Info, message.as_ref());
    }

    /// Write that something is not as it should be, while the plugin goes on.
    pub fn warn(message: impl AsRef<str>) {
        log(Level::Warn, message.as_ref());
    }

    /// Write that something failed.
    pub fn error(message: impl AsRef<str>) {
        log(Level::Error, message.as_ref());
    }
}

/// The plugin's own configuration: the `config` of the agent's `plugin` block.
///
/// # Errors
/// [`Error::InvalidConfig`](crate::error::Error::InvalidConfig) when it does not fit `T`.
pub fn config<T: serde::de::DeserializeOwned>() -> crate::error::Result<T> {
    crate::config::parse(&imports::config::get())
}

/// Events of the task that the current call is about.
pub mod events {
    use super::imports;
    use crate::types::EnvVar;

    /// Show `message` to the user as an event of the task.
    pub fn emit(message: &str) {
        imports::events::emit(message, &[]);
    }

    /// The same with details for machines.
    pub fn emit_with(message: &str, annotations: &[EnvVar]) {
        imports::events::emit(message, annotations);
    }
}

/// The time of day and the monotonic time of the host.
pub mod clock {
    use super::imports;
    use crate::types::Timestamp;

    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub fn now() -> Timestamp {
        imports::clock::now()
    }

    /// Nanoseconds from an arbitrary point, never going back.
    pub fn monotonic() -> u64 {
        imports::clock::monotonic()
    }
}

/// Random bytes from the host.
pub mod random {
    use super::imports;

    /// Random bytes, at most 4096 at once.
    pub fn bytes(len: u32) -> Vec<u8> {
        imports::random::bytes(len)
    }
}

/// Programs that run to completion.
pub mod command {
    use super::imports;
    pub use crate::bindings::driver::ostler::plugin::command::{CommandError, Output};
    use crate::types::Milliseconds;

    /// Run `program`, as the grant names it, with `args`; it is killed after `timeout`.
    ///
    /// # Errors
    /// Not granted, not there, too slow, or could not be started.
    pub fn run(
        program: &str,
        args: &[String],
        timeout: Milliseconds,
    ) -> Result<Output, CommandError> {
        imports::command::run(program, args, timeout)
    }
}

/// Task processes; drivers only.
pub mod process {
    use super::imports;
    pub use crate::bindings::driver::ostler::plugin::process::{
        Isolation, IsolationPart, PartState, ProcessError, ProcessState, SpawnRequest,
    };

    /// Every part of isolation that exists.
    pub const ISOLATION_PARTS: [IsolationPart; 8] = [
        IsolationPart::Mounts,
        IsolationPart::Pids,
        IsolationPart::Ipc,
        IsolationPart::Network,
        IsolationPart::User,
        IsolationPart::Privileges,
        IsolationPart::Seccomp,
        IsolationPart::Landlock,
    ];

    /// The name of a part in configurations and fingerprints.
    #[must_use]
    pub const fn part_name(part: IsolationPart) -> &'static str {
        match part {
            IsolationPart::Mounts => "mounts",
            IsolationPart::Pids => "pids",
            IsolationPart::Ipc => "ipc",
            IsolationPart::Network => "network",
            IsolationPart::User => "user",
            IsolationPart::Privileges => "privileges",
            IsolationPart::Seccomp => "seccomp",
            IsolationPart::Landlock => "landlock",
        }
    }

    /// Start a process in a group of its own. Returns its id.
    ///
    /// # Errors
    /// Not granted, no such program, directory or user, or the node refused.
    pub fn spawn(request: &SpawnRequest) -> Result<String, ProcessError> {
        imports::process::spawn(request)
    }

    /// The same as [`spawn`], isolated from the node and from other tasks.
    ///
    /// # Errors
    /// As [`spawn`]; also when a part of the isolation is not possible here, or is less than the
    /// grant demands.
    pub fn spawn_isolated(
        request: &SpawnRequest,
        isolation: &Isolation,
    ) -> Result<String, ProcessError> {
        imports::process::spawn_isolated(request, isolation)
    }

    /// The state of every part of isolation on this node, each part once.
    ///
    /// # Errors
    /// Not granted.
    pub fn isolation_parts() -> Result<Vec<PartState>, ProcessError> {
        imports::process::isolation_parts()
    }

    /// Send the process group a signal by name (`SIGHUP`).
    ///
    /// # Errors
    /// Not granted, no such process in this task, or no such signal.
    pub fn signal(id: &str, signal: &str) -> Result<(), ProcessError> {
        imports::process::signal(id, signal)
    }

    /// Kill the process group and everything in its cgroup.
    ///
    /// # Errors
    /// Not granted, or no such process in this task.
    pub fn kill(id: &str) -> Result<(), ProcessError> {
        imports::process::kill(id)
    }

    /// The state of the process: running or exited.
    ///
    /// # Errors
    /// Not granted, or no such process in this task.
    pub fn state(id: &str) -> Result<ProcessState, ProcessError> {
        imports::process::state(id)
    }
}

/// WASM tasks; drivers only.
pub mod wasm_task {
    use super::imports;
    pub use crate::bindings::driver::ostler::plugin::wasm_task::{
        Dir, NetworkAccess, SpawnRequest, TaskInput, TaskLimits, TaskState, WasmError,
    };

    /// Compile the program if needed, and start it. Returns the task's id.
    ///
    /// # Errors
    /// Not granted, no such file, or not a program that the host can run.
    pub fn spawn(request: &SpawnRequest) -> Result<String, WasmError> {
        imports::wasm_task::spawn(request)
    }

    /// The same as [`spawn`], within limits narrower than the host's own.
    ///
    /// # Errors
    /// As [`spawn`].
    pub fn spawn_limited(request: &SpawnRequest, limits: TaskLimits) -> Result<String, WasmError> {
        imports::wasm_task::spawn_limited(request, limits)
    }

    /// The same as [`spawn_limited`], with something to read on standard input.
    ///
    /// # Errors
    /// As [`spawn`]; or the file of the input cannot be read, or is none of the task's.
    pub fn spawn_reading(
        request: &SpawnRequest,
        limits: TaskLimits,
        input: &TaskInput,
    ) -> Result<String, WasmError> {
        imports::wasm_task::spawn_reading(request, limits, input)
    }

    /// End the task now.
    ///
    /// # Errors
    /// Not granted, or no such task.
    pub fn kill(id: &str) -> Result<(), WasmError> {
        imports::wasm_task::kill(id)
    }

    /// The state of the task: running or exited.
    ///
    /// # Errors
    /// Not granted, or no such task.
    pub fn state(id: &str) -> Result<TaskState, WasmError> {
        imports::wasm_task::state(id)
    }
}
