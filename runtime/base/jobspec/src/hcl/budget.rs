//! The budget of the expressions of one file: a few expressions that repeat each other could need more memory than
//! there is, or take longer than anybody waits.

use crate::diagnostic::{Sink, Span};
use ostler_model::cancellation::CancelFlag;
use ostler_model::limits::JOB_FILE_BYTES_MAX;
use ostler_text::patterns::{PATTERNS_OF_ONE_BYTES_MAX, PatternResult, Patterns};

/// The bytes that all expressions together may produce. A value counts as 32 bytes and its text. Work that takes
/// time and produces little counts like work that produces more in that time: 32 MiB are about a second.
const PRODUCED_MAX: u64 = 16 * JOB_FILE_BYTES_MAX;

/// The state of the budget: what was produced so far.
#[derive(Debug, Default)]
pub(super) struct Budget {
    produced: u64,
    /// Whether the bound was exceeded: nothing is evaluated any more.
    exhausted: bool,
    /// Whether this was reported.
    told: bool,
    wanted: CancelFlag,
    patterns: Patterns,
}

impl Budget {
    pub(super) fn new(wanted: CancelFlag) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// The compiled pattern of a text, and whether the budget was enough for compiling it.
    pub(super) fn pattern(&mut self, text: &str) -> (PatternResult, bool) {
        let (compiled, price) = self.patterns.compile(text, PATTERNS_OF_ONE_BYTES_MAX);
        (compiled, self.pay_bytes(price))
    }

    /// Whether the budget is exceeded, so that nothing is evaluated any more.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Count bytes that are produced. `false` means that the budget is exceeded.
    pub(super) fn pay(&mut self, amount: u64) -> bool {
        self.produced = self.produced.saturating_add(amount);
        self.exhausted |= self.produced > PRODUCED_MAX || self.wanted.is_cancelled();
        !self.exhausted
    }

    /// The same for a length in memory.
    pub(super) fn pay_bytes(&mut self, bytes: usize) -> bool {
        self.pay(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Report once that the budget is exceeded, if it is.
    pub(super) fn report_excess(&mut self, at: Span, sink: &mut Sink) {
        if self.exhausted && !self.told {
            self.told = true;
            let message = if self.wanted.is_cancelled() {
                "reading this file was cancelled"
            } else {
                "the expressions of this file produce too much; check locals that repeat each other, and loops"
            };
            sink.error(at, message);
        }
    }

    /// Whether it was reported that the budget is exceeded.
    pub(super) fn is_reported(&self) -> bool {
        self.told
    }

    /// Restore the state from before an attempt whose reports were dropped, so that the report is made again unless
    /// it was made before.
    pub(super) fn set_reported(&mut self, told: bool) {
        self.told = told;
    }
}
