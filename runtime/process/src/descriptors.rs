//! How many files the agent may have open.
//!
//! ```text
//!   raise ─► soft limit = hard limit        the agent holds two descriptors for each supervised task
//!     └─ what it was ─► zygote ─► supervisors, tasks: as if the agent had raised nothing
//!                  └──► commands of plugins
//! ```
//! The usual soft limit of 1,024 would end at some 400 tasks. Tasks keep theirs: a program that uses
//! `select` breaks on descriptors beyond 1,023, which only a raised limit lets it get.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the agent was started with.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Let this process have as many files open as the system allows it; how many. What it starts with
/// `as_before` gets the limit there was.
///
/// # Errors
/// When the kernel refuses; nothing is changed then.
pub fn raise() -> io::Result<Option<u64>> {
    let now = getrlimit(Resource::Nofile);
    let before = BEFORE.get_or_init(|| now);
    setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })?;
    Ok(before.maximum)
}

/// Start the command with the limit from before [`raise`].
pub(crate) fn as_before(command: &mut Command) {
    let Some(before) = BEFORE.get().copied() else { return };
    if before.current == before.maximum {
        // Nothing was raised: without this a command starts without a copy of the agent's memory map.
        return;
    }
    let lower = move || Ok(setrlimit(Resource::Nofile, before)?);
    // SAFETY: between fork and exec only one system call is made; nothing is allocated.
    unsafe { command.pre_exec(lower) };
}
