//! The replacements in a program that was built without traces.

use super::{NOT_BUILT, Sending};
use ostler_model::telemetry::TracesConfig;

/// The trace and the span in which this code runs: none.
#[must_use]
pub const fn current() -> Option<(u128, u64)> {
    None
}

/// Refuse to send traces.
///
/// # Errors
/// Always: what to build.
pub fn start(_config: &TracesConfig) -> Result<Sending, String> {
    Err(NOT_BUILT.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_traces_refuses_to_send_them_and_names_the_feature() {
        let refused = start(&TracesConfig::default()).map(drop);
        assert!(refused.is_err_and(|why| why.contains("--features otel")));
        assert_eq!(crate::counts(), None, "and records none");
    }
}
