//! The table of attacks.

use super::arena::{Arena, Outcome};
use super::{bytes, devices, drivers, hangs, held, modules, tasks};

/// One attack.
pub struct Attack {
    pub name: &'static str,
    /// What it does, for people.
    pub tries: &'static str,
    /// One of these stands in what is said of its end.
    pub stopped_by: &'static [&'static str],
    pub run: Run,
}

type Run = Box<dyn Fn(&Arena) -> std::pin::Pin<Box<dyn Future<Output = Outcome> + '_>>>;

/// Boxes an attack of the table.
macro_rules! attack {
    ($name:literal, $tries:literal, [$($stop:literal),+], $run:expr) => {
        Attack {
            name: $name,
            tries: $tries,
            stopped_by: &[$($stop),+],
            run: Box::new(|arena| Box::pin($run(arena))),
        }
    };
}

macro_rules! on_fingerprint {
    ($name:literal, $mode:literal, $tries:literal, [$($stop:literal),+]) => {
        attack!($name, $tries, [$($stop),+], |arena| devices::call(arena, "mode", $mode))
    };
}

macro_rules! by_task {
    ($name:literal, [$($word:literal),+], $tries:literal, [$($stop:literal),+]) => {
        attack!($name, $tries, [$($stop),+], |arena| tasks::both(arena, &[$($word),+]))
    };
}

macro_rules! by_module {
    ($name:literal, $tries:literal, [$($stop:literal),+], $wat:expr) => {
        attack!($name, $tries, [$($stop),+], |arena| tasks::wat(arena, $wat))
    };
}

/// Bytes that are hard to compile.
macro_rules! by_bytes {
    ($name:literal, $tries:literal, [$($stop:literal),+], $bytes:expr) => {
        attack!($name, $tries, [$($stop),+], |arena| bytes::compile(arena, $bytes))
    };
}

pub fn all() -> Vec<Attack> {
    let mut all = plugins();
    all.extend(answers());
    all.extend(doors());
    all.extend(by_drivers());
    all.extend(by_tasks());
    all.extend(by_holders());
    all.extend(by_modules());
    all.extend(compiling());
    all
}

/// A plugin that uses too much.
fn plugins() -> Vec<Attack> {
    vec![
        attack!("plugin-spin", "endless loop", ["of processor time"], devices::spin_until_cpu),
        attack!(
            "plugin-spin-wall",
            "endless loop with processor time to spare",
            ["did not answer within"],
            devices::spin_until_wall
        ),
        attack!(
            "plugin-hung-calls",
            "140 calls at once that never end",
            ["did not answer within", "calls of this plugin are under way"],
            hangs::many_calls
        ),
        attack!(
            "plugin-hung-files",
            "calls that sit in a file which does not open",
            ["did not answer within", "no more files", "no leases here"],
            hangs::files
        ),
        on_fingerprint!(
            "plugin-panic",
            "panic",
            "last words that obey no line and a terminal",
            ["the reason stands\\nin two lines\\u{1b}[2J"]
        ),
        attack!("plugin-sleep", "sleeping for ever", ["did not answer within"], devices::sleep),
        on_fingerprint!(
            "plugin-calls",
            "hostcall-flood",
            "host calls for ever",
            ["more than 10000 host calls"]
        ),
        on_fingerprint!(
            "plugin-recursion",
            "stack-overflow",
            "endless recursion",
            ["stack of 512 KiB overflowed"]
        ),
        on_fingerprint!("plugin-memory", "memory-bomb", "all memory", ["memory limit of 64 MiB"]),
        on_fingerprint!(
            "plugin-log-flood",
            "log-flood",
            "100 MB of log",
            ["more than 4194304 bytes", "more than 10000"]
        ),
        on_fingerprint!(
            "plugin-stdout",
            "stdout-flood",
            "unbounded stdout",
            ["more than 10000 host calls"]
        ),
        on_fingerprint!("plugin-random", "random-flood", "randomness for ever", ["more than"]),
        on_fingerprint!(
            "plugin-gigabyte-log",
            "gigabyte-log",
            "a log line of a gigabyte",
            ["out of bounds", "trapped"]
        ),
        attack!(
            "plugin-trap-everywhere",
            "a trap in every export",
            ["5 of 5 trapped"],
            devices::trap_everywhere
        ),
    ]
}

/// A plugin that lies.
fn answers() -> Vec<Attack> {
    vec![
        on_fingerprint!(
            "answer-long",
            "long-answer",
            "a million devices",
            ["handed over more than", "memory limit"]
        ),
        on_fingerprint!(
            "answer-huge-text",
            "huge-string",
            "an id of 16 MiB",
            ["handed over more than"]
        ),
        on_fingerprint!(
            "answer-forged",
            "forged-error",
            "a reason that begins another line of the log",
            [r"well\n2026-01-01T00:00:00Z ERROR FORGED\r\u{1b}[2J\u{202e}txt.exe\u{2028}end"]
        ),
        on_fingerprint!(
            "answer-forged-name",
            "forged-name",
            "a name that is written from the other side",
            ["characters that do not show"]
        ),
        on_fingerprint!(
            "answer-endless-reason",
            "endless-error",
            "a reason of half a mebibyte",
            ["… (520192 bytes more)"]
        ),
        on_fingerprint!("answer-utf8", "bad-utf8", "an id that is not UTF-8", ["utf-8", "UTF-8"]),
        on_fingerprint!(
            "answer-overlapping",
            "overlapping",
            "a gibibyte of ids in one mebibyte",
            ["handed over more than"]
        ),
        on_fingerprint!(
            "answer-gigabyte",
            "gigabyte",
            "an id beyond all memory",
            ["out of bounds", "trapped"]
        ),
        on_fingerprint!(
            "answer-gigabyte-list",
            "gigabyte-list",
            "a list beyond all memory",
            ["memory limit", "out of bounds", "trapped"]
        ),
        on_fingerprint!("answer-twice", "duplicate-ids", "one device twice", ["is there twice"]),
        on_fingerprint!("answer-nan", "nan", "a measure that is no number", ["broken answer"]),
        attack!(
            "answer-deep",
            "a measurement 100,000 objects deep",
            ["broken answer", "handed over more than"],
            |arena| devices::call(arena, "stats", "deep")
        ),
        attack!(
            "answer-foreign",
            "measuring devices it does not have",
            ["dropped by the manager"],
            devices::foreign
        ),
        attack!(
            "answer-moody",
            "another answer each time",
            ["each answer was taken or refused whole"],
            devices::moody
        ),
        attack!("describe-version", "a version of a thousand digits", ["version"], |arena| {
            devices::call(arena, "describe", "bad-version")
        }),
        attack!("describe-name", "a name that is a path", ["name"], |arena| devices::call(
            arena, "describe", "bad-name"
        )),
        attack!("schema-deep", "a schema 5,000 deep", ["recursion limit"], |arena| devices::call(
            arena,
            "describe",
            "deep-schema"
        )),
        attack!(
            "schema-endless",
            "a schema that is part of itself",
            ["refers to itself"],
            |arena| devices::call(arena, "describe", "endless-schema")
        ),
        attack!(
            "schema-exploding",
            "a schema of 2^40 parts",
            ["more than"],
            |arena| devices::call(arena, "describe", "exploding-schema")
        ),
        attack!(
            "schema-patterns",
            "a schema of a thousand patterns",
            ["its patterns are too many"],
            |arena| devices::call(arena, "describe", "pattern-schema")
        ),
        attack!(
            "schema-large-patterns",
            "a schema of forty patterns of megabytes",
            ["is not a JSON Schema"],
            |arena| devices::call(arena, "describe", "large-pattern-schema")
        ),
    ]
}

/// A plugin at doors that are not its own.
fn doors() -> Vec<Attack> {
    vec![
        attack!(
            "plugin-paths",
            "`..`, absolute paths, links, /proc, /dev",
            ["read the granted file and nothing else"],
            devices::paths
        ),
        attack!(
            "answer-authority",
            "mounts, device nodes, loader variables and groups of others in answers",
            ["9 of 9 refused"],
            devices::authority
        ),
        attack!(
            "answer-linked-mount",
            "a link out of a granted directory as a mount",
            ["which leads to"],
            devices::linked_mount
        ),
        attack!("plugin-denied", "using what is denied", ["deny = [\"command\"]"], devices::denied),
        attack!(
            "plugin-race",
            "a directory swapped for a link while it is read",
            ["honest reads"],
            devices::race
        ),
        attack!(
            "plugin-commands",
            "other programs, other and more arguments",
            ["3 of 3 honest, 0 of the others"],
            devices::commands
        ),
        attack!(
            "plugin-command-flood",
            "commands for ever",
            ["host calls", "did not answer within", "of processor time"],
            devices::command_flood
        ),
        attack!(
            "plugin-open-files",
            "files opened and never closed",
            ["no more files"],
            devices::open_files
        ),
        attack!("plugin-pipe", "a pipe that nobody writes to", ["no more files"], devices::pipe),
        attack!(
            "plugin-sockets",
            "an import of sockets",
            ["never granted to plugins", "not granted"],
            devices::sockets
        ),
    ]
}

fn by_drivers() -> Vec<Attack> {
    vec![
        attack!("driver-storm", "processes until refused", ["64 spawned"], drivers::storm),
        attack!(
            "driver-fork-storm",
            "a task that forks as fast as it can",
            ["all are gone"],
            drivers::fork_storm
        ),
        attack!(
            "driver-strangers",
            "signals to ids of others, to pid 1, to the agent",
            ["reached:\""],
            drivers::strangers
        ),
        attack!(
            "driver-inject",
            "NULs, directories and devices as programs and arguments",
            ["spawned:\""],
            drivers::inject
        ),
        attack!(
            "driver-stray",
            "a granted program with other libraries, paths and directories",
            ["spawned:\""],
            drivers::stray
        ),
    ]
}

fn by_tasks() -> Vec<Attack> {
    vec![
        by_task!("task-spin", ["spin"], "endless loop", ["killed"]),
        by_task!("task-spin-calls", ["spin-calls"], "host calls for ever", ["killed"]),
        by_task!("task-sleep", ["sleep"], "sleeping for ever", ["killed"]),
        by_task!("task-memory", ["memory"], "all memory", ["out of memory at 32 MiB"]),
        by_task!("task-recursion", ["recurse"], "endless recursion", ["stack"]),
        by_task!("task-abort", ["abort"], "a trap", ["trapped"]),
        by_task!(
            "task-complain",
            ["complain"],
            "last words that obey no line and a terminal",
            ["the reason stands\\nin two lines\\u{1b}[2J"]
        ),
        by_task!("task-flood", ["flood"], "unbounded stdout", ["killed"]),
        by_task!(
            "task-fill",
            ["fill", "/local/big"],
            "a file that grows for ever, and one of a tebibyte",
            ["then StorageFull\nset-size: StorageFull"]
        ),
        by_task!("task-many-files", ["many-files", "/local"], "files without end", ["made"]),
        by_task!(
            "task-pipe",
            ["files", "/local/pipe"],
            "a pipe that nobody writes to",
            ["exit 0\n0 open"]
        ),
        by_task!(
            "task-files",
            ["files", "/local/file"],
            "files opened and never closed",
            ["1024 open"]
        ),
        attack!(
            "task-paths",
            "`..`, absolute paths, links, /proc, /dev",
            ["only its own"],
            tasks::paths
        ),
        attack!("task-links", "links out of its directories", ["only its own"], tasks::links),
        attack!("task-sockets", "every socket and name", ["nothing reached"], tasks::sockets),
    ]
}

/// Tasks and plugins for which the host holds memory, descriptors, disk or threads.
fn by_holders() -> Vec<Attack> {
    vec![
        attack!(
            "task-listings",
            "directories listed and not read",
            ["then insufficient-memory"],
            held::listings
        ),
        attack!("task-streams", "a byte taken of many streams", ["2000 held"], held::streams),
        attack!(
            "task-unlinked",
            "files without a name kept open",
            ["within its room\nroom again: true"],
            held::unlinked
        ),
        attack!(
            "task-truncated",
            "streams written behind a truncation",
            ["6 MiB"],
            held::truncated
        ),
        attack!(
            "task-replaced",
            "files replaced, a hundred times the room (honest)",
            ["100 replaced"],
            held::replaced
        ),
        attack!("task-logs", "the logs of its group", ["own true, read true"], held::logs),
        attack!(
            "task-assigned-file",
            "a file assigned read-only",
            ["read it and no more"],
            held::assigned
        ),
        attack!("task-names", "20,000 names listed at once", ["20000 names"], held::names),
        attack!(
            "task-descriptors",
            "files kept open by many tasks",
            ["descriptors left"],
            held::descriptors
        ),
        attack!(
            "module-filler",
            "its memory filled without a pause, beside an honest task",
            ["the honest task went on"],
            held::filler
        ),
        attack!(
            "plugin-proc",
            "the agent's memory and environment, the kernel's log",
            ["the node and no process of ours"],
            held::processes
        ),
    ]
}

fn by_modules() -> Vec<Attack> {
    vec![
        by_module!(
            "module-memory-at-start",
            "four gibibytes at the start",
            ["memory limit", "memory"],
            modules::LARGE_MEMORY
        ),
        by_module!(
            "module-memories",
            "a hundred memories",
            ["needs more than a guest may have"],
            modules::many_memories(100)
        ),
        by_module!(
            "module-table",
            "a table of a hundred million",
            ["table", "trapped"],
            modules::TABLE
        ),
        by_module!(
            "module-tables",
            "eight tables and memories beyond the sum",
            ["out of memory at"],
            modules::SUM
        ),
        by_module!(
            "module-gigabyte-write",
            "a write of a gigabyte",
            ["exit 48", "out of bounds", "trapped"],
            modules::gigabyte_write()
        ),
        by_module!(
            "module-gigabyte-random",
            "a gigabyte of randomness",
            ["exit", "random", "out of bounds"],
            modules::gigabyte_random()
        ),
        by_module!(
            "module-gigabyte-poll",
            "waiting for sixty million things",
            ["exit", "out of bounds", "handed over", "trapped"],
            modules::gigabyte_poll()
        ),
        by_module!(
            "module-descriptors",
            "twenty thousand forged descriptors",
            ["exit 0"],
            modules::FORGED_DESCRIPTORS
        ),
        by_module!(
            "component-forged-handle",
            "a handle it was not given",
            ["unknown handle index", "handle index"],
            modules::forged_handle()
        ),
        by_module!(
            "component-dropped-handle",
            "a handle after it was dropped",
            ["unknown handle index", "handle index"],
            modules::dropped_handle()
        ),
        by_module!(
            "component-dropped-twice",
            "a handle dropped twice",
            ["unknown handle index", "handle index"],
            modules::dropped_twice()
        ),
        by_module!(
            "component-handle-flood",
            "handles for ever",
            ["more than 4096 handles"],
            modules::handle_flood()
        ),
        by_module!(
            "component-gigabyte-call",
            "arguments beyond all memory",
            ["out of bounds"],
            modules::gigabyte_call()
        ),
        by_module!(
            "component-one-handle-often",
            "one handle three million times",
            ["handed over more than"],
            modules::one_handle_often()
        ),
        by_module!(
            "component-realloc",
            "an allocator that never returns",
            ["killed"],
            modules::endless_realloc()
        ),
        by_module!(
            "component-realloc-lies",
            "an allocator that gives memory it has not",
            ["out of bounds", "realloc"],
            modules::lying_realloc()
        ),
    ]
}

fn compiling() -> Vec<Attack> {
    vec![
        by_module!(
            "compile-sparse-tables",
            "tables that make megabytes of code of a line each",
            ["out of proportion to the file"],
            modules::sparse_tables(80)
        ),
        by_module!(
            "compile-nothing-to-run",
            "much to compile and nothing to run",
            ["does not export _start"],
            modules::nothing_to_run(5_000)
        ),
        by_bytes!(
            "bytes-million-functions",
            "a million functions",
            ["functions, more than the limit"],
            bytes::functions(1_000_000, 0)
        ),
        by_bytes!(
            "bytes-large-functions",
            "ten thousand functions of three hundred steps",
            ["compiling needs over", "compiling took over"],
            bytes::functions(10_000, 300)
        ),
        by_bytes!(
            "bytes-huge-function",
            "one function of four megabytes",
            ["compiler was killed", "compiling needs over", "compiling took over", "not valid"],
            bytes::functions(1, 700_000)
        ),
        by_bytes!(
            "bytes-deep-blocks",
            "blocks 200,000 deep",
            [
                "compiler was killed",
                "compiling needs over",
                "compiling took over",
                "not valid",
                "compiler failed",
                "compiled"
            ],
            bytes::deep_blocks(200_000)
        ),
        by_bytes!(
            "bytes-deep-components",
            "components 2,000 deep",
            [
                "compiled",
                "not valid",
                "compiler failed",
                "compiler was killed",
                "compiling needs over"
            ],
            bytes::deep_components(2_000)
        ),
        by_bytes!(
            "bytes-lying-section",
            "a section of four gigabytes in twenty bytes",
            ["not valid"],
            bytes::lying_section()
        ),
        by_bytes!(
            "bytes-lying-count",
            "a vector of four thousand million types",
            ["not valid"],
            bytes::lying_count()
        ),
        attack!(
            "bytes-imports",
            "a plugin with two thousand imports",
            ["more than 1000 imports"],
            bytes::many_imports
        ),
        attack!(
            "bytes-other-version",
            "a plugin of another version of the contract",
            ["this agent speaks"],
            bytes::other_version
        ),
    ]
}
