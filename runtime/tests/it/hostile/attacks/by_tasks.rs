//! By drivers and tasks.

use super::Attack;
use crate::hostile::{drivers, held, tasks};

pub fn by_drivers() -> Vec<Attack> {
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

pub fn by_tasks() -> Vec<Attack> {
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
pub fn by_holders() -> Vec<Attack> {
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
