//! How much the expressions of one file may produce: a few that repeat each other could ask for more
//! than there is memory.

use super::super::diagnostic::{Sink, Span};
use ostler_model::limits::JOB_FILE_BYTES_MAX;

/// Bytes that all expressions together may produce; a value counts as 32 and its text.
const PRODUCED_MAX: u64 = 16 * JOB_FILE_BYTES_MAX;

/// What is left of it.
#[derive(Debug, Default)]
pub(super) struct Budget {
    produced: u64,
    /// The bound was met; nothing is evaluated any more.
    exhausted: bool,
    /// Which was reported.
    told: bool,
}

impl Budget {
    /// Count what is produced; `false` once it is too much.
    pub(super) fn pay(&mut self, amount: u64) -> bool {
        self.produced = self.produced.saturating_add(amount);
        self.exhausted |= self.produced > PRODUCED_MAX;
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
            let message = "the expressions of this file produce too much; check locals that repeat each other, and loops";
            sink.error(at, message);
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
