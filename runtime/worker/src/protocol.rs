//! What an agent and a worker say to each other. Frozen.
//!
//! ```text
//! agent ─► hello ─────────────► worker     agent ─► start n, descriptors ─► held n | refused n
//!       ◄─ welcome ────────────                 ─► release, kill, kill_run, forget_run
//!       ─► list n ─► listed n                   ─► usage n ─► used n
//!       ─► retire                               ◄─ exited, said: whenever it happens
//! ```
//! A message is one JSON object in one packet of a `SOCK_SEQPACKET` socket (`link.rs` says how
//! long ones travel). Whoever reads ignores fields it does not know and messages of a kind it does not
//! know; a new field is optional, and a new kind is only said to a worker whose `welcome` has a version
//! that knows it. `tests` hold the bytes of version 1.

use serde::{Deserialize, Serialize};

/// The version that is spoken here.
pub const VERSION: u32 = 1;

/// From the agent to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToWorker {
    /// The first message of a connection.
    Hello {
        /// What the agent speaks.
        version: u32,
    },
    /// Hold a task. Its descriptors: compiled code, then the log directory of each stream that has one.
    Start {
        /// For the answer.
        n: u64,
        /// The task.
        order: Box<StartOrder>,
    },
    /// Let what is held of a run go.
    Release {
        /// The run.
        run: String,
    },
    /// End a task.
    Kill {
        /// Its run.
        run: String,
        /// Its id.
        id: String,
    },
    /// End everything of a run, and whatever comes later.
    KillRun {
        /// The run.
        run: String,
    },
    /// The same, and remember nothing of it.
    ForgetRun {
        /// The run.
        run: String,
    },
    /// Every task that was not forgotten.
    List {
        /// For the answer.
        n: u64,
    },
    /// What a task uses now.
    Usage {
        /// For the answer.
        n: u64,
        /// Its run.
        run: String,
        /// Its id.
        id: String,
    },
    /// Nothing more will be started: end with the last task.
    Retire,
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

/// From the worker to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromWorker {
    /// The answer to `hello`.
    Welcome {
        /// What the worker speaks.
        version: u32,
        /// Tasks it has room for.
        tasks_max: u32,
        /// What the agent should tell its operator of it.
        notices: Vec<String>,
    },
    /// A task is held.
    Held {
        /// Of the `start`.
        n: u64,
        /// The task's id.
        id: String,
    },
    /// It is not.
    Refused {
        /// Of the `start`.
        n: u64,
        /// Why.
        text: String,
        /// Is its file or configuration at fault?
        #[serde(default)]
        invalid: bool,
    },
    /// A task ended.
    Exited {
        /// Its run.
        run: String,
        /// Its id.
        id: String,
        /// How.
        exit: TaskExit,
    },
    /// Something to be told in a task's events.
    Said {
        /// Its run.
        run: String,
        /// What.
        text: String,
    },
    /// The answer to `list`.
    Listed {
        /// Of the question.
        n: u64,
        /// The tasks.
        tasks: Vec<ListedTask>,
    },
    /// The answer to `usage`.
    Used {
        /// Of the question.
        n: u64,
        /// Processor time, nanoseconds.
        cpu_nanos: Option<u64>,
        /// Memory held, bytes; absent: the task does not run.
        memory_bytes: Option<u64>,
        /// When, nanoseconds since 1970.
        taken_at: u64,
    },
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskExit {
    /// Exit code of one that ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// Ended for using too much memory.
    #[serde(default)]
    pub oom_killed: bool,
    /// Trap or failure around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When, nanoseconds since 1970.
    pub finished_at: u64,
}

/// A task of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedTask {
    /// Its run.
    pub run: String,
    /// Its id.
    pub id: String,
    /// Was it let go?
    pub released: bool,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<TaskExit>,
    /// MHz reserved. The first builds do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_mhz: Option<u32>,
    /// What it is of. The first builds do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<TaskPlace>,
}

/// What a task is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlace {
    /// Its job, with the namespace.
    pub job: String,
    /// Its group.
    pub group: String,
    /// Index of its allocation in the group.
    pub index: u32,
}

/// A task to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// Which start of which task.
    pub run: String,
    /// Its allocation.
    pub alloc: String,
    /// Its job.
    pub job: String,
    /// Its group.
    pub group: String,
    /// Its name.
    pub task: String,
    /// What was compiled.
    pub code: Code,
    /// The file it is of, for messages.
    pub path: String,
    /// Arguments, the program's name first.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// What it sees of the node's files.
    pub dirs: Vec<Dir>,
    /// Standard input.
    pub stdin: Stdin,
    /// May listen on its ports.
    pub listen: bool,
    /// `address:port` pairs it may connect to.
    pub connect: Vec<String>,
    /// MHz reserved.
    pub cpu_mhz: u32,
    /// Host directory of the task.
    pub task_dir: String,
    /// Host directory that the group's tasks share.
    pub alloc_dir: String,
    /// Host paths assigned to it.
    pub mounts: Vec<OrderMount>,
    /// Ports assigned to it.
    pub ports: Vec<Port>,
    /// What it may use.
    pub limits: OrderLimits,
    /// Files of its standard output; absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<StreamFiles>,
    /// Files of its standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<StreamFiles>,
}

/// Compiled code; the file comes as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// SHA-256 of the wasm, hexadecimal.
    pub digest: String,
    /// Is it a component? A core module otherwise.
    pub component: bool,
}

/// A directory or file that a task sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dir {
    /// On the node.
    pub host: String,
    /// In the task.
    pub guest: String,
    /// No writes.
    pub read_only: bool,
}

/// A host path assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderMount {
    /// On the node.
    pub host: String,
    /// In the task.
    pub task: String,
    /// No writes.
    pub read_only: bool,
}

/// A port assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its label.
    pub label: String,
    /// On the node.
    pub value: u16,
    /// In the task.
    pub to: u16,
    /// Address on the node.
    pub host_ip: String,
}

/// Standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// The first read is the end.
    Nothing,
    /// This text.
    Text(String),
    /// A file of the task.
    File(String),
}

/// What a task may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderLimits {
    /// Bytes of memory and tables.
    pub memory_bytes: u64,
    /// Table elements.
    pub table_elements: u64,
    /// Bytes copied by one host call.
    pub transfer_bytes: u64,
    /// Component resources at once.
    pub handles: u32,
    /// Bytes of one random request.
    pub random_bytes: u64,
    /// Bytes it may add to its directories.
    pub disk_bytes: u64,
}

/// Rotated files of a stream; the directory comes as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFiles {
    /// Name without the index.
    pub prefix: String,
    /// Most files kept.
    pub files_max: u32,
    /// A file is left at this length, bytes.
    pub file_bytes_max: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "protocol_tests.rs"]
mod tests;
