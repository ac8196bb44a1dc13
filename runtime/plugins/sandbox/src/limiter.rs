//! Limits what the instances of one store hold together: memory, tables, and how many of each.
//!
//! Wasmtime's own limiter bounds each memory separately. With it a guest with four memories gets
//! four times its limit, and its tables (8 bytes an element on the host) cost nothing. This limiter
//! keeps the sum of all of them. It also remembers the peak and whether it ever refused, so that
//! the error of a guest that died of a refused allocation can say so. What host functions hold for
//! the guest between two of its calls is part of the same sum ([`GuestUsage::hold`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wasmtime::ResourceLimiter;

use super::store::StoreLimits;
use ostler_model::limits::TABLE_ELEMENT_BYTES;

/// How much a guest holds and held at most. It can be read while the guest runs and after its
/// store is gone.
#[derive(Debug)]
pub struct GuestUsage {
    max: u64,
    memory: AtomicU64,
    peak: AtomicU64,
    memory_refused: AtomicBool,
    table_refused: AtomicBool,
}

impl GuestUsage {
    const fn new(max: u64) -> Self {
        Self {
            max,
            memory: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            memory_refused: AtomicBool::new(false),
            table_refused: AtomicBool::new(false),
        }
    }

    /// Count this much of the host's memory as the guest's, until the returned value is dropped.
    /// `None`: it does not fit into the guest's limit.
    #[must_use]
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Option<HostBytes> {
        self.add(bytes).then(|| HostBytes { usage: Arc::clone(self), bytes })
    }

    fn add(&self, more: u64) -> bool {
        let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= self.max);
        match self.memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before.saturating_add(more), Ordering::Relaxed);
                true
            }
            Err(_) => {
                self.memory_refused.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    fn take_back(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _was = self.memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Linear memories, tables and what the host holds for the guest, together, now, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// The largest [`GuestUsage::memory_bytes`] so far.
    #[must_use]
    pub fn peak_memory_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Whether the guest ever asked for more memory than its limit.
    #[must_use]
    pub fn memory_refused(&self) -> bool {
        self.memory_refused.load(Ordering::Relaxed)
    }

    /// Whether the guest ever asked for more table elements than its limit.
    #[must_use]
    pub fn table_refused(&self) -> bool {
        self.table_refused.load(Ordering::Relaxed)
    }
}

/// Memory that the host holds for a guest. It counts until this is dropped.
#[derive(Debug)]
pub struct HostBytes {
    usage: Arc<GuestUsage>,
    bytes: u64,
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        self.usage.take_back(self.bytes);
    }
}

/// The limiter of one store; part of its [`StoreState`](super::StoreState).
#[derive(Debug)]
pub struct GuestLimiter {
    /// The last addition to the memory, in case it has to be taken back.
    last: u64,
    tables: Total,
    instances: u32,
    memory_count: u32,
    table_count: u32,
    usage: Arc<GuestUsage>,
}

/// A sum with a bound, and the last addition in case it has to be taken back.
#[derive(Debug)]
struct Total {
    now: u64,
    max: u64,
    last: u64,
}

impl Total {
    const fn new(max: u64) -> Self {
        Self { now: 0, max, last: 0 }
    }

    /// Whether the sum may grow by `desired - current`.
    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let more = desired.saturating_sub(current) as u64;
        let sum = self.now.saturating_add(more);
        let allowed = sum <= self.max;
        self.last = if allowed { more } else { 0 };
        if allowed {
            self.now = sum;
        }
        allowed
    }

    fn take_back(&mut self) {
        self.now = self.now.saturating_sub(std::mem::take(&mut self.last));
    }
}

impl GuestLimiter {
    /// A limiter for one store.
    #[must_use]
    pub fn new(limits: &StoreLimits) -> Self {
        Self {
            last: 0,
            tables: Total::new(limits.table_elements),
            instances: limits.instances,
            memory_count: limits.memories,
            table_count: limits.tables,
            usage: Arc::new(GuestUsage::new(limits.memory_bytes)),
        }
    }

    /// The shared counters. Keep a clone where the store is moved away.
    #[must_use]
    pub fn usage(&self) -> Arc<GuestUsage> {
        Arc::clone(&self.usage)
    }

    fn add_memory(&mut self, more: u64) -> bool {
        let allowed = self.usage.add(more);
        self.last = if allowed { more } else { 0 };
        allowed
    }

    fn take_memory_back(&mut self) {
        self.usage.take_back(std::mem::take(&mut self.last));
    }
}

impl ResourceLimiter for GuestLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // The module asks for more than it declares itself: this is not our limit.
        if maximum.is_some_and(|maximum| desired > maximum) {
            self.last = 0;
            return Ok(false);
        }
        Ok(self.add_memory(desired.saturating_sub(current) as u64))
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.take_memory_back();
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            (self.tables.last, self.last) = (0, 0);
            return Ok(false);
        }
        if !self.tables.grow(current, desired) {
            self.usage.table_refused.store(true, Ordering::Relaxed);
            return Ok(false);
        }
        let more = desired.saturating_sub(current) as u64;
        if !self.add_memory(more.saturating_mul(TABLE_ELEMENT_BYTES)) {
            self.tables.take_back();
            return Ok(false);
        }
        Ok(true)
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.tables.take_back();
        self.take_memory_back();
        Ok(())
    }

    fn instances(&self) -> usize {
        self.instances as usize
    }

    fn tables(&self) -> usize {
        self.table_count as usize
    }

    fn memories(&self) -> usize {
        self.memory_count as usize
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 65_536;

    fn limiter(memory_bytes: u64) -> GuestLimiter {
        GuestLimiter::new(&StoreLimits { memory_bytes, ..StoreLimits::default() })
    }

    #[test]
    fn two_memories_share_one_limit() {
        let mut limiter = limiter(3 * PAGE as u64);
        assert!(limiter.memory_growing(0, 2 * PAGE, None).unwrap());
        assert!(!limiter.memory_growing(0, 2 * PAGE, None).unwrap());
        assert!(limiter.usage().memory_refused());
        assert!(limiter.memory_growing(0, PAGE, None).unwrap());
        assert_eq!(limiter.usage().peak_memory_bytes(), 3 * PAGE as u64);
    }

    #[test]
    fn a_growth_that_failed_afterwards_is_given_back_once() {
        let mut limiter = limiter(2 * PAGE as u64);
        assert!(limiter.memory_growing(0, 2 * PAGE, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        limiter.memory_grow_failed(wasmtime::Error::msg("again")).unwrap();
        assert_eq!(limiter.usage().memory_bytes(), 0);
        assert!(limiter.memory_growing(0, 2 * PAGE, None).unwrap());
    }

    #[test]
    fn tables_share_the_limit_of_the_memories() {
        let mut limiter = limiter(2 * PAGE as u64);
        assert!(limiter.memory_growing(0, PAGE, None).unwrap());
        let fits = PAGE / 8;
        assert!(!limiter.table_growing(0, fits + 1, None).unwrap());
        assert!(limiter.usage().memory_refused() && !limiter.usage().table_refused());
        assert!(limiter.table_growing(0, fits, None).unwrap());
        assert_eq!(limiter.usage().memory_bytes(), 2 * PAGE as u64);
        limiter.table_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert!(limiter.memory_growing(PAGE, 2 * PAGE, None).unwrap());
    }

    #[test]
    fn what_the_host_holds_for_the_guest_shares_its_limit_until_it_is_dropped() {
        let mut limiter = limiter(2 * PAGE as u64);
        let held = limiter.usage().hold(PAGE as u64).unwrap();
        assert!(limiter.usage().hold(PAGE as u64 + 1).is_none());
        assert!(!limiter.memory_growing(0, 2 * PAGE, None).unwrap());
        drop(held);
        assert!(limiter.memory_growing(0, 2 * PAGE, None).unwrap());
        assert!(limiter.usage().hold(1).is_none() && limiter.usage().memory_refused());
    }

    #[test]
    fn growing_beyond_the_declared_maximum_is_not_held_against_the_limit() {
        let mut limiter = limiter(10 * PAGE as u64);
        assert!(!limiter.memory_growing(0, 2 * PAGE, Some(PAGE)).unwrap());
        assert!(!limiter.usage().memory_refused());
    }

    proptest! {
        #[test]
        fn the_sum_never_exceeds_the_limit(steps in prop::collection::vec((0usize..4, 0usize..20), 0..60)) {
            let mut sizes = [0usize; 4];
            let mut limiter = limiter(24 * PAGE as u64);
            for (memory, pages) in steps {
                let Some(size) = sizes.get_mut(memory) else { continue };
                let desired = *size + pages * PAGE;
                if limiter.memory_growing(*size, desired, None).unwrap() {
                    *size = desired;
                }
                prop_assert!(sizes.iter().sum::<usize>() <= 24 * PAGE);
                prop_assert_eq!(limiter.usage().memory_bytes(), sizes.iter().sum::<usize>() as u64);
            }
        }
    }
}
