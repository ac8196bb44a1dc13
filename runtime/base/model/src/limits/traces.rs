//! Limits of traces that are sent to a collector.

use std::time::Duration;

use super::KIB;

/// Most spans that wait to be sent, of some hundred bytes each; further ones are counted and lost.
/// A hundred allocations that start at once have about as many.
pub const TRACE_QUEUE_MAX: usize = 4_096;
/// Spans in one request.
pub const TRACE_BATCH_MAX: usize = 512;
/// How long the first span of a request waits for others.
pub const TRACE_BATCH_WAIT: Duration = Duration::from_millis(500);
/// How long a collector may take for one request, with the connection. A slower collector loses
/// spans but delays nothing.
pub const TRACE_SEND_WALL_MAX: Duration = Duration::from_secs(5);
/// How long the program waits at its end until its spans are sent.
pub const TRACE_END_WAIT: Duration = Duration::from_secs(2);
/// Longest answer of a collector that is read, bytes.
pub const TRACE_ANSWER_BYTES_MAX: usize = 64 * KIB as usize;
/// Spans of one allocation. A start of one task has about thirty.
pub const TRACE_ALLOC_SPANS_MAX: u32 = 1_024;
/// Longest text in a span, bytes; what is longer is cut.
pub const TRACE_TEXT_BYTES_MAX: usize = 512;
/// Most jobs whose later allocations are matched to the trace of their registration.
pub const TRACE_JOBS_MAX: usize = 1_024;
/// How long after a registration allocations of its job belong to its trace. Later ones have
/// other reasons.
pub const TRACE_JOB_WALL_MAX: Duration = Duration::from_secs(600);
/// How long the first byte of a task is waited for. A task that is silent longer has no such span.
pub const TRACE_FIRST_BYTE_WALL_MAX: Duration = Duration::from_secs(600);
