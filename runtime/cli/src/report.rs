//! What `ostler run` and `ostler job run` have to tell. As JSON it is told here, for people in
//! [`super::human`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use ostler_agent::{AllocResult, ConfigProblem, PluginEntry};
use ostler_jobspec::{Diagnostics, FileDiagnostic};
use ostler_model::alloc::{Allocation, ClientStatus};
use ostler_model::device::GroupKey;
use ostler_model::event::TaskEvent;
use ostler_model::ids::{AllocId, JobId, TaskName};
use ostler_model::resources::{AllocatedDevice, AllocatedPort};
use ostler_node::NodeView;
use ostler_wire::{self as wire, Alloc};

/// How a task is called in front of its lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// `task`, or `group[index]/task` where there is more than one allocation; padded.
    pub text: String,
    /// Which colour it has.
    pub number: usize,
}

/// Which of its two streams a task printed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line a task printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Output {
    /// Its allocation.
    pub alloc: AllocId,
    /// The task.
    pub task: TaskName,
    /// Where it printed.
    pub stream: Stream,
    /// Without the newline; as JSON what is not UTF-8 is replaced.
    #[serde(rename = "text", serialize_with = "lossy")]
    pub bytes: Vec<u8>,
    /// Ended by a newline.
    pub complete: bool,
    /// Bytes before it that were rotated away before they could be shown.
    pub skipped_bytes: u64,
    /// For people.
    #[serde(skip)]
    pub label: Arc<Label>,
}

impl Output {
    /// An empty line of a task on its standard output.
    pub(super) fn of(alloc: AllocId, task: TaskName, label: Arc<Label>) -> Self {
        let (stream, bytes, skipped_bytes) = (Stream::Stdout, Vec::new(), 0);
        Self { alloc, task, stream, bytes, complete: true, skipped_bytes, label }
    }
}

/// An allocation that was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Placed {
    /// Its id.
    pub alloc: AllocId,
    /// `<job>.<group>[<index>]`.
    pub name: String,
    /// Its group.
    pub group: String,
    /// The one that failed before it in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follows: Option<AllocId>,
    /// Ports assigned to it.
    pub ports: Vec<AllocatedPort>,
    /// Devices assigned to its tasks.
    pub devices: BTreeMap<TaskName, Vec<AllocatedDevice>>,
}

impl From<&Allocation> for Placed {
    fn from(allocation: &Allocation) -> Self {
        Self {
            alloc: allocation.id,
            name: allocation.name.clone(),
            group: allocation.group.to_string(),
            follows: allocation.reschedules.last().map(|event| event.previous),
            ports: allocation.ports.clone(),
            devices: allocation.devices.clone(),
        }
    }
}

/// From the API, where resources are asked for too.
impl From<&Alloc<'_>> for Placed {
    fn from(alloc: &Alloc<'_>) -> Self {
        let given = alloc.allocated_resources.clone().unwrap_or_default();
        let port = |port: wire::PortMapping| AllocatedPort {
            label: port.label.into(),
            value: port.value,
            to: u16::try_from(port.to).unwrap_or(port.value),
            host_ip: port.host_ip.into(),
            task: None,
        };
        let device = |wire::TaskDevices { vendor, kind, name, ids }| {
            let group = GroupKey { vendor: vendor.into(), kind: kind.into(), name: name.into() };
            AllocatedDevice { group, ids: ids.into_owned() }
        };
        let devices = given.tasks.into_iter().filter_map(|(task, given)| {
            let devices = given.devices?.into_iter().map(device).collect();
            Some((TaskName::new(task).ok()?, devices))
        });
        let before = alloc.reschedule_tracker.iter().flatten().next();
        Self {
            alloc: alloc.id,
            name: alloc.name.to_string(),
            group: alloc.task_group.to_string(),
            follows: before.and_then(|tracker| Some(tracker.events.last()?.prev_alloc_id)),
            ports: given.shared.ports.into_iter().map(port).collect(),
            devices: devices.collect(),
        }
    }
}

/// Something to tell.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Report {
    /// What the agent found the node to be.
    Node {
        /// The whole of it.
        node: Arc<NodeView>,
    },
    /// A plugin, and whether it is loaded.
    Plugin(Box<PluginEntry>),
    /// Said by the agent once.
    Notice {
        /// For people.
        message: String,
    },
    /// What the job file asks for that is not done.
    Warning {
        /// Where, and what happens instead.
        #[serde(flatten)]
        warning: FileDiagnostic,
        /// The same with the line it is about, for people.
        #[serde(skip)]
        rendered: String,
    },
    /// An allocation was made.
    Placed(Placed),
    /// Something happened to a task.
    Event {
        /// Its allocation.
        alloc: AllocId,
        /// The task.
        task: TaskName,
        /// What.
        event: TaskEvent,
        /// For people.
        #[serde(skip)]
        label: Arc<Label>,
    },
    /// Events of a task came faster than they could be told.
    EventsMissed {
        /// Its allocation.
        alloc: AllocId,
        /// The task.
        task: TaskName,
        /// For people.
        #[serde(skip)]
        label: Arc<Label>,
    },
    /// A task printed a line.
    Output(Output),
    /// An allocation's status changed.
    Status {
        /// Which.
        alloc: AllocId,
        /// Its name.
        name: String,
        /// Now.
        status: ClientStatus,
        /// A sentence on it.
        description: String,
    },
    /// An allocation was judged.
    Health {
        /// Which.
        alloc: AllocId,
        /// Its name.
        name: String,
        /// The verdict.
        healthy: bool,
    },
    /// What the program itself does.
    Progress {
        /// For people.
        message: String,
    },
    /// The end, when there is no result.
    Error(Failure),
    /// The end.
    Result {
        /// The job.
        job: JobId,
        /// Every allocation is complete.
        successful: bool,
        /// What the program exits with.
        exit_code: u8,
        /// How each allocation ended.
        allocs: Vec<AllocResult>,
    },
}

/// Why there is no result.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Failure {
    /// For people.
    pub message: String,
    /// What the program exits with.
    pub exit_code: u8,
    /// Problems of the job file or the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<FileDiagnostic>,
    /// Task configurations that do not fit their drivers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_problems: Vec<ConfigProblem>,
    /// The diagnostics with the lines they are about, for people.
    #[serde(skip)]
    pub rendered: String,
}

impl Failure {
    /// A failure without places.
    pub(super) fn new(message: impl Into<String>, exit_code: u8) -> Self {
        Self { message: message.into(), exit_code, ..Self::default() }
    }

    /// With the problems of a file.
    pub(super) fn with_diagnostics(
        mut self,
        diagnostics: &Diagnostics,
        text: &str,
        colours: bool,
    ) -> Self {
        self.rendered = diagnostics.render(text, colours);
        self.diagnostics.clone_from(&diagnostics.diagnostics);
        self
    }
}

fn lossy<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

/// Where rendered text goes.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    /// For standard output.
    pub stdout: Vec<u8>,
    /// For standard error.
    pub stderr: Vec<u8>,
}

/// One JSON object and a newline.
pub(super) fn json(report: &Report, into: &mut Rendered) {
    // Everything in a report has text keys, so this cannot fail; a line must never be half there.
    if let Ok(text) = serde_json::to_vec(report) {
        into.stdout.extend_from_slice(&text);
        into.stdout.push(b'\n');
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
