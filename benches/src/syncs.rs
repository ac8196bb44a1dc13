//! Counts fdatasync and fsync calls of this process.
//!
//! The standard library calls both through the C library's names. An executable's own definition
//! of a name goes before that of a shared library, so these are called instead; they count and ask
//! the kernel. Linking this module (any call of [`syncs`]) is all it takes.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Syncs since the process began.
#[must_use]
pub fn syncs() -> u64 {
    SYNCS.load(Ordering::Relaxed)
}

fn answer(result: Result<(), rustix::io::Errno>) -> c_int {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    match result {
        Ok(()) => 0,
        // The callers of a bench only look whether it failed; errno stays what it was.
        Err(_) => -1,
    }
}

/// Counted `fdatasync(2)`.
// SAFETY: it has the name and the signature of the C library's and does what that does.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: the caller keeps the descriptor open during the call, as for the C library's.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    answer(rustix::fs::fdatasync(fd))
}

/// Counted `fsync(2)`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    answer(rustix::fs::fsync(fd))
}
