//! The difference between two versions of a job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Text;

/// Nomad's `JobDiff`: the difference of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobDiff<'a> {
    /// The kind of the change: `Added`, `Deleted`, `Edited` or `None`.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The id of the job.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The keys of the job itself that change.
    pub fields: Option<Vec<FieldDiff>>,
    /// The blocks of the job itself that change.
    pub objects: Option<Vec<ObjectDiff>>,
    /// All task groups, also those that do not change.
    pub task_groups: Option<Vec<GroupDiff>>,
}

/// Nomad's `TaskGroupDiff`: the difference of a task group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupDiff {
    /// The kind of the change; see [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The name of the task group.
    pub name: String,
    /// The keys of the group itself that change.
    pub fields: Option<Vec<FieldDiff>>,
    /// The blocks of the group itself that change.
    pub objects: Option<Vec<ObjectDiff>>,
    /// The tasks of the group that change.
    pub tasks: Option<Vec<TaskDiff>>,
    /// The number of allocations by what happens to them, in the words of Nomad's command line.
    pub updates: Option<BTreeMap<String, u64>>,
}

/// Nomad's `TaskDiff`: the difference of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskDiff {
    /// The kind of the change; see [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The name of the task.
    pub name: String,
    /// The keys of the task itself that change.
    pub fields: Option<Vec<FieldDiff>>,
    /// The blocks of the task that change.
    pub objects: Option<Vec<ObjectDiff>>,
    /// The effects of the change, such as `forces create`.
    pub annotations: Option<Vec<String>>,
}

/// Nomad's `ObjectDiff`: the difference of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ObjectDiff {
    /// The kind of the change; see [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The name of the block.
    pub name: String,
    /// The keys of the block that change.
    pub fields: Option<Vec<FieldDiff>>,
    /// The blocks inside it that change.
    pub objects: Option<Vec<ObjectDiff>>,
}

/// Nomad's `FieldDiff`: the difference of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FieldDiff {
    /// The kind of the change; see [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The name of the key.
    pub name: String,
    /// The old value; empty if there was none.
    pub old: String,
    /// The new value; empty if there will be none.
    pub new: String,
    /// The effects of the change, such as `forces create`.
    pub annotations: Option<Vec<String>>,
}
