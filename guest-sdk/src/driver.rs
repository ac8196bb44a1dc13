//! Drivers: they decide what to run and what an exit means. The agent runs it, waits for it, meters
//! it and kills it.
//!
//! A driver names what its tasks are ([`Process`], [`WasmTask`] or [`Polled`]) and implements
//! [`Driver::describe`] and [`Driver::start`]. The other functions have defaults, which follow from
//! the handle that [`Started::new`] makes.

pub use crate::bindings::driver::exports::ostler::plugin::driver::{
    Capabilities, DriverFingerprint as Fingerprint, DriverInfo, ExecPlan, ExitResult, FsIsolation,
    Handle, Network, NetworkMode, Port, RawExit, Resources, RunState, Started, Status, TaskConfig,
    Workload,
};
use crate::error::Error;
use crate::types::{Health, Milliseconds, StatEntry};

mod exec_context;
mod runs;
mod values;

pub use exec_context::ExecContext;
pub use runs::{DEFAULT_STOP_SIGNAL, Polled, Process, Runs, WasmTask};
pub use values::EMPTY_SCHEMA;

/// Everything that a driver usually needs.
pub mod prelude {
    pub use super::{
        Driver, DriverInfo, ExecContext, ExecPlan, ExitResult, Fingerprint, FsIsolation, Handle,
        Network, NetworkMode, Polled, Port, Process, RawExit, RunState, Started, Status,
        TaskConfig, WasmTask, Workload,
    };
    pub use crate::error::{Error, Result};
    pub use crate::host::{self, clock, events, log, process, wasm_task};
    pub use crate::types::*;
}

/// The functions of a driver.
///
/// Every function may be called on a fresh instance of the component.
pub trait Driver: Sized {
    /// What the tasks of this driver are.
    type Runs: Runs;

    /// The name, the version and the abilities of the driver. It is called once when the plugin
    /// is loaded.
    fn describe() -> DriverInfo;

    /// The health of the driver on this node, and its attributes.
    ///
    /// # Errors
    /// The search failed. If the driver's program is not here, that is no error, but
    /// [`Health::undetected`].
    fn fingerprint() -> Result<Fingerprint, Error> {
        Ok(Fingerprint::new(Health::healthy()))
    }

    /// Start a task.
    ///
    /// # Errors
    /// The task cannot be started. The agent kills whatever this call spawned.
    fn start(task: TaskConfig) -> Result<Started, Error>;

    /// Own a task again that an earlier agent started. This must not start anything.
    ///
    /// # Errors
    /// The handle is not one of this driver's.
    fn recover(handle: Handle) -> Result<Started, Error> {
        let id = handle.id()?;
        Ok(Started { handle, workload: Self::Runs::workload(id), network: None })
    }

    /// The meaning of the exit of a workload.
    ///
    /// # Errors
    /// The handle is not one of this driver's.
    fn exited(_handle: Handle, exit: RawExit) -> Result<ExitResult, Error> {
        Ok(ExitResult::from(exit))
    }

    /// Ask the task to end. The agent waits `timeout` and then calls [`Driver::kill`].
    ///
    /// # Errors
    /// Asking failed.
    fn stop(handle: Handle, signal: Option<String>, _timeout: Milliseconds) -> Result<(), Error> {
        Self::Runs::stop(&handle.id()?, signal.as_deref())
    }

    /// End the task now.
    ///
    /// # Errors
    /// Killing failed.
    fn kill(handle: Handle) -> Result<(), Error> {
        Self::Runs::kill(&handle.id()?)
    }

    /// Forget the task.
    ///
    /// # Errors
    /// It runs and `force` is false.
    fn destroy(handle: Handle, force: bool) -> Result<(), Error> {
        let id = handle.id()?;
        match Self::Runs::state(&id) {
            Ok(RunState::Running) if force => Self::Runs::kill(&id),
            Ok(RunState::Running) => Err(Error::fatal("the task is running")),
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The state of the task.
    ///
    /// # Errors
    /// The task is not known.
    fn inspect(handle: Handle) -> Result<Status, Error> {
        let state = match Self::Runs::state(&handle.id()?)? {
            // Only the host knows how the workload ended; `exited` needs an exit.
            RunState::Exited => RunState::Unknown,
            state => state,
        };
        Ok(Status { state, exit: None, attributes: vec![] })
    }

    /// Send a signal by name (`SIGHUP`).
    ///
    /// # Errors
    /// No such signal or task, or the driver does not signal.
    fn signal(handle: Handle, signal: String) -> Result<(), Error> {
        Self::Runs::signal(&handle.id()?, &signal)
    }

    /// The program to run for a command inside the task.
    ///
    /// # Errors
    /// The driver does not do this.
    fn exec(_handle: Handle, _argv: Vec<String>, _tty: bool) -> Result<ExecPlan, Error> {
        Err(Error::unsupported("this driver cannot run commands inside a task"))
    }

    /// Measurements that only the driver can take.
    ///
    /// # Errors
    /// `unsupported`: the agent's own measurements suffice.
    fn stats(_handle: Handle) -> Result<Vec<StatEntry>, Error> {
        Err(Error::unsupported("the agent measures the tasks of this driver"))
    }
}

impl<T: Driver> crate::bindings::driver::exports::ostler::plugin::driver::Guest for T {
    fn describe() -> DriverInfo {
        T::describe()
    }

    fn fingerprint() -> Result<Fingerprint, Error> {
        T::fingerprint()
    }

    fn start(config: TaskConfig) -> Result<Started, Error> {
        T::start(config)
    }

    fn recover(handle: Handle) -> Result<Started, Error> {
        T::recover(handle)
    }

    fn exited(handle: Handle, exit: RawExit) -> Result<ExitResult, Error> {
        T::exited(handle, exit)
    }

    fn stop(handle: Handle, signal: Option<String>, timeout: Milliseconds) -> Result<(), Error> {
        T::stop(handle, signal, timeout)
    }

    fn kill(handle: Handle) -> Result<(), Error> {
        T::kill(handle)
    }

    fn destroy(handle: Handle, force: bool) -> Result<(), Error> {
        T::destroy(handle, force)
    }

    fn inspect(handle: Handle) -> Result<Status, Error> {
        T::inspect(handle)
    }

    fn signal(handle: Handle, signal: String) -> Result<(), Error> {
        T::signal(handle, signal)
    }

    fn exec(handle: Handle, argv: Vec<String>, tty: bool) -> Result<ExecPlan, Error> {
        T::exec(handle, argv, tty)
    }

    fn stats(handle: Handle) -> Result<Vec<StatEntry>, Error> {
        T::stats(handle)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
