//! What allocations are in lists, as JSON that is kept.
//!
//! ```text
//! a list ─ its allocations ─► Stubs ─ as they were? ─┬─ yes ─► their JSON, shared ────────┐
//!                                                    └─ no ──► look ─► JSON ─► kept ──────┴─► the answer
//! ```
//! Of thousands of allocations a list asks for again and again few have changed. What is kept is bounded in
//! bytes, those not listed lately go first, and all of it goes when nobody asks for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use super::error::Failure;
use super::json::alloc::{Seen, stub};
use ostler_agent::{AllocRef, AllocView};
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{API_STUBS_KEPT_BYTES_MAX, API_STUBS_KEPT_UNUSED_MAX};
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

/// The short forms of allocations.
#[derive(Default)]
pub(super) struct Stubs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    stubs: BTreeMap<AllocId, Stub>,
    bytes: usize,
    /// How many lists there were.
    lists: u64,
    /// The name of the node that they are of.
    node: String,
    /// Somebody forgets them when they are not used.
    watched: bool,
}

struct Stub {
    /// What it was made of.
    of: Arc<Allocation>,
    state: AllocState,
    modify_index: u64,
    successor_at: Option<Timestamp>,
    canary: bool,
    /// The list that it was in last.
    list: u64,
    json: Bytes,
}

impl Stub {
    /// Would it be the same now?
    fn is_of(&self, alloc: &AllocRef) -> bool {
        Arc::ptr_eq(&self.of, &alloc.allocation)
            && self.modify_index == alloc.modify_index
            && self.successor_at == alloc.successor_at
            && self.canary == alloc.canary
            && self.state == *alloc.handle.state().borrow()
    }

    fn new(view: AllocView, node: &NodeView, list: u64) -> Result<Self, Failure> {
        let json = serde_json::to_vec(&stub(Seen::new(&view, node), false))
            .map_err(|error| Failure::Internal(error.to_string()))?;
        let AllocView { allocation: of, state, successor_at, canary, modify_index, .. } = view;
        Ok(Self { of, state, modify_index, successor_at, canary, list, json: json.into() })
    }

    fn size(&self) -> usize {
        size_of::<(AllocId, Self)>().saturating_add(self.json.len())
    }
}

impl Stubs {
    /// The short form of each, in their order.
    pub(super) fn of(
        self: &Arc<Self>,
        allocs: Vec<AllocRef>,
        node: &NodeView,
        leaving: &CancellationToken,
    ) -> Result<Vec<Bytes>, Failure> {
        let (list, kept) = self.kept().find(&allocs, node);
        // Without the lock: two that come at once both look.
        let mut new = Vec::new();
        let mut all = Vec::with_capacity(allocs.len());
        for (alloc, kept) in allocs.into_iter().zip(kept) {
            match kept {
                Some(json) => all.push(json),
                None => {
                    let stub = Stub::new(alloc.view(), node, list)?;
                    all.push(stub.json.clone());
                    new.push(stub);
                }
            }
        }
        if !new.is_empty() && self.kept().keep(new) {
            tokio::spawn(Self::forget(Arc::clone(self), leaving.clone()));
        }
        Ok(all)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until nobody has asked for a while.
    async fn forget(self: Arc<Self>, leaving: CancellationToken) {
        let mut lists = 0;
        loop {
            let slept = leaving.run_until_cancelled(clock::sleep(API_STUBS_KEPT_UNUSED_MAX)).await;
            let mut kept = self.kept();
            if kept.lists == lists || slept.is_none() {
                *kept = Kept { lists, ..Kept::default() };
                return;
            }
            lists = kept.lists;
        }
    }
}

impl Kept {
    /// The number of this list, and what is there of each.
    fn find(&mut self, allocs: &[AllocRef], node: &NodeView) -> (u64, Vec<Option<Bytes>>) {
        if self.node != node.name {
            (self.stubs, self.bytes) = (BTreeMap::new(), 0);
            self.node.clone_from(&node.name);
        }
        self.lists = self.lists.saturating_add(1);
        let list = self.lists;
        let found = allocs.iter().map(|alloc| {
            let stub = self.stubs.get_mut(&alloc.allocation.id)?;
            stub.list = list;
            stub.is_of(alloc).then(|| stub.json.clone())
        });
        (list, found.collect())
    }

    /// Keep those there is room for. Is it for the caller to see that they are forgotten?
    fn keep(&mut self, new: Vec<Stub>) -> bool {
        let wanted = new.iter().map(Stub::size).fold(self.bytes, usize::saturating_add);
        if wanted > API_STUBS_KEPT_BYTES_MAX {
            self.drop_unlisted();
        }
        for stub in new {
            if let Some(before) = self.stubs.remove(&stub.of.id) {
                self.bytes = self.bytes.saturating_sub(before.size());
            }
            let bytes = self.bytes.saturating_add(stub.size());
            if bytes <= API_STUBS_KEPT_BYTES_MAX {
                self.bytes = bytes;
                self.stubs.insert(stub.of.id, stub);
            }
        }
        !std::mem::replace(&mut self.watched, true)
    }

    /// What is in neither of the last two lists goes.
    fn drop_unlisted(&mut self) {
        let since = self.lists.saturating_sub(1);
        self.stubs.retain(|_, stub| stub.list >= since);
        self.bytes = self.stubs.values().map(Stub::size).fold(0, usize::saturating_add);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::rng::Rng;
    use ostler_testing::fixtures::allocation_of;

    /// One of so many bytes in all, made for a list.
    fn made(bytes: usize, list: u64, rng: &Rng) -> Stub {
        let of = Arc::new(allocation_of("web", 1, rng).unwrap());
        let json = vec![b'x'; bytes - size_of::<(AllocId, Stub)>()].into();
        let state = AllocState::default();
        Stub { of, state, modify_index: 1, successor_at: None, canary: false, list, json }
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for_and_those_not_listed_lately_go_first() {
        let (rng, mut kept) = (Rng::seeded(1), Kept::default());
        let four = |list| -> Vec<Stub> {
            (0..4).map(|_| made(API_STUBS_KEPT_BYTES_MAX / 4, list, &rng)).collect()
        };
        let ids = |stubs: &[Stub]| stubs.iter().map(|stub| stub.of.id).collect::<Vec<_>>();
        let known = |kept: &Kept, ids: &[AllocId]| {
            ids.iter().filter(|id| kept.stubs.contains_key(id)).count()
        };
        let old = four(1);
        let first = ids(&old);
        kept.lists = 1;
        assert!(kept.keep(old), "somebody has to forget them");
        assert_eq!((known(&kept, &first), kept.bytes), (4, API_STUBS_KEPT_BYTES_MAX));

        let other = four(2);
        let second = ids(&other);
        kept.lists = 2;
        assert!(!kept.keep(other), "there is somebody");
        assert_eq!((known(&kept, &first), known(&kept, &second)), (4, 0), "the last list had them");

        let newest = four(3);
        let third = ids(&newest);
        kept.lists = 3;
        kept.keep(newest);
        assert_eq!((known(&kept, &first), known(&kept, &third)), (0, 4));
        let sum: usize = kept.stubs.values().map(Stub::size).sum();
        assert!(kept.bytes == sum && sum <= API_STUBS_KEPT_BYTES_MAX, "{sum}");
    }

    #[test]
    fn a_changed_one_takes_the_place_of_what_it_was() {
        let (rng, mut kept) = (Rng::seeded(2), Kept::default());
        let before = made(4_000, 1, &rng);
        let after = Stub { of: Arc::clone(&before.of), ..made(5_000, 2, &rng) };
        kept.keep(vec![before]);
        kept.keep(vec![after]);
        assert_eq!((kept.stubs.len(), kept.bytes), (1, 5_000));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_lists_for_a_while_is_forgotten() {
        let (rng, stubs) = (Rng::seeded(3), Arc::new(Stubs::default()));
        stubs.kept().lists = 1;
        stubs.kept().keep(vec![made(4_000, 1, &rng)]);
        Stubs::forget(Arc::clone(&stubs), CancellationToken::new()).await;
        let (left, bytes) = {
            let kept = stubs.kept();
            (kept.stubs.len(), kept.bytes)
        };
        assert_eq!((left, bytes), (0, 0));
        assert!(stubs.kept().keep(vec![made(4_000, 2, &rng)]), "the next one is watched again");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_waited_for_when_the_api_ends() {
        let (stubs, leaving) = (Arc::new(Stubs::default()), CancellationToken::new());
        leaving.cancel();
        Stubs::forget(stubs, leaving).await;
    }
}
