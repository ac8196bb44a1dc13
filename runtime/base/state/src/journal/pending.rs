//! The content of the journal, as a view over the tree. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

use crate::backend::{Op, Visit, prefix_bounds};

/// The effect of all changes that are not in the tree yet.
#[derive(Debug, Default)]
pub struct PendingChanges {
    /// Prefixes under which nothing of the tree counts. None of them begins with another one.
    gone: BTreeSet<Box<[u8]>>,
    /// The records that changed; `None` means that the record was removed.
    records: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
}

impl PendingChanges {
    /// Whether no changes wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.records.is_empty()
    }

    /// Forget all changes, because they are in the tree.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Add another change. A change that puts a record into quarantine never comes here, because
    /// its effect depends on the tree.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Put { key, value } => drop(self.records.insert(key.clone(), Some(value.clone()))),
            Op::Delete { key } | Op::Quarantine { key } => {
                self.records.insert(key.clone(), None);
            }
            Op::DeletePrefix { prefix } => {
                let within = || prefix_bounds_boxed(prefix);
                self.records.extract_if(within(), |_, _| true).for_each(drop);
                if !self.hides(prefix) {
                    self.gone.extract_if(within(), |_| true).for_each(drop);
                    self.gone.insert(prefix.clone());
                }
            }
        }
    }

    /// The changes that bring the tree to the present state.
    #[must_use]
    pub fn changes(&self) -> Vec<Op> {
        let gone = self.gone.iter().map(|prefix| Op::DeletePrefix { prefix: prefix.clone() });
        let records = self.records.iter().map(|(key, value)| match value {
            Some(value) => Op::Put { key: key.clone(), value: value.clone() },
            None => Op::Delete { key: key.clone() },
        });
        gone.chain(records).collect()
    }

    /// What is known of a key without the tree. `Some(None)` means that there is no such record.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        match self.records.get(key) {
            Some(value) => Some(value.as_deref()),
            None => self.hides(key).then_some(None),
        }
    }

    fn hides(&self, key: &[u8]) -> bool {
        // Between a prefix of the key and the key there are only keys that begin with that prefix, and the set has none
        // of those.
        let upto = (Bound::Unbounded, Bound::Included(key));
        self.gone.range::<[u8], _>(upto).next_back().is_some_and(|prefix| key.starts_with(prefix))
    }

    /// Visit every record under `prefix`, in key order. `tree` visits the records of the tree.
    ///
    /// # Errors
    /// That of `tree`.
    pub fn scan<E>(
        &self,
        prefix: &[u8],
        visit: Visit<'_>,
        tree: impl FnOnce(Visit<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ours = self.records.range(prefix_bounds_boxed(prefix)).peekable();
        let mut ended = ControlFlow::Continue(());
        tree(&mut |key, value| {
            while let Some((at, ours)) = ours.next_if(|(at, _)| ***at < *key) {
                if let Some(value) = ours {
                    ended = visit(at, value);
                }
                if ended.is_break() {
                    return ended;
                }
            }
            ended = match ours.next_if(|(at, _)| ***at == *key) {
                Some((_, Some(value))) => visit(key, value),
                Some((_, None)) => ControlFlow::Continue(()),
                None if self.hides(key) => ControlFlow::Continue(()),
                None => visit(key, value),
            };
            ended
        })?;
        for (key, value) in ours {
            if ended.is_break() {
                break;
            }
            if let Some(value) = value {
                ended = visit(key, value);
            }
        }
        Ok(())
    }
}

type KeyBounds = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);

fn prefix_bounds_boxed(prefix: &[u8]) -> KeyBounds {
    let (from, to) = prefix_bounds(prefix);
    (from.map(Vec::into_boxed_slice), to.map(Vec::into_boxed_slice))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_removed_prefix_hides_what_begins_with_it_whatever_was_removed_before_and_after(
            prefixes in vec(vec(0..3_u8, 1..5), 0..12),
            keys in vec(vec(0..3_u8, 0..7), 0..40),
        ) {
            let mut pending = PendingChanges::default();
            for key in &keys {
                pending.apply(&Op::Put { key: key.as_slice().into(), value: [1].into() });
            }
            for prefix in &prefixes {
                pending.apply(&Op::DeletePrefix { prefix: prefix.as_slice().into() });
            }
            for key in &keys {
                let gone = prefixes.iter().any(|prefix| key.starts_with(prefix));
                let known = pending.get(key);
                prop_assert_eq!(known, if gone { Some(None) } else { Some(Some([1].as_slice())) });
            }
        }
    }
}
