//! Memory that only the start needed, and what was freed since.
//!
//! ```text
//!   /proc/self/maps ─► code and constants of this program ─► dropped from this process
//!                      freed blocks of the allocator ─────► given back to the kernel
//!   again and again: free bytes of the heap ─ many more than after the last time? ─► given back
//! ```
//! Most pages that a start touches are code that runs once: embedded compiled plugins,
//! fingerprints, the set-up of engines. They stay in the page cache, so a page that is needed again
//! is mapped again without reading the disk.

use std::ffi::c_void;
use std::fs;

use ostler_model::limits::HEAP_FREED_BYTES_MAX;
use rustix::mm::{Advice, madvise};

/// Give memory that is not in use back to the kernel. Pages of the program that are needed again
/// are mapped again one by one.
pub fn give_back() {
    trim();
    let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else { return };
    let Ok(program) = fs::read_link("/proc/self/exe") else { return };
    let Some(program) = program.to_str() else { return };
    for (start, length) in clean_mappings(&smaps, program) {
        let Ok(address) = usize::try_from(start) else { continue };
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(address);
        // SAFETY: a private mapping of a file of which no page was ever changed: dropped pages read the
        // same when they are mapped again. The kernel refuses an address that is not mapped any more.
        let dropped = unsafe { madvise(address, length, Advice::LinuxDontNeed) };
        if let Err(error) = dropped {
            tracing::debug!(%error, "pages of the program stay mapped");
        }
    }
}

/// Address and bytes of each mapping of the program that is not writable and has no changed page.
fn clean_mappings(smaps: &str, program: &str) -> Vec<(u64, usize)> {
    let mut found = Vec::new();
    let mut of_program = None;
    for line in smaps.lines() {
        if let Some(range) = parse_range(line) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, access, _, _, inode, path, ..] = *fields.as_slice() else {
                of_program = None;
                continue;
            };
            let own = path == program && inode != "0" && fields.len() == 6;
            of_program = (own && !access.contains('w') && access.ends_with('p')).then_some(range);
        } else if let Some(kib) = line.strip_prefix("Anonymous:")
            && let Some(range) = of_program.take()
            && kib.trim() == "0 kB"
        {
            found.push(range);
        }
    }
    found
}

/// Address and bytes from the first line of a mapping, which begins with `START-END `
/// in hexadecimal.
fn parse_range(line: &str) -> Option<(u64, usize)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16));
    let (start, end) = (start.ok()?, end.ok()?);
    Some((start, usize::try_from(end.checked_sub(start)?).ok()?))
}

/// Decides when the allocator is asked to give freed memory back. The allocator counts bytes as free
/// whether or not the kernel has their pages back.
#[derive(Debug, Default)]
pub struct HeapTrimmer {
    /// Least number of free bytes since the last trim.
    free: u64,
}

impl HeapTrimmer {
    /// Whether to trim a heap with this many free bytes.
    pub fn is_due(&mut self, free: u64) -> bool {
        self.free = self.free.min(free);
        free.saturating_sub(self.free) >= HEAP_FREED_BYTES_MAX
    }

    /// Note that the heap was trimmed and has this many free bytes.
    pub const fn note_trim(&mut self, free: u64) {
        self.free = free;
    }

    /// Trim the heap of this process where much of it was freed, which blocks for milliseconds.
    /// Returns the bytes that were freed since the last time, if the heap was trimmed.
    pub fn trim_where_due(&mut self) -> Option<u64> {
        let (before, free) = (self.free, free_heap_bytes());
        if !self.is_due(free) {
            return None;
        }
        trim();
        self.note_trim(free_heap_bytes());
        Some(free.saturating_sub(before))
    }
}

/// Bytes of the allocator's heap that nothing uses.
fn free_heap_bytes() -> u64 {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes nothing and returns a plain struct.
    return u64::try_from(unsafe { libc::mallinfo2() }.fordblks).unwrap_or(u64::MAX);
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Let the allocator give its free memory back to the kernel.
pub(crate) fn trim() -> bool {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions.
    return unsafe { libc::malloc_trim(0) } == 1;
    #[cfg(not(target_env = "gnu"))]
    false
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// As the kernel writes it, shortened: constants, code, what the linker has written to, data, heap.
    const SMAPS: &str = "\
5000-9000 r--p 00000000 fd:00 77                         /bin/program
Rss:                  16 kB
Anonymous:             0 kB
9000-c000 r-xp 00004000 fd:00 77                         /bin/program
Anonymous:             0 kB
c000-d000 r--p 00007000 fd:00 77                         /bin/program
Anonymous:             4 kB
d000-e000 rw-p 00008000 fd:00 77                         /bin/program
Anonymous:             0 kB
e000-f000 r--p 00000000 fd:00 78                         /lib/other
Anonymous:             0 kB
f000-ff00 r--p 00000000 00:00 0
Anonymous:             0 kB
10000-11000 r-xp 00000000 fd:00 77                         /bin/program (deleted)
Anonymous:             0 kB
";

    #[test]
    fn only_unchanged_pages_of_the_program_itself_are_dropped() {
        assert_eq!(clean_mappings(SMAPS, "/bin/program"), [(0x5000, 0x4000), (0x9000, 0x3000)]);
        assert_eq!(clean_mappings("no list of mappings", "/bin/program"), []);
    }

    #[test]
    fn a_heap_is_trimmed_when_much_was_freed_since_the_last_time_and_not_for_what_stays_free() {
        let mut trimmer = HeapTrimmer::default();
        assert!(!trimmer.is_due(HEAP_FREED_BYTES_MAX - 1));
        assert!(trimmer.is_due(HEAP_FREED_BYTES_MAX));
        // The allocator still counts what the kernel has again.
        trimmer.note_trim(HEAP_FREED_BYTES_MAX);
        assert!(!trimmer.is_due(HEAP_FREED_BYTES_MAX));
        assert!(!trimmer.is_due(2 * HEAP_FREED_BYTES_MAX - 1));
        // What was free is used, and freed again.
        assert!(!trimmer.is_due(0));
        assert!(trimmer.is_due(HEAP_FREED_BYTES_MAX));
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_memory_goes_back_to_the_kernel() {
        let mut trimmer = HeapTrimmer::default();
        trimmer.note_trim(free_heap_bytes());
        // Small blocks are not mapped one by one. The last one holds the top of the heap.
        let mut blocks: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 2_000]).collect();
        let last = blocks.pop();
        drop(blocks);
        let resident = || {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let before = resident();
        let freed = trimmer.trim_where_due();
        assert!(freed.is_some_and(|bytes| bytes > 60_000_000), "{freed:?}");
        assert!(
            resident() + 40_000_000 < before,
            "{before} bytes were resident, {} are",
            resident()
        );
        assert_eq!(trimmer.trim_where_due(), None);
        drop(last);
    }

    #[test]
    fn a_program_goes_on_after_it_gave_memory_back() {
        let kept: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
        give_back();
        assert!(kept.iter().enumerate().all(|(n, text)| *text == n.to_string()));
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let program = fs::read_link("/proc/self/exe").unwrap();
        assert!(!clean_mappings(&smaps, program.to_str().unwrap()).is_empty());
    }
}
