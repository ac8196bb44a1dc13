//! Memory that only the start needed.
//!
//! ```text
//!   /proc/self/maps ─► code and constants of this program ─► dropped from this process
//!                      freed blocks of the allocator ─────► given back to the kernel
//! ```
//! Most of a start's pages are code that runs once: compiled plugins that are embedded, fingerprints, the
//! set-up of engines. They stay in the page cache, so that a page that is needed again is mapped again
//! without reading the disk.

use std::ffi::c_void;
use std::fs;

use rustix::mm::{Advice, madvise};

/// Give back what is not in use. Of the program's own pages those that are needed come again, one by one.
pub fn give_back() {
    trim();
    let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else { return };
    let Ok(program) = fs::read_link("/proc/self/exe") else { return };
    let Some(program) = program.to_str() else { return };
    for (start, length) in clean(&smaps, program) {
        let Ok(address) = usize::try_from(start) else { continue };
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(address);
        // SAFETY: a private mapping of a file of which no page was ever changed: what is dropped reads
        // the same when it is mapped again. The kernel refuses what is no mapping any more.
        let dropped = unsafe { madvise(address, length, Advice::LinuxDontNeed) };
        if let Err(error) = dropped {
            tracing::debug!(%error, "pages of the program stay mapped");
        }
    }
}

/// Address and bytes of each mapping of the program that may not be written and has no page of its own.
fn clean(smaps: &str, program: &str) -> Vec<(u64, usize)> {
    let mut found = Vec::new();
    let mut of_program = None;
    for line in smaps.lines() {
        if let Some(range) = range(line) {
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

/// The first line of a mapping begins with `START-END `, both in hexadecimal.
fn range(line: &str) -> Option<(u64, usize)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16));
    let (start, end) = (start.ok()?, end.ok()?);
    Some((start, usize::try_from(end.checked_sub(start)?).ok()?))
}

/// Let the allocator give back what is free.
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
        assert_eq!(clean(SMAPS, "/bin/program"), [(0x5000, 0x4000), (0x9000, 0x3000)]);
        assert_eq!(clean("no list of mappings", "/bin/program"), []);
    }

    #[test]
    fn a_program_goes_on_after_it_gave_memory_back() {
        let kept: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
        give_back();
        assert!(kept.iter().enumerate().all(|(n, text)| *text == n.to_string()));
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let program = fs::read_link("/proc/self/exe").unwrap();
        assert!(!clean(&smaps, program.to_str().unwrap()).is_empty());
    }
}
