//! Isolation of native processes from the node and from other tasks.
//!
//! ```text
//! agent                     shim                 helper              task                 init
//!  parts, view, user,        │ vfork ─────────────►│
//!  directories handed over   │                     │ user namespace where the agent is not root
//!  ── order ────────────────►│                     │ namespaces, root
//!                            │                     │ clone ────────────────────────────────► pid 1
//!                            │ ◄─ their pids ──────│ clone ────────────►│                    │ reaps,
//!                            │                     x                    │ /proc, covers,     │ ends with
//!                            │ ── go ──────────────────────────────────►│ user, rules, filter│ the shim
//!                            │                                          ▼ exec               │
//!                            │ ◄──────────── its end, as of any task ───┘                    │
//!                            │ ── kill: everything in the namespace ends ───────────────────►x
//! ```
//! - The helper runs in the shim's memory, and the shim waits for its end (`vfork_child`). So the
//!   memory map is copied twice and not three times.
//! - Task and init are the shim's own children (`CLONE_PARENT`): exit code, signals, group and the
//!   recorded identity, the node's pid and start time, are those of any other task. The shim stays
//!   outside.
//! - Pid 1 is this program's, so that a task without handlers ends by a signal, and orphans are
//!   reaped. It lives as long as its shim: the end of the shim ends the namespace with all its
//!   processes, also those that left the task's group and session.
//! - All set-up is done by processes forked from the zygote, which has one thread, while the task is
//!   held; nothing is between the agent's own fork and exec.
//! - No part is skipped silently: all that the order says is done, or the program does not run.

pub(super) mod empty;
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
mod vfork_child;
mod view;

use std::ffi::CString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(super) use self::inside::loopback_up;
pub use self::privileges::capability;
pub use self::probe::Abilities;
use crate::user::UserDefault;
use ostler_model::device::{DeviceNode, Mount};
use ostler_model::isolation::IsolationKind;

/// How a process is isolated, as its driver asked and the host allowed.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The parts of isolation that are put in force.
    pub parts: Vec<IsolationKind>,
    /// The namespaces are made inside a user namespace, because the agent may not make them
    /// by itself.
    pub user_namespace: bool,
    /// The task's directory on the node.
    pub task_dir: PathBuf,
    /// The directory shared by the allocation.
    pub alloc_dir: PathBuf,
    /// Paths of the node that the process sees, read-only.
    pub base: Vec<PathBuf>,
    /// Paths of the node that the process does not see, though they are below `base`.
    pub hidden: Vec<PathBuf>,
    /// Further mounts that the process sees.
    pub mounts: Vec<Mount>,
    /// Device nodes assigned to the task.
    pub device_nodes: Vec<DeviceNode>,
    /// Capabilities that the process keeps, as the kernel's bits.
    pub capabilities: u64,
    /// The user where the job names none. A task is root only where root is named.
    pub user_default: UserDefault,
    /// The configuration names root as a user of tasks.
    pub root_allowed: bool,
    /// Most processes and threads, where the configuration bounds them.
    pub processes_max: Option<u32>,
}

impl Isolation {
    /// Whether this part is put in force.
    #[must_use]
    pub fn has(&self, part: IsolationKind) -> bool {
        self.parts.contains(&part)
    }
}

/// What a shim and its children have to do to isolate a task. Only builds of the same program
/// exchange it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct IsolationSetup {
    /// The parts of isolation that are put in force.
    parts: Vec<IsolationKind>,
    user_namespace: bool,
    /// The root of the task; used with [`IsolationKind::Mounts`].
    root: root::Root,
    /// The rules on files; used with [`IsolationKind::Landlock`].
    rules: rules::LandlockRules,
    /// Paths of the program. The first that exists is executed.
    candidates: Vec<CString>,
    capabilities: u64,
    /// Most processes of the task's user, where nothing else counts the processes of the
    /// task alone.
    processes_max: Option<u64>,
}

impl IsolationSetup {
    /// Whether this part is put in force.
    pub(super) fn has(&self, part: IsolationKind) -> bool {
        self.parts.contains(&part)
    }
}
