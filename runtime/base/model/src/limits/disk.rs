//! What allocations have on disk that no directory shows, and the threads that work on files.

use std::time::Duration;

use super::MIB;

/// Descriptors and mappings of an allocation's processes that are looked at for files without a name when it is
/// measured: about a second of one core. Beyond it the result is a lower bound.
pub const HELD_FILES_LOOKED_AT_MAX: u64 = 200_000;
/// Bytes of the list of one process's mappings: some 60,000 of them, which is as many as the kernel allows.
pub const HELD_MAPS_BYTES_MAX: u64 = 8 * MIB;

/// How long a task runs before the directories are made that it has not asked for.
pub const TASK_DIRS_LATE: Duration = Duration::from_secs(10);
/// How often a task of a worker that waits for its directories looks whether they are there: its
/// agent may have been replaced since it asked.
pub const WORKER_DIRS_LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long short work on files may wait without any of it beginning, before one more thread takes it.
pub const DISK_LOOK_AFTER: Duration = Duration::from_millis(5);
/// How long results of short work on files are kept while more of it waits, to be told together: less than
/// a person or a disk takes, and some ten works of a disk that is well.
pub const DISK_TELL_AFTER: Duration = Duration::from_micros(500);
/// Most threads for the short work on files that one thread asked for. More are only started one by
/// one, while all others hang.
pub const DISK_THREADS_MAX: usize = 64;
