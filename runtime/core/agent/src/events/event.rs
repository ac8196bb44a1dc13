//! One event of the node.

use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What an event is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum EventTopic {
    /// The agent, or the node as a whole.
    #[default]
    Node,
    /// A job.
    Job,
    /// An allocation.
    Allocation,
    /// A task of an allocation.
    Task,
    /// A deployment of a job.
    Deployment,
    /// A plugin.
    Plugin,
    /// A device.
    Device,
}

impl EventTopic {
    /// The word for the topic in JSON and on the command line: `node`, `job` …
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Job => "job",
            Self::Allocation => "allocation",
            Self::Task => "task",
            Self::Deployment => "deployment",
            Self::Plugin => "plugin",
            Self::Device => "device",
        }
    }
}

/// Something that happened, as the agent notes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventNote {
    /// What it is about.
    pub topic: EventTopic,
    /// What happened, in a word or two: `Terminated`, `registered`.
    pub kind: String,
    /// Namespace of the job; empty where there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The job, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// Id of the allocation, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub alloc: String,
    /// The task, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task: String,
    /// The plugin, the device or the deployment, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The sentence that people read.
    pub message: String,
    /// Something is not as it should be.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trouble: bool,
}

/// An event with its count: what happened, how often, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptEvent {
    /// Number of the event. Each event, and each repetition of one, gets the next number.
    pub seq: u64,
    /// When it happened first, nanoseconds since 1970.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
    /// How often it happened.
    pub times: u64,
    /// What happened; its fields stand beside the count in JSON.
    #[serde(flatten)]
    pub what: EventNote,
}

impl EventNote {
    /// About how many bytes of memory the event takes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = [
            &self.kind,
            &self.namespace,
            &self.job,
            &self.alloc,
            &self.task,
            &self.name,
            &self.message,
        ];
        texts.iter().map(|text| text.len()).sum::<usize>() + size_of::<KeptEvent>()
    }
}
