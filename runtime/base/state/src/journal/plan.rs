//! Decides where the next batch goes. Pure.
//!
//! ```text
//!                 fits                      full, doubted, or nothing came for a while
//! batch ─► Append ────► durable, in memory ───────────────► Settle: all in one commit of the tree
//!    └─ no record, or no room for it, and nothing waits in the journal ─► Direct: a commit of the tree
//! ```

use super::Tip;

/// The next step for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalStep {
    /// Write its record into the journal.
    Append {
        /// The offset of the record in the file.
        at: usize,
    },
    /// Move the content of the journal into the tree, then ask again.
    Settle,
    /// Commit it to the tree.
    Direct,
}

/// What is known of the journal and the tree.
#[derive(Clone, Copy, Debug)]
pub struct JournalPlan {
    tip: Tip,
    /// New batches get numbers above this one.
    above: u64,
    /// The offset of the next record.
    at: usize,
    /// The size of the journal in bytes; 0 if there is none to be used.
    size: usize,
    /// Whether the tree is known to end with what the journal begins with.
    sure: bool,
}

impl JournalPlan {
    /// The plan after both files were read. `tip` is their common end. `sure` says that the tree,
    /// or what the journal begins with, confirms it. New batches get numbers above `above`.
    #[must_use]
    pub fn new(tip: Tip, sure: bool, above: u64) -> Self {
        Self { tip, above, at: 0, size: 0, sure }
    }

    /// Use a journal of this size, whose whole content is in the tree; 0 means no journal.
    pub fn set_journal_size(&mut self, size: usize) {
        (self.at, self.size) = (0, size);
    }

    /// What the next record follows from.
    #[must_use]
    pub fn tip(&self) -> Tip {
        self.tip
    }

    /// The number of the next batch.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.tip.number.max(self.above).saturating_add(1)
    }

    /// The next step for a batch whose record has this many bytes. `waits` says that something is
    /// not in the tree yet.
    #[must_use]
    pub fn step(&self, record: Option<usize>, waits: bool) -> JournalStep {
        match record {
            Some(bytes) if self.sure && bytes <= self.size.saturating_sub(self.at) => {
                JournalStep::Append { at: self.at }
            }
            _ if waits => JournalStep::Settle,
            _ => JournalStep::Direct,
        }
    }

    /// Note that a record of this many bytes is durable.
    pub fn note_append(&mut self, tip: Tip, bytes: usize) {
        self.tip = tip;
        self.at = self.at.saturating_add(bytes);
    }

    /// Note that writing the record of `number` failed; it may be there all the same. The journal
    /// is not used until everything is in the tree and it is written anew.
    pub fn note_append_failure(&mut self, number: u64) {
        self.tip.number = number;
        self.set_journal_size(0);
    }

    /// The end of the tree when it holds everything up to `number`. `chain` was never used before.
    #[must_use]
    pub fn tip_in_tree(&self, number: u64, chain: u128) -> Tip {
        self.tip.after_commit(number, chain)
    }

    /// Note that the tree holds everything and ends with `tip`.
    pub fn note_tree_commit(&mut self, tip: Tip) {
        (self.tip, self.at, self.sure) = (tip, 0, true);
    }

    /// Break the chain: nothing that is written from here on follows from what is there now, so the
    /// next batch goes to the tree.
    pub fn break_off(&mut self) {
        self.sure = false;
    }

    /// Note that a commit of the tree failed that was to end with `number`; it may have been made
    /// all the same.
    pub fn note_tree_failure(&mut self, number: u64) {
        self.tip.number = number;
        self.sure = false;
    }
}
