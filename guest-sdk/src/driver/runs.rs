//! The kinds of tasks that drivers have, which decide on the functions of the agent that
//! control them.

use super::{RunState, Workload};
use crate::error::Error;
use crate::host::{process, wasm_task};

/// The signal that a process gets at `stop` if the job names none.
pub const DEFAULT_STOP_SIGNAL: &str = "SIGINT";

/// The kind of a driver's tasks. It is chosen at compile time, so that a driver of WASM tasks does
/// not import `process`, which would need a grant.
pub trait Runs {
    /// The workload with this id.
    fn workload(id: String) -> Workload;

    /// Ask the workload to end.
    ///
    /// # Errors
    /// The host refused or does not know the id.
    fn stop(id: &str, signal: Option<&str>) -> Result<(), Error>;

    /// End the workload now.
    ///
    /// # Errors
    /// The host refused or does not know the id.
    fn kill(id: &str) -> Result<(), Error>;

    /// Send the workload a signal.
    ///
    /// # Errors
    /// The host refused, does not know the id or the signal, or there are no signals.
    fn signal(id: &str, signal: &str) -> Result<(), Error>;

    /// The state of the workload.
    ///
    /// # Errors
    /// The host refused or does not know the id.
    fn state(id: &str) -> Result<RunState, Error>;
}

/// Tasks are native processes that [`process::spawn`] started.
pub struct Process;

impl Runs for Process {
    fn workload(id: String) -> Workload {
        Workload::Process(id)
    }

    fn stop(id: &str, signal: Option<&str>) -> Result<(), Error> {
        Ok(process::signal(id, signal.unwrap_or(DEFAULT_STOP_SIGNAL))?)
    }

    fn kill(id: &str) -> Result<(), Error> {
        Ok(process::kill(id)?)
    }

    fn signal(id: &str, signal: &str) -> Result<(), Error> {
        Ok(process::signal(id, signal)?)
    }

    fn state(id: &str) -> Result<RunState, Error> {
        Ok(match process::state(id)? {
            process::ProcessState::Running => RunState::Running,
            process::ProcessState::Exited => RunState::Exited,
        })
    }
}

/// Tasks are WASM tasks that [`wasm_task::spawn`] started.
pub struct WasmTask;

impl Runs for WasmTask {
    fn workload(id: String) -> Workload {
        Workload::WasmTask(id)
    }

    /// WASM has no signals, so a stop is a kill.
    fn stop(id: &str, _signal: Option<&str>) -> Result<(), Error> {
        Self::kill(id)
    }

    fn kill(id: &str) -> Result<(), Error> {
        Ok(wasm_task::kill(id)?)
    }

    fn signal(_id: &str, signal: &str) -> Result<(), Error> {
        Err(Error::unsupported(format!(
            "a WASM task cannot receive signals, so {signal} was not sent"
        )))
    }

    fn state(id: &str) -> Result<RunState, Error> {
        Ok(match wasm_task::state(id)? {
            wasm_task::TaskState::Running => RunState::Running,
            wasm_task::TaskState::Exited => RunState::Exited,
        })
    }
}

/// Tasks are something that the agent does not own. It asks for their state every `EVERY_MS`
/// milliseconds through [`Driver::inspect`](super::Driver::inspect). A driver of such tasks
/// implements `stop`, `kill` and `inspect` itself.
pub struct Polled<const EVERY_MS: u64>;

impl<const EVERY_MS: u64> Runs for Polled<EVERY_MS> {
    fn workload(_id: String) -> Workload {
        Workload::Poll(EVERY_MS)
    }

    fn stop(_id: &str, _signal: Option<&str>) -> Result<(), Error> {
        Err(Error::unsupported("this driver cannot stop a task"))
    }

    fn kill(_id: &str) -> Result<(), Error> {
        Err(Error::unsupported("this driver cannot kill a task"))
    }

    fn signal(_id: &str, _signal: &str) -> Result<(), Error> {
        Err(Error::unsupported("this driver cannot signal a task"))
    }

    fn state(_id: &str) -> Result<RunState, Error> {
        Ok(RunState::Unknown)
    }
}
