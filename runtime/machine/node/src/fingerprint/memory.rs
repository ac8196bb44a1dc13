//! Memory: `memory.totalbytes`.

use std::path::Path;

use super::{Facts, add_number, read};

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let total = read(root, "proc/meminfo").and_then(|info| total_bytes(&info));
    add_number(facts, "memory.totalbytes", total);
}

/// `MemTotal:       16384 kB` → bytes.
fn total_bytes(info: &str) -> Option<u64> {
    let value = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(ostler_model::limits::KIB)
}
