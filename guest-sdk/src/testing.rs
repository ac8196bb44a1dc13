//! A fake agent, so that a plugin's tests run natively with plain `cargo test`.
//!
//! The fake belongs to the test's thread. It answers the imports, and records what the plugin
//! asked for.
//!
//! ```
//! use ostler_sdk::testing::{self, FakeHost};
//!
//! let host = FakeHost::install();
//! host.set_config(r#"{"dir": "/dev/shm"}"#);
//! ostler_sdk::host::log::info("looking");
//! assert_eq!(host.log_lines(), ["looking"]);
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::bindings::driver::ostler::plugin::command::{CommandError, Output};
use crate::bindings::driver::ostler::plugin::{process, wasm_task};
use crate::driver::{Resources, TaskConfig};
use crate::types::EnvVar;

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::default());
}

/// The settings of the fake, and what the plugin asked of it.
#[derive(Default)]
struct State {
    config: String,
    now: u64,
    random: u64,
    logs: Vec<String>,
    events: Vec<String>,
    processes: Vec<process::SpawnRequest>,
    isolations: Vec<process::Isolation>,
    /// Parts of isolation that are not possible or may lack; all others are possible and demanded.
    parts: Vec<process::PartState>,
    wasm_tasks: Vec<wasm_task::SpawnRequest>,
    task_limits: Vec<wasm_task::TaskLimits>,
    task_inputs: Vec<wasm_task::TaskInput>,
    /// Whether each process or task runs, by id.
    running: BTreeMap<String, bool>,
    signals: Vec<(String, String)>,
    commands: BTreeMap<String, Result<Output, CommandError>>,
    commands_run: Vec<String>,
    denied: bool,
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(|state| f(&mut state.borrow_mut()))
}

/// The fake agent of this thread.
pub struct FakeHost(());

impl FakeHost {
    /// Install a new fake: everything is granted, the configuration is empty, and the time is one
    /// second past zero.
    pub fn install() -> Self {
        with(|state| {
            *state = State { config: "{}".to_owned(), now: 1_000_000_000, ..State::default() };
        });
        Self(())
    }

    /// Set the `config` of the `plugin` block, as JSON.
    pub fn set_config(&self, json: &str) {
        with(|state| state.config = json.to_owned());
    }

    /// Let `process`, `wasm-task` and `command` answer that they are not granted.
    pub fn deny(&self) {
        with(|state| state.denied = true);
    }

    /// Move both clocks forward.
    pub fn advance(&self, by: std::time::Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        with(|state| state.now = state.now.saturating_add(nanos));
    }

    /// Set the answer of `command::run` for a program, or for one whole command line (words joined
    /// by a space), which comes first. Any other program is not found.
    pub fn answer_command(&self, command: &str, answer: Result<Output, CommandError>) {
        with(|state| state.commands.insert(command.to_owned(), answer));
    }

    /// Let a process or WASM task end.
    pub fn exit(&self, id: &str) {
        with(|state| state.running.insert(id.to_owned(), false));
    }

    /// Whether a process or WASM task runs.
    pub fn is_running(&self, id: &str) -> bool {
        with(|state| state.running.get(id).copied().unwrap_or(false))
    }

    /// The messages that were logged, oldest first.
    pub fn log_lines(&self) -> Vec<String> {
        with(|state| state.logs.clone())
    }

    /// The events that were emitted, oldest first.
    pub fn events(&self) -> Vec<String> {
        with(|state| state.events.clone())
    }

    /// The processes that were asked for, oldest first. Their ids are `p1`, `p2` ….
    pub fn processes(&self) -> Vec<process::SpawnRequest> {
        with(|state| state.processes.clone())
    }

    /// The isolation of the processes that were asked for with it, oldest first.
    pub fn isolations(&self) -> Vec<process::Isolation> {
        with(|state| state.isolations.clone())
    }

    /// Let a part of isolation be impossible (`lacking` says why), or let the configuration do
    /// without it.
    pub fn set_part(&self, part: process::IsolationPart, lacking: Option<&str>, may_lack: bool) {
        let lacking = lacking.map(str::to_owned);
        with(|state| {
            state.parts.retain(|known| known.part != part);
            state.parts.push(process::PartState { part, lacking, may_lack });
        });
    }

    /// The WASM tasks that were asked for, oldest first. Their ids are `w1`, `w2` ….
    pub fn wasm_tasks(&self) -> Vec<wasm_task::SpawnRequest> {
        with(|state| state.wasm_tasks.clone())
    }

    /// The limits of the WASM tasks that were asked for with limits.
    pub fn task_limits(&self) -> Vec<wasm_task::TaskLimits> {
        with(|state| state.task_limits.clone())
    }

    /// The input of the WASM tasks that were asked for with standard input.
    pub fn task_inputs(&self) -> Vec<wasm_task::TaskInput> {
        with(|state| state.task_inputs.clone())
    }

    /// The signals that were sent, as id and name. A kill counts as `SIGKILL`.
    pub fn signals(&self) -> Vec<(String, String)> {
        with(|state| state.signals.clone())
    }

    /// The command lines that were run, with words joined by a space.
    pub fn commands_run(&self) -> Vec<String> {
        with(|state| state.commands_run.clone())
    }
}

/// A plausible task with this `config` block: 100 MHz, 64 MiB, no ports, mounts or devices.
pub fn task(config_json: &str) -> TaskConfig {
    TaskConfig {
        id: "5a3e6f0c-0000-4000-8000-000000000001/web/00000001".to_owned(),
        alloc_id: "5a3e6f0c-0000-4000-8000-000000000001".to_owned(),
        job_id: "example".to_owned(),
        group_name: "group".to_owned(),
        task_name: "web".to_owned(),
        config_json: config_json.to_owned(),
        env: vec![EnvVar::new("NOMAD_TASK_NAME", "web")],
        resources: Resources { cpu_mhz: 100, memory_bytes: 64 << 20, memory_max_bytes: None },
        ports: vec![],
        mounts: vec![],
        device_nodes: vec![],
        task_dir: "/alloc/web".to_owned(),
        alloc_dir: "/alloc/alloc".to_owned(),
        user: None,
    }
}

/// The imports as the fake answers them, in the same shape as the generated ones.
pub(crate) mod imports {
    use super::with;

    pub(crate) mod log {
        use crate::host::log::Level;

        pub(crate) fn log(_level: Level, message: &str) {
            super::with(|state| state.logs.push(message.to_owned()));
        }
    }

    pub(crate) mod config {
        pub(crate) fn get() -> String {
            super::with(|state| state.config.clone())
        }
    }

    pub(crate) mod events {
        use crate::types::EnvVar;

        pub(crate) fn emit(message: &str, _annotations: &[EnvVar]) {
            super::with(|state| state.events.push(message.to_owned()));
        }
    }

    pub(crate) mod clock {
        /// Reading the clock takes a microsecond, so that a plugin which waits for a time comes to
        /// an end.
        pub(crate) fn now() -> u64 {
            super::with(|state| {
                state.now = state.now.saturating_add(1000);
                state.now
            })
        }

        pub(crate) fn monotonic() -> u64 {
            now()
        }
    }

    pub(crate) mod random {
        /// These are not random at all: each test gets the same bytes.
        pub(crate) fn bytes(len: u32) -> Vec<u8> {
            super::with(|state| {
                (0..len.min(4096))
                    .map(|_| {
                        state.random =
                            state.random.wrapping_mul(6364136223846793005).wrapping_add(1);
                        (state.random >> 56) as u8
                    })
                    .collect()
            })
        }
    }

    pub(crate) mod command {
        use crate::host::command::{CommandError, Output};

        pub(crate) fn run(
            program: &str,
            args: &[String],
            _timeout: u64,
        ) -> Result<Output, CommandError> {
            super::with(|state| {
                if state.denied {
                    return Err(CommandError::Denied("command".to_owned()));
                }
                let mut line = program.to_owned();
                for arg in args {
                    line.push(' ');
                    line.push_str(arg);
                }
                let answer = state.commands.get(&line).or_else(|| state.commands.get(program));
                let missing = || Err(CommandError::NotFound(program.to_owned()));
                let answer = answer.cloned().unwrap_or_else(missing);
                state.commands_run.push(line);
                answer
            })
        }
    }

    pub(crate) mod process {
        use crate::host::process::{
            ISOLATION_PARTS, Isolation, PartState, ProcessError, ProcessState, SpawnRequest,
        };

        pub(crate) fn spawn(request: &SpawnRequest) -> Result<String, ProcessError> {
            super::with(|state| {
                if state.denied {
                    return Err(ProcessError::Denied("process".to_owned()));
                }
                state.processes.push(request.clone());
                let id = format!("p{}", state.processes.len());
                state.running.insert(id.clone(), true);
                Ok(id)
            })
        }

        pub(crate) fn spawn_isolated(
            request: &SpawnRequest,
            isolation: &Isolation,
        ) -> Result<String, ProcessError> {
            let id = spawn(request)?;
            super::with(|state| state.isolations.push(isolation.clone()));
            Ok(id)
        }

        pub(crate) fn isolation_parts() -> Result<Vec<PartState>, ProcessError> {
            super::with(|state| {
                if state.denied {
                    return Err(ProcessError::Denied("process".to_owned()));
                }
                let possible = |part| PartState { part, lacking: None, may_lack: false };
                let known = |part| state.parts.iter().find(|known| known.part == part).cloned();
                Ok(ISOLATION_PARTS.map(|part| known(part).unwrap_or(possible(part))).to_vec())
            })
        }

        pub(crate) fn signal(id: &str, signal: &str) -> Result<(), ProcessError> {
            super::with(|state| {
                if !state.running.contains_key(id) {
                    return Err(ProcessError::UnknownProcess);
                }
                if !signal.starts_with("SIG") {
                    return Err(ProcessError::UnknownSignal(signal.to_owned()));
                }
                state.signals.push((id.to_owned(), signal.to_owned()));
                Ok(())
            })
        }

        pub(crate) fn kill(id: &str) -> Result<(), ProcessError> {
            signal(id, "SIGKILL")?;
            super::with(|state| state.running.insert(id.to_owned(), false));
            Ok(())
        }

        pub(crate) fn state(id: &str) -> Result<ProcessState, ProcessError> {
            super::with(|state| match state.running.get(id) {
                None => Err(ProcessError::UnknownProcess),
                Some(true) => Ok(ProcessState::Running),
                Some(false) => Ok(ProcessState::Exited),
            })
        }
    }

    pub(crate) mod wasm_task {
        use crate::host::wasm_task::{SpawnRequest, TaskInput, TaskLimits, TaskState, WasmError};

        pub(crate) fn spawn(request: &SpawnRequest) -> Result<String, WasmError> {
            super::with(|state| {
                if state.denied {
                    return Err(WasmError::Denied("wasm-task".to_owned()));
                }
                state.wasm_tasks.push(request.clone());
                let id = format!("w{}", state.wasm_tasks.len());
                state.running.insert(id.clone(), true);
                Ok(id)
            })
        }

        pub(crate) fn spawn_limited(
            request: &SpawnRequest,
            limits: TaskLimits,
        ) -> Result<String, WasmError> {
            let id = spawn(request)?;
            super::with(|state| state.task_limits.push(limits));
            Ok(id)
        }

        pub(crate) fn spawn_reading(
            request: &SpawnRequest,
            limits: TaskLimits,
            input: &TaskInput,
        ) -> Result<String, WasmError> {
            let id = spawn_limited(request, limits)?;
            super::with(|state| state.task_inputs.push(input.clone()));
            Ok(id)
        }

        pub(crate) fn kill(id: &str) -> Result<(), WasmError> {
            super::with(|state| match state.running.get_mut(id) {
                None => Err(WasmError::UnknownTask),
                Some(running) => {
                    *running = false;
                    Ok(())
                }
            })
        }

        pub(crate) fn state(id: &str) -> Result<TaskState, WasmError> {
            super::with(|state| match state.running.get(id) {
                None => Err(WasmError::UnknownTask),
                Some(true) => Ok(TaskState::Running),
                Some(false) => Ok(TaskState::Exited),
            })
        }
    }
}
