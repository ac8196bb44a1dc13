//! The allocations that the servers want on this node, from their answers. Pure.
//!
//! ```text
//! Node.GetClientAllocs ─► apply_list ─┬─► pull: those with a newer index ─► Alloc.GetAllocs
//!                                     └─► gone: known here, and not wanted any more
//! ```
//! A follower that lags may answer with an older state. So an answer that is no newer than the last
//! one is ignored, and an allocation that is older than in the list is pulled again.

use std::collections::{BTreeMap, BTreeSet};

use ostler_model::ids::AllocId;

/// What must be done after an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedAllocs {
    /// The allocations to pull.
    pub pull: Vec<AllocId>,
    /// The index that a server must have to know all of them.
    pub min_index: u64,
    /// The allocations to stop and forget.
    pub gone: Vec<AllocId>,
}

/// The allocations that the servers want; see the module.
#[derive(Clone, Debug, Default)]
pub struct WantedAllocs {
    index: u64,
    wanted: BTreeMap<AllocId, u64>,
    /// The index of the copy that was carried out, by allocation.
    done: BTreeMap<AllocId, u64>,
}

impl WantedAllocs {
    /// The index of the newest answer; the next question waits for a higher one. Zero before the
    /// first answer.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Apply an answer: every allocation of the node, with the index of its last change. `here` has
    /// those that servers placed and this node knows. `None` if the answer is no newer than the
    /// last one.
    pub fn apply_list(
        &mut self,
        index: u64,
        wanted: BTreeMap<AllocId, u64>,
        here: &BTreeSet<AllocId>,
    ) -> Option<ListedAllocs> {
        if index == self.index {
            // Servers forget allocations without a change of the index. A forgotten allocation
            // cannot be pulled.
            self.wanted.retain(|id, index| match (wanted.contains_key(id), self.done.get(id)) {
                (true, _) => true,
                (false, Some(done)) => {
                    *index = (*index).min(*done);
                    true
                }
                (false, None) => false,
            });
        }
        if index <= self.index {
            return None;
        }
        self.index = index;
        self.done.retain(|id, _| wanted.contains_key(id));
        self.wanted = wanted;
        let gone = here.iter().filter(|id| !self.wanted.contains_key(id)).copied().collect();
        Some(ListedAllocs { gone, ..self.remaining_allocs() })
    }

    /// The allocations that are still to be pulled. It names none as gone.
    #[must_use]
    pub fn remaining_allocs(&self) -> ListedAllocs {
        let newer =
            |(id, index): &(&AllocId, &u64)| self.done.get(id).is_none_or(|done| done < *index);
        let news = || self.wanted.iter().filter(newer);
        let min_index = news().map(|(_, index)| *index).max().unwrap_or_default();
        ListedAllocs { pull: news().map(|(id, _)| *id).collect(), min_index, gone: Vec::new() }
    }

    /// Whether this copy of an allocation must be carried out.
    #[must_use]
    pub fn is_news(&self, id: AllocId, index: u64) -> bool {
        self.wanted.get(&id).is_some_and(|wanted| index >= *wanted)
            && self.done.get(&id).is_none_or(|done| *done < index)
    }

    /// The index of the last change of an allocation on the newest list.
    #[must_use]
    pub fn index_of(&self, id: AllocId) -> Option<u64> {
        self.wanted.get(&id).copied()
    }

    /// Whether the allocation is on the newest list.
    #[must_use]
    pub fn wants(&self, id: AllocId) -> bool {
        self.wanted.contains_key(&id)
    }

    /// Note that a copy of an allocation was carried out.
    pub fn mark_carried_out(&mut self, id: AllocId, index: u64) {
        if self.wanted.contains_key(&id) {
            self.done.insert(id, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use ostler_model::rng::Rng;
    use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn id(seed: u64) -> AllocId {
        AllocId::new(Rng::from_seed(seed).uuid())
    }

    fn ids<const N: usize>(all: [(u64, u64); N]) -> BTreeMap<AllocId, u64> {
        all.into_iter().map(|(seed, index)| (id(seed), index)).collect()
    }

    #[test]
    fn only_what_changed_is_pulled_and_what_is_not_listed_goes() {
        let (mut wanted, here) = (WantedAllocs::default(), BTreeSet::from([id(1), id(9)]));
        let first = wanted.apply_list(7, ids([(1, 5), (2, 7)]), &here).unwrap();
        assert_eq!((first.pull.len(), first.min_index), (2, 7));
        assert_eq!(first.gone, [id(9)]);
        wanted.mark_carried_out(id(1), 5);
        wanted.mark_carried_out(id(2), 7);
        let next = wanted.apply_list(8, ids([(1, 8), (2, 7)]), &here).unwrap();
        assert_eq!((next.pull, next.min_index), (vec![id(1)], 8));
    }

    #[test]
    fn an_older_answer_says_nothing() {
        let (mut wanted, here) = (WantedAllocs::default(), BTreeSet::from([id(1)]));
        wanted.apply_list(7, ids([(1, 5)]), &here).unwrap();
        wanted.mark_carried_out(id(1), 5);
        assert_eq!(wanted.apply_list(7, ids([]), &here), None);
        assert_eq!(wanted.apply_list(3, ids([]), &here), None, "of a server that was set back");
        assert!(wanted.wants(id(1)));
        assert_eq!(wanted.index(), 7);
    }

    #[test]
    fn what_the_servers_forgot_before_it_could_be_pulled_is_not_waited_for() {
        let mut wanted = WantedAllocs::default();
        wanted.apply_list(7, ids([(1, 5), (2, 7)]), &BTreeSet::new()).unwrap();
        wanted.mark_carried_out(id(1), 5);
        assert_eq!(wanted.apply_list(6, ids([]), &BTreeSet::new()), None);
        assert_eq!(wanted.remaining_allocs().pull, [id(2)], "an older answer says nothing");
        assert_eq!(wanted.apply_list(7, ids([(1, 5)]), &BTreeSet::new()), None);
        assert!(wanted.remaining_allocs().pull.is_empty() && wanted.wants(id(1)));
        wanted.apply_list(8, ids([(1, 8)]), &BTreeSet::from([id(1)])).unwrap();
        assert_eq!(wanted.apply_list(8, ids([]), &BTreeSet::from([id(1)])), None);
        assert!(
            wanted.remaining_allocs().pull.is_empty() && wanted.wants(id(1)),
            "its newer copy neither"
        );
    }

    #[test]
    fn a_copy_that_is_older_than_the_list_said_is_pulled_again() {
        let mut wanted = WantedAllocs::default();
        wanted.apply_list(7, ids([(1, 7)]), &BTreeSet::new()).unwrap();
        assert!(!wanted.is_news(id(1), 6));
        assert_eq!(wanted.remaining_allocs().pull, [id(1)]);
        assert!(wanted.is_news(id(1), 9), "a newer one than was asked for");
        wanted.mark_carried_out(id(1), 9);
        assert!(wanted.remaining_allocs().pull.is_empty());
        assert!(!wanted.is_news(id(2), 9), "nobody wants it");
    }

    proptest! {
        #[test]
        fn whatever_the_servers_answer_the_newest_is_carried_out(
            answers in prop::collection::vec((1_u64..30, prop::collection::btree_map((0_u64..5).prop_map(id), 1_u64..30, 0..5)), 1..20),
            late in prop::collection::vec(any::<bool>(), 60),
        ) {
            let mut wanted = WantedAllocs::default();
            let (mut newest, mut done) = ((0, BTreeMap::new()), BTreeMap::new());
            let mut late = late.into_iter();
            for (index, list) in answers {
                if index > newest.0 {
                    newest = (index, list.clone());
                } else if index == newest.0 {
                    newest.1.retain(|id, index| match (list.contains_key(id), done.get(id)) {
                        (true, _) => true,
                        (false, Some(done)) => {
                            *index = (*index).min(*done);
                            true
                        }
                        (false, None) => false,
                    });
                }
                let here: BTreeSet<_> = done.keys().copied().collect();
                let Some(listed) = wanted.apply_list(index, list, &here) else { continue };
                done.retain(|id, _: &mut u64| !listed.gone.contains(id));
                for id in listed.pull {
                    let index = newest.1[&id] - u64::from(late.next().unwrap_or(false));
                    if wanted.is_news(id, index) {
                        prop_assert!(done.get(&id).is_none_or(|known| *known < index));
                        done.insert(id, index);
                        wanted.mark_carried_out(id, index);
                    }
                }
            }
            for id in wanted.remaining_allocs().pull {
                done.insert(id, newest.1[&id]);
            }
            for (id, index) in &newest.1 {
                prop_assert!(done[id] >= *index, "the newest copy of each");
            }
            prop_assert_eq!(done.len(), newest.1.len());
        }
    }
}
