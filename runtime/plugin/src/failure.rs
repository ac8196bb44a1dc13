//! A call that did not answer, with what its guest said last.

use ostler_sandbox::{CallError, Said};

/// Why a call did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{error}{said}")]
pub struct Failure {
    /// What stopped it.
    pub error: CallError,
    /// What its guest had written to standard error.
    pub said: Said,
}

impl Failure {
    /// Was it the plugin's own doing?
    #[must_use]
    pub const fn of_the_plugin(&self) -> bool {
        !matches!(self.error, CallError::PoolExhausted { .. } | CallError::Cancelled)
    }
}
