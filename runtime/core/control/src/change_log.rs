//! The latest visible changes in their order, for followers that need each of them. Pure.
//!
//! ```text
//! tables: note ─► step ─► owner: add ─► index grows ─► followers: changes_after(position)
//!                              │ full: the oldest go, and followers that missed them are told
//! ```
//! Only the subject of a change is kept, not the state: a follower reads the present state.

use std::collections::VecDeque;

use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::CHANGES_KEPT_MAX;
use ostler_model::scheduling::NodeEventKind;

/// The subject of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeSubject {
    /// A job: a new version, a stop, a removal, or other places of it wait. The flag: the job was
    /// stopped or gone then.
    Job(JobId, bool),
    /// The allocation with this id.
    Alloc(AllocId),
    /// A deployment of a job.
    Deployment(JobId, Box<str>),
    /// The node; the kind of its event.
    Node(NodeEventKind),
}

/// A visible change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedChange {
    /// The index from which it is visible.
    pub index: u64,
    /// The thing that changed.
    pub of: ChangeSubject,
}

/// The changes that a follower reads at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeBatch {
    /// The changes, oldest first.
    pub changes: Vec<NotedChange>,
    /// The position to go on from.
    pub position: u64,
    /// Number of changes before these that are lost, because they came faster than they were read.
    pub missed: u64,
}

/// The kept changes. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    kept: VecDeque<NotedChange>,
    /// Position of the first change that is kept.
    first: u64,
}

impl ChangeLog {
    pub(crate) fn add(&mut self, changes: Vec<NotedChange>) {
        self.kept.extend(changes);
        let over = self.kept.len().saturating_sub(CHANGES_KEPT_MAX);
        self.kept.drain(..over);
        self.first = self.first.saturating_add(u64::try_from(over).unwrap_or(u64::MAX));
    }

    /// The position of the first kept change after an index.
    pub(crate) fn position_after(&self, index: u64) -> u64 {
        let before = self.kept.iter().take_while(|change| change.index <= index).count();
        self.first.saturating_add(u64::try_from(before).unwrap_or(u64::MAX))
    }

    /// At most `most` changes from a position on.
    pub(crate) fn changes_after(&self, position: u64, most: usize) -> ChangeBatch {
        let missed = self.first.saturating_sub(position);
        let from = usize::try_from(position.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let changes: Vec<_> = self.kept.iter().skip(from).take(most).cloned().collect();
        let read = u64::try_from(changes.len()).unwrap_or(u64::MAX);
        let position = position.max(self.first).saturating_add(read);
        ChangeBatch { changes, position, missed }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn change(index: u64) -> NotedChange {
        NotedChange { index, of: ChangeSubject::Job(JobId::new("web").unwrap(), false) }
    }

    fn indexes(seen: &ChangeBatch) -> Vec<u64> {
        seen.changes.iter().map(|change| change.index).collect()
    }

    #[test]
    fn a_follower_reads_each_change_once_from_where_it_began() {
        let mut log = ChangeLog::default();
        log.add(vec![change(5), change(5), change(7)]);
        let begin = log.position_after(4);
        let first = log.changes_after(begin, 2);
        assert_eq!((indexes(&first), first.missed), (vec![5, 5], 0));
        let rest = log.changes_after(first.position, 2);
        assert_eq!(indexes(&rest), [7]);
        assert_eq!(indexes(&log.changes_after(log.position_after(5), 9)), [7]);
        let end = log.changes_after(log.position_after(7), 9);
        assert_eq!(end.changes, []);
        log.add(vec![change(8)]);
        assert_eq!(indexes(&log.changes_after(end.position, 9)), [8]);
    }

    #[test]
    fn who_reads_too_slowly_hears_how_many_are_gone() {
        let mut log = ChangeLog::default();
        let begin = log.position_after(0);
        let many = u64::try_from(CHANGES_KEPT_MAX).unwrap() + 3;
        log.add((1..=many).map(change).collect());
        let seen = log.changes_after(begin, 2);
        assert_eq!((indexes(&seen), seen.missed), (vec![4, 5], 3));
        let next = log.changes_after(seen.position, 1);
        assert_eq!((indexes(&next), next.missed), (vec![6], 0));
    }
}
