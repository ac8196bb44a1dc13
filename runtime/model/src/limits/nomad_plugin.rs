//! Limits of a plugin that a stock Nomad client runs.

use std::time::Duration;

use super::MIB;

/// Largest configuration of a task or of the plugin, bytes: it comes in one message of gRPC, which holds
/// 4 MiB.
pub const NOMAD_CONFIG_BYTES_MAX: usize = 4 * MIB as usize;
/// How long answers that are under way may hold up the end of the process: Nomad kills it after 2 s.
pub const NOMAD_PLUGIN_LEAVE_WALL: Duration = Duration::from_millis(500);
/// How long a write into a named pipe waits for room, milliseconds: a reader that writes to a slow disk
/// takes less, and a task is held up no longer by one that hangs.
pub const PIPE_WRITE_WAIT_MS: i64 = 1_000;
/// How often it is looked whether a named pipe has its first reader, who opens it beside the start.
pub const PIPE_READER_LOOKS: u32 = 100;
/// Pause between two looks, milliseconds.
pub const PIPE_LOOK_PAUSE_MS: i64 = 10;
/// Bytes that a task of Nomad may add to its directories: Nomad says nothing of the size of its disk and
/// enforces none, so this is to stop what runs away.
pub const NOMAD_TASK_DISK_BYTES_MAX: u64 = 64 * 1_024 * MIB;
/// Events of tasks that wait for Nomad: it reads them at once, and those that do not fit are left out.
pub const NOMAD_EVENTS_MAX: usize = 256;
/// Shortest time from one measurement of a task or device to the next, whatever Nomad asks for.
pub const NOMAD_STATS_INTERVAL_MIN: Duration = Duration::from_millis(250);
/// How often a task of an earlier process is asked for again, where it cannot be told at once what became
/// of it: Nomad starts another one after that.
pub const NOMAD_RECOVER_TRIES: u32 = 20;
/// Pause between two of these.
pub const NOMAD_RECOVER_PAUSE: Duration = Duration::from_millis(500);
/// How long a driver that cannot run, because another process has its data directory for example, says so
/// before it is tried again.
pub const NOMAD_FINGERPRINT_PAUSE: Duration = Duration::from_secs(5);
/// Largest record of a task that is read again, bytes: a driver's handle, and identities of processes.
pub const NOMAD_RECORD_BYTES_MAX: u64 = MIB;
