//! The index of a list. It grows when an entry is changed, added or removed.
//!
//! An entry that is changed or added has an index of its own. A removed one has none any more, so
//! the ids of the last reading are kept: when one is missing, the index of the list is at least
//! that of the agent at that time. All indices are at least that of the agent at its start, which
//! is above all indices of earlier agents, so that a client of an earlier agent is answered at
//! once.

use std::collections::BTreeSet;

/// The last reading of one list.
#[derive(Debug)]
pub(super) struct ListIndex<K> {
    seen: BTreeSet<K>,
    floor: u64,
}

/// One reading of a list.
pub(super) struct ListReading<K> {
    /// The agent's index before the list was read.
    pub before: u64,
    /// The agent's index after the list was read.
    pub after: u64,
    /// The ids of all entries.
    pub ids: BTreeSet<K>,
    /// The highest index of an entry; 0 if the list is empty.
    pub newest: u64,
}

impl<K: Ord> ListIndex<K> {
    /// The index of a list that was never read, when the agent is at `index`.
    pub(super) const fn new(index: u64) -> Self {
        Self { seen: BTreeSet::new(), floor: index }
    }

    /// The index of the list. A reading during which the agent changed is not remembered: nobody
    /// can tell whether a missing entry was removed before or after the change, and the list is
    /// read again because of the change anyway.
    pub(super) fn index(&mut self, reading: ListReading<K>) -> u64 {
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

    fn still(index: u64, ids: &[u8], newest: u64) -> ListReading<u8> {
        ListReading { before: index, after: index, ids: ids.iter().copied().collect(), newest }
    }

    #[test]
    fn what_changes_comes_or_goes_raises_the_index() {
        let mut table = ListIndex::new(10);
        assert_eq!(table.index(still(10, &[], 0)), 10, "an empty list is as old as the agent");
        assert_eq!(table.index(still(12, &[1, 2], 12)), 12);
        assert_eq!(table.index(still(15, &[1, 2], 12)), 12, "other things changed");
        assert_eq!(table.index(still(16, &[1, 2], 16)), 16);
        assert_eq!(table.index(still(18, &[1], 9)), 18, "one went");
        assert_eq!(table.index(still(20, &[1], 9)), 18, "and is not gone anew each time");
    }

    #[test]
    fn a_list_read_during_a_change_does_not_hide_what_went() {
        let mut table = ListIndex::new(1);
        table.index(still(5, &[1, 2], 5));
        let torn = ListReading { before: 5, after: 6, ids: BTreeSet::from([1]), newest: 5 };
        assert_eq!(table.index(torn), 5, "an index beyond the reading would hide later changes");
        assert_eq!(table.index(still(6, &[1], 5)), 6);
    }
}
