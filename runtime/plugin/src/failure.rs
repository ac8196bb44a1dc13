//! A call that did not answer, with what its guest said last.

use ostler_model::redact::Secrets;
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
    /// Of a guest that was given these secrets, which none of its words has.
    #[must_use]
    pub fn without(mut error: CallError, mut said: Said, secrets: &Secrets) -> Self {
        if let Some(words) = error.words() {
            secrets.scrub_text(words);
        }
        secrets.scrub_end(said.text());
        Self { error, said }
    }

    /// Was it the plugin's own doing?
    #[must_use]
    pub const fn of_the_plugin(&self) -> bool {
        !matches!(self.error, CallError::PoolExhausted { .. } | CallError::Cancelled)
    }
}
