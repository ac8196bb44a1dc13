//! The last visible changes, in their order, for those who follow each of them. Pure.
//!
//! ```text
//! tables: note ─► step ─► owner: ChangeLog::add ─► index grows ─► followers: ChangeLog::after(position)
//!                                    │ full: the oldest go, and who did not read them is told so
//! ```
//! Only what changed is kept, not how it was: a follower looks at what is there when it reads.

use std::collections::VecDeque;

use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::CHANGES_KEPT_MAX;
use ostler_model::scheduling::NodeEventKind;

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOf {
    /// A job: a new version, stopped, removed, or other places of it wait. Was it stopped then, or gone?
    Job(JobId, bool),
    /// An allocation.
    Alloc(AllocId),
    /// A deployment of a job.
    Deployment(JobId, Box<str>),
    /// The node.
    Node(NodeEventKind),
}

/// A visible change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedChange {
    /// The index from which it is visible.
    pub index: u64,
    /// What changed.
    pub of: ChangeOf,
}

/// What a follower gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesSeen {
    /// The changes, oldest first.
    pub changes: Vec<NotedChange>,
    /// Where to go on.
    pub position: u64,
    /// So many changes before these are gone: they came faster than they were read.
    pub missed: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    kept: VecDeque<NotedChange>,
    /// Position of the first one that is kept.
    first: u64,
}

impl ChangeLog {
    pub(crate) fn add(&mut self, changes: Vec<NotedChange>) {
        self.kept.extend(changes);
        let over = self.kept.len().saturating_sub(CHANGES_KEPT_MAX);
        self.kept.drain(..over);
        self.first = self.first.saturating_add(u64::try_from(over).unwrap_or(u64::MAX));
    }

    /// The position of the first change that is kept of those after an index.
    pub(crate) fn position_after(&self, index: u64) -> u64 {
        let before = self.kept.iter().take_while(|change| change.index <= index).count();
        self.first.saturating_add(u64::try_from(before).unwrap_or(u64::MAX))
    }

    /// At most `most` changes from a position on.
    pub(crate) fn after(&self, position: u64, most: usize) -> ChangesSeen {
        let missed = self.first.saturating_sub(position);
        let from = usize::try_from(position.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let changes: Vec<_> = self.kept.iter().skip(from).take(most).cloned().collect();
        let read = u64::try_from(changes.len()).unwrap_or(u64::MAX);
        let position = position.max(self.first).saturating_add(read);
        ChangesSeen { changes, position, missed }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn change(index: u64) -> NotedChange {
        NotedChange { index, of: ChangeOf::Job(JobId::new("web").unwrap(), false) }
    }

    fn indexes(seen: &ChangesSeen) -> Vec<u64> {
        seen.changes.iter().map(|change| change.index).collect()
    }

    #[test]
    fn a_follower_reads_each_change_once_from_where_it_began() {
        let mut log = ChangeLog::default();
        log.add(vec![change(5), change(5), change(7)]);
        let begin = log.position_after(4);
        let first = log.after(begin, 2);
        assert_eq!((indexes(&first), first.missed), (vec![5, 5], 0));
        let rest = log.after(first.position, 2);
        assert_eq!(indexes(&rest), [7]);
        assert_eq!(indexes(&log.after(log.position_after(5), 9)), [7]);
        let end = log.after(log.position_after(7), 9);
        assert_eq!(end.changes, []);
        log.add(vec![change(8)]);
        assert_eq!(indexes(&log.after(end.position, 9)), [8]);
    }

    #[test]
    fn who_reads_too_slowly_hears_how_many_are_gone() {
        let mut log = ChangeLog::default();
        let begin = log.position_after(0);
        let many = u64::try_from(CHANGES_KEPT_MAX).unwrap() + 3;
        log.add((1..=many).map(change).collect());
        let seen = log.after(begin, 2);
        assert_eq!((indexes(&seen), seen.missed), (vec![4, 5], 3));
        let next = log.after(seen.position, 1);
        assert_eq!((indexes(&next), next.missed), (vec![6], 0));
    }
}
