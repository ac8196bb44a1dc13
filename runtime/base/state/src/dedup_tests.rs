//! Tests the decision against a model that knows what is really durable.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use crate::keys::{KeyPrefix, RecordKey};
use ostler_model::ids::TaskName;
use proptest::prelude::*;
use std::collections::HashMap;

fn id(n: u8) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(u128::from(n)))
}

fn key(n: u8) -> RecordKey {
    let alloc = id(n % 2);
    match n % 6 {
        0 | 1 => RecordKey::Alloc(alloc),
        2 | 3 => RecordKey::AllocState(alloc),
        _ => RecordKey::TaskState(alloc, TaskName::new("web").unwrap()),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        content: u8,
    },
    Delete {
        key: u8,
    },
    Destroy {
        alloc: u8,
    },
    /// End the oldest `count` changes on their way as one batch.
    Commit {
        count: usize,
        applied: bool,
        reported: bool,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u8..6, 0u8..3).prop_map(|(key, content)| Step::Put { key, content }),
        1 => (0u8..6).prop_map(|key| Step::Delete { key }),
        1 => (0u8..2).prop_map(|alloc| Step::Destroy { alloc }),
        6 => (1usize..4, prop::bool::weighted(0.8), prop::bool::weighted(0.8))
            // What is reported as committed was applied. What is reported as failed may have been
            // applied.
            .prop_map(|(count, applied, ok)| Step::Commit { count, applied, reported: applied && ok }),
    ]
}

#[derive(Clone)]
enum Change {
    Put(Vec<u8>, u8),
    Delete(Vec<u8>),
    Destroy(Vec<u8>),
}

#[derive(Default)]
struct Model {
    durable: HashMap<Vec<u8>, u8>,
    queue: VecDeque<Change>,
    /// Keys whose last change did not end with a failure.
    certain: HashMap<Vec<u8>, u8>,
    destroyed: Vec<AllocId>,
}

impl Model {
    fn busy(&self, key: &[u8]) -> bool {
        self.queue.iter().any(|change| match change {
            Change::Put(k, _) | Change::Delete(k) => k == key,
            Change::Destroy(prefix) => key.starts_with(prefix),
        })
    }

    fn end(&mut self, dedup: &mut Dedup, count: usize, applied: bool, reported: bool) {
        for _ in 0..count {
            let Some(change) = self.queue.pop_front() else {
                return;
            };
            match change {
                Change::Put(k, content) => {
                    if applied {
                        self.durable.insert(k.clone(), content);
                    }
                    self.certain.remove(&k);
                    if reported {
                        self.certain.insert(k.clone(), content);
                    }
                    let digest = ValueDigest::from_unsealed(&[content]);
                    dedup.finish(
                        &k,
                        if reported { WriteEnd::Put(digest) } else { WriteEnd::Unknown },
                    );
                }
                Change::Delete(k) => {
                    if applied {
                        self.durable.remove(&k);
                    }
                    self.certain.remove(&k);
                    dedup.finish(&k, if reported { WriteEnd::Removed } else { WriteEnd::Unknown });
                }
                Change::Destroy(prefix) => {
                    if applied {
                        self.durable.retain(|k, _| !k.starts_with(&prefix));
                    }
                    self.certain.retain(|k, _| !k.starts_with(&prefix));
                    dedup.forget_prefix(&prefix);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nothing_is_skipped_that_is_not_durable_and_nothing_is_written_that_surely_is(
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let (mut dedup, mut model) = (Dedup::default(), Model::default());
        for step in steps {
            match step {
                Step::Put { key: n, content } => {
                    let (key, alloc) = (key(n).encode(), key(n).alloc());
                    let decision = dedup.decide(&key, ValueDigest::from_unsealed(&[content]));
                    let destroyed = model.destroyed.contains(&alloc.unwrap());
                    prop_assert_eq!(decision == WriteDecision::Destroyed, destroyed);
                    if destroyed {
                        continue;
                    }
                    let sure = !model.busy(&key) && model.certain.get(&key) == Some(&content);
                    prop_assert_eq!(decision == WriteDecision::Unchanged, sure);
                    if decision == WriteDecision::Unchanged {
                        prop_assert_eq!(model.durable.get(&key), Some(&content));
                    } else {
                        dedup.begin_write(&key);
                        model.queue.push_back(Change::Put(key, content));
                    }
                }
                Step::Delete { key: n } => {
                    let key = key(n).encode();
                    dedup.begin_write(&key);
                    model.queue.push_back(Change::Delete(key));
                }
                Step::Destroy { alloc } => {
                    dedup.destroy(id(alloc));
                    model.destroyed.push(id(alloc));
                    model.queue.push_back(Change::Destroy(KeyPrefix::Alloc(id(alloc)).encode()));
                }
                Step::Commit { count, applied, reported } => {
                    model.end(&mut dedup, count, applied, reported);
                }
            }
        }
        model.end(&mut dedup, usize::MAX, true, true);
        prop_assert_eq!(dedup.len(), model.certain.len(), "nothing is remembered without use");
    }
}

#[test]
fn a_key_with_another_value_on_its_way_is_never_unchanged() {
    let mut dedup = Dedup::default();
    let (a, b) = (ValueDigest::from_unsealed(b"a"), ValueDigest::from_unsealed(b"b"));
    dedup.warm(b"k", a);
    assert_eq!(dedup.decide(b"k", a), WriteDecision::Unchanged);
    dedup.begin_write(b"k");
    assert_eq!(dedup.decide(b"k", a), WriteDecision::Write, "b is on its way");
    dedup.finish(b"k", WriteEnd::Put(b));
    assert_eq!(dedup.decide(b"k", a), WriteDecision::Write);
    assert_eq!(dedup.decide(b"k", b), WriteDecision::Unchanged);
}

#[test]
fn the_oldest_tombstone_goes_when_there_are_too_many() {
    let mut dedup = Dedup::default();
    let tomb = |n: usize| AllocId::new(uuid::Uuid::from_u128(u128::try_from(n).unwrap()));
    for n in 0..=TOMBSTONES_MAX {
        dedup.destroy(tomb(n));
        dedup.destroy(tomb(n));
    }
    let digest = ValueDigest::from_unsealed(b"");
    let decide = |n| dedup.decide(&RecordKey::Alloc(tomb(n)).encode(), digest);
    assert_eq!(decide(0), WriteDecision::Write);
    assert_eq!(decide(1), WriteDecision::Destroyed);
    assert_eq!(decide(TOMBSTONES_MAX), WriteDecision::Destroyed);
}
