//! The binary: everything is in [`ostler_cli`].

use std::ffi::c_char;
use std::process::ExitCode;

/// Threads free here what others took, which the allocator of the C library does under a lock that both wait for.
#[global_allocator]
static HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What jemalloc reads at its start. Two arenas keep an agent at rest small, and free memory is kept for a second.
/// Who runs for long starts a thread that gives it back (`ostler_process::memory`).
// SAFETY: the name is jemalloc's for a pointer to a text with an end, and nothing else of the program has it.
#[unsafe(export_name = "_rjem_malloc_conf")]
static HEAP_OPTIONS: HeapOptions =
    HeapOptions(c"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0".as_ptr());

/// A text for jemalloc.
#[repr(transparent)]
struct HeapOptions(*const c_char);

// SAFETY: the text is never changed.
unsafe impl Sync for HeapOptions {}

fn main() -> ExitCode {
    ostler_cli::main(std::env::args_os().collect())
}
