//! Isolated native tasks.

use super::KIB;

/// Processes and threads of one isolated task, where the kernel counts them by task. A busy database
/// has a few hundred.
pub const TASK_PROCESSES_MAX: u32 = 4_096;
/// Processes and threads of all tasks of one user, where the kernel only counts those of a user: half of what
/// a node has by default.
pub const USER_PROCESSES_MAX: u64 = 16_384;
/// User ids that allocations have of their own, as a stock client has for its dynamic users: above those of
/// people and services, below those that users give their containers.
pub const DYNAMIC_USERS: std::ops::RangeInclusive<u32> = 80_000..=89_999;
/// Most such user ids: the agent keeps in memory which allocation has which, some 40 bytes each.
pub const DYNAMIC_USERS_MAX: u64 = 65_536;
/// Longest list of the node's users, or groups, that is shown to a task with a name for its user id, bytes: it is
/// memory of each task. One of a thousand users has 80 KiB.
pub const USER_LIST_BYTES_MAX: u64 = 256 * KIB;
