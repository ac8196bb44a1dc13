//! Traces: they show what a job waits for, from its registration to the first byte of its tasks.
//!
//! ```text
//! registration ── TraceContext (24 bytes, with the request) ──► AllocTrace of each allocation
//!      │ span!                                                     │ span! for hooks, starts, first byte
//!      ▼                                                           ▼ span_here! for calls of plugins
//!   tracing spans of the target `ostler::trace` ─► otel::layer ─► queue (bounded) ─► thread ─► collector
//! ```
//! Spans are made in the shells, never in pure code that decides. A tracing span stays open as long
//! as one below it does, so these spans have no parents in `tracing`: their places stand in fields
//! ([`SpanIds`]), and each is sent when it ends. Nothing of a trace is on record: an allocation
//! that an agent finds at its start has none.
//!
//! Without the feature `otel`, or if nobody asked for traces, there is no [`TraceContext`], and the
//! macros only check for one. Start reading with `registration`.

mod alloc;
mod context;
#[cfg(feature = "otel")]
mod otel;
mod recording;
mod registration;
mod sending;
#[cfg(not(feature = "otel"))]
mod without;

pub use self::alloc::{AllocTrace, TracedAlloc, child_span};
pub use self::context::{SpanIds, TraceContext, TraceParent};
#[cfg(feature = "otel")]
pub use self::otel::{current, layer, start};
pub use self::recording::{TraceCounts, counts, is_recording};
pub use self::registration::Registration;
pub use self::sending::Sending;
#[cfg(not(feature = "otel"))]
pub use self::without::{current, start};

#[doc(hidden)]
pub use tracing;

/// The target of all spans of traces. The log leaves out spans with this target.
pub const TARGET: &str = "ostler::trace";

/// Whether this program can send traces.
pub const BUILT: bool = cfg!(feature = "otel");

/// The advice for a program that cannot send traces.
pub const NOT_BUILT: &str = "this ostler was built without the feature otel and makes no traces; build it with \
                             cargo build --release --features otel, or leave the block telemetry out";

/// Run work in a span with a field `error`. The span has failed if the work fails, and `why`
/// selects the part of the error that it shows. The span ends with the work.
///
/// # Errors
/// That of the work.
pub async fn run_in<T, E>(
    span: tracing::Span,
    work: impl Future<Output = Result<T, E>>,
    why: impl FnOnce(&E) -> &dyn std::fmt::Display,
) -> Result<T, E> {
    use tracing::Instrument as _;
    let result = work.instrument(span.clone()).await;
    if let Err(error) = &result
        && !span.is_disabled()
    {
        span.record("error", tracing::field::display(why(error)));
    }
    result
}

/// A span whose ids are given (`Option<SpanIds>`): `span!(ids, "task hook", hook = name)`.
/// Without ids it is disabled. A field `error`, empty at first, marks the span as failed when it
/// is recorded.
#[macro_export]
macro_rules! span {
    ($ids:expr, $name:literal $(, $($fields:tt)*)?) => {
        match $ids {
            Some(ids) => $crate::tracing::info_span!(
                target: $crate::TARGET,
                parent: None,
                $name,
                otel.trace = ids.trace_id(),
                otel.span = ids.span_id(),
                otel.parent = ids.parent_id(),
                $($($fields)*)?
            ),
            None => $crate::tracing::Span::none(),
        }
    };
}

/// A span below the one in which this code runs, if there is one and traces are recorded.
#[macro_export]
macro_rules! span_here {
    ($name:literal $(, $($fields:tt)*)?) => {
        if $crate::is_recording() {
            $crate::tracing::info_span!(target: $crate::TARGET, $name, $($($fields)*)?)
        } else {
            $crate::tracing::Span::none()
        }
    };
}
