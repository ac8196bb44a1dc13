//! Every limit of the agent: name, unit, default and reason, in one place.
//!
//! Constants are bounds of the agent itself. [`PluginLimits`] and [`TaskLimits`] are the defaults
//! of what a guest may use; configuration may override them per plugin and per task.

use std::time::Duration;

mod api;
mod artifacts;
mod bundle;
mod cluster;
mod control;
mod disk;
mod engines;
mod events;
mod guest;
mod helpers;
mod isolation;
mod moved;
mod networks;
mod nomad_plugin;
mod patterns;
mod services;
mod template;
mod traces;
mod variables;

pub use api::*;
pub use artifacts::*;
pub use bundle::*;
pub use cluster::*;
pub use control::*;
pub use disk::*;
pub use engines::*;
pub use events::*;
pub use guest::*;
pub use helpers::*;
pub use isolation::*;
pub use moved::*;
pub use networks::*;
pub use nomad_plugin::*;
pub use patterns::*;
pub use services::*;
pub use template::*;
pub use traces::*;
pub use variables::*;

/// One kibibyte in bytes.
pub const KIB: u64 = 1024;
/// One mebibyte in bytes.
pub const MIB: u64 = 1024 * KIB;

// ---- job files -------------------------------------------------------------------------------

/// Largest job file read, bytes. A job of a thousand tasks is below 1 MiB; parsing cost is linear.
pub const JOB_FILE_BYTES_MAX: u64 = 2 * MIB;
/// Most files of variables for one job file.
pub const JOB_VAR_FILES_MAX: usize = 64;
/// Most files and directories that `fileset` in a job file looks at.
pub const JOB_FILESET_ENTRIES_MAX: usize = 20_000;
/// Largest access policy of a server that is read, bytes. One that names a hundred namespaces is below 20 KiB.
pub const ACCESS_POLICY_BYTES_MAX: u64 = 256 * 1_024;
/// Largest agent configuration read, bytes. A node with a hundred plugins is below 100 KiB.
pub const CONFIG_FILE_BYTES_MAX: u64 = MIB;
/// Deepest nesting of blocks and expressions in a job file. Nomad's own files reach 8.
pub const JOB_NESTING_MAX: usize = 32;
/// Most problems reported for one job file: beyond that a person stops reading.
pub const JOB_DIAGNOSTICS_MAX: usize = 50;
/// Most tasks of one job on this node, over all groups and counts: what the dense profile runs.
pub const JOB_TASKS_MAX: usize = 50_000;
/// Most task blocks of one job, counts left aside: each allocation of a group has all of them.
pub const JOB_TASK_BLOCKS_MAX: usize = 1_000;
/// Places of a task group whose ends are kept in one record: a job of ten thousand allocations has
/// 157, and what one more end writes stays below 4 KiB.
pub const ENDED_PLACES_PER_RECORD: u32 = 64;
/// Longest name (job, group, task), bytes: names become directory names.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest name of a namespace, bytes; as in Nomad.
pub const NAMESPACE_BYTES_MAX: usize = 128;

// ---- plugins ---------------------------------------------------------------------------------

/// Largest plugin file, bytes. CPython plugins have 18 MiB.
pub const PLUGIN_FILE_BYTES_MAX: u64 = 32 * MIB;
/// Largest WASM task file, bytes. CRuby has 24 MiB.
pub const TASK_FILE_BYTES_MAX: u64 = 64 * MIB;
/// Most functions in one guest: a million tiny functions cost the compiler 19 s and 5.3 GB.
pub const GUEST_FUNCTIONS_MAX: u32 = 200_000;
/// Address space of the compile child, bytes. CRuby needs about 1.5 GiB on two threads.
pub const COMPILE_ADDRESS_SPACE_BYTES_MAX: u64 = 3 * 1024 * MIB;
/// Processor time of the compile child, seconds.
pub const COMPILE_CPU_SECONDS_MAX: u64 = 60;
/// Files the compile child may have open: its three streams, the output, what the C library and the
/// thread pool look at. The agent's own limit is raised to all the system allows.
pub const COMPILE_OPEN_FILES_MAX: u64 = 64;
/// Wall time the agent waits for the compile child: a last resort, for a child that waits for ever.
/// What bounds it is [`COMPILE_CPU_SECONDS_MAX`]: on a busy node, niced, a child gets a tenth of a core.
pub const COMPILE_WALL_MAX: Duration = Duration::from_secs(10 * 60);
/// Compile children at once: each may use two threads.
pub const COMPILE_CHILDREN_MAX: usize = 2;
/// Standard error of the compile child kept for the error message, bytes.
pub const COMPILE_STDERR_BYTES_MAX: usize = 8 * 1024;

/// Interval of the epoch ticker. A spinning guest yields or dies within two ticks.
pub const EPOCH_TICK: Duration = Duration::from_millis(10);

/// Longest that a plugin's guest may take and still count as quick: quick ones run on the thread of
/// their caller. Thirty times a small call; a tenth of what a guest can hold up a thread ([`EPOCH_TICK`]).
pub const INLINE_TIME_MAX: Duration = Duration::from_millis(1);
/// After a guest that was not quick on its caller's thread: how long no other runs there. So guests
/// take at most a tenth of one thread of the agent.
pub const INLINE_REST: Duration = Duration::from_millis(100);
/// Calls that must be quick on a guest thread after one that was not.
pub const INLINE_TRIAL_CALLS: u32 = 32;
/// Calls with a shorter deadline always run on a guest thread: on the caller's, nobody would notice
/// the deadline before the tick.
pub const INLINE_DEADLINE_MIN: Duration = Duration::from_millis(100);
/// Stores that grew larger are dropped on a guest thread: giving memory back takes long.
pub const INLINE_MEMORY_BYTES_MAX: u64 = 8 * MIB;

/// Instances of plugins alive at once (calls in flight).
pub const PLUGIN_INSTANCES_MAX: u32 = 128;
/// How long the start waits for one more plugin to be loaded before it goes on without the missing ones. Most
/// take milliseconds, a plugin that is compiled some seconds, on a busy node ten times as long.
pub const PLUGIN_LATE_AFTER: Duration = Duration::from_secs(30);
/// Most calls of one plugin under way at once, out of [`PLUGIN_INSTANCES_MAX`]: a plugin whose calls never
/// end leaves three quarters to the others. A node of fifty tasks that all start has a handful at once.
pub const PLUGIN_CALLS_MAX: usize = 32;
/// Most of those calls that are starts, which may wait for a compiler. The rest is for stops.
pub const PLUGIN_STARTS_MAX: usize = 24;
/// Most of those starts that are of tasks of one job.
pub const PLUGIN_STARTS_OF_JOB_MAX: usize = 8;
/// WASM tasks alive at once in one process; lowered where the kernel's map limit is too small, which
/// by default it is not ([`POOL_MAPPINGS_PER_SLOT`]). A process that forks runs none of them: a fork
/// copies all mappings.
pub const TASK_INSTANCES_MAX: u32 = 10_000;
/// WASM tasks alive at once with the dense profile, where a task takes no mappings.
pub const DENSE_TASKS_MAX: u32 = 50_000;
/// Largest number of WASM tasks that a configuration may set, with either profile.
pub const TASK_INSTANCES_CEILING: u32 = 100_000;

/// Longest text of one finding of `ostler plugin check`, bytes: a chain of causes with grant lines.
pub const PLUGIN_CHECK_DETAIL_BYTES_MAX: usize = 2 * 1024;

/// Largest record of what the host answered during one call, bytes; a longer one is cut. Listing the
/// devices of a large node is below 200 KiB.
pub const PLUGIN_TRACE_BYTES_MAX: usize = 512 * 1024;

/// Most calls of one plugin kept in memory.
pub const PLUGIN_RING_CALLS_MAX: usize = 64;
/// Most bytes of those, arguments and the host's answers together; of larger calls, the last is kept.
pub const PLUGIN_RING_BYTES_MAX: usize = 256 * 1024;
/// Largest recording, bytes: one call of [`PLUGIN_TRACE_BYTES_MAX`] with its arguments, and the ring.
pub const PLUGIN_RECORDING_BYTES_MAX: u64 = 8 * MIB;
/// Recordings kept in a data directory; the oldest goes first.
pub const PLUGIN_RECORDINGS_MAX: usize = 64;
/// How long a function of a plugin that fails in the same way is not recorded again.
pub const PLUGIN_RECORDING_PAUSE: Duration = Duration::from_secs(60);

/// Largest linear memory of any WASM task, bytes: the size of a pool slot.
pub const TASK_MEMORY_BYTES_CEILING: u64 = 4 * 1024 * MIB;

// ---- trust -----------------------------------------------------------------------------------

/// Largest trust file read, bytes: ten thousand digests with a pattern each are below it.
pub const TRUST_FILE_BYTES_MAX: u64 = 2 * MIB;
/// Most keys of a trust file. A node trusts a handful of signers.
pub const TRUST_KEYS_MAX: usize = 256;
/// Most digests of a trust file, revoked ones among them.
pub const TRUST_DIGESTS_MAX: usize = 10_000;
/// Most name patterns of one key or digest.
pub const TRUST_PATTERNS_MAX: usize = 64;
/// Largest signature file read, bytes. Minisign's comment is at most 8 KiB.
pub const SIGNATURE_FILE_BYTES_MAX: u64 = 16 * KIB;

// ---- registries ------------------------------------------------------------------------------

/// Largest manifest read, bytes. That of a plugin is below 2 KiB; registries themselves take 4 MiB.
pub const REGISTRY_MANIFEST_BYTES_MAX: u64 = 256 * KIB;
/// Largest answer of a token service read, bytes. Tokens have some KiB.
pub const REGISTRY_TOKEN_BYTES_MAX: u64 = 64 * KIB;
/// Head of an answer of a registry, bytes. Signed addresses in redirects have some KiB.
pub const REGISTRY_HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most headers of an answer of a registry.
pub const REGISTRY_HEADERS_MAX: usize = 100;
/// Most redirects of one request. Registries keep blobs one hop away.
pub const REGISTRY_REDIRECTS_MAX: usize = 5;
/// How often a request is sent again to a registry that is busy.
pub const REGISTRY_RETRIES_MAX: usize = 3;
/// Longest wait before that; a registry that names more is given up.
pub const REGISTRY_RETRY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Wall time for a connection to a registry, and again for TLS.
pub const REGISTRY_CONNECT_WALL: Duration = Duration::from_secs(10);
/// Wall time for the head of an answer.
pub const REGISTRY_HEAD_WALL: Duration = Duration::from_secs(30);
/// Longest silence within an answer.
pub const REGISTRY_SILENCE_WALL: Duration = Duration::from_secs(30);
/// Wall time for a manifest, and again for the blobs: 32 MiB at 110 KiB a second.
pub const REGISTRY_PULL_WALL: Duration = Duration::from_secs(300);
/// Wall time for what an agent pulls while it starts: its other plugins wait meanwhile.
pub const REGISTRY_START_WALL: Duration = Duration::from_secs(30);
/// Largest file of credentials read, bytes. That of Docker has some KiB.
pub const CREDENTIALS_FILE_BYTES_MAX: u64 = MIB;
/// Largest record of what a reference means, bytes.
pub const PIN_BYTES_MAX: u64 = 4 * KIB;
/// Most of these records that are searched for one that still names a file.
pub const PINS_MAX: usize = 10_000;

// ---- plugin answers --------------------------------------------------------------------------

/// Longest driver handle, bytes: it is written to the state file at each start.
pub const HANDLE_BYTES_MAX: usize = 64 * 1024;
/// Most device groups in one fingerprint.
pub const DEVICE_GROUPS_MAX: usize = 256;
/// Most instances in one device group.
pub const DEVICE_INSTANCES_MAX: usize = 4_096;
/// Steps of the search for a way to serve several device requests at once; each is some
/// microseconds under the admission's lock. Beyond it the best way found so far counts.
pub const DEVICE_COMBINATIONS_MAX: usize = 2_000;
/// Most device requests of one allocation that are searched together; further ones are served one
/// after the other.
pub const DEVICE_REQUESTS_SEARCHED_MAX: usize = 64;
/// Device requests that a plan explains: a job may have a thousand allocations alike.
pub const PLAN_DEVICE_REQUESTS_MAX: usize = 64;
/// Most attributes of a driver, a node fingerprint or a device group.
pub const ATTRIBUTES_MAX: usize = 512;
/// Most measurements of one device instance. A graphics card has about forty.
pub const STAT_ENTRIES_MAX: usize = 512;
/// Deepest place of a measurement: objects inside one another, its own name included.
pub const STAT_DEPTH_MAX: usize = 8;
/// How far a measurement may be ahead of the host's clock, which may have been set back meanwhile.
pub const STATS_AHEAD_MAX: Duration = Duration::from_secs(60);
/// Longest id, name or unit in an answer, bytes.
pub const ANSWER_NAME_BYTES_MAX: usize = 256;
/// Longest free text in an answer (reason, message, attribute value), bytes.
pub const ANSWER_TEXT_BYTES_MAX: usize = 4 * 1024;
/// Longest JSON Schema of a plugin, bytes.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Longest regular expression of a schema, bytes, and of all of them together: what parsing one takes
/// grows with it, most with classes like `\p{L}`.
pub const SCHEMA_PATTERN_BYTES_MAX: usize = 2 * 1024;
/// See [`SCHEMA_PATTERN_BYTES_MAX`].
pub const SCHEMA_PATTERNS_BYTES_MAX: usize = 16 * 1024;
/// Most different regular expressions of a schema. Those of the built-in plugins have one or two.
pub const SCHEMA_PATTERNS_MAX: usize = 256;
/// Memory of one automaton of a regular expression, bytes: `^\p{L}{1,32}$` fits.
pub const SCHEMA_AUTOMATON_BYTES_MAX: usize = 2 * MIB as usize;
/// Memory of all automata of a schema together, bytes; an expression has two or three automata.
pub const SCHEMA_AUTOMATA_BYTES_MAX: usize = 4 * MIB as usize;
/// Longest wait for a schema to be compiled. The bounds above keep it far below.
pub const SCHEMA_WALL_MAX: Duration = Duration::from_secs(30);
/// Addresses that one call of a plugin may learn from granted names. A name stands for a handful.
pub const PLUGIN_ADDRESSES_LEARNED_MAX: usize = 64;
/// Shortest interval a plugin may ask for: a zero interval once cost a whole core (nomad #6201).
pub const NEXT_CHECK_MIN: Duration = Duration::from_secs(1);
/// Longest message of a plugin in the agent's log or a task event, bytes.
pub const PLUGIN_MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Annotations of one event that a driver reports; a task keeps [`TASK_EVENTS_MAX`] events.
pub const EVENT_ANNOTATIONS_MAX: usize = 32;
/// Longest value of such an annotation, bytes.
pub const EVENT_ANNOTATION_BYTES_MAX: usize = 1024;
/// Problems of a configuration that one answer of a plugin tells; a person mends a few at a time.
pub const ANSWER_DIAGNOSTICS_MAX: usize = 20;
/// Longest of those, bytes.
pub const ANSWER_DIAGNOSTIC_BYTES_MAX: usize = 512;
/// Longest name of an import or export of a plugin, bytes. Those of WASI have 40.
pub const PLUGIN_ITEM_NAME_BYTES_MAX: usize = 256;
/// Names of a list that a message tells; the others are counted.
pub const NAMES_TOLD_MAX: usize = 10;
/// Output of one `command.run`, per stream, bytes.
pub const COMMAND_OUTPUT_BYTES_MAX: usize = MIB as usize;

// ---- watches ---------------------------------------------------------------------------------

/// Subscriptions at once: one for each plugin that watches anything.
pub const WATCH_SUBSCRIPTIONS_MAX: usize = 1_024;
/// Paths of one subscription. Each takes two of the kernel's watches, of which a user has 8,192 on a
/// small machine.
pub const WATCH_PATHS_MAX: usize = 64;
/// Kernel subsystems of one subscription.
pub const WATCH_SUBSYSTEMS_MAX: usize = 32;
/// Most notes on what does not work that are kept to be shown.
pub const WATCH_NOTES_MAX: usize = 64;
/// Silence after a change before it is reported: plugging in a device makes a dozen events.
pub const WATCH_QUIET: Duration = Duration::from_millis(100);
/// Longest wait for that silence.
pub const WATCH_DEBOUNCE_MAX: Duration = Duration::from_secs(1);
/// Pause after changes were read: at most fifty rounds of reading a second, however busy a path is.
pub const WATCH_READ_PAUSE: Duration = Duration::from_millis(20);
/// Shortest from the end of one fingerprint to the next that a change asks for.
pub const WATCH_ASK_GAP: Duration = Duration::from_secs(1);
/// The same gap for a plugin that failed: a change may mean that it works again, and a path that
/// changes all the time must not undo the back-off.
pub const WATCH_ASK_GAP_FAILING: Duration = Duration::from_secs(10);
/// Longest kernel event, bytes: 2 KiB of fields (the kernel's buffer) and a path.
pub const UEVENT_BYTES_MAX: usize = 8 * 1024;
/// Most fields of a kernel event; the kernel has room for 64.
pub const UEVENT_FIELDS_MAX: usize = 80;

// ---- allocations and tasks -------------------------------------------------------------------

/// Requests waiting for one runner. The sender waits when it is full.
pub const RUNNER_QUEUE_MAX: usize = 32;
/// Events kept in a task's state, newest last. Nomad keeps 10 and loses history in a restart storm.
pub const TASK_EVENTS_MAX: usize = 64;
/// Processes, and WASM tasks, one run may have, ended ones included. A task is one of them; a few
/// more leave room for commands run inside it.
pub const WORKLOADS_PER_RUN_MAX: usize = 64;
/// Most commands that the agent's user runs inside tasks at once over the socket. All other callers of the
/// API together have as many, and so have all callers that come through servers.
pub const EXEC_SESSIONS_MAX: usize = 64;
/// Most commands inside tasks of a node at once: the three shares of people, and a fourth of the same size
/// for checks and templates, which people cannot take.
pub const COMMANDS_INSIDE_MAX: usize = 4 * EXEC_SESSIONS_MAX;
/// Program and arguments of such a command.
pub const EXEC_ARGUMENTS_MAX: usize = 1_024;
/// Bytes of its arguments and environment together: what the kernel takes at least.
pub const EXEC_TEXT_BYTES_MAX: usize = 128 * 1024;
/// Bytes of what a command prints that are kept where its output is wanted whole.
pub const EXEC_OUTPUT_BYTES_MAX: usize = MIB as usize;
/// How long the caller of a command may take to read its last output.
pub const EXEC_OUTPUT_WALL_MAX: Duration = Duration::from_secs(30);
/// Longest reason for which a command inside a task is refused, bytes: it travels as the reason for which a
/// WebSocket is closed, which has no more (RFC 6455, 5.5).
pub const EXEC_REASON_BYTES_MAX: usize = 123;
/// How often the caller of a command that prints nothing gets a sign of life, by which a caller that is gone
/// is noticed. Nomad's command line sends its own as often.
pub const EXEC_SIGN_PERIOD: Duration = Duration::from_secs(10);
/// Largest frame that is read from the caller of a command inside a task, or from the agent that runs it,
/// bytes. Nomad's command line sends 3 KiB at once, the agent 22 KiB.
pub const EXEC_FRAME_BYTES_MAX: usize = 128 * 1024;
/// How long the last frame of such a session may take, and the other side to answer it.
pub const EXEC_CLOSE_WALL_MAX: Duration = Duration::from_secs(2);
/// Default of `kill_timeout`.
pub const KILL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Longest `kill_timeout` honoured unless configured; Nomad's.
pub const KILL_TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// Longest that may be configured: a drain waits for it.
pub const KILL_TIMEOUT_CEILING: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a killed workload may take to be reaped before the runner says that it does not end.
pub const KILL_GRACE: Duration = Duration::from_secs(10);
/// How long an exit record that cannot be read is tried again before the exit counts as not known:
/// descriptors and disks come back.
pub const EXIT_READ_WALL_MAX: Duration = Duration::from_secs(300);
/// How long a supervisor keeps an exit that the disk refuses while no agent reads it: a disk that is
/// full over a long weekend.
pub const EXIT_KEPT_WALL_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// First and longest pause before a workload that does not end is killed again: a process in
/// uninterruptible sleep ends when its disk answers, which may take hours.
pub const END_RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30);
/// Smallest and largest dynamic port (Nomad's defaults).
pub const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 20_000..=32_000;
/// First-fingerprint barrier: how long start-up waits for plugins before going on without them.
pub const FIRST_FINGERPRINT_WAIT: Duration = Duration::from_secs(50);
/// Default of `failure.retry_first`: the wait after the first failed fingerprint of a plugin; doubles
/// with each further failure.
pub const FINGERPRINT_RETRY_FIRST: Duration = Duration::from_secs(1);
/// Default of `failure.retry_max`: the longest wait after failed fingerprints. The agent never
/// gives a plugin up.
pub const FINGERPRINT_RETRY_MAX: Duration = Duration::from_secs(120);
/// Default of `failure.strike_window`: how long a failed call counts against a plugin.
pub const STRIKE_WINDOW: Duration = Duration::from_secs(600);
/// Most strikes of one plugin that are kept; further ones within the window do not raise the count.
pub const PLUGIN_STRIKES_KEPT_MAX: usize = 64;
/// Default of `failure.strikes_max`: failed calls within [`STRIKE_WINDOW`] after which a plugin is put
/// into quarantine. A plugin that traps at each fingerprint gets there in a quarter of a minute.
pub const STRIKES_MAX_DEFAULT: u32 = 5;
/// Default of `failure.quarantine`: how long a plugin then gets no calls, before it is tried again.
pub const QUARANTINE_DEFAULT: Duration = Duration::from_secs(600);
/// Longest quarantine; each relapse doubles it up to here. Once a day a broken plugin is tried.
pub const QUARANTINE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Default of `failure.upgrade_strikes`: failed calls of a plugin that has just taken the place of
/// another, after which the other comes back.
pub const UPGRADE_STRIKES_DEFAULT: u32 = 3;
/// Default of `failure.upgrade_window`: how long it is watched so.
pub const UPGRADE_WINDOW_DEFAULT: Duration = Duration::from_secs(60);
/// Longest dry run of a new plugin, all its calls together: ten thousand tasks at a millisecond each.
pub const UPGRADE_DRY_WALL_MAX: Duration = Duration::from_secs(30);
/// Calls of a dry run at once: most instances stay with the plugins in use.
pub const UPGRADE_DRY_CALLS: usize = 8;
/// Files of one plugin that were rolled back and are not taken again by themselves.
pub const UPGRADES_BARRED_MAX: usize = 16;
/// How often files of plugins that upgrade by themselves are looked at, beside what the kernel tells
/// of them: a network file system tells nothing.
pub const UPGRADE_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Largest file of quarantines read, bytes: a hundred plugins with reasons of full length.
pub const QUARANTINE_FILE_BYTES_MAX: u64 = MIB;
/// Tasks whose failed calls are remembered by themselves, per plugin; the one that struck longest ago
/// is forgotten first.
pub const POISONED_TASKS_KEPT_MAX: usize = 256;

/// From one collection of a device plugin's statistics to the next, unless configured. A card's
/// sensors change within seconds; nvidia-smi takes some 50 ms of a core for one answer.
pub const DEVICE_STATS_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// Shortest interval honoured: a zero interval once cost a whole core (nomad #6201).
pub const DEVICE_STATS_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest wait between collections from a plugin that fails.
pub const DEVICE_STATS_RETRY_MAX: Duration = Duration::from_secs(120);
/// Number of intervals after which statistics count as stale.
pub const DEVICE_STATS_OLD_INTERVALS: u32 = 3;
/// Longest call of a device plugin the manager waits for, unless the plugin's own deadline is longer;
/// below [`HOOK_WALL_MAX`].
pub const DEVICE_CALL_WALL_MAX: Duration = Duration::from_secs(45);
/// Longest wait for plugins that are being loaded, of a task whose device none reports yet: an agent that was
/// started again has its tasks before its plugins.
pub const DEVICE_LOADED_WALL: Duration = Duration::from_secs(30);
/// How often a plugin is asked that found nothing for it on this node, unless its answer names
/// another interval.
pub const DEVICE_UNDETECTED_INTERVAL: Duration = Duration::from_secs(60);
/// Kernel subsystems whose events make such a plugin be asked at once: the bus reports a card that is plugged
/// in, and `module` reports a driver that is loaded.
pub const UNDETECTED_SUBSYSTEMS: &[&str] = &["module", "pci", "usb"];
/// Reserves and releases of one device plugin at once: a plugin that hangs must leave the instances
/// of [`PLUGIN_INSTANCES_MAX`] to others.
pub const DEVICE_CALLS_MAX: usize = 4;
/// Wait after a first release that the plugin did not answer; doubles with each further one.
pub const DEVICE_RELEASE_RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest wait between two tries of a release.
pub const DEVICE_RELEASE_RETRY_MAX: Duration = Duration::from_secs(60);
/// Rounds of a release, the first included, until it is given up: about five minutes, in which a
/// plugin that is updated or restarted is back.
pub const DEVICE_RELEASE_TRIES_MAX: u32 = 11;
/// From one measurement of an allocation's directory to the next. A task that writes 100 MB/s is
/// found within 6 GB.
pub const DISK_MEASURE_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two searches for allocations whose measurement is due.
pub const DISK_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Measurements that have waited for so long that they are made without a reason take at most this part
/// of one core together.
pub const DISK_SPARED_WALKS_FACTOR: u32 = 1_000;
/// Measurements in a row that are spared while the file system grows little: a quarter of an hour.
pub const DISK_WALKS_SPARED_MAX: u32 = 15;
/// A measurement that took long is followed by a pause this many times as long.
pub const DISK_MEASURE_PAUSE_FACTOR: u32 = 100;
// ---- allocation directories ------------------------------------------------------------------

/// How long an agent waits for the lock of its data directory while no living process is named in
/// the lock file: a process that an agent was starting when it was killed holds the lock until it
/// executes its own program.
pub const DATA_DIR_LOCK_WALL_MAX: Duration = Duration::from_secs(2);
/// Between two tries to get that lock.
pub const DATA_DIR_LOCK_POLL: Duration = Duration::from_millis(20);
/// Longest wait until another user of the same allocation directory has ended its change.
pub const ALLOC_DIR_LOCK_WALL_MAX: Duration = Duration::from_secs(60);
/// Entries touched by one removal of a directory. Twenty times what an ext4 of 250 GB can hold; only
/// a process that creates files as fast as they are removed gets there.
pub const REMOVE_ENTRIES_MAX: u64 = 400_000_000;
/// Directories that can neither be removed nor moved, one inside the other, that a removal goes
/// into. Each keeps a directory open; ordinary content has none.
pub const REMOVE_PINNED_DEPTH_MAX: usize = 16;
/// Names of what a removal had to leave, given in its error; all are counted.
pub const REMOVE_NAMES_MAX: usize = 16;
/// Largest journal of a move between allocations, bytes: the names of [`JOB_TASK_BLOCKS_MAX`] tasks are
/// a quarter of it.
pub const MIGRATE_JOURNAL_BYTES_MAX: u64 = 512 * KIB;
/// Entries looked at when an allocation's disk use is measured: about two seconds of one core. Beyond
/// it the result is a lower bound and says so.
pub const MEASURE_ENTRIES_MAX: u64 = 1_000_000;
/// Levels of an allocation directory kept open while it is measured; deeper ones are left by `..`.
pub const MEASURE_OPEN_LEVELS_MAX: usize = 32;

// ---- logs ------------------------------------------------------------------------------------

/// Size of a task's `secrets` directory in memory, MiB, unless the job says it; as in Nomad.
pub const SECRETS_MB_DEFAULT: u32 = 1;
/// Smallest `ephemeral_disk.size`, MiB; as in Nomad.
pub const EPHEMERAL_DISK_MB_MIN: u32 = 10;
/// What an allocation's directory may hold unless the job says otherwise, MiB; Nomad's default.
pub const EPHEMERAL_DISK_MB_DEFAULT: u32 = 300;
/// Default of `logs.max_files`, per stream.
pub const LOG_FILES_DEFAULT: u32 = 10;
/// Default of `logs.max_file_size`, MB (10^6 bytes as in Nomad's MB = MiB), per file.
pub const LOG_FILE_SIZE_MB_DEFAULT: u32 = 10;
/// How far beyond the file limit a line may run before it is cut, bytes.
pub const LOG_LINE_SEEK_BYTES: usize = 32 * 1024;
/// Bytes read from a task's pipe at once.
pub const LOG_READ_BYTES: usize = 64 * 1024;
/// Threads for files that write what tasks print at once, of the 512 there are: a disk that hangs holds
/// these and leaves the others to everything else.
pub const LOG_WRITERS_MAX: usize = 64;
/// Lines of the agent's own log waiting to be written, bytes; what comes beyond is counted and lost.
pub const LOG_QUEUE_BYTES_MAX: usize = 4 * MIB as usize;
/// How long the program waits at its end until its log is written.
pub const LOG_END_WAIT: Duration = Duration::from_secs(1);

// ---- state -----------------------------------------------------------------------------------

/// Writes waiting for the state writer. Callers wait when it is full.
pub const STATE_QUEUE_MAX: usize = 1_024;
/// Most writes in one commit.
pub const STATE_BATCH_MAX: usize = 512;
/// Longest that a write which may lag waits for a durable one to go with. Short enough that what an
/// operator saw is on disk before they act on it, long enough for a burst to be one commit.
pub const STATE_LATER_WALL_MAX: Duration = Duration::from_millis(200);
/// Longest between two tries of writes that may lag while commits fail.
pub const STATE_LATER_RETRY_WALL_MAX: Duration = Duration::from_secs(10);
/// The store's counts are written along with every so-manieth commit: rare enough to cost nothing.
pub const STATE_COUNTERS_COMMITS: u64 = 256;
/// Page cache of the state file, bytes: redb's default is 1 GiB.
pub const STATE_CACHE_BYTES: usize = 16 * MIB as usize;
/// Most memory for what the engine writes while a state file is looked at and must not change, bytes:
/// recovering a file writes a small part of it.
pub const STATE_OVERLAY_BYTES_MAX: u64 = 256 * MIB;
/// Journal before the state file, bytes, all of them written when it is made: so long that moving what
/// it holds into the file is rare, so short that making and reading it costs a start next to nothing.
pub const STATE_JOURNAL_BYTES: usize = MIB as usize;
/// Most bytes that are read of a journal: another agent may have made a longer one.
pub const STATE_JOURNAL_BYTES_READ_MAX: u64 = 16 * MIB;
/// How long no write comes before what the journal holds is moved into the state file: a burst is over.
pub const STATE_SETTLE_IDLE: Duration = Duration::from_secs(1);
/// Largest single value, bytes.
pub const STATE_VALUE_BYTES_MAX: usize = 4 * MIB as usize;

// ---- jobs directory --------------------------------------------------------------------------

/// How long a jobs directory that lost all its files at once must stay empty before their jobs are
/// stopped: long enough to notice and to mount it again; emptying it on purpose is rare, and each job
/// can be stopped by the removal of its own file.
pub const JOBS_DIR_HOLD: Duration = Duration::from_secs(5 * 60);

// ---- owner tasks -----------------------------------------------------------------------------

/// Longest wait for the answer to `driver.start`, its compile and spawn included: more than
/// [`COMPILE_WALL_MAX`] and a wait for others before, so that a large module is not given up while it
/// is being compiled. A start that computes or hangs ends at the driver's own deadline.
pub const START_WALL_MAX: Duration = Duration::from_secs(20 * 60);
/// Longest wait for any other driver call, unless the driver's own deadline is longer.
pub const DRIVER_CALL_WALL_MAX: Duration = Duration::from_secs(15);
/// How much longer than twice a plugin's own deadline a call is waited for: commands it runs have its
/// deadline once more, and it may have waited for a place among the plugin's calls.
pub const PLUGIN_CALL_SLACK: Duration = Duration::from_secs(5);
/// Longest wait for one fingerprint, longer than twice any deadline a plugin can be given: it ends one
/// that makes the host work for ever.
pub const FINGERPRINT_WALL_MAX: Duration = Duration::from_secs(300);
/// Longest run of one hook of a task or an allocation.
pub const HOOK_WALL_MAX: Duration = Duration::from_secs(60);
/// A hook that takes this long is reported in the events of its task, because it makes the start slow.
pub const HOOK_SLOW: Duration = Duration::from_secs(5);
/// First and longest pause before pre-run hooks are tried again: of an allocation that was restored, or where the
/// node was short of something.
pub const HOOK_RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60);
/// First and longest pause before a driver that is not ready is asked again.
pub const DRIVER_RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30);
/// Shortest interval for [`crate::task::Workload::Poll`].
pub const POLL_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest wait for a state write before a start; a disk that hangs fails the start, visibly.
pub const STATE_WRITE_WALL_MAX: Duration = Duration::from_secs(30);
/// Pauses before a failed write is repeated that must be durable before anybody is told of it; the last one
/// is repeated.
pub const STATE_LASTING_PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(10)];
/// How long `ostler run` waits for the disk to take the last state of an allocation that is over: it
/// tells how the job ended all the same.
pub const RUN_END_WALL_MAX: Duration = Duration::from_secs(5);
/// Largest note of a run, bytes: a driver's handle as JSON, and some names. A larger one is kept
/// without the handle.
pub const RUN_NOTE_BYTES_MAX: usize = 256 * KIB as usize;
/// Length at which a worker leaves the runs that were forgotten out of the file with its notes.
pub const WORKER_NOTES_BYTES: u64 = MIB;
/// Most bytes of a file with notes that are read.
pub const WORKER_NOTES_BYTES_MAX: u64 = 1024 * MIB;
/// Runs of a driver that are known before it is looked which of them are gone.
pub const DRIVER_RUNS_LOOK_MIN: usize = 64;
/// Events of a driver waiting for one task runner; more are dropped and counted.
pub const DRIVER_EVENTS_QUEUE_MAX: usize = 32;

// ---- the command line as a client of the API ---------------------------------------------------

/// How long connecting to the agent's socket may take; it waits only when the agent's queue is full.
pub const CLIENT_CONNECT_WALL_MAX: Duration = Duration::from_secs(5);
/// How long a command waits for an agent that starts, before it says so and ends. It is longer than a start
/// takes whose plugins are all compiled anew.
pub const CLIENT_START_WALL_MAX: Duration = Duration::from_secs(60);
/// How often such an agent is asked.
pub const CLIENT_START_PAUSE: Duration = Duration::from_millis(200);
/// How much longer a request is waited for than the agent works on one.
pub const CLIENT_GRACE: Duration = Duration::from_secs(5);
/// How long one query waits for a change before it is asked again.
pub const CLIENT_WAIT: Duration = Duration::from_secs(60);
/// Largest answer, bytes: thousands of allocations with their jobs.
pub const CLIENT_BODY_BYTES_MAX: usize = 64 * MIB as usize;
/// Most of a refusal's text that is shown, bytes.
pub const CLIENT_REFUSAL_BYTES_MAX: usize = 16 * KIB as usize;
/// Lines of the agent's log that wait for a client that follows it; the oldest are dropped first.
pub const AGENT_LOG_LINES_MAX: usize = 512;
/// Lines of the agent's log that are kept for later requests: some hundred bytes each, those of a busy day.
pub const AGENT_LOG_KEPT_MAX: usize = 512;
/// Largest frame of a stream, bytes, in base64.
pub const CLIENT_FRAME_BYTES_MAX: usize = MIB as usize;
/// Longest silence in a stream; the agent gives a sign of life every [`API_HEARTBEAT`].
pub const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest silence of a command that waits for a restart; then it says what the restart waits for.
pub const CLIENT_QUIET_WALL_MAX: Duration = Duration::from_secs(5);
/// Longest that a command waits for a restart: a `kill_timeout`, a `shutdown_delay`, and a start.
pub const CLIENT_RESTART_WALL_MAX: Duration = Duration::from_secs(5 * 60);
