//! The messages between an agent and a worker. The format is frozen.
//!
//! ```text
//! agent ─► hello ─────────────► worker     agent ─► start n, descriptors ─► held n | refused n
//!       ◄─ welcome ────────────                 ─► release, kill, kill_run, forget_run
//!       ─► list n ─► listed n                   ─► usage n ─► used n
//!       ─► retire                               ◄─ exited, said: whenever it happens
//! ```
//! A message is one JSON object in one packet of a `SOCK_SEQPACKET` socket (`link.rs` says how long
//! messages travel). A reader ignores fields and kinds of messages that it does not know. A new
//! field is optional, and a new kind is only sent to a worker whose `welcome` has a version that
//! knows it. `tests` hold the bytes of version 1.

use serde::{Deserialize, Serialize};

/// Version of the messages that this build sends.
pub const VERSION: u32 = 1;

/// A message from the agent to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToWorker {
    /// The first message of a connection.
    Hello {
        /// Version of the messages that the agent sends.
        version: u32,
    },
    /// Hold a task. The descriptors of the message are the compiled code, then the log directory of
    /// each stream that has files and does not say where they lie.
    Start {
        /// Number that the answer repeats.
        n: u64,
        /// The task to hold.
        order: Box<StartOrder>,
    },
    /// Let the held tasks of a run start.
    Release {
        /// Id of the run to release.
        run: String,
        /// What the next agent needs to own the run, as a text of JSON. The worker writes it down
        /// before the tasks start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// End a task.
    Kill {
        /// Id of the task's run.
        run: String,
        /// Id of the task in the worker.
        id: String,
    },
    /// End every task of a run, also those that come later.
    KillRun {
        /// Id of the run to end.
        run: String,
    },
    /// End every task of a run, and remember nothing of the run.
    ForgetRun {
        /// Id of the run to forget.
        run: String,
    },
    /// Ask for every task that was not forgotten.
    List {
        /// Number that the answer repeats.
        n: u64,
    },
    /// Ask what a task uses now.
    Usage {
        /// Number that the answer repeats.
        n: u64,
        /// Id of the task's run.
        run: String,
        /// Id of the task in the worker.
        id: String,
    },
    /// The directories of a run are made, or cannot be.
    DirsMade {
        /// Id of the run.
        run: String,
        /// Why they cannot be made, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// End with the last task: nothing more will be started.
    Retire,
    /// A message of a later version.
    #[serde(other)]
    Unknown,
}

/// A message from the worker to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromWorker {
    /// The answer to `hello`.
    Welcome {
        /// Version of the messages that the worker sends.
        version: u32,
        /// How many tasks the worker has room for.
        tasks_max: u32,
        /// Texts about the worker that the agent writes into its log for the operator.
        notices: Vec<String>,
    },
    /// A task is held.
    Held {
        /// Number of the `start` that this answers.
        n: u64,
        /// Id that the worker gave the task.
        id: String,
    },
    /// A task is not held.
    Refused {
        /// Number of the `start` that this answers.
        n: u64,
        /// Why the task is not held, for people.
        text: String,
        /// Whether the file or the configuration of the task is at fault.
        #[serde(default)]
        invalid: bool,
    },
    /// A task ended.
    Exited {
        /// Id of the task's run.
        run: String,
        /// Id of the task in the worker.
        id: String,
        /// How the task ended.
        exit: TaskExit,
    },
    /// A text for the events of a task.
    Said {
        /// Id of the task's run.
        run: String,
        /// Text of the event.
        text: String,
    },
    /// A task asks for its directories, which are made late.
    WantsDirs {
        /// Id of the task's run.
        run: String,
    },
    /// The answer to `list`.
    Listed {
        /// Number of the `list` that this answers.
        n: u64,
        /// All tasks of the worker that were not forgotten.
        tasks: Vec<ListedTask>,
    },
    /// The answer to `usage`.
    Used {
        /// Number of the `usage` that this answers.
        n: u64,
        /// Processor time used so far, nanoseconds.
        cpu_nanos: Option<u64>,
        /// Memory held now, bytes; absent: the task does not run.
        memory_bytes: Option<u64>,
        /// When this was measured, nanoseconds since 1970.
        taken_at: u64,
    },
    /// A message of a later version.
    #[serde(other)]
    Unknown,
}

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskExit {
    /// Exit code of a task that ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Number of the signal that killed the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// Whether the task ended because it used too much memory.
    #[serde(default)]
    pub oom_killed: bool,
    /// The trap of the task, or a failure around it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the task ended, nanoseconds since 1970.
    pub finished_at: u64,
}

/// A task of a worker, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedTask {
    /// Id of the task's run.
    pub run: String,
    /// Id of the task in the worker.
    pub id: String,
    /// Whether the task was released, so that it may run.
    pub released: bool,
    /// How the task ended; absent: it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<TaskExit>,
    /// MHz reserved by the task. The first builds do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_mhz: Option<u32>,
    /// Job, group and index of the task. The first builds do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<TaskPlace>,
}

/// To which job, group and allocation a task belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlace {
    /// Name of the job, with its namespace.
    pub job: String,
    /// Name of the task group.
    pub group: String,
    /// Index of the task's allocation in the group.
    pub index: u32,
}

/// A task to hold, with all that it needs to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// Id of the run: which start of which task this is.
    pub run: String,
    /// Id of the task in the worker; absent: the worker gives it one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Id of the task's allocation.
    pub alloc: String,
    /// Name of the job, with its namespace.
    pub job: String,
    /// Name of the task group.
    pub group: String,
    /// Name of the task in its group.
    pub task: String,
    /// The compiled code to run.
    pub code: OrderCode,
    /// Path of the file that the code was compiled from, for messages.
    pub path: String,
    /// Arguments of the program, its name first.
    pub args: Vec<String>,
    /// The whole environment of the task, as names and values.
    pub env: Vec<(String, String)>,
    /// Directories and files of the node that the task sees.
    pub dirs: Vec<Dir>,
    /// Standard input of the task.
    pub stdin: Stdin,
    /// Whether the task may listen on its ports.
    pub listen: bool,
    /// `address:port` pairs that the task may connect to.
    pub connect: Vec<String>,
    /// MHz reserved by the task.
    pub cpu_mhz: u32,
    /// Directory of the task on the node.
    pub task_dir: String,
    /// Directory on the node that the tasks of the group share.
    pub alloc_dir: String,
    /// Whether the directories of the task are made when it asks for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late_dirs: bool,
    /// Paths of the node that reservations assigned to the task.
    pub mounts: Vec<OrderMount>,
    /// Ports assigned to the task.
    pub ports: Vec<Port>,
    /// How much the task may use.
    pub limits: OrderLimits,
    /// Files that standard output goes to; absent: it is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<StreamFiles>,
    /// Files that standard error goes to; absent: it is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<StreamFiles>,
}

/// What identifies the compiled code, whose file comes as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderCode {
    /// SHA-256 of the wasm, hexadecimal.
    pub digest: String,
    /// Whether the wasm is a component; otherwise it is a core module.
    pub component: bool,
}

/// A directory or file of the node that a task sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dir {
    /// Path on the node.
    pub host: String,
    /// Path in the task.
    pub guest: String,
    /// Whether the task may not write there.
    pub read_only: bool,
}

/// A path of the node that a reservation assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderMount {
    /// Path on the node.
    pub host: String,
    /// Path in the task.
    pub task: String,
    /// Whether the task may not write there.
    pub read_only: bool,
}

/// A port assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Label of the port in the job.
    pub label: String,
    /// Port number on the node.
    pub value: u16,
    /// Port number in the task.
    pub to: u16,
    /// Address of the port on the node; empty: every address.
    pub host_ip: String,
}

/// What a task reads from its standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing: the first read is the end.
    Nothing,
    /// This text.
    Text(String),
    /// A file of the task.
    File(String),
}

/// How much a task may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderLimits {
    /// Most memory and tables together, bytes.
    pub memory_bytes: u64,
    /// Most table elements.
    pub table_elements: u64,
    /// Most bytes that one host call copies.
    pub transfer_bytes: u64,
    /// Most component resources at once.
    pub handles: u32,
    /// Most bytes of one request for random bytes.
    pub random_bytes: u64,
    /// Most bytes that the task may add to its directories.
    pub disk_bytes: u64,
}

/// Rotated files of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFiles {
    /// Where the files lie; absent: the directory comes as a descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<StreamDir>,
    /// Whether no file of the stream exists yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh: bool,
    /// Name of each file without its index.
    pub prefix: String,
    /// How many files are kept at most.
    pub files_max: u32,
    /// Length at which the next file is begun, bytes.
    pub file_bytes_max: u64,
}

/// The directory of a stream, which is opened when the task prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDir {
    /// A directory that only the agent's user changes.
    pub root: String,
    /// The path from there. A link on it is not followed.
    pub path: String,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "protocol_tests.rs"]
mod tests;
