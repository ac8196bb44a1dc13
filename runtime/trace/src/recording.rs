//! Whether traces are recorded in this process, which of them, and what became of their spans.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::context::{SpanIds, TraceContext, TraceParent};

/// Of this process: traces go wherever its log goes.
static STATE: Recording = Recording::new();

/// What is recorded and counted.
#[derive(Debug)]
struct Recording {
    on: AtomicBool,
    /// Of 100 traces that begin here.
    percent: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Recording {
    const fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            percent: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }
}

/// Spans of this process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// A collector took them.
    pub sent: u64,
    /// They did not fit the queue, or no collector took them.
    pub lost: u64,
}

/// What became of the spans of this process; none where no traces are recorded.
#[must_use]
pub fn counts() -> Option<TraceCounts> {
    let (sent, lost) = (STATE.sent.load(Ordering::Relaxed), STATE.lost.load(Ordering::Relaxed));
    is_recording().then_some(TraceCounts { sent, lost })
}

/// Are traces recorded?
#[must_use]
pub fn is_recording() -> bool {
    STATE.on.load(Ordering::Relaxed)
}

/// The first span here of a registration: below the caller's where that is recorded, and else of a new trace, or of
/// none.
pub(crate) fn begin(parent: Option<TraceParent>) -> Option<SpanIds> {
    if !is_recording() {
        return None;
    }
    match parent {
        Some(parent) => parent.recorded().map(TraceContext::child),
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
