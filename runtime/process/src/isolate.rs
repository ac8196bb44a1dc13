//! Native processes kept apart from the node and from other tasks.
//!
//! ```text
//! agent                     shim                 helper              task                 init
//!  parts, view, user,        │ vfork ─────────────►│
//!  directories handed over   │                     │ user namespace where the agent is not root
//!  ── order ────────────────►│                     │ namespaces ──── clone ────────────────► pid 1
//!                            │ ◄─ their pids ──────│ clone ────────────►│                    │ reaps,
//!                            │                     x                    │ root (init's too), │ ends with
//!                            │ ── go ──────────────────────────────────►│ user, rules, filter│ the shim
//!                            │                                          ▼ exec               │
//!                            │ ◄──────────── its end, as of any task ───┘                    │
//!                            │ ── kill: everything in the namespace ends ───────────────────►x
//! ```
//! - The helper runs in the shim's memory, which waits for its end (`borrowed`): of the memory map two
//!   copies are made and not three.
//! - Task and init are the shim's own children (`CLONE_PARENT`): exit code, signals, group and the
//!   recorded identity, the node's pid and start time, are those of any other task. The shim stays
//!   outside.
//! - Pid 1 is ours, so that a task without handlers ends by a signal, and orphans are reaped. It
//!   lives as long as its shim: whatever ends that ends the namespace, whoever left group and session.
//! - All set-up is done by processes forked from the zygote, which has one thread, while the task is
//!   held; nothing is between the agent's own fork and exec.
//! - Nothing is left out in silence: what the order says is done, or the program does not run.

mod borrowed;
pub(super) mod enter;
pub(super) mod filter;
pub(super) mod filter_engine;
pub(super) mod inside;
mod names;
pub(super) mod prepare;
pub(super) mod privileges;
pub(super) mod probe;
mod root;
pub(super) mod rules;
pub(super) mod sys;
mod view;

use std::ffi::CString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(super) use self::inside::loopback_up;
pub use self::privileges::capability;
pub use self::probe::Abilities;
use crate::user::UserDefault;
use ostler_model::device::{DeviceNode, Mount};
use ostler_model::isolation::Part;

/// What a process is kept apart from, as its driver asked and the host allowed.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The parts that are done.
    pub parts: Vec<Part>,
    /// Through a user namespace: the agent may not by itself.
    pub user_namespace: bool,
    /// The task's directory on the node.
    pub task_dir: PathBuf,
    /// The directory shared by the allocation.
    pub alloc_dir: PathBuf,
    /// Shown read-only.
    pub base: Vec<PathBuf>,
    /// Not shown.
    pub hidden: Vec<PathBuf>,
    /// Shown beside that.
    pub mounts: Vec<Mount>,
    /// Device nodes assigned to the task.
    pub device_nodes: Vec<DeviceNode>,
    /// Capabilities it keeps, as the kernel's bits.
    pub capabilities: u64,
    /// User when its job names none; also the only way to be root is to be named.
    pub user_default: UserDefault,
    /// The configuration names root as a user of tasks.
    pub root_allowed: bool,
    /// Processes and threads, where the configuration says how many.
    pub processes_max: Option<u32>,
}

impl Isolation {
    /// Is this part done?
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// What a shim and what it forks have to do. Spoken only between builds of the same program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct IsolationSetup {
    /// See [`Isolation::parts`].
    parts: Vec<Part>,
    user_namespace: bool,
    /// With [`Part::Mounts`].
    root: root::Root,
    /// With [`Part::Landlock`].
    rules: rules::Rules,
    /// The program is the first of these that is there.
    candidates: Vec<CString>,
    capabilities: u64,
    /// Of the user, where nothing else counts the task's own.
    processes_max: Option<u64>,
}

impl IsolationSetup {
    /// Is this part done?
    pub(super) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}
