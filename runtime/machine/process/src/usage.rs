//! Memory and processor time that a process and its descendants use.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{HostProcess, ProcessHost};
use ostler_model::ids::RunId;
use ostler_model::task::Usage;

/// Most processes of one task that are looked at.
const PROCESSES_MAX: usize = 512;

impl ProcessHost {
    /// What a process uses now, with its descendants; `None` when it is not known or has ended.
    ///
    /// The numbers come from its cgroup where it has one, otherwise from `/proc`: from the
    /// processes below the leader, without those that other processes adopted. Shared pages count
    /// for each process.
    #[must_use]
    pub fn usage(&self, run: &RunId, id: &str) -> Option<Usage> {
        let process = self.find(run, id).ok()?;
        if process.exit.borrow().is_some() {
            return None;
        }
        let usage = cgroup_usage(&process).or_else(|| tree_usage(process.identity.pid))?;
        Some(Usage { taken_at: self.inner.clock.now(), ..usage })
    }
}

fn cgroup_usage(process: &HostProcess) -> Option<Usage> {
    let path = process.leaf.as_ref()?.path();
    let cpu = fs::read_to_string(path.join("cpu.stat")).ok();
    let memory = fs::read_to_string(path.join("memory.current")).ok();
    let cpu_time = cpu.as_deref().and_then(cpu_of_stat);
    let memory_bytes = memory.and_then(|text| text.trim().parse().ok());
    // Without the memory controller the file is missing, and the process tree tells more.
    (memory_bytes.is_some()).then(|| Usage { cpu_time, memory_bytes, ..Usage::default() })
}

fn cpu_of_stat(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok().map(Duration::from_micros)
}

fn tree_usage(leader: u32) -> Option<Usage> {
    let (mut ticks, mut pages) = (0_u64, 0_u64);
    let (mut seen, mut ahead) = (HashSet::new(), vec![leader]);
    while let Some(pid) = ahead.pop() {
        if seen.len() >= PROCESSES_MAX || !seen.insert(pid) {
            continue;
        }
        let Some(own) =
            fs::read(format!("/proc/{pid}/stat")).ok().and_then(|stat| parse_stat(&stat))
        else {
            // The leader has ended, so its pid may name another process.
            if pid == leader {
                return None;
            }
            continue;
        };
        ticks = ticks.saturating_add(own.0);
        pages = pages.saturating_add(own.1);
        ahead.extend(children(pid));
    }
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let page = rustix::param::page_size() as u64;
    let millis = ticks.saturating_mul(1_000) / per_second;
    Some(Usage {
        cpu_time: Some(Duration::from_millis(millis)),
        memory_bytes: Some(pages.saturating_mul(page)),
        ..Usage::default()
    })
}

/// Children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task"));
    let lists = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let mut pids = Vec::new();
    for list in lists {
        pids.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    pids
}

/// Fields 14 to 17 (clock ticks, its own and those of reaped children) summed, and 24 (pages).
fn parse_stat(stat: &[u8]) -> Option<(u64, u64)> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = 0_u64;
    for _ in 0..4 {
        ticks = ticks.saturating_add(fields.next()?.parse().unwrap_or(0));
    }
    let pages = fields.nth(6)?.parse().unwrap_or(0);
    Some((ticks, pages))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_pages_are_read_from_their_fields() {
        let stat = b"42 (a) b) S 1 41 40 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 987654 1 77 9";
        assert_eq!(parse_stat(stat), Some((100, 77)));
        assert_eq!(parse_stat(b"42 (a) S 1"), None);
    }

    #[test]
    fn this_process_uses_memory_and_one_that_is_not_there_nothing() {
        let own = tree_usage(std::process::id()).unwrap();
        assert!(own.memory_bytes.unwrap() > 1 << 20);
        assert_eq!(tree_usage(u32::MAX), None);
        assert_eq!(
            cpu_of_stat("usage_usec 1500\nuser_usec 1\n"),
            Some(Duration::from_micros(1500))
        );
    }
}
