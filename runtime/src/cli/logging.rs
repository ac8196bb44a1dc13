//! The agent's own log, on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::output;
use super::terminal::Terminal;

/// Variable with a filter that replaces `-v`, in the syntax of `RUST_LOG`.
const FILTER_VARIABLE: &str = "OSTLER_LOG";

/// Start logging: warnings, with `-v` more, or what `OSTLER_LOG` says.
pub(super) fn start(verbose: u8, terminal: &Terminal) {
    let given = std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = given.map_or_else(|| EnvFilter::try_new(level(verbose)), EnvFilter::try_new);
    let filter = filter.unwrap_or_else(|error| {
        output::warning(terminal, &format!("{FILTER_VARIABLE} is no filter ({error}); try debug"));
        EnvFilter::new(level(verbose))
    });
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal.stderr_colours())
        .with_target(verbose > 1)
        // It would be written with a macro that panics when standard error is closed.
        .log_internal_errors(false)
        .finish();
    // Only fails when there is a subscriber already.
    let _there_already = subscriber.try_init();
}

/// The filter of `-v` given so often. Libraries stay one level quieter than the agent.
const fn level(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "warn,ostler=info",
        2 => "info,ostler=debug",
        _ => "debug,ostler=trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_a_valid_filter() {
        for verbose in 0..5 {
            assert!(EnvFilter::try_new(level(verbose)).is_ok(), "{verbose}");
        }
    }
}
