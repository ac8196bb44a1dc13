//! Limits of a plugin that a stock Nomad client runs.

use std::time::Duration;

use super::MIB;

/// Largest configuration of a task or of the plugin, bytes: it comes in one message of gRPC, which holds
/// 4 MiB.
pub const NOMAD_CONFIG_BYTES_MAX: usize = 4 * MIB as usize;
/// How long answers that are under way may hold up the end of the process: Nomad kills it after 2 s.
pub const NOMAD_PLUGIN_LEAVE_WALL: Duration = Duration::from_millis(500);
/// How long a write into a named pipe waits for room, milliseconds. A reader that writes to a slow disk takes
/// less time, and a reader that hangs delays a task no longer than this.
pub const PIPE_WRITE_WAIT_MS: i64 = 1_000;
/// How often the agent checks whether a named pipe has its first reader, which opens the pipe while
/// the task starts.
pub const PIPE_READER_LOOKS: u32 = 100;
/// Pause between two looks, milliseconds.
pub const PIPE_LOOK_PAUSE_MS: i64 = 10;
/// Most bytes that a task of Nomad may add to its directories. Nomad neither names the size of its disk nor
/// enforces one, so this only stops a task that writes without end.
pub const NOMAD_TASK_DISK_BYTES_MAX: u64 = 64 * 1_024 * MIB;
/// Events of tasks that wait for Nomad: it reads them at once, and those that do not fit are left out.
pub const NOMAD_EVENTS_MAX: usize = 256;
/// Shortest time from one measurement of a task or device to the next, whatever Nomad asks for.
pub const NOMAD_STATS_INTERVAL_MIN: Duration = Duration::from_millis(250);
/// How often the agent asks again for a task of an earlier process whose fate is not known at once. After
/// that Nomad starts another one.
pub const NOMAD_RECOVER_TRIES: u32 = 20;
/// Pause between two of these.
pub const NOMAD_RECOVER_PAUSE: Duration = Duration::from_millis(500);
/// Pause before a driver that cannot run is tried again, for example because another process has
/// its data directory.
pub const NOMAD_FINGERPRINT_PAUSE: Duration = Duration::from_secs(5);
/// Largest record of a task that is read again, bytes: a driver's handle, and identities of processes.
pub const NOMAD_RECORD_BYTES_MAX: u64 = MIB;
