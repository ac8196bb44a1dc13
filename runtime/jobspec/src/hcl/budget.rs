//! How much the expressions of one file may produce: a few that repeat each other could ask for more
//! than there is memory, or take longer than anybody waits.

use super::super::diagnostic::{Sink, Span};
use ostler_model::limits::{JOB_FILE_BYTES_MAX, PATTERNS_OF_ONE_BYTES_MAX};
use ostler_model::wanted::Awaited;
use ostler_patterns::{Compiled, Patterns};

/// Bytes that all expressions together may produce; a value counts as 32 and its text. What takes time and
/// produces little counts as much as what produces more in that time: 32 MiB are about a second.
const PRODUCED_MAX: u64 = 16 * JOB_FILE_BYTES_MAX;

/// What is left of it.
#[derive(Debug, Default)]
pub(super) struct Budget {
    produced: u64,
    /// The bound was met; nothing is evaluated any more.
    exhausted: bool,
    /// Which was reported.
    told: bool,
    wanted: Awaited,
    patterns: Patterns,
}

impl Budget {
    pub(super) fn new(wanted: Awaited) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// A regular expression, and whether what compiling it takes is still there.
    pub(super) fn pattern(&mut self, text: &str) -> (Compiled, bool) {
        let (compiled, price) = self.patterns.compile(text, PATTERNS_OF_ONE_BYTES_MAX);
        (compiled, self.pay_bytes(price))
    }

    /// Is nothing evaluated any more?
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Count what is produced; `false` once it is too much.
    pub(super) fn pay(&mut self, amount: u64) -> bool {
        self.produced = self.produced.saturating_add(amount);
        self.exhausted |= self.produced > PRODUCED_MAX || self.wanted.is_given_up();
        !self.exhausted
    }

    /// The same of bytes.
    pub(super) fn pay_bytes(&mut self, bytes: usize) -> bool {
        self.pay(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Say once that it was too much.
    pub(super) fn tell(&mut self, at: Span, sink: &mut Sink) {
        if self.exhausted && !self.told {
            self.told = true;
            sink.error(at, match self.wanted.is_given_up() {
                true => "nobody waits for this file any more",
                false => "the expressions of this file produce too much; check locals that repeat each other, and loops",
            });
        }
    }

    /// Was it said?
    pub(super) fn told(&self) -> bool {
        self.told
    }

    /// What was reported since went nowhere: it has to be told again unless it was `told` before.
    pub(super) fn told_before(&mut self, told: bool) {
        self.told = told;
    }
}
