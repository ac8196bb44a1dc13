//! A global allocator that counts, for all threads.
//!
//! A bench installs it with `#[global_allocator] static COUNTING: Counting = Counting;`. Without
//! that the counts stay zero.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

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
            calls: CALLS.load(Ordering::Relaxed),
            bytes: BYTES.load(Ordering::Relaxed),
            freed: FREED.load(Ordering::Relaxed),
        }
    }

    /// Bytes in use, as the callers asked for them.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.bytes.saturating_sub(self.freed)
    }
}

fn counted(size: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(u64::try_from(size).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn freed(size: usize) {
    FREED.fetch_add(u64::try_from(size).unwrap_or(u64::MAX), Ordering::Relaxed);
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
