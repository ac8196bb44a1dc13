//! Models the contents that a store may have, after any mixture of acknowledged and failed changes.
//!
//! An acknowledged batch changes every possible content, and a failed one makes two of each. So an
//! acknowledged write that is missing, a batch that is there by half, and a write that was skipped
//! wrongly all end in a content that is not in the set.

use std::collections::BTreeSet;

use super::*;
use crate::testing::decode_any;
use crate::{KeyPrefix, PutOutcome, StateError};
use tokio::task::JoinHandle;

/// The number of keys.
pub const KEYS: usize = 13;
/// The number of the key whose values make the file grow.
pub const LARGE: usize = 12;
/// The versions of a value go from 1 to this.
const VERSIONS_MAX: u16 = 6;

/// Keys 0 to 3 belong to allocation 1, 4 to 7 to allocation 2.
pub fn key(n: usize) -> RecordKey {
    let alloc = id(1 + (n / 4) as u128);
    match n {
        0 | 4 | 8 => RecordKey::Alloc(alloc),
        1 | 5 | 9 => RecordKey::AllocState(alloc),
        2 | 6 => RecordKey::TaskLocal(alloc, task("web")),
        3 | 7 => RecordKey::TaskState(alloc, task("web")),
        10 => RecordKey::DeviceLedger,
        11 => RecordKey::NodeRegistration,
        _ => RecordKey::PluginHandle(PluginName::new("large").unwrap()),
    }
}

/// The value of a key in a version. All values differ, and each can be recognised on every page
/// it covers.
pub fn value(n: usize, version: u16) -> String {
    let sizes = [40, 10_240, 300, 2_000, 5_000];
    let size = if n == LARGE { 540_000 } else { sizes[(n + usize::from(version)) % sizes.len()] };
    let mark = format!("{n}.{version} ");
    let mut value = mark.repeat(size / mark.len() + 1);
    value.truncate(size);
    value
}

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Put(usize, u16),
    Delete(usize),
    Destroy(u128),
    Quarantine(usize),
}

/// The version of each key, 0 if there is none. The last element has a bit for each key with a
/// record in quarantine, where a later record of a key takes the place of an earlier one.
pub type Content = [u16; KEYS + 1];

pub fn applied(mut content: Content, changes: &[Change]) -> Content {
    for change in changes {
        match *change {
            Change::Put(n, version) => content[n] = version,
            Change::Delete(n) => content[n] = 0,
            Change::Destroy(alloc) => {
                (0..KEYS)
                    .filter(|n| key(*n).alloc() == Some(id(alloc)))
                    .for_each(|n| content[n] = 0);
            }
            Change::Quarantine(n) => {
                content[KEYS] |= u16::from(content[n] != 0) << n;
                content[n] = 0;
            }
        }
    }
    content
}

/// The contents that the file may have.
pub struct Model {
    pub possible: BTreeSet<Content>,
    /// The contents that it may have had at any time.
    pub ever: BTreeSet<Content>,
    pub destroyed: BTreeSet<u128>,
    /// The changes that are queued to go with the next commit; they may go earlier.
    pub later: Vec<Change>,
}

/// An error says what is wrong.
pub type Check = Result<(), String>;

pub fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl Model {
    pub fn new() -> Self {
        let empty = BTreeSet::from([[0; KEYS + 1]]);
        Self { possible: empty.clone(), ever: empty, destroyed: BTreeSet::new(), later: Vec::new() }
    }

    /// Note that a write that may lag was accepted.
    pub fn queued(&mut self, n: usize, version: u16) {
        self.either(&[Change::Put(n, version)]);
        self.later.push(Change::Put(n, version));
    }

    /// Note that a batch was acknowledged or failed, as a whole.
    pub fn batch(&mut self, changes: &[Change], acknowledged: bool) {
        let all = [&self.later, changes].concat();
        self.either(&all);
        if acknowledged {
            self.possible = self.possible.iter().map(|c| applied(*c, &all)).collect();
            self.later.clear();
        } else {
            // They are tried again, unless something newer was in the same batch.
            self.outdated(changes);
        }
    }

    /// A lagging write is not tried again if one of these changes came after it.
    fn outdated(&mut self, newer: &[Change]) {
        let after = applied([9; KEYS + 1], newer);
        self.later.retain(|later| !matches!(later, Change::Put(n, _) if after[*n] != 9));
    }

    /// Note that these changes were made, or were not.
    pub fn either(&mut self, changes: &[Change]) {
        let after: BTreeSet<_> = self.possible.iter().map(|c| applied(*c, changes)).collect();
        self.ever.extend(&after);
        self.possible.extend(after);
    }

    /// Note the result of one change; `None` means that it failed.
    pub fn one(&mut self, change: Change, ended: Option<PutOutcome>) -> Check {
        match (change, ended) {
            (Change::Put(n, version), Some(PutOutcome::Unchanged)) => self.saw(n, version),
            (Change::Put(n, _), Some(PutOutcome::Destroyed)) => {
                let gone = self.destroyed.iter().any(|d| key(n).alloc() == Some(id(*d)));
                ensure(gone, || format!("{} was not destroyed", key(n)))
            }
            (change, ended) => {
                self.batch(&[change], ended.is_some());
                Ok(())
            }
        }
    }

    /// Note the results of changes made by [`together`].
    pub fn together(&mut self, changes: &[Change], ended: &[(Share, Option<PutOutcome>)]) -> Check {
        let of = |share| changes.iter().zip(ended).filter(move |(_, (s, _))| *s == share);
        for (change, (_, ended)) in of(Share::None) {
            ensure(ended.is_some(), || format!("{change:?} failed without a commit"))?;
            self.one(*change, *ended)?;
        }
        for share in [Share::First, Share::Rest] {
            let batch: Vec<Change> = of(share).map(|(change, _)| *change).collect();
            let good = of(share).filter(|(_, (_, ended))| ended.is_some()).count();
            ensure(good == 0 || good == batch.len(), || "a batch split".to_owned())?;
            if !batch.is_empty() {
                self.batch(&batch, good > 0);
            }
            if share == Share::First && good < batch.len() {
                let behind: Vec<Change> = of(Share::Rest).map(|(change, _)| *change).collect();
                self.outdated(&behind);
            }
        }
        Ok(())
    }

    /// Note that this content is there now, with this many records in quarantine. Lagging writes
    /// may come on top.
    pub fn found(&mut self, records: [u16; KEYS], in_quarantine: u64) -> Check {
        let is = |content: &Content| {
            content[..KEYS] == records && u64::from(content[KEYS].count_ones()) == in_quarantine
        };
        let found: BTreeSet<Content> = self.possible.iter().copied().filter(is).collect();
        ensure(!found.is_empty(), || {
            format!("holds {records:?} and {in_quarantine}, which is none of {:?}", self.possible)
        })?;
        self.possible = found;
        for later in self.later.clone() {
            self.either(&[later]);
        }
        Ok(())
    }

    /// Note that a change is about to be made: a destroy counts from its call on.
    pub fn announce(&mut self, change: Change) {
        if let Change::Destroy(alloc) = change {
            self.destroyed.insert(alloc);
        }
    }

    /// Note that the key was seen to hold this version.
    pub fn saw(&mut self, n: usize, version: u16) -> Check {
        self.possible.retain(|content| content[n] == version);
        ensure(!self.possible.is_empty(), || format!("{} cannot be version {version}", key(n)))
    }
}

/// The commit into which one of several changes at once went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// No commit, because the change was decided at once.
    None,
    /// A commit of its own.
    First,
    /// The commit after that, with all others.
    Rest,
}

/// Make changes at once and in this order, so that it is known into which commit each went.
pub async fn together(
    store: &StateStore,
    gate: &Arc<FaultyBackend>,
    changes: &[Change],
) -> Vec<(Share, Result<PutOutcome, StateError>)> {
    let (held, commits) = (gate.hold(), gate.commits());
    let mut calls: Vec<(Share, JoinHandle<_>)> = Vec::new();
    for change in changes.iter().copied() {
        let (store_of_task, queued) = (store.clone(), store.stats().queued);
        let call = tokio::spawn(async move { perform(&store_of_task, change).await });
        let first = gate.commits() == commits;
        let arrived =
            || if first { gate.commits() > commits } else { store.stats().queued > queued };
        until(|| arrived() || call.is_finished()).await;
        let share = match (call.is_finished(), first) {
            (true, _) => Share::None,
            (_, true) => Share::First,
            (_, false) => Share::Rest,
        };
        calls.push((share, call));
    }
    drop(held);
    let mut results = Vec::new();
    for (share, call) in calls {
        results.push((share, call.await.unwrap()));
    }
    results
}

pub async fn perform(store: &StateStore, change: Change) -> Result<PutOutcome, StateError> {
    match change {
        Change::Put(n, version) => store.put(&key(n), &value(n, version)).await,
        Change::Delete(n) => store.delete(&key(n)).await.map(|()| PutOutcome::Written),
        Change::Destroy(alloc) => {
            store.destroy_alloc(id(alloc)).await.map(|()| PutOutcome::Written)
        }
        Change::Quarantine(n) => store.quarantine(&key(n)).await.map(|()| PutOutcome::Written),
    }
}

pub fn version_of(n: usize, found: Option<&str>) -> Result<u16, String> {
    let Some(found) = found else { return Ok(0) };
    let whole = (1..=VERSIONS_MAX).find(|version| value(n, *version) == found);
    whole.ok_or_else(|| format!("{} holds what was never written", key(n)))
}

/// The records of the store by key. Each of them must be whole and known.
pub fn records(store: &StateStore) -> Result<[u16; KEYS], String> {
    let mut found = [0; KEYS];
    for record in store.scan(&KeyPrefix::All).map_err(|error| format!("{error:?}"))? {
        if matches!(record.key, RecordKey::Meta | RecordKey::Counters) {
            continue;
        }
        let n = (0..KEYS).find(|n| key(*n) == record.key);
        let n = n.ok_or_else(|| format!("{} was never written", record.key))?;
        let text: String = decode_any(&record).map_err(|error| format!("{error:?}"))?;
        found[n] = version_of(n, Some(&text))?;
    }
    Ok(found)
}
