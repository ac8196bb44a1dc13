//! What processes did so far, as the kernel counts it: processor time, switches of threads.

use std::collections::BTreeMap;
use std::fs;

use crate::percentiles::number;

/// The numbers of system calls that wait, or wake who waits, as far as the architecture has them. Their names are in
/// [`ostler_testing::system_calls`].
#[must_use]
pub fn wait_numbers() -> Vec<libc::c_long> {
    vec![
        libc::SYS_futex,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_restart_syscall,
        libc::SYS_ppoll,
        libc::SYS_clock_nanosleep,
        libc::SYS_sched_yield,
    ]
}

/// Counts of each process that lives.
#[derive(Clone, Debug, Default)]
pub struct StepCounts(BTreeMap<u32, ProcessSteps>);

/// Counts of a process, or of several together.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSteps {
    /// Switches of threads that waited.
    pub voluntary: u64,
    /// Switches of threads whose core another one got.
    pub involuntary: u64,
    /// Processor time, of children that ended too, in seconds.
    pub cpu_seconds: f64,
}

impl StepCounts {
    /// The counts of these processes now. Threads that ended are not counted.
    #[must_use]
    pub fn of(pids: &[u32]) -> Self {
        Self(pids.iter().filter_map(|pid| Some((*pid, steps_of(*pid)?))).collect())
    }

    /// What those that live now did since.
    #[must_use]
    pub fn since(&self, before: &Self) -> ProcessSteps {
        let none = ProcessSteps::default();
        self.0.iter().fold(none, |sum, (pid, now)| {
            let then = before.0.get(pid).unwrap_or(&none);
            ProcessSteps {
                voluntary: sum.voluntary + now.voluntary.saturating_sub(then.voluntary),
                involuntary: sum.involuntary + now.involuntary.saturating_sub(then.involuntary),
                cpu_seconds: sum.cpu_seconds + (now.cpu_seconds - then.cpu_seconds),
            }
        })
    }
}

fn steps_of(pid: u32) -> Option<ProcessSteps> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: utime, stime, cutime and cstime are fields 14 to 17.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u64 = fields.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
    let cpu_seconds = number(ticks) / number(rustix::param::clock_ticks_per_second());
    let mut steps = ProcessSteps { cpu_seconds, ..ProcessSteps::default() };
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        steps.voluntary += field("voluntary_ctxt_switches:");
        steps.involuntary += field("nonvoluntary_ctxt_switches:");
    }
    Some(steps)
}

/// Seconds that all cores were busy so far. It counts processes too that nobody waits for, such as
/// supervisors, and whatever else runs on the machine.
#[must_use]
pub fn machine_busy() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, then idle and waiting, irq, softirq.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    number(busy) / number(rustix::param::clock_ticks_per_second())
}
