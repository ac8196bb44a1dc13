//! What guests may use: defaults of what configuration and jobs may override.

use std::time::Duration;

use super::{KIB, MIB};

/// What one call of a plugin may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLimits {
    /// Wall time of one call, host functions included.
    pub call_wall_max: Duration,
    /// Linear memory over all memories of the instance together, bytes.
    pub memory_bytes_max: u64,
    /// Table elements over all tables together.
    pub table_elements_max: u64,
    /// Bytes copied between guest and host in one call, both ways together.
    pub transfer_bytes_max: u64,
    /// Host functions called in one call.
    pub host_calls_max: u64,
    /// Bytes of one answer after lifting (strings and lists), checked by validation.
    pub answer_bytes_max: u64,
    /// Bytes of log text per second; more is dropped and counted.
    pub log_bytes_per_second: u64,
    /// Component resources (handles) alive at once.
    pub handles_max: u32,
    /// Bytes of one random request.
    pub random_bytes_max: u64,
    /// Last calls kept in memory, to be written down when one fails; 0: nothing is recorded.
    pub recorded_calls_max: u32,
}

impl Default for PluginLimits {
    fn default() -> Self {
        Self {
            // A fingerprint takes microseconds; two seconds leave room for a slow `nvidia-smi`
            // and a loaded machine, and bound how long a kill can be held up.
            call_wall_max: Duration::from_secs(5),
            memory_bytes_max: 64 * MIB,
            table_elements_max: 40_000,
            // Eight devices with four attributes are 4 KiB. Host memory can reach three times this.
            transfer_bytes_max: 4 * MIB,
            host_calls_max: 10_000,
            answer_bytes_max: MIB,
            log_bytes_per_second: 64 * KIB,
            handles_max: 1_000,
            random_bytes_max: 64 * KIB,
            // A start, its exit and what was asked between.
            recorded_calls_max: 8,
        }
    }
}

/// What one WASM task may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLimits {
    /// Linear memory over all memories together, bytes. The job's `resources.memory` replaces it.
    pub memory_bytes_max: u64,
    /// Table elements over all tables together. ripgrep has 5,000, CPython 12,000.
    pub table_elements_max: u64,
    /// Bytes copied by one host call.
    pub transfer_bytes_max: u64,
    /// Component resources (handles: files, streams, sockets) alive at once.
    pub handles_max: u32,
    /// Bytes of one random request.
    pub random_bytes_max: u64,
}

impl Default for TaskLimits {
    fn default() -> Self {
        Self {
            memory_bytes_max: 300 * MIB,
            table_elements_max: 40_000,
            transfer_bytes_max: 8 * MIB,
            handles_max: 10_000,
            random_bytes_max: 64 * KIB,
        }
    }
}
