//! Memory and processor time of processes, as the kernel counts them.

use std::fs;
use std::path::Path;

use crate::percentiles::number;

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

/// Seconds of processor time of a process so far, in steps of the kernel's tick.
#[must_use]
pub fn processor_time(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: state is the third field, utime the 14th.
    let fields = text.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
    Some(number(ticks) / number(rustix::param::clock_ticks_per_second()))
}

/// A field in KiB, as bytes.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Processes that run `program`.
#[must_use]
pub fn processes_of(program: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let runs =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(runs).collect()
}

/// Processes of this program that were called as `__supervise`: the supervisors of every agent of
/// this program, and the process they are forked from.
#[must_use]
pub fn supervisors() -> Vec<u32> {
    let Ok(this) = fs::read_link("/proc/self/exe") else { return Vec::new() };
    let supervises = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).nth(1) == Some(b"__supervise")
    };
    processes_of(&this).into_iter().filter(supervises).collect()
}
