//! The failure of a call that did not answer, with the last words of its guest.

use ostler_model::redact::Secrets;
use ostler_sandbox::{CallError, LastWords};

/// Why a call did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{error}{said}")]
pub struct CallFailure {
    /// What stopped the call.
    pub error: CallError,
    /// What the guest had last written to standard error.
    pub said: LastWords,
}

impl CallFailure {
    /// The failure of a guest that was given these secrets. They are removed from its words.
    #[must_use]
    pub fn without_secrets(mut error: CallError, mut said: LastWords, secrets: &Secrets) -> Self {
        if let Some(words) = error.words() {
            secrets.scrub_text(words);
        }
        secrets.scrub_end(said.text());
        Self { error, said }
    }

    /// Is the plugin itself to blame for the failure?
    #[must_use]
    pub const fn is_plugin_fault(&self) -> bool {
        !matches!(self.error, CallError::PoolExhausted { .. } | CallError::Cancelled)
    }
}
