//! The reports of `ostler run` and `ostler job run`. This module renders them as JSON,
//! [`super::human`] as text for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use ostler_agent::{AllocResult, PluginEntry, TaskConfigProblem};
use ostler_jobspec::{Diagnostics, FileDiagnostic};
use ostler_model::alloc::{Allocation, ClientStatus};
use ostler_model::device::GroupKey;
use ostler_model::event::TaskEvent;
use ostler_model::ids::{AllocId, JobId, TaskName};
use ostler_model::resources::{AllocatedDevice, AllocatedPort};
use ostler_node::NodeView;
use ostler_wire::{self as wire, Alloc};

/// The label of a task in front of its lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// `task`, or `group[index]/task` where there is more than one allocation; padded.
    pub text: String,
    /// The number of the task, which selects its colour.
    pub number: usize,
}

/// The stream that a task printed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TaskStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line that a task printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct OutputLine {
    /// The allocation of the task.
    pub alloc: AllocId,
    /// The name of the task.
    pub task: TaskName,
    /// The stream that the task printed on.
    pub stream: TaskStream,
    /// The line without its newline. In JSON, what is not UTF-8 is replaced.
    #[serde(rename = "text", serialize_with = "lossy")]
    pub bytes: Vec<u8>,
    /// Whether a newline ended the line.
    pub complete: bool,
    /// Number of bytes before the line that were rotated away before they could be shown.
    pub skipped_bytes: u64,
    /// The label of the task, for text for people only.
    #[serde(skip)]
    pub label: Arc<Label>,
}

impl OutputLine {
    /// An empty line on the standard output of a task.
    pub(super) fn empty_line(alloc: AllocId, task: TaskName, label: Arc<Label>) -> Self {
        let (stream, bytes, skipped_bytes) = (TaskStream::Stdout, Vec::new(), 0);
        Self { alloc, task, stream, bytes, complete: true, skipped_bytes, label }
    }
}

/// An allocation that was placed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PlacementReport {
    /// The id of the allocation.
    pub alloc: AllocId,
    /// The name of the allocation: `<job>.<group>[<index>]`.
    pub name: String,
    /// The task group of the allocation.
    pub group: String,
    /// The failed allocation that this one replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follows: Option<AllocId>,
    /// Ports that are assigned to the allocation.
    pub ports: Vec<AllocatedPort>,
    /// Devices that are assigned to the tasks, by the name of the task.
    pub devices: BTreeMap<TaskName, Vec<AllocatedDevice>>,
}

impl From<&Allocation> for PlacementReport {
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

/// From an answer of the API that has the resources too.
impl From<&Alloc<'_>> for PlacementReport {
    fn from(alloc: &Alloc<'_>) -> Self {
        let given = alloc.allocated_resources.clone().unwrap_or_default();
        let port = |port: wire::AllocatedPortMapping| AllocatedPort {
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

/// A report of a run. As JSON its `type` is the name of the variant in snake case.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum RunReport {
    /// The node, as the agent found it.
    Node {
        /// The whole view of the node.
        node: Arc<NodeView>,
    },
    /// A plugin, and whether it is loaded.
    Plugin(Box<PluginEntry>),
    /// A notice of the agent or of this command.
    Notice {
        /// The text of the notice.
        message: String,
    },
    /// A warning that the job file asks for something that the agent does not do.
    Warning {
        /// The place in the file, and what happens instead.
        #[serde(flatten)]
        warning: FileDiagnostic,
        /// The warning with its line of the file, for text for people only.
        #[serde(skip)]
        rendered: String,
    },
    /// An allocation was placed.
    Placed(PlacementReport),
    /// Something happened to a task.
    Event {
        /// The allocation of the task.
        alloc: AllocId,
        /// The name of the task.
        task: TaskName,
        /// The event, with its time and its message.
        event: TaskEvent,
        /// The label of the task, for text for people only.
        #[serde(skip)]
        label: Arc<Label>,
    },
    /// Events of a task came faster than they could be reported.
    EventsMissed {
        /// The allocation of the task.
        alloc: AllocId,
        /// The name of the task.
        task: TaskName,
        /// The label of the task, for text for people only.
        #[serde(skip)]
        label: Arc<Label>,
    },
    /// A task printed a line.
    Output(OutputLine),
    /// The status of an allocation changed.
    Status {
        /// The id of the allocation.
        alloc: AllocId,
        /// The name of the allocation.
        name: String,
        /// The new status of the allocation.
        status: ClientStatus,
        /// A sentence on why the allocation has this status.
        description: String,
    },
    /// The health of an allocation became known.
    Health {
        /// The id of the allocation.
        alloc: AllocId,
        /// The name of the allocation.
        name: String,
        /// Whether the allocation is healthy.
        healthy: bool,
    },
    /// Progress of the program itself.
    Progress {
        /// The text of the progress.
        message: String,
    },
    /// The last report of a run without a result.
    Error(RunFailure),
    /// The last report of a run: the result of the job.
    Result {
        /// The id of the job.
        job: JobId,
        /// Whether every allocation is complete.
        successful: bool,
        /// What the program exits with.
        exit_code: u8,
        /// The result of each allocation.
        allocs: Vec<AllocResult>,
    },
}

/// Why a run has no result.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RunFailure {
    /// The message of the error.
    pub message: String,
    /// What the program exits with.
    pub exit_code: u8,
    /// Problems of the job file or of the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<FileDiagnostic>,
    /// Task configurations that do not fit their drivers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_problems: Vec<TaskConfigProblem>,
    /// The diagnostics with their lines of the file, for text for people only.
    #[serde(skip)]
    pub rendered: String,
}

impl RunFailure {
    /// A failure without diagnostics.
    pub(super) fn new(message: impl Into<String>, exit_code: u8) -> Self {
        Self { message: message.into(), exit_code, ..Self::default() }
    }

    /// Add the problems of a file.
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

/// Rendered text that is still to be written, by stream.
#[derive(Debug, Default)]
pub(super) struct RenderBuffers {
    /// Text for standard output.
    pub stdout: Vec<u8>,
    /// Text for standard error.
    pub stderr: Vec<u8>,
}

/// Render a report as one JSON object and a newline.
pub(super) fn render_json(report: &RunReport, into: &mut RenderBuffers) {
    // Every map in a report has text keys, so this cannot fail. The text is added as a whole, so
    // that no line is incomplete.
    if let Ok(text) = serde_json::to_vec(report) {
        into.stdout.extend_from_slice(&text);
        into.stdout.push(b'\n');
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
