//! Where the next batch goes. Pure.
//!
//! ```text
//!                 fits                      full, doubted, or nothing came for a while
//! batch ─► Append ────► durable, in memory ───────────────► Settle: all in one commit of the tree
//!    └─ no record, or no room for it, and nothing waits in the journal ─► Direct: a commit of the tree
//! ```

use super::Tip;

/// What is to be done with a batch next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write its record there.
    Append {
        /// Place in the file.
        at: usize,
    },
    /// Move what the journal holds into the tree; then ask again.
    Settle,
    /// Commit it to the tree.
    Direct,
}

/// What is known of both files.
#[derive(Clone, Copy, Debug)]
pub struct JournalPlan {
    tip: Tip,
    /// Numbers go on above this one.
    above: u64,
    /// Where the next record goes.
    at: usize,
    /// Bytes of the journal; 0 where there is none to be used.
    size: usize,
    /// The tree is known to end with what the journal begins with.
    sure: bool,
}

impl JournalPlan {
    /// After both files were read: `tip` is what they come to, and `sure` that the tree says so, or
    /// what the journal begins with. Numbers go on above `above`.
    #[must_use]
    pub fn new(tip: Tip, sure: bool, above: u64) -> Self {
        Self { tip, above, at: 0, size: 0, sure }
    }

    /// There is a journal of so many bytes with nothing in it that is not in the tree; 0: none.
    pub fn journal(&mut self, size: usize) {
        (self.at, self.size) = (0, size);
    }

    /// What the next record follows from.
    #[must_use]
    pub fn tip(&self) -> Tip {
        self.tip
    }

    /// Number of the next batch.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.tip.number.max(self.above).saturating_add(1)
    }

    /// What is to be done with a batch whose record has so many bytes. `waits`: something is not in the
    /// tree yet.
    #[must_use]
    pub fn step(&self, record: Option<usize>, waits: bool) -> Step {
        match record {
            Some(bytes) if self.sure && bytes <= self.size.saturating_sub(self.at) => {
                Step::Append { at: self.at }
            }
            _ if waits => Step::Settle,
            _ => Step::Direct,
        }
    }

    /// A record of so many bytes is durable.
    pub fn appended(&mut self, tip: Tip, bytes: usize) {
        self.tip = tip;
        self.at = self.at.saturating_add(bytes);
    }

    /// Writing the record of `number` failed: it may be there. The journal is not used before
    /// everything is in the tree and it is written anew.
    pub fn append_failed(&mut self, number: u64) {
        self.tip.number = number;
        self.journal(0);
    }

    /// What the tree is to end with when it holds everything up to `number`; `chain` was never used.
    #[must_use]
    pub fn tip_in_tree(&self, number: u64, chain: u128) -> Tip {
        self.tip.in_tree(number, chain)
    }

    /// The tree holds everything and ends with `tip`.
    pub fn in_tree(&mut self, tip: Tip) {
        (self.tip, self.at, self.sure) = (tip, 0, true);
    }

    /// Nothing that is written from here on follows from what is there now: the next batch goes to the
    /// tree.
    pub fn break_off(&mut self) {
        self.sure = false;
    }

    /// A commit of the tree failed that was to end with `number`: it may have been made.
    pub fn tree_failed(&mut self, number: u64) {
        self.tip.number = number;
        self.sure = false;
    }
}
