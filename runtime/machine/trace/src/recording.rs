//! Whether this process records traces, which of them, and how many of their spans were sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::context::{SpanIds, TraceContext, TraceParent};

/// The state of this process. Traces go wherever its log goes.
static STATE: RecordingState = RecordingState::new();

/// The settings and the counts.
#[derive(Debug)]
struct RecordingState {
    on: AtomicBool,
    /// Of 100 traces that begin here, this many are recorded.
    percent: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

impl RecordingState {
    const fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            percent: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }
}

/// The numbers of spans of this process since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// The number of spans that a collector took.
    pub sent: u64,
    /// The number of spans that did not fit into the queue, or that no collector took.
    pub lost: u64,
}

/// The counts of this process; `None` if no traces are recorded.
#[must_use]
pub fn counts() -> Option<TraceCounts> {
    let (sent, lost) = (STATE.sent.load(Ordering::Relaxed), STATE.lost.load(Ordering::Relaxed));
    is_recording().then_some(TraceCounts { sent, lost })
}

/// Whether traces are recorded.
#[must_use]
pub fn is_recording() -> bool {
    STATE.on.load(Ordering::Relaxed)
}

/// The first span of a registration here. It is below the caller's span if that is recorded, and
/// otherwise starts a new trace; `None` if the registration is not recorded.
pub(crate) fn first_span(parent: Option<TraceParent>) -> Option<SpanIds> {
    if !is_recording() {
        return None;
    }
    match parent {
        Some(parent) => parent.recorded_context().map(TraceContext::child),
        None => {
            let new = TraceContext::new();
            let percent = u128::from(STATE.percent.load(Ordering::Relaxed));
            (new.trace_id() % 100 < percent).then(|| SpanIds::root(new))
        }
    }
}

#[cfg(feature = "otel")]
pub(crate) fn record(percent: u8) {
    STATE.percent.store(percent.into(), Ordering::Relaxed);
    STATE.on.store(true, Ordering::Relaxed);
}

#[cfg(feature = "otel")]
pub(crate) fn count_sent(spans: usize) {
    STATE.sent.fetch_add(spans as u64, Ordering::Relaxed);
}

#[cfg(feature = "otel")]
pub(crate) fn count_lost(spans: usize) {
    STATE.lost.fetch_add(spans as u64, Ordering::Relaxed);
}
