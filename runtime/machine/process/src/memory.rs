//! Memory that only the start needed, and what was freed since.
//!
//! ```text
//!   /proc/self/maps ─► code and constants of this program ─► dropped from this process
//!                      freed blocks of the allocator ─────► given back to the kernel
//!   a thread of jemalloc: what is free for a second ──────► given back to the kernel
//! ```
//! Most pages that a start touches are code that runs once: embedded compiled plugins,
//! fingerprints, the set-up of engines. They stay in the page cache, so a page that is needed again
//! is mapped again without reading the disk.

use std::ffi::c_void;
use std::fs;

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

/// Start a thread of the allocator that gives memory back which was free for a while. A process that forks
/// must not have it.
pub fn give_back_from_now_on() {
    let begins = true;
    let (value, length) = (std::ptr::from_ref(&begins).cast_mut().cast(), size_of::<bool>());
    let none = std::ptr::null_mut;
    let name = c"background_thread".as_ptr();
    // SAFETY: the name has an end, and the value is a `bool`, as it wants. It is only read.
    let refused = unsafe { tikv_jemalloc_sys::mallctl(name, none(), none().cast(), value, length) };
    if refused != 0 {
        let error = std::io::Error::from_raw_os_error(refused);
        tracing::warn!(%error, "memory that was freed is given back late: the allocator cannot start its thread");
    }
}

/// Let the allocator give its free memory back to the kernel.
pub(crate) fn trim() -> bool {
    let none = std::ptr::null_mut;
    // All arenas (`MALLCTL_ARENAS_ALL`).
    let name = c"arena.4096.purge".as_ptr();
    // SAFETY: the name has an end, and nothing is read or written but it.
    unsafe { tikv_jemalloc_sys::mallctl(name, none(), none().cast(), none(), 0) == 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// As in the program.
    #[global_allocator]
    static HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
    fn freed_memory_goes_back_to_the_kernel() {
        // Small blocks are not mapped one by one.
        let blocks: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 2_000]).collect();
        drop(blocks);
        let resident = || {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let before = resident();
        assert!(trim());
        let now = resident();
        assert!(now + 40_000_000 < before, "{before} bytes were resident, {now} are");
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
