//! Traces in lines of the log: each line has the ids of the trace in which it is logged.

/// The names and the ids of the trace and the span that this code runs in. `None` outside of
/// traces, and in a program without the feature `otel`.
pub(super) fn ids() -> Option<[(&'static str, String); 2]> {
    let (trace, span) = ostler_trace::current()?;
    Some([("trace_id", format!("{trace:032x}")), ("span_id", format!("{span:016x}"))])
}

/// Extend a filter of the log so that it leaves out the spans of traces, unless it names them.
pub(super) fn exclude_spans(filter: &str) -> String {
    if filter.contains(ostler_trace::TARGET) {
        return filter.to_owned();
    }
    format!("{filter},{}=off", ostler_trace::TARGET)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _, Registry};

    use super::*;
    use crate::logging::tests::with_own_subscriber;

    #[test]
    fn the_log_leaves_spans_of_traces_out_however_much_it_has() {
        let made = |filter: &str| {
            let filter = EnvFilter::try_new(exclude_spans(filter)).unwrap();
            let layer = tracing_subscriber::fmt::layer().with_writer(std::io::sink);
            let subscriber = Registry::default().with(layer.with_filter(filter));
            with_own_subscriber(subscriber, || {
                let span = tracing::info_span!(target: ostler_trace::TARGET, "task hook");
                (
                    !span.is_disabled(),
                    tracing::enabled!(target: "ostler_agent", tracing::Level::INFO),
                )
            })
        };
        assert_eq!(made("trace"), (false, true));
        assert_eq!(made("warn,ostler=info"), (false, true));
        assert_eq!(made("warn,ostler::trace=info"), (true, false), "asked for by name");
    }
}
