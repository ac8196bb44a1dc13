//! The table of the variables, and the decisions about changes. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::VariableError;
use ostler_model::limits::{VARS_BYTES_MAX, VARS_MAX};
use ostler_model::time::Timestamp;
use ostler_model::vars::{self, Items, VarKey, VarList, Variable};

/// A change that is asked for.
#[derive(Clone, Debug)]
pub(super) enum VariableChange {
    Put(VarKey, Items),
    Delete(VarKey),
}

impl VariableChange {
    fn key(&self) -> &VarKey {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// What is to be written, and becomes true then.
#[derive(Clone, Debug)]
pub(super) enum VariableDecision {
    Put(Arc<Variable>),
    Delete(VarKey, u64),
    /// Nothing, because the variable is as asked already; the present index.
    Nothing(u64),
}

/// The variables of a node, by key.
#[derive(Debug, Default)]
pub(super) struct VariableTable {
    all: BTreeMap<VarKey, Arc<Variable>>,
    bytes: usize,
    index: u64,
}

fn weight(variable: &Variable) -> usize {
    let named = variable.path.as_str().len().saturating_add(variable.namespace.as_str().len());
    named.saturating_add(vars::items_size(&variable.items))
}

impl VariableTable {
    /// A table of these variables, whose index is at least `index`.
    pub(super) fn new(index: u64, all: impl IntoIterator<Item = Variable>) -> Self {
        let mut table = Self { index, ..Self::default() };
        for variable in all {
            table.index = table.index.max(variable.modify_index);
            table.insert(Arc::new(variable));
        }
        table
    }

    fn insert(&mut self, variable: Arc<Variable>) {
        let weight_now = weight(&variable);
        let before = self.all.insert(variable.key(), variable);
        let freed = before.as_deref().map_or(0, weight);
        self.bytes = self.bytes.saturating_sub(freed).saturating_add(weight_now);
    }

    pub(super) const fn index(&self) -> u64 {
        self.index
    }

    pub(super) fn get(&self, key: &VarKey) -> Option<Arc<Variable>> {
        self.all.get(key).cloned()
    }

    pub(super) fn list(&self, namespace: Option<&str>, prefix: &str) -> VarList {
        let such = |of: &&Arc<Variable>| {
            namespace.is_none_or(|named| of.namespace.as_str() == named)
                && of.path.as_str().starts_with(prefix)
        };
        VarList { index: self.index, found: self.all.values().filter(such).cloned().collect() }
    }

    /// Decide a change. `cas`: only while the variable has this index; 0: while there is none.
    pub(super) fn decide(
        &self,
        change: VariableChange,
        cas: Option<u64>,
        now: Timestamp,
    ) -> Result<VariableDecision, VariableError> {
        let present = self.all.get(change.key());
        let index = present.map_or(0, |present| present.modify_index);
        if let Some(asked) = cas.filter(|asked| *asked != index) {
            let (key, present) = (change.key().clone(), present.cloned());
            return Err(VariableError::Conflict { key, asked, index, present });
        }
        let index = self.index.saturating_add(1);
        let (key, items) = match change {
            VariableChange::Put(key, items) => (key, items),
            VariableChange::Delete(key) if present.is_some() => {
                return Ok(VariableDecision::Delete(key, index));
            }
            VariableChange::Delete(_) => return Ok(VariableDecision::Nothing(self.index)),
        };
        let new = Variable {
            namespace: key.namespace,
            path: key.path,
            items: vars::check_items(items)?,
            create_index: present.map_or(index, |present| present.create_index),
            modify_index: index,
            created: present.map_or(now, |present| present.created),
            modified: now,
        };
        if present.is_none() && self.all.len() >= VARS_MAX {
            return Err(VariableError::TooMany);
        }
        let freed = present.map_or(0, |present| weight(present));
        let bytes = self.bytes.saturating_sub(freed).saturating_add(weight(&new));
        // A change that makes a variable smaller is accepted, however full the table is.
        if bytes > VARS_BYTES_MAX && bytes > self.bytes {
            return Err(VariableError::TooLarge);
        }
        Ok(VariableDecision::Put(Arc::new(new)))
    }

    /// Enter a change that is on disk now.
    pub(super) fn apply(&mut self, decided: &VariableDecision) {
        match decided {
            VariableDecision::Put(variable) => {
                self.index = self.index.max(variable.modify_index);
                self.insert(Arc::clone(variable));
            }
            VariableDecision::Delete(key, index) => {
                self.index = self.index.max(*index);
                if let Some(gone) = self.all.remove(key) {
                    self.bytes = self.bytes.saturating_sub(weight(&gone));
                }
            }
            VariableDecision::Nothing(_) => {}
        }
    }
}

impl VariableTable {
    /// Leave out a change that is not on disk. Its index is not given out again, because the disk
    /// may still get it.
    pub(super) fn skip(&mut self, decided: &VariableDecision) {
        let index = match decided {
            VariableDecision::Put(variable) => variable.modify_index,
            VariableDecision::Delete(_, index) | VariableDecision::Nothing(index) => *index,
        };
        self.index = self.index.max(index);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use proptest::prelude::*;

    use super::*;
    use ostler_model::limits::VAR_BYTES_MAX;
    use ostler_model::vars::Secret;

    fn key(path: &str) -> VarKey {
        VarKey::new("default", path).unwrap()
    }

    fn put(path: &str, text: &str) -> VariableChange {
        VariableChange::Put(key(path), Items::from([("k".to_owned(), Secret::new(text))]))
    }

    fn at(second: u64) -> Timestamp {
        Timestamp::from_nanos(second * 1_000_000_000)
    }

    /// Decide and apply.
    fn done(
        table: &mut VariableTable,
        change: VariableChange,
        cas: Option<u64>,
    ) -> Result<VariableDecision, VariableError> {
        let decided = table.decide(change, cas, at(table.index()))?;
        table.apply(&decided);
        Ok(decided)
    }

    #[test]
    fn a_variable_keeps_when_it_came_and_each_write_has_a_new_index() {
        let mut table = VariableTable::new(10, []);
        done(&mut table, put("a", "1"), None).unwrap();
        done(&mut table, put("a", "2"), None).unwrap();
        let found = table.get(&key("a")).unwrap();
        assert_eq!((found.create_index, found.modify_index), (11, 12));
        assert_eq!((found.created, found.modified), (at(10), at(11)));
        assert_eq!(table.index(), 12);
    }

    #[test]
    fn a_write_for_another_index_is_refused_with_what_is_there() {
        let mut table = VariableTable::new(0, []);
        done(&mut table, put("a", "1"), Some(0)).unwrap();
        for (change, asked) in
            [(put("a", "2"), 0), (put("a", "2"), 7), (VariableChange::Delete(key("a")), 2)]
        {
            match done(&mut table, change, Some(asked)) {
                Err(VariableError::Conflict { index: 1, present: Some(present), .. }) => {
                    assert_eq!(present.items["k"].reveal(), "1");
                }
                other => panic!("{other:?}"),
            }
        }
        let none = done(&mut table, put("b", "1"), Some(1));
        assert!(matches!(none, Err(VariableError::Conflict { index: 0, present: None, .. })));
        assert_eq!(table.index(), 1, "nothing was changed");
        done(&mut table, put("a", "2"), Some(1)).unwrap();
        done(&mut table, VariableChange::Delete(key("a")), Some(2)).unwrap();
        done(&mut table, put("a", "3"), Some(0)).unwrap();
        assert_eq!(table.get(&key("a")).unwrap().create_index, 4, "no index comes twice");
    }

    #[test]
    fn removing_what_is_not_there_is_no_change() {
        let mut table = VariableTable::new(5, []);
        let done = done(&mut table, VariableChange::Delete(key("a")), None).unwrap();
        assert!(matches!(done, VariableDecision::Nothing(5)));
    }

    #[test]
    fn lists_are_by_prefix_and_namespace() {
        let mut table = VariableTable::new(0, []);
        for path in ["a/b", "a/c", "ab", "b"] {
            done(&mut table, put(path, "1"), None).unwrap();
        }
        let other = VarKey::new("other", "a/x").unwrap();
        let items = Items::from([("k".to_owned(), Secret::default())]);
        done(&mut table, VariableChange::Put(other, items), None).unwrap();
        let paths = |namespace, prefix| {
            let found = table.list(namespace, prefix).found;
            found.iter().map(|of| of.path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths(Some("default"), "a/"), ["a/b", "a/c"]);
        assert_eq!(paths(None, "a/"), ["a/b", "a/c", "a/x"]);
        assert_eq!(paths(Some("default"), ""), ["a/b", "a/c", "ab", "b"]);
        assert!(paths(Some("none"), "").is_empty());
    }

    #[test]
    fn the_whole_is_bounded_in_number_and_in_bytes() {
        let full = |number: usize, text: &str| {
            let mut table = VariableTable::new(0, []);
            for number in 0..number {
                done(&mut table, put(&format!("v{number}"), text), None).unwrap();
            }
            table
        };
        let mut many = full(VARS_MAX, "");
        assert!(matches!(done(&mut many, put("one-more", ""), None), Err(VariableError::TooMany)));
        done(&mut many, put("v1", "another value"), None).unwrap();
        let largest = "x".repeat(VAR_BYTES_MAX - 1);
        let each = weight(&Variable {
            path: key("v100").path,
            ..(*full(1, &largest).get(&key("v0")).unwrap()).clone()
        });
        let mut large = full(VARS_BYTES_MAX / each, &largest);
        assert!(matches!(
            done(&mut large, put("one-more", &largest), None),
            Err(VariableError::TooLarge)
        ));
        done(&mut large, put("v1", "smaller"), None).unwrap();
        done(&mut large, VariableChange::Delete(key("v2")), None).unwrap();
        done(&mut large, put("one-more", &largest), None).unwrap();
    }

    proptest! {
        #[test]
        fn bytes_are_counted_whatever_happens(
            steps in prop::collection::vec((0..3_u8, "[ab]{1,2}", ".{0,8}"), 0..40),
        ) {
            let mut table = VariableTable::new(0, []);
            for (what, path, text) in steps {
                let change = if what == 0 { VariableChange::Delete(key(&path)) } else { put(&path, &text) };
                let before = table.index();
                let decided = done(&mut table, change, None).unwrap();
                prop_assert_eq!(table.index() > before, !matches!(decided, VariableDecision::Nothing(_)));
                prop_assert_eq!(table.bytes, table.all.values().map(|of| weight(of)).sum::<usize>());
            }
            let again = VariableTable::new(0, table.all.values().map(|of| (**of).clone()));
            prop_assert_eq!(again.bytes, table.bytes);
        }
    }
}
