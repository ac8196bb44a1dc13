//! Memory of processes, as the kernel counts it.

use std::fs;
use std::path::Path;

/// Resident bytes of this process.
#[must_use]
pub fn resident() -> u64 {
    field(Path::new("/proc/self/status"), "VmRSS:").unwrap_or(0)
}

/// Proportional set size of a process, bytes: pages shared by several count in part.
#[must_use]
pub fn proportional(pid: u32) -> Option<u64> {
    field(Path::new(&format!("/proc/{pid}/smaps_rollup")), "Pss:")
}

/// A field in KiB, as bytes.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Processes of this program that were called as `__supervise`: the supervisors of every agent of
/// this program, and the process they are forked from.
#[must_use]
pub fn supervisors() -> Vec<u32> {
    let Ok(this) = fs::read_link("/proc/self/exe") else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let dir = Path::new("/proc").join(pid.to_string());
            let arguments = fs::read(dir.join("cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).nth(1) == Some(b"__supervise")
                && fs::read_link(dir.join("exe")).is_ok_and(|exe| exe == this)
        })
        .collect()
}
