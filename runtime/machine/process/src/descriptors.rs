//! How many files the agent may have open.
//!
//! ```text
//!   raise ─► soft limit = hard limit        the agent holds two descriptors for each supervised task,
//!     │      = 1,048,576 where it may        a worker one to seven for each WASM task
//!     └─ what it was ─► zygote ─► supervisors, tasks: as if the agent had raised nothing
//!                  └──► commands of plugins
//! ```
//! The usual soft limit of 1,024 is enough for some 400 tasks. Tasks keep the limit from before: a
//! program that uses `select` breaks on descriptors beyond 1,023, which it gets only under a raised
//! limit.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use ostler_model::limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that the agent was started with.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Let this process have as many files open as the system allows it, and a privileged process as
/// many as ten thousands of tasks need. Returns how many; `None` for any number. Tasks and commands
/// that this crate starts get the limit from before.
///
/// # Errors
/// When the kernel refuses; nothing is changed then.
pub fn raise_limit() -> io::Result<Option<u64>> {
    let now = getrlimit(Resource::Nofile);
    let before = BEFORE.get_or_init(|| now);
    let raised = before.maximum.map(|most| most.max(wanted_limit()));
    let set = |most| setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    // Only a process with CAP_SYS_RESOURCE may raise a hard limit.
    if raised != before.maximum && set(raised).is_ok() {
        return Ok(raised);
    }
    set(before.maximum)?;
    Ok(before.maximum)
}

/// The limit to ask for: what is needed, or less where no process of this system may have
/// that many.
fn wanted_limit() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    most.map_or(limits::OPEN_FILES_WANTED, |most: u64| most.min(limits::OPEN_FILES_WANTED))
}

/// Start the command with the limit from before [`raise_limit`].
pub(crate) fn restore_limit(command: &mut Command) {
    let Some(before) = BEFORE.get().copied() else { return };
    if getrlimit(Resource::Nofile) == before {
        // Nothing was raised. Without a closure, the command starts without a copy of the agent's
        // memory map.
        return;
    }
    let lower = move || Ok(setrlimit(Resource::Nofile, before)?);
    // SAFETY: between fork and exec only one system call is made; nothing is allocated.
    unsafe { command.pre_exec(lower) };
}
