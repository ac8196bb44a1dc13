//! What guests may use: defaults of what configuration and jobs may override.

use std::time::Duration;

use super::{
    COMPILE_ADDRESS_SPACE_BYTES_MAX, COMPILE_CPU_SECONDS_MAX, COMPILE_WALL_MAX,
    EPHEMERAL_DISK_MB_DEFAULT, GUEST_CORE_INSTANCES_MAX, GUEST_MEMORIES_MAX,
    GUEST_TABLE_ELEMENTS_CEILING, GUEST_TABLES_MAX, KIB, MIB, PLUGIN_FILE_BYTES_MAX,
};

/// What the compile child of one guest may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Largest wasm file, bytes.
    pub file_bytes_max: u64,
    /// Address space of the child, bytes.
    pub address_space_bytes_max: u64,
    /// Processor time of the child; whole seconds, as the kernel counts.
    pub cpu_max: Duration,
    /// Wall time the agent waits for the child.
    pub wall_max: Duration,
}

impl CompileLimits {
    /// For a file of at most `file_bytes_max` bytes.
    #[must_use]
    pub const fn for_file_size(file_bytes_max: u64) -> Self {
        Self {
            file_bytes_max,
            address_space_bytes_max: COMPILE_ADDRESS_SPACE_BYTES_MAX,
            cpu_max: Duration::from_secs(COMPILE_CPU_SECONDS_MAX),
            wall_max: COMPILE_WALL_MAX,
        }
    }
}

/// Bytes of host memory that one table element takes: a pointer.
pub const TABLE_ELEMENT_BYTES: u64 = 8;

/// Files, directories and sockets that one task has open at once. A server's connections are among them.
pub const TASK_OPEN_FILES_MAX: u32 = 1_024;
/// Files, directories and sockets that all calls of one plugin together have open at once.
pub const PLUGIN_OPEN_FILES_MAX: u32 = 256;
/// Most files of one task or plugin on which a call may wait for ever, including those that given up calls
/// keep: each such call holds a thread.
pub const GUEST_WAITING_FILES_MAX: usize = 16;
/// Most holders of these files: each open file counts twice, each stream and each call that has not
/// returned once.
pub const GUEST_WAITING_HOLDERS_MAX: usize = 4 * GUEST_WAITING_FILES_MAX;
/// Bytes of the host's memory that an open directory counts as the guest's: a piece of names.
pub const LISTING_BYTES: u64 = 16 * KIB;
/// Bytes that a stream of a file reads or writes at once, and may keep where calls can be given up.
pub const FILE_STREAM_BYTES: usize = 64 * 1024;
/// Bytes that a socket counts: what was written to it and is not sent yet.
pub const SOCKET_BYTES: u64 = 64 * KIB;
/// Bytes that a module reads or writes before others have the thread.
pub const GUEST_IO_PIECE_BYTES: u32 = 1024 * 1024;

/// What one call of a plugin may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLimits {
    /// Wall time of one call. Host work that has a deadline of its own (a command, a start) is
    /// not counted.
    pub call_wall_max: Duration,
    /// Processor time of one call, without that of host functions.
    pub call_cpu_max: Duration,
    /// Linear memory and tables over all of the instance together, bytes; a table element counts
    /// [`TABLE_ELEMENT_BYTES`].
    pub memory_bytes_max: u64,
    /// Table elements over all tables together.
    pub table_elements_max: u64,
    /// Core instances in the component.
    pub instances_max: u32,
    /// Linear memories in the component.
    pub memories_max: u32,
    /// Tables in the component.
    pub tables_max: u32,
    /// What its compile child may use, and the size of its file.
    pub compile: CompileLimits,
    /// Bytes the guest may hand over in one host call.
    pub host_call_bytes_max: u64,
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
            // A thousand times what a call of eight devices takes in a build without optimisation;
            // below the wall deadline, so that who computes for ever ends sooner than who waits.
            call_cpu_max: Duration::from_secs(2),
            memory_bytes_max: 64 * MIB,
            table_elements_max: GUEST_TABLE_ELEMENTS_CEILING as u64,
            instances_max: GUEST_CORE_INSTANCES_MAX,
            memories_max: GUEST_MEMORIES_MAX,
            tables_max: GUEST_TABLES_MAX,
            compile: CompileLimits::for_file_size(PLUGIN_FILE_BYTES_MAX),
            // The arguments of a spawn with a whole environment are some 100 KiB.
            host_call_bytes_max: MIB,
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

/// What one WASM task may use. A task may be given less, never more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLimits {
    /// Linear memory and tables over all of the task together, bytes. The job's `resources.memory`
    /// replaces it.
    pub memory_bytes_max: u64,
    /// Table elements over all tables together. ripgrep has 5,000, CPython 12,000.
    pub table_elements_max: u64,
    /// Bytes copied by one host call.
    pub transfer_bytes_max: u64,
    /// Component resources (handles: files, streams, sockets) alive at once.
    pub handles_max: u32,
    /// Bytes of one random request.
    pub random_bytes_max: u64,
    /// Bytes it may add to its directories. The group's `ephemeral_disk` replaces it.
    pub disk_bytes_max: u64,
}

impl Default for TaskLimits {
    fn default() -> Self {
        Self {
            memory_bytes_max: 300 * MIB,
            table_elements_max: GUEST_TABLE_ELEMENTS_CEILING as u64,
            transfer_bytes_max: 8 * MIB,
            // Some 200 bytes each on the host, which no other limit counts.
            handles_max: 4_096,
            random_bytes_max: 64 * KIB,
            disk_bytes_max: EPHEMERAL_DISK_MB_DEFAULT as u64 * MIB,
        }
    }
}

/// Most secrets of the recorded calls that are searched for in the whole recording, the first ones found:
/// each costs one pass over it.
pub const RECORDED_SECRETS_MAX: usize = 256;
/// Most secrets of one task and its driver that are searched for in texts of the driver: more than
/// a task has variables.
pub const TASK_SECRETS_MAX: usize = 1024;
