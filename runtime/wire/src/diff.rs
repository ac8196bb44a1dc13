//! What differs between two versions of a job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Text;

/// `JobDiff`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobDiff<'a> {
    /// `Added`, `Deleted`, `Edited` or `None`, as everywhere here.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The job.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Its own keys.
    pub fields: Option<Vec<FieldDiff>>,
    /// Its own blocks.
    pub objects: Option<Vec<ObjectDiff>>,
    /// All of its groups, those that stay as they are too.
    pub task_groups: Option<Vec<GroupDiff>>,
}

/// `TaskGroupDiff`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupDiff {
    /// See [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The group.
    pub name: String,
    /// Its own keys.
    pub fields: Option<Vec<FieldDiff>>,
    /// Its own blocks.
    pub objects: Option<Vec<ObjectDiff>>,
    /// Its tasks that change.
    pub tasks: Option<Vec<TaskDiff>>,
    /// How many allocations get what, by the words of Nomad's command line.
    pub updates: Option<BTreeMap<String, u64>>,
}

/// `TaskDiff`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskDiff {
    /// See [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The task.
    pub name: String,
    /// Its own keys.
    pub fields: Option<Vec<FieldDiff>>,
    /// Its own blocks.
    pub objects: Option<Vec<ObjectDiff>>,
    /// What the change brings about: `forces create`.
    pub annotations: Option<Vec<String>>,
}

/// `ObjectDiff`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ObjectDiff {
    /// See [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The block.
    pub name: String,
    /// Its own keys.
    pub fields: Option<Vec<FieldDiff>>,
    /// Blocks in it.
    pub objects: Option<Vec<ObjectDiff>>,
}

/// `FieldDiff`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FieldDiff {
    /// See [`JobDiff`].
    #[serde(rename = "Type")]
    pub kind: String,
    /// The key.
    pub name: String,
    /// What was there; empty for nothing.
    pub old: String,
    /// What will be there; empty for nothing.
    pub new: String,
    /// What the change brings about: `forces create`.
    pub annotations: Option<Vec<String>>,
}
