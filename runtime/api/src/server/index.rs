//! The index of a list: grows when something in it changes, comes or goes.
//!
//! What changes or comes has an index of its own. What goes has none any more, so the ids seen last
//! are kept: when one is missing, the list's index is at least the agent's at that time. All
//! indices are at least the agent's at its start, above any that an earlier agent gave out, so that
//! a client of that one is answered at once.

use std::collections::BTreeSet;

/// What was last seen of one list.
#[derive(Debug)]
pub(super) struct Table<K> {
    seen: BTreeSet<K>,
    floor: u64,
}

/// A list as it was read.
pub(super) struct Reading<K> {
    /// The agent's index before the list was read.
    pub before: u64,
    /// And after.
    pub after: u64,
    /// Every id.
    pub ids: BTreeSet<K>,
    /// Highest index of anything in it; 0 when it is empty.
    pub newest: u64,
}

impl<K: Ord> Table<K> {
    /// A list never read, at an agent that is at `index`.
    pub(super) const fn new(index: u64) -> Self {
        Self { seen: BTreeSet::new(), floor: index }
    }

    /// The list's index. A list read while the agent changed is not learnt from: whether what is
    /// missing went before or after the change cannot be told, and it is read again for the change.
    pub(super) fn index(&mut self, reading: Reading<K>) -> u64 {
        if reading.before == reading.after {
            if !self.seen.is_subset(&reading.ids) {
                self.floor = self.floor.max(reading.before);
            }
            self.seen = reading.ids;
        }
        self.floor.max(reading.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn still(index: u64, ids: &[u8], newest: u64) -> Reading<u8> {
        Reading { before: index, after: index, ids: ids.iter().copied().collect(), newest }
    }

    #[test]
    fn what_changes_comes_or_goes_raises_the_index() {
        let mut table = Table::new(10);
        assert_eq!(table.index(still(10, &[], 0)), 10, "an empty list is as old as the agent");
        assert_eq!(table.index(still(12, &[1, 2], 12)), 12);
        assert_eq!(table.index(still(15, &[1, 2], 12)), 12, "other things changed");
        assert_eq!(table.index(still(16, &[1, 2], 16)), 16);
        assert_eq!(table.index(still(18, &[1], 9)), 18, "one went");
        assert_eq!(table.index(still(20, &[1], 9)), 18, "and is not gone anew each time");
    }

    #[test]
    fn a_list_read_during_a_change_does_not_hide_what_went() {
        let mut table = Table::new(1);
        table.index(still(5, &[1, 2], 5));
        let torn = Reading { before: 5, after: 6, ids: BTreeSet::from([1]), newest: 5 };
        assert_eq!(table.index(torn), 5, "an index beyond the reading would hide later changes");
        assert_eq!(table.index(still(6, &[1], 5)), 6);
    }
}
