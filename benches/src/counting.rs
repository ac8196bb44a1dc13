//! A global allocator that counts, for all threads.
//!
//! A bench installs it with `#[global_allocator] static COUNTING: Counting = Counting;`. Without
//! that the counts stay zero.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of one thread, in cache lines of their own: three locked additions per block, shared by
/// all threads, were a tenth of a plugin call.
#[repr(align(128))]
struct Counters {
    calls: AtomicU64,
    bytes: AtomicU64,
    freed: AtomicU64,
}

/// The last is shared by all threads that come too late for one of their own.
const THREADS: usize = 256;
static COUNTERS: [Counters; THREADS + 1] = [const {
    Counters { calls: AtomicU64::new(0), bytes: AtomicU64::new(0), freed: AtomicU64::new(0) }
}; THREADS + 1];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index into [`COUNTERS`]; nothing to destroy, so it is there whenever memory is asked for.
    static OWN: Cell<Option<usize>> = const { Cell::new(None) };
}

fn count(counters: impl FnOnce(&Counters, &dyn Fn(&AtomicU64, u64))) {
    let index = OWN.get().unwrap_or_else(|| {
        let index = TAKEN.fetch_add(1, Ordering::Relaxed).min(THREADS);
        OWN.set(Some(index));
        index
    });
    let Some(own) = COUNTERS.get(index) else { return };
    if index == THREADS {
        counters(own, &|counter, more| _ = counter.fetch_add(more, Ordering::Relaxed));
    } else {
        // Nobody else writes here.
        counters(own, &|counter, more| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        });
    }
}

fn sum(counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
    COUNTERS.iter().map(|own| counter(own).load(Ordering::Relaxed)).sum()
}

/// The system's allocator with counters in front.
pub struct Counting;

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocations {
    /// Calls that gave memory; a reallocation is one.
    pub calls: u64,
    /// Bytes given; of a reallocation, its whole new size.
    pub bytes: u64,
    /// Bytes taken back; of a reallocation, its whole old size.
    pub freed: u64,
}

impl Allocations {
    /// Counts now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            calls: sum(|own| &own.calls),
            bytes: sum(|own| &own.bytes),
            freed: sum(|own| &own.freed),
        }
    }

    /// Bytes in use, as the callers asked for them.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.bytes.saturating_sub(self.freed)
    }
}

fn counted(size: usize) {
    count(|own, add| {
        add(&own.calls, 1);
        add(&own.bytes, u64::try_from(size).unwrap_or(u64::MAX));
    });
}

fn freed(size: usize) {
    count(|own, add| add(&own.freed, u64::try_from(size).unwrap_or(u64::MAX)));
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        counted(size);
        freed(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}
