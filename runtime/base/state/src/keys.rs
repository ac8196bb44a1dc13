//! The parts of keys, and the groups of keys that are read or removed together. The keys themselves
//! are in the table of the records ([`records`](super::records)).

use uuid::Uuid;

use ostler_model::ids::{AllocId, GroupName, JobId, NameError, NotNamespace, TaskName};
use ostler_model::vars::VarPathError;

pub(crate) mod shape;
pub mod text;

pub use super::records::{RecordKey, RecordKind};
use shape::{ALLOC, END, JOB, KeyShape, MANAGER, META, NAMESPACE, NODE, PLUGIN, TASK, VARIABLE};

/// Neighbouring places of a task group. It is boxed in a [`RecordKey`], which is part of every error of
/// the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndedBlock {
    /// The id of the job.
    pub job: JobId,
    /// The name of the task group.
    pub group: GroupName,
    /// The number of the block in the group, from 0.
    pub block: u32,
}

/// A group of keys that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPrefix {
    /// All records of the state file.
    All,
    /// The records about the file.
    Meta,
    /// All records of all allocations.
    Allocs,
    /// All records of one allocation, its tasks included.
    Alloc(AllocId),
    /// All records of the tasks of one allocation.
    Tasks(AllocId),
    /// All records of one task.
    Task(AllocId, TaskName),
    /// The handles of all plugins.
    Plugins,
    /// The node's own records.
    Node,
    /// The managers' records.
    Managers,
    /// All jobs, with the records beside each.
    Jobs,
    /// The records beside one job: ended places, earlier versions, deployments.
    BesideJob(JobId),
    /// All variables, and their index.
    Variables,
    /// All namespaces that were created over the API.
    Namespaces,
}

/// Why bytes are not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The bytes are too short, or go on after the end of the key.
    #[error("key has the wrong length")]
    Length,
    /// No key uses this number.
    #[error("key has the unknown part {tag:#04x}")]
    Unknown {
        /// The number that was found.
        tag: u8,
    },
    /// A name is not UTF-8.
    #[error("name in key is not UTF-8")]
    NotUtf8,
    /// The name can belong to no job.
    #[error("name in key is not allowed")]
    Name(#[source] NameError),
    /// The text can be no namespace.
    #[error("namespace in key is not allowed")]
    Namespace(#[source] NotNamespace),
    /// The text can be the path of no variable.
    #[error("path of a variable in key is not allowed")]
    Variable(#[source] VarPathError),
}

impl KeyPrefix {
    /// The first bytes of every key of the group.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let area = match self {
            Self::All => return Vec::new(),
            Self::Meta => META,
            Self::Allocs | Self::Alloc(_) | Self::Tasks(_) | Self::Task(..) => ALLOC,
            Self::Plugins => PLUGIN,
            Self::Node => NODE,
            Self::Managers => MANAGER,
            Self::Jobs | Self::BesideJob(_) => JOB,
            Self::Variables => VARIABLE,
            Self::Namespaces => NAMESPACE,
        };
        let mut out = vec![area.byte];
        match self {
            Self::Alloc(id) => <(AllocId,)>::push((id,), &mut out),
            Self::Tasks(id) => {
                <(AllocId,)>::push((id,), &mut out);
                out.push(TASK);
            }
            Self::Task(id, task) => <(AllocId, TaskName)>::push((id, task), &mut out),
            Self::BesideJob(job) => {
                <(JobId,)>::push((job,), &mut out);
                out.push(END);
            }
            _ => {}
        }
        out
    }
}

/// The allocation whose record these bytes name, or whose records they begin. This is checked
/// before the key as a whole is parsed.
#[must_use]
pub fn alloc_of(key: &[u8]) -> Option<AllocId> {
    let (area, rest) = key.split_first()?;
    let (id, _) = rest.split_first_chunk::<16>()?;
    (*area == ALLOC.byte).then(|| AllocId::new(Uuid::from_bytes(*id)))
}

#[cfg(test)]
pub(crate) mod tests;
