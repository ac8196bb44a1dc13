//! With the feature `otel`, spans of `tracing` become spans of OpenTelemetry and go to a collector.
//!
//! ```text
//! span closes ─► layer ─ SpanData ─► SpanQueue (bounded; what does not fit is counted) ─► thread ─► OTLP over HTTP
//!      │ enter, exit                                                         a request at a time, with a deadline
//!      └─► current: the ids that lines of the log carry
//! ```
//! The batch processor of the SDK is not used, because it does not say how many spans it lost.

mod begin;
mod current;
mod http;
mod layer;
mod queue;

pub(crate) use self::begin::end;
pub use self::begin::start;
pub use self::current::current;
pub use self::layer::layer;
