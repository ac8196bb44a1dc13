//! The engines that run guests: stacks, threads, pools, and how guests are compiled.

use std::time::Duration;

use super::MIB;

/// Native stack of one guest, bytes. CRuby needs 256 KiB, Rust programs 16 KiB.
pub const GUEST_STACK_BYTES_MAX: usize = 512 * 1024;
/// Fiber stack of one guest, bytes: the guest's own and 256 KiB for host functions. A host function
/// that overflows it aborts the process, so the difference is never made smaller.
pub const GUEST_FIBER_BYTES: usize = GUEST_STACK_BYTES_MAX + 256 * 1024;
/// Frames of a guest backtrace kept in an error.
pub const GUEST_BACKTRACE_FRAMES_MAX: usize = 16;
/// Longest trap or host error text kept in an error, bytes.
pub const GUEST_ERROR_BYTES_MAX: usize = 4 * 1024;
/// Core instances in one guest. A CPython component has 32.
pub const GUEST_CORE_INSTANCES_MAX: u32 = 64;
/// Linear memories in one guest. A QuickJS component has 3.
pub const GUEST_MEMORIES_MAX: u32 = 4;
/// Tables in one guest.
pub const GUEST_TABLES_MAX: u32 = 8;
/// Elements of one table of a pool slot; the total per guest is in its own limits.
pub const GUEST_TABLE_ELEMENTS_CEILING: usize = 40_000;
/// Tables for each slot of a pool. A component of the Rust toolchain has two or three.
pub const POOL_TABLES_PER_SLOT: u32 = 4;
/// Slots kept warm for a module that was here before; more only holds memory.
pub const POOL_WARM_SLOTS: u32 = 128;
/// Linear memory of a free slot reset by copying instead of being given back, bytes.
pub const POOL_MEMORY_RESIDENT_BYTES: usize = 64 * 1024;
/// Table and fiber stack of a free slot kept likewise, bytes each.
pub const POOL_SMALL_RESIDENT_BYTES: usize = 16 * 1024;
/// Kernel mappings left to everything but the pools: thread stacks, files, the allocator. An agent has
/// some 400, and may have 500 threads more that wait for files, of two to four each.
pub const POOL_MAPPINGS_RESERVE: u64 = 4_608;
/// Kernel mappings of one live pool slot: two reserved, four more while in use.
pub const POOL_MAPPINGS_PER_SLOT: u64 = 6;
/// Room for a memory in the dense profile, bytes: programs of the Rust toolchain begin with 1.1 MiB.
/// One that grows beyond it moves to a place of [`TASK_MEMORY_BYTES_CEILING`](super::TASK_MEMORY_BYTES_CEILING).
pub const DENSE_MEMORY_BYTES: usize = 16 * MIB as usize;
/// Such larger places: 16 TiB of address space.
pub const DENSE_LARGE_MEMORIES_MAX: usize = 4_096;
/// `vm.max_map_count` assumed where it cannot be read: the kernel's default.
pub const MAX_MAP_COUNT_DEFAULT: u64 = 65_530;
/// Fewest threads for guests, so that one stuck in a blocking host call does not stop the others.
pub const GUEST_THREADS_MIN: usize = 2;
/// Threads for each place of a busy guest: one that does not yield gives its place to another, which
/// needs a thread of its own.
pub const GUEST_THREADS_PER_PLACE: usize = 2;
/// Ticks without a yield after which it does: a guest that computes yields at the first.
pub const OVERDUE_TICKS: u8 = 2;
/// Guests may have one in this many of the descriptors that the agent's process may have: the rest is for the
/// API, state, logs and supervisors.
pub const GUEST_DESCRIPTORS_PART: u64 = 3;
/// Descriptors that a privileged agent allows itself and its workers: those of 50,000 WASM tasks of which
/// each uses the directories it was given. The kernel's own default of what one process may have
/// (`fs.nr_open`).
pub const OPEN_FILES_WANTED: u64 = 1_048_576;
/// Fewest descriptors with which an agent starts: it holds some sixty at rest, and each connection, plugin
/// call, start of a task and look at the node needs some more.
pub const AGENT_OPEN_FILES_MIN: u64 = 256;
/// One task, or one plugin, may have one in this many of the guests' descriptors.
pub const GUEST_DESCRIPTORS_OWN_PART: u64 = 4;
/// Ticks without a running guest after which the epoch ticker sleeps until one runs.
pub const EPOCH_IDLE_TICKS: u32 = 100;
/// Largest finished artefact of the compiler, bytes: code is about three times its wasm.
pub const COMPILE_ARTEFACT_BYTES_MAX: u64 = 512 * MIB;
/// Largest artefact of a small file, bytes; a larger file may have [`COMPILE_ARTEFACT_RATIO`] times its
/// size. Finished code is mapped, but its tables and names are read into the agent's memory: without
/// this 500 bytes of wasm cost it more than a gibibyte.
pub const COMPILE_ARTEFACT_BYTES_LEAST: u64 = 4 * MIB;
/// See [`COMPILE_ARTEFACT_BYTES_LEAST`]. Code of real guests is three to five times its wasm.
pub const COMPILE_ARTEFACT_RATIO: u64 = 24;
/// Guests of one owner (a job, a plugin) that wait to be compiled or are; more are refused for now.
pub const COMPILE_OWNER_QUEUE_MAX: usize = 8;
/// Owners whose compile time is remembered for a fair order.
pub const COMPILE_OWNERS_KEPT_MAX: usize = 256;
/// How long a guest is compiled before it has to make room for one that had no try yet. Nearly all guests
/// that exist are compiled in that time. So a guest that had no try waits a few of these at most.
pub const COMPILE_TRY: Duration = Duration::from_secs(5);
/// How long it is remembered that a file does not compile within its limits.
pub const COMPILE_FAILED_KEPT: Duration = Duration::from_secs(10 * 60);
/// Most files of which that is remembered; the oldest is forgotten first.
pub const COMPILE_FAILED_KEPT_MAX: usize = 256;
/// Threads of one compile child.
pub const COMPILE_THREADS: usize = 2;
/// Loads waiting for their turn to be compiled, the running ones included; more are refused.
pub const COMPILE_QUEUE_MAX: usize = 256;
/// Code of WASM tasks kept mapped after its last task ended, so that the next start need not read and
/// check the file again. What is kept is pages of the file and some hundred KiB of tables each.
pub const TASK_CODE_KEPT_MAX: usize = 8;
/// Bytes kept of what a guest wrote last to its standard error, to be shown when it fails: a panic's
/// message and a short backtrace.
pub const GUEST_STDERR_TAIL_BYTES: usize = 4 * 1024;
/// Bytes a guest may write to an output stream at once.
pub const GUEST_OUTPUT_PERMIT_BYTES: usize = 64 * 1024;
/// Size of the code cache on disk, bytes; the entries used least recently go first, at start.
pub const CODE_CACHE_BYTES_MAX: u64 = 2 * 1024 * MIB;
/// Guest threads for short calls, per core and at least in all. A call that uses up a whole tick goes
/// on among the busy ones, so these are free again soon, however many guests spin.
pub const CALL_THREADS_PER_CORE: usize = 2;
/// See [`CALL_THREADS_PER_CORE`].
pub const CALL_THREADS_MIN: usize = 4;
/// Processor time of one poll after which a call counts as busy: half a tick, which only guests reach
/// that the tick interrupted.
pub const CALL_BUSY: Duration = Duration::from_millis(5);
/// Processor time of a call after which the plugin's next call begins on the busy threads. Otherwise plugins
/// that use nearly a tick each time, again and again, could hold all call threads together.
pub const CALL_SLOW: Duration = Duration::from_micros(500);
/// Smallest and largest weight of a WASM task among those that compute at the same time, MHz: a task
/// that reserved nothing gets something, and none is so heavy that the others' turns vanish.
pub const TASK_WEIGHT: std::ops::RangeInclusive<u32> = 10..=1_000_000;
/// Niceness of busy guest threads: the agent's own threads come first. Not lower: at 19 a guest thread
/// gets 1.5 % of a core beside busy native tasks of the same cgroup, and plugin calls (stop and kill
/// among them) could run into their deadline; at 5 it gets a quarter. By the kernel's weights for
/// nice levels (15 and 335 against 1024), not measured.
pub const GUEST_NICE: i32 = 5;
/// Niceness of control threads where it is allowed: with [`GUEST_NICE`] one weighs 28 guest threads.
/// Without it a neighbour's p99 was up to twelve times as long under attack (bench `containment`).
pub const CONTROL_NICE: i32 = -10;
/// Niceness of compile children: behind the agent, before guests, since a start waits for them.
pub const COMPILE_NICE: i32 = 10;

// ---- workers of WASM tasks ---------------------------------------------------------------------

/// Longest message between agent and worker, bytes. The list of 50,000 tasks with texts is below it.
pub const WORKER_MESSAGE_BYTES_MAX: u64 = 64 * MIB;
/// Most messages that wait for the other end to read. An end that lets more of them pile up hangs; each task
/// has few at a time.
pub const WORKER_OUTBOX_MAX: usize = 65_536;
/// How long a worker may take from its start until it answers, its pool reserved.
pub const WORKER_START_WALL_MAX: Duration = Duration::from_secs(20);
/// How long a worker may take to answer what an agent asks. It answers from memory; its threads may wait
/// for a busy machine.
pub const WORKER_ANSWER_WALL_MAX: Duration = Duration::from_secs(10);
/// How often a worker with an agent is asked whether it still answers: the kernel reports a worker that
/// ended, but not one that hangs.
pub const WORKER_LOOK_INTERVAL: Duration = Duration::from_secs(15);
/// How long an answer of a worker may take before it is asked whether it answers at all.
pub const WORKER_DOUBT_AFTER: Duration = Duration::from_secs(2);
/// Questions in a row that a worker leaves without an answer, each for [`WORKER_ANSWER_WALL_MAX`],
/// before it is killed because it hangs. It is more than one, because the whole machine may have
/// stood still during the first.
pub const WORKER_SILENCES_MAX: u32 = 2;
/// Workers in which the start of one task is tried, where they end or hang over it.
pub const WORKER_START_TRIES_MAX: u32 = 3;
/// How long a worker may take to answer the start of a task, which may read directories of a slow disk.
pub const WORKER_TASK_WALL_MAX: Duration = Duration::from_secs(30);
/// How long a worker may take to answer what a task uses: that is only shown, and nothing waits for it.
pub const WORKER_USAGE_WALL_MAX: Duration = Duration::from_secs(1);
/// Starts that a worker prepares at once; each may hold a thread while a disk is slow.
pub const WORKER_STARTS_MAX: usize = 64;
/// A worker that lived this long before it ended is replaced at once.
pub const WORKER_STEADY_AFTER: Duration = Duration::from_secs(60);
/// The first pause before a worker is replaced; each further one is twice as long.
pub const WORKER_BACKOFF_MIN: Duration = Duration::from_millis(250);
/// The longest pause before a worker is replaced.
pub const WORKER_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// What a worker itself counts for beside what its tasks reserve, MHz. If it were nothing, a worker with
/// small tasks beside busy native ones would answer its agent too late.
pub const WORKER_CPU_MHZ: u32 = 100;
/// What a task counts for whose worker does not send its reservation, MHz: Nomad's default.
pub const WORKER_TASK_CPU_MHZ: u32 = 100;
/// How long a worker whose connection ended may take to end.
pub const WORKER_END_WALL_MAX: Duration = Duration::from_secs(5);
/// Longest text that is taken from a worker at once, bytes: why a task ended, or a text for its events.
pub const WORKER_TEXT_BYTES_MAX: usize = 16 * 1024;
/// Longest id of a task that is taken from a worker, bytes; those of this build have 21.
pub const WORKER_ID_BYTES_MAX: usize = 64;
/// Most texts for the operator that a worker may send when the agent connects to it.
pub const WORKER_NOTICES_MAX: usize = 8;
/// How long a worker that could not take a connection waits before it tries again.
pub const WORKER_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a worker without an agent and without a task that lives looks whether it can still be found,
/// besides the kernel's notices.
pub const WORKER_HOME_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Most threads of one process that runs WASM tasks, where the kernel counts them: a few for each core run
/// guests, and the rest wait for files of tasks. A guest that breaks out of its engine can make no more.
pub const WORKER_THREADS_MAX: u32 = 512;
