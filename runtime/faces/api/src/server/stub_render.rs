//! The short forms of allocations in lists, as JSON in a cache.
//!
//! ```text
//! a list ─ its allocations ─► StubCache ─ unchanged? ─┬─ yes ─► their JSON, shared ─────┐
//!                                                     └─ no ──► read ─► JSON ─► cached ─┴─► the answer
//! ```
//! When a list of thousands of allocations is requested again and again, few of them have changed.
//! The cache is bounded in bytes. Allocations that were not listed lately are dropped first, and
//! the whole cache is dropped when nobody asks for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use super::error::RequestFailure;
use super::json::alloc::{AllocJsonInput, stub};
use ostler_agent::{AllocRef, AllocView};
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{
    API_STUB_BYTES, API_STUBS_KEPT_BYTES_MAX, API_STUBS_KEPT_UNUSED_MAX, API_STUBS_PART_MIN,
    API_THREADS_MAX,
};
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

/// A cache of the short forms of allocations.
#[derive(Default)]
pub(super) struct StubCache(Mutex<StubCacheInner>);

#[derive(Default)]
struct StubCacheInner {
    stubs: BTreeMap<AllocId, CachedStub>,
    bytes: usize,
    /// The number of lists that were requested so far.
    lists: u64,
    /// The name of the node in these forms.
    node: String,
    /// Whether a task runs that empties the cache when it is not used.
    watched: bool,
}

struct CachedStub {
    /// The allocation that the form was made of.
    of: Arc<Allocation>,
    state: AllocState,
    modify_index: u64,
    successor_at: Option<Timestamp>,
    canary: bool,
    /// The number of the last list that it was in.
    list: u64,
    json: Bytes,
}

impl CachedStub {
    /// Whether the form would be the same now.
    fn is_of(&self, alloc: &AllocRef) -> bool {
        Arc::ptr_eq(&self.of, &alloc.allocation)
            && self.modify_index == alloc.modify_index
            && self.successor_at == alloc.successor_at
            && self.canary == alloc.canary
            && self.state == *alloc.handle.state().borrow()
    }

    fn new(view: AllocView, node: &NodeView, list: u64) -> Result<Self, RequestFailure> {
        let mut json = Vec::with_capacity(API_STUB_BYTES);
        serde_json::to_writer(&mut json, &stub(AllocJsonInput::new(&view, node), false))
            .map_err(|error| RequestFailure::Internal(error.to_string()))?;
        // The cache counts what it holds.
        json.shrink_to_fit();
        let AllocView { allocation: of, state, successor_at, canary, modify_index, .. } = view;
        Ok(Self { of, state, modify_index, successor_at, canary, list, json: json.into() })
    }

    fn size(&self) -> usize {
        size_of::<(AllocId, Self)>().saturating_add(self.json.len())
    }
}

impl StubCache {
    /// The short form of each allocation, in the same order.
    pub(super) fn stubs_of(
        self: &Arc<Self>,
        allocs: Vec<AllocRef>,
        node: &NodeView,
        leaving: &CancellationToken,
    ) -> Result<Vec<Bytes>, RequestFailure> {
        let (list, kept) = self.lock_cache().find(&allocs, node);
        // The lock is not held here, so two lists that come at once both render an allocation.
        let missing = allocs.into_iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        let missing: Vec<AllocRef> = missing.map(|(alloc, _)| alloc).collect();
        let new = render_stubs(&missing, node, list)?;
        let mut made = new.iter().map(|stub| stub.json.clone());
        let all = kept.into_iter().filter_map(|kept| kept.or_else(|| made.next())).collect();
        if !new.is_empty() && self.lock_cache().keep(new) {
            tokio::spawn(Self::forget(Arc::clone(self), leaving.clone()));
        }
        Ok(all)
    }

    fn lock_cache(&self) -> MutexGuard<'_, StubCacheInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until nobody has asked for a while, and then empty the cache.
    async fn forget(self: Arc<Self>, leaving: CancellationToken) {
        let mut lists = 0;
        loop {
            let slept = leaving.run_until_cancelled(clock::sleep(API_STUBS_KEPT_UNUSED_MAX)).await;
            let mut kept = self.lock_cache();
            if kept.lists == lists || slept.is_none() {
                *kept = StubCacheInner { lists, ..StubCacheInner::default() };
                return;
            }
            lists = kept.lists;
        }
    }
}

/// The forms of these allocations, in the same order. Where there are many, all cores make them.
fn render_stubs(
    allocs: &[AllocRef],
    node: &NodeView,
    list: u64,
) -> Result<Vec<CachedStub>, RequestFailure> {
    let render = &|part: &[AllocRef]| -> Result<Vec<CachedStub>, RequestFailure> {
        part.iter().map(|alloc| CachedStub::new(alloc.clone().view(), node, list)).collect()
    };
    let many = allocs.len() > API_STUBS_PART_MIN;
    let cores = if many { thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let part = allocs.len().div_ceil(cores.min(API_THREADS_MAX)).max(API_STUBS_PART_MIN);
    let mut parts = allocs.chunks(part);
    let own = parts.next().unwrap_or_default();
    thread::scope(|scope| {
        let start = |part| thread::Builder::new().spawn_scoped(scope, move || render(part));
        let others: Vec<_> = parts.map(|part| (part, start(part).ok())).collect();
        let mut all = render(own)?;
        for (part, thread) in others {
            // Where no thread could be started, its part is made here.
            let made = thread.map_or_else(|| Ok(render(part)), thread::ScopedJoinHandle::join);
            let failed = |_| RequestFailure::Internal("writing a list panicked".to_owned());
            all.extend(made.map_err(failed)??);
        }
        Ok(all)
    })
}

impl StubCacheInner {
    /// Count a list. Returns its number, and the cached form of each allocation.
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

    /// Add the forms that there is room for. Returns whether the caller must start the task that
    /// empties the cache.
    fn keep(&mut self, new: Vec<CachedStub>) -> bool {
        let wanted = new.iter().map(CachedStub::size).fold(self.bytes, usize::saturating_add);
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

    /// Drop the forms that are in neither of the last two lists.
    fn drop_unlisted(&mut self) {
        let since = self.lists.saturating_sub(1);
        self.stubs.retain(|_, stub| stub.list >= since);
        self.bytes = self.stubs.values().map(CachedStub::size).fold(0, usize::saturating_add);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::rng::Rng;
    use ostler_testing::fixtures::allocation_of;

    /// A form of `bytes` bytes in all, made for a list.
    fn made(bytes: usize, list: u64, rng: &Rng) -> CachedStub {
        let of = Arc::new(allocation_of("web", 1, rng).unwrap());
        let json = vec![b'x'; bytes - size_of::<(AllocId, CachedStub)>()].into();
        let state = AllocState::default();
        CachedStub { of, state, modify_index: 1, successor_at: None, canary: false, list, json }
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for_and_those_not_listed_lately_go_first() {
        let (rng, mut kept) = (Rng::from_seed(1), StubCacheInner::default());
        let four = |list| -> Vec<CachedStub> {
            (0..4).map(|_| made(API_STUBS_KEPT_BYTES_MAX / 4, list, &rng)).collect()
        };
        let ids = |stubs: &[CachedStub]| stubs.iter().map(|stub| stub.of.id).collect::<Vec<_>>();
        let known = |kept: &StubCacheInner, ids: &[AllocId]| {
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
        let sum: usize = kept.stubs.values().map(CachedStub::size).sum();
        assert!(kept.bytes == sum && sum <= API_STUBS_KEPT_BYTES_MAX, "{sum}");
    }

    #[test]
    fn a_changed_one_takes_the_place_of_what_it_was() {
        let (rng, mut kept) = (Rng::from_seed(2), StubCacheInner::default());
        let before = made(4_000, 1, &rng);
        let after = CachedStub { of: Arc::clone(&before.of), ..made(5_000, 2, &rng) };
        kept.keep(vec![before]);
        kept.keep(vec![after]);
        assert_eq!((kept.stubs.len(), kept.bytes), (1, 5_000));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_lists_for_a_while_is_forgotten() {
        let (rng, stubs) = (Rng::from_seed(3), Arc::new(StubCache::default()));
        stubs.lock_cache().lists = 1;
        stubs.lock_cache().keep(vec![made(4_000, 1, &rng)]);
        StubCache::forget(Arc::clone(&stubs), CancellationToken::new()).await;
        let (left, bytes) = {
            let kept = stubs.lock_cache();
            (kept.stubs.len(), kept.bytes)
        };
        assert_eq!((left, bytes), (0, 0));
        assert!(
            stubs.lock_cache().keep(vec![made(4_000, 2, &rng)]),
            "the next one is watched again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_waited_for_when_the_api_ends() {
        let (stubs, leaving) = (Arc::new(StubCache::default()), CancellationToken::new());
        leaving.cancel();
        StubCache::forget(stubs, leaving).await;
    }
}
