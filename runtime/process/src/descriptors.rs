//! How many files the agent may have open.
//!
//! ```text
//!   raise ─► soft limit = hard limit        the agent holds two descriptors for each supervised task,
//!     │      = 1,048,576 where it may        a worker one to seven for each WASM task
//!     └─ what it was ─► zygote ─► supervisors, tasks: as if the agent had raised nothing
//!                  └──► commands of plugins
//! ```
//! The usual soft limit of 1,024 would end at some 400 tasks. Tasks keep theirs: a program that uses
//! `select` breaks on descriptors beyond 1,023, which only a raised limit lets it get.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use ostler_model::limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the agent was started with.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Let this process have as many files open as the system allows it, and a privileged one as many as
/// ten thousands of tasks need; how many. What it starts with `as_before` gets the limit there was.
///
/// # Errors
/// When the kernel refuses; nothing is changed then.
pub fn raise() -> io::Result<Option<u64>> {
    let now = getrlimit(Resource::Nofile);
    let before = BEFORE.get_or_init(|| now);
    let raised = before.maximum.map(|most| most.max(wanted()));
    let set = |most| setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    // A hard limit is raised only by who has CAP_SYS_RESOURCE.
    if raised != before.maximum && set(raised).is_ok() {
        return Ok(raised);
    }
    set(before.maximum)?;
    Ok(before.maximum)
}

/// As many as any process of this system may have, up to what is needed.
fn wanted() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    most.map_or(limits::OPEN_FILES_WANTED, |most: u64| most.min(limits::OPEN_FILES_WANTED))
}

/// Start the command with the limit from before [`raise`].
pub(crate) fn as_before(command: &mut Command) {
    let Some(before) = BEFORE.get().copied() else { return };
    if getrlimit(Resource::Nofile) == before {
        // Nothing was raised: without this a command starts without a copy of the agent's memory map.
        return;
    }
    let lower = move || Ok(setrlimit(Resource::Nofile, before)?);
    // SAFETY: between fork and exec only one system call is made; nothing is allocated.
    unsafe { command.pre_exec(lower) };
}
