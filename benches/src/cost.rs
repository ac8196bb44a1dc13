//! What a piece of work cost this process, all threads together.

use std::time::Duration;

use ostler_model::clock::Stopwatch;
use rustix::time::{ClockId, clock_gettime};

use crate::counting::Allocations;
use crate::proc_io::ProcIo;
use crate::syncs::syncs;

/// Counts at the start of a piece of work.
#[derive(Debug)]
pub struct Meter {
    watch: Stopwatch,
    cpu: Duration,
    allocations: Allocations,
    io: ProcIo,
    syncs: u64,
}

/// What it cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Wall time.
    pub wall: Duration,
    /// Processor time of all threads.
    pub cpu: Duration,
    /// Allocations made.
    pub allocations: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes of pages made dirty.
    pub disk_bytes: u64,
    /// Write system calls.
    pub write_calls: u64,
    /// Bytes given to them.
    pub written: u64,
    /// fdatasync and fsync calls.
    pub syncs: u64,
}

impl Meter {
    /// Start counting.
    #[must_use]
    pub fn start() -> Self {
        let io = ProcIo::now();
        // Last, because reading the counts above allocates.
        Self {
            io,
            syncs: syncs(),
            allocations: Allocations::now(),
            cpu: cpu(),
            watch: Stopwatch::start(),
        }
    }

    /// Counts since the start.
    #[must_use]
    pub fn stop(&self) -> Cost {
        let wall = self.watch.elapsed();
        let cpu = cpu().saturating_sub(self.cpu);
        let allocations = Allocations::now();
        let io = ProcIo::now();
        Cost {
            wall,
            cpu,
            allocations: allocations.calls - self.allocations.calls,
            allocated: allocations.bytes - self.allocations.bytes,
            disk_bytes: io.write_bytes - self.io.write_bytes,
            write_calls: io.write_calls - self.io.write_calls,
            written: io.written - self.io.written,
            syncs: syncs() - self.syncs,
        }
    }
}

impl Cost {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            wall: self.wall + other.wall,
            cpu: self.cpu + other.cpu,
            allocations: self.allocations + other.allocations,
            allocated: self.allocated + other.allocated,
            disk_bytes: self.disk_bytes + other.disk_bytes,
            write_calls: self.write_calls + other.write_calls,
            written: self.written + other.written,
            syncs: self.syncs + other.syncs,
        }
    }
}

/// Processor time of this process so far.
#[must_use]
pub fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}
