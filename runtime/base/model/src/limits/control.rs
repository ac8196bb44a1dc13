//! The node: garbage collection, changes that wait.

use std::time::Duration;

/// Default of `gc.interval`.
pub const GC_INTERVAL_DEFAULT: Duration = Duration::from_secs(60);
/// Shortest interval honoured: each look asks the file system.
pub const GC_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Default of `gc.disk_usage_threshold`, percent.
pub const GC_DISK_PERCENT_DEFAULT: u8 = 80;
/// Default of `gc.inode_usage_threshold`, percent.
pub const GC_INODE_PERCENT_DEFAULT: u8 = 70;
/// Default of `gc.max_allocs`.
pub const GC_MAX_ALLOCS_DEFAULT: u32 = 50;
/// Default of `gc.parallel_destroys`.
pub const GC_PARALLEL_DEFAULT: u32 = 16;
/// Longest that an allocation which cannot be removed is left alone, in intervals.
pub const GC_BACKOFF_TICKS_MAX: u64 = 64;
/// Longest wait for one removal: hooks of [`super::HOOK_WALL_MAX`] and a directory of some million files.
pub const GC_DESTROY_WALL_MAX: Duration = Duration::from_secs(300);
/// Longest wait for the file system to say how full it is, what it has to write included.
pub const GC_MEASURE_WALL_MAX: Duration = Duration::from_secs(60);
/// Longest wait of a request to collect for allocations that are about to end: most tasks end at once when
/// they are stopped, and the caller waits.
pub const GC_ENDING_WALL_MAX: Duration = Duration::from_secs(5);
/// Allocations of purged jobs that are removed at the same time. One thread removes their directories; what is
/// around that, such as commits and wakes, they share.
pub const PURGE_PARALLEL: usize = 32;
/// Most requests to collect allocations that wait while others are carried out. Further requests
/// are refused.
pub const COLLECT_REQUESTS_MAX: usize = 16;
/// Most requests and events that wait for the owner of the node. Further senders wait.
pub const CONTROL_QUEUE_MAX: usize = 256;
/// Most changes of jobs that wait until an earlier change of the same job has ended. Further ones are
/// refused: the disk is slow or full then, and nobody waits that long. Stops have as many places more.
pub const CHANGES_WAITING_MAX: usize = 1_024;
/// Most versions of a job that are kept, the present one included; the oldest that is not stable is
/// dropped first.
pub const JOB_VERSIONS_MAX: usize = 6;
/// Most deployments of a job that are kept; the oldest is dropped first.
pub const DEPLOYMENTS_PER_JOB_MAX: usize = 6;
/// Most failed predecessors that the record of an allocation names, where the policy does not limit them: the
/// waits before them decide on the next one.
pub const RESCHEDULE_EVENTS_MAX: usize = 6;
/// Events of the node that are kept; Nomad keeps as many.
pub const NODE_EVENTS_MAX: usize = 10;
/// Longest deadline of a drain: a year, so that its end is a time of day.
pub const NODE_DRAIN_DEADLINE_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);
/// Namespaces made over the API; each is a record that every start reads.
pub const NAMESPACES_MAX: usize = 1_024;
/// Longest description of a namespace, bytes; Nomad's bound.
pub const NAMESPACE_DESCRIPTION_BYTES_MAX: usize = 256;
