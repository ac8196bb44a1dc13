//! The error of every plugin call. Its variant decides what the agent does next: a recoverable
//! one goes to the restart policy, the others end the task.

pub use crate::bindings::driver::ostler::plugin::types::PluginError as Error;
use crate::host::{command::CommandError, process::ProcessError, wasm_task::WasmError};
use crate::types::Diagnostic;

/// The result of a plugin function.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error after which another try may help.
    pub fn recoverable(message: impl Into<String>) -> Self {
        Self::Recoverable(message.into())
    }

    /// An error after which another try cannot help.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::Fatal(message.into())
    }

    /// An error because the plugin does not do this.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }

    /// An error because the handle, id or device is not known. Stopping something that is not found
    /// is success.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound(what.into())
    }

    /// An error about one problem of a configuration. `path` is dotted, and empty for the
    /// whole configuration.
    pub fn invalid_config(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidConfig(vec![Diagnostic { path: path.into(), message: message.into() }])
    }
}

impl From<ProcessError> for Error {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Denied(hint) => Self::PermissionDenied(hint),
            ProcessError::NotFound(what) => Self::Fatal(what),
            ProcessError::UnknownProcess => Self::not_found("the task has no such process"),
            ProcessError::UnknownSignal(name) => Self::Fatal(format!("unknown signal {name:?}")),
            ProcessError::Failed(message) => Self::Recoverable(message),
        }
    }
}

impl From<WasmError> for Error {
    fn from(error: WasmError) -> Self {
        match error {
            WasmError::Denied(hint) => Self::PermissionDenied(hint),
            WasmError::NotFound(what) | WasmError::Invalid(what) => Self::Fatal(what),
            WasmError::UnknownTask => Self::not_found("the task has no such WASM task"),
            WasmError::Failed(message) => Self::Recoverable(message),
        }
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Denied(hint) => Self::PermissionDenied(hint),
            CommandError::NotFound(what) => Self::Fatal(what),
            CommandError::TimedOut => Self::recoverable("the program did not end in time"),
            CommandError::Failed(message) => Self::Recoverable(message),
        }
    }
}
