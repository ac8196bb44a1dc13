//! Typed keys and their bytes.
//!
//! ```text
//! meta              01 01                                 schema version
//!                   01 02                                 counters
//! allocation        10 id[16] 01                          what was asked
//!                   10 id[16] 02                          what became of it
//!                   10 id[16] 03                          deployment status
//!                   10 id[16] 04                          network status
//!                   10 id[16] 05                          acknowledged state
//!   its tasks       10 id[16] 80 name… 00 01              local state
//!                   10 id[16] 80 name… 00 02              public state
//! device ledger     20
//! plugin handles    30 name…
//! node              40 01                                 registration
//!                   40 02                                 boot it last ran in
//!                   40 10                                 tokens of its API
//! managers          50 01                                 of drivers
//!                   50 02                                 of devices
//! jobs              60 id…
//!   ended places    60 id… 00 group… 00 block[4]
//!   versions        60 id… 00 00 01
//!   deployments     60 id… 00 00 02
//! variables         70 namespace… 00 path…
//!   their index     70 00 01
//! namespace         80 name…
//! ```
//!
//! Bytes sort as keys do within an allocation (names hold no NUL byte). Every group of keys that is
//! read or removed together shares a prefix. Each key parses back from its bytes, and from its text
//! ([`text`]). The numbers in between are free for later items; a number is never used again for
//! something else.

use uuid::Uuid;

use ostler_model::ids::{
    AllocId, GroupName, JobId, NameError, Namespace, NotNamespace, PluginName, TaskName,
};
use ostler_model::vars::{VarKey, VarPathError};

pub mod text;

const META: u8 = 0x01;
const ALLOC: u8 = 0x10;
const LEDGER: u8 = 0x20;
const PLUGIN: u8 = 0x30;
const NODE: u8 = 0x40;
const MANAGER: u8 = 0x50;
const JOB: u8 = 0x60;
const VARIABLE: u8 = 0x70;
const NAMESPACE: u8 = 0x80;

const META_SCHEMA: u8 = 0x01;
const META_COUNTERS: u8 = 0x02;
const ALLOC_SPEC: u8 = 0x01;
const ALLOC_STATE: u8 = 0x02;
const ALLOC_DEPLOYMENT: u8 = 0x03;
const ALLOC_NETWORK: u8 = 0x04;
const ALLOC_ACKNOWLEDGED: u8 = 0x05;
const ALLOC_TASK: u8 = 0x80;
const TASK_END: u8 = 0x00;
const TASK_LOCAL: u8 = 0x01;
const TASK_STATE: u8 = 0x02;
const NODE_REGISTRATION: u8 = 0x01;
const NODE_BOOT: u8 = 0x02;
const NODE_SCHEDULING: u8 = 0x03;
const NODE_TOKENS: u8 = 0x10;
const MANAGER_DRIVER: u8 = 0x01;
const MANAGER_DEVICE: u8 = 0x02;
const JOB_END: u8 = 0x00;
const GROUP_END: u8 = 0x00;
/// Stands in the place of a group's name, which is never empty.
const JOB_ITEM: u8 = 0x00;
const JOB_VERSIONS: u8 = 0x01;
const JOB_DEPLOYMENTS: u8 = 0x02;
const NAMESPACE_END: u8 = 0x00;
/// Stands in the place of a namespace, which is never empty.
const VARIABLE_ITEM: u8 = 0x00;
const VARIABLES_INDEX: u8 = 0x01;

/// Facts about the state file itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaItem {
    /// Version of the record schema, a `u16`.
    SchemaVersion,
    /// The counts since the file was made: `state::stats::Stats`.
    Counters,
}

/// The name of a record. Each variant names the type of the record's value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKey {
    /// A fact about the state file.
    Meta(MetaItem),
    /// The allocation as it was placed: [`ostler_model::alloc::Allocation`].
    Alloc(AllocId),
    /// The state of the allocation: [`ostler_model::saved::SavedAllocState`].
    AllocState(AllocId),
    /// Whether the allocation counts as healthy:
    /// [`ostler_model::saved::DeploymentStatus`].
    DeploymentStatus(AllocId),
    /// The network that the allocation was given: [`ostler_model::saved::NetworkStatus`].
    NetworkStatus(AllocId),
    /// The state of the allocation that its server last acknowledged:
    /// [`ostler_model::saved::AcknowledgedState`].
    AcknowledgedState(AllocId),
    /// What the task runner needs to own the task again: `task::handle::LocalState`.
    TaskLocal(AllocId, TaskName),
    /// The task's public state: [`ostler_model::task::TaskState`].
    TaskState(AllocId, TaskName),
    /// The device instances that each allocation holds: `device::ledger::DeviceLedger`.
    DeviceLedger,
    /// The agent's record of a plugin: [`ostler_model::saved::PluginHandle`].
    PluginHandle(PluginName),
    /// The node's identity and registration: [`ostler_model::saved::NodeRegistration`].
    NodeRegistration,
    /// The boot of the machine in which the agent last restored its allocations:
    /// [`ostler_model::saved::NodeBoot`].
    NodeBoot,
    /// The tokens that were created over the API: [`ostler_model::access::KeptTokens`].
    Tokens,
    /// The eligibility of the node and the state of its drain:
    /// [`ostler_model::scheduling::NodeScheduling`].
    NodeScheduling,
    /// The plugin that serves each driver: [`ostler_model::saved::DriverManagerState`].
    DriverManager,
    /// The plugin that serves each device group: [`ostler_model::saved::DeviceManagerState`].
    DeviceManager,
    /// A job that is to run: [`ostler_model::saved::JobRecord`].
    Job(JobId),
    /// The ends of collected allocations of a group, by place, in blocks of places:
    /// [`ostler_model::saved::EndedPlaces`].
    EndedPlaces(Box<EndedBlock>),
    /// Earlier versions of a job: [`ostler_model::rollout::JobVersions`].
    JobVersions(JobId),
    /// Deployments of a job: [`ostler_model::rollout::JobDeployments`].
    JobDeployments(JobId),
    /// A variable that the agent keeps: [`ostler_model::vars::Variable`].
    Variable(Box<VarKey>),
    /// The index of the last change of any variable, a `u64`. The index of a removal is
    /// nowhere else.
    VariablesIndex,
    /// A namespace that was created over the API: [`ostler_model::saved::NamespaceRecord`].
    Namespace(Namespace),
}

/// Neighbouring places of a task group. It is boxed in a [`Key`], which is part of every error of
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

/// The type of the record under a key. It is part of every record, so that a record under the wrong
/// key is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// [`MetaItem::SchemaVersion`].
    Meta = 1,
    /// [`Key::Alloc`].
    Alloc = 2,
    /// [`Key::AllocState`].
    AllocState = 3,
    /// [`Key::TaskLocal`].
    TaskLocal = 4,
    /// [`Key::TaskState`].
    TaskState = 5,
    /// [`Key::DeviceLedger`].
    DeviceLedger = 6,
    /// [`Key::PluginHandle`].
    PluginHandle = 7,
    /// [`Key::NodeRegistration`].
    NodeRegistration = 8,
    /// [`MetaItem::Counters`].
    Counters = 9,
    /// [`Key::DeploymentStatus`].
    DeploymentStatus = 10,
    /// [`Key::NetworkStatus`].
    NetworkStatus = 11,
    /// [`Key::AcknowledgedState`].
    AcknowledgedState = 12,
    /// [`Key::DriverManager`].
    DriverManager = 13,
    /// [`Key::DeviceManager`].
    DeviceManager = 14,
    /// [`Key::Job`].
    Job = 15,
    /// [`Key::EndedPlaces`].
    EndedPlaces = 16,
    /// [`Key::NodeBoot`].
    NodeBoot = 17,
    /// [`Key::JobVersions`].
    JobVersions = 18,
    /// [`Key::JobDeployments`].
    JobDeployments = 19,
    /// [`Key::Variable`].
    Variable = 20,
    /// [`Key::VariablesIndex`].
    VariablesIndex = 21,
    /// [`Key::NodeScheduling`].
    NodeScheduling = 22,
    /// [`Key::Namespace`].
    Namespace = 23,
    /// [`Key::Tokens`].
    Tokens = 30,
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

impl RecordKey {
    /// The type of the record under this key.
    #[must_use]
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::Meta(MetaItem::SchemaVersion) => RecordKind::Meta,
            Self::Meta(MetaItem::Counters) => RecordKind::Counters,
            Self::Alloc(_) => RecordKind::Alloc,
            Self::AllocState(_) => RecordKind::AllocState,
            Self::DeploymentStatus(_) => RecordKind::DeploymentStatus,
            Self::NetworkStatus(_) => RecordKind::NetworkStatus,
            Self::AcknowledgedState(_) => RecordKind::AcknowledgedState,
            Self::TaskLocal(..) => RecordKind::TaskLocal,
            Self::TaskState(..) => RecordKind::TaskState,
            Self::DeviceLedger => RecordKind::DeviceLedger,
            Self::PluginHandle(_) => RecordKind::PluginHandle,
            Self::NodeRegistration => RecordKind::NodeRegistration,
            Self::NodeBoot => RecordKind::NodeBoot,
            Self::NodeScheduling => RecordKind::NodeScheduling,
            Self::Tokens => RecordKind::Tokens,
            Self::DriverManager => RecordKind::DriverManager,
            Self::DeviceManager => RecordKind::DeviceManager,
            Self::Job(_) => RecordKind::Job,
            Self::EndedPlaces(_) => RecordKind::EndedPlaces,
            Self::JobVersions(_) => RecordKind::JobVersions,
            Self::JobDeployments(_) => RecordKind::JobDeployments,
            Self::Variable(_) => RecordKind::Variable,
            Self::VariablesIndex => RecordKind::VariablesIndex,
            Self::Namespace(_) => RecordKind::Namespace,
        }
    }

    /// The allocation with which this record is removed; `None` if it belongs to none.
    #[must_use]
    pub fn alloc(&self) -> Option<AllocId> {
        match self {
            Self::Alloc(id)
            | Self::AllocState(id)
            | Self::DeploymentStatus(id)
            | Self::NetworkStatus(id)
            | Self::AcknowledgedState(id)
            | Self::TaskLocal(id, _)
            | Self::TaskState(id, _) => Some(*id),
            Self::Meta(_)
            | Self::DeviceLedger
            | Self::PluginHandle(_)
            | Self::NodeRegistration
            | Self::NodeBoot
            | Self::NodeScheduling
            | Self::Tokens
            | Self::DriverManager
            | Self::DeviceManager
            | Self::Job(_)
            | Self::EndedPlaces(_)
            | Self::JobVersions(_)
            | Self::JobDeployments(_)
            | Self::Variable(_)
            | Self::VariablesIndex
            | Self::Namespace(_) => None,
        }
    }

    /// Replace `out` by the key's bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Meta(MetaItem::SchemaVersion) => out.extend([META, META_SCHEMA]),
            Self::Meta(MetaItem::Counters) => out.extend([META, META_COUNTERS]),
            Self::Alloc(id) => push_item(out, *id, ALLOC_SPEC),
            Self::AllocState(id) => push_item(out, *id, ALLOC_STATE),
            Self::DeploymentStatus(id) => push_item(out, *id, ALLOC_DEPLOYMENT),
            Self::NetworkStatus(id) => push_item(out, *id, ALLOC_NETWORK),
            Self::AcknowledgedState(id) => push_item(out, *id, ALLOC_ACKNOWLEDGED),
            Self::TaskLocal(id, task) => {
                push_task(out, *id, task);
                out.push(TASK_LOCAL);
            }
            Self::TaskState(id, task) => {
                push_task(out, *id, task);
                out.push(TASK_STATE);
            }
            Self::DeviceLedger => out.push(LEDGER),
            Self::PluginHandle(name) => {
                out.push(PLUGIN);
                out.extend_from_slice(name.as_str().as_bytes());
            }
            Self::NodeRegistration => out.extend([NODE, NODE_REGISTRATION]),
            Self::NodeBoot => out.extend([NODE, NODE_BOOT]),
            Self::NodeScheduling => out.extend([NODE, NODE_SCHEDULING]),
            Self::Tokens => out.extend([NODE, NODE_TOKENS]),
            Self::DriverManager => out.extend([MANAGER, MANAGER_DRIVER]),
            Self::DeviceManager => out.extend([MANAGER, MANAGER_DEVICE]),
            Self::Job(id) => {
                out.push(JOB);
                out.extend_from_slice(id.qualified_id().as_bytes());
            }
            Self::EndedPlaces(of) => {
                let EndedBlock { job, group, block } = &**of;
                push_beside(out, job);
                out.extend_from_slice(group.as_str().as_bytes());
                out.push(GROUP_END);
                out.extend_from_slice(&block.to_be_bytes());
            }
            Self::JobVersions(job) => {
                push_beside(out, job);
                out.extend([JOB_ITEM, JOB_VERSIONS]);
            }
            Self::JobDeployments(job) => {
                push_beside(out, job);
                out.extend([JOB_ITEM, JOB_DEPLOYMENTS]);
            }
            Self::Variable(of) => {
                out.push(VARIABLE);
                out.extend_from_slice(of.namespace.as_str().as_bytes());
                out.push(NAMESPACE_END);
                out.extend_from_slice(of.path.as_str().as_bytes());
            }
            Self::VariablesIndex => out.extend([VARIABLE, VARIABLE_ITEM, VARIABLES_INDEX]),
            Self::Namespace(name) => {
                out.push(NAMESPACE);
                out.extend_from_slice(name.as_str().as_bytes());
            }
        }
    }

    /// The key's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// When no key has these bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyError> {
        let (area, rest) = bytes.split_first().ok_or(KeyError::Length)?;
        match (*area, rest) {
            (META, [META_SCHEMA]) => Ok(Self::Meta(MetaItem::SchemaVersion)),
            (META, [META_COUNTERS]) => Ok(Self::Meta(MetaItem::Counters)),
            (ALLOC, _) => parse_alloc(rest),
            (LEDGER, []) => Ok(Self::DeviceLedger),
            (PLUGIN, name) => {
                PluginName::new(utf8(name)?).map(Self::PluginHandle).map_err(KeyError::Name)
            }
            (NODE, [NODE_REGISTRATION]) => Ok(Self::NodeRegistration),
            (NODE, [NODE_BOOT]) => Ok(Self::NodeBoot),
            (NODE, [NODE_SCHEDULING]) => Ok(Self::NodeScheduling),
            (NODE, [NODE_TOKENS]) => Ok(Self::Tokens),
            (MANAGER, [MANAGER_DRIVER]) => Ok(Self::DriverManager),
            (MANAGER, [MANAGER_DEVICE]) => Ok(Self::DeviceManager),
            (JOB, rest) => parse_job(rest),
            (VARIABLE, rest) => parse_variable(rest),
            (NAMESPACE, name) => {
                Namespace::new(utf8(name)?).map(Self::Namespace).map_err(KeyError::Namespace)
            }
            (META | NODE | MANAGER, [tag]) => Err(KeyError::Unknown { tag: *tag }),
            (META | NODE | MANAGER | LEDGER, _) => Err(KeyError::Length),
            (tag, _) => Err(KeyError::Unknown { tag }),
        }
    }
}

impl KeyPrefix {
    /// The first bytes of every key of the group.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::All => {}
            Self::Meta => out.push(META),
            Self::Allocs => out.push(ALLOC),
            Self::Alloc(id) => push_alloc(&mut out, *id),
            Self::Tasks(id) => push_item(&mut out, *id, ALLOC_TASK),
            Self::Task(id, task) => push_task(&mut out, *id, task),
            Self::Plugins => out.push(PLUGIN),
            Self::Node => out.push(NODE),
            Self::Managers => out.push(MANAGER),
            Self::Jobs => out.push(JOB),
            Self::BesideJob(job) => push_beside(&mut out, job),
            Self::Variables => out.push(VARIABLE),
            Self::Namespaces => out.push(NAMESPACE),
        }
        out
    }
}

fn push_alloc(out: &mut Vec<u8>, id: AllocId) {
    out.push(ALLOC);
    out.extend_from_slice(id.as_bytes());
}

fn push_item(out: &mut Vec<u8>, id: AllocId, item: u8) {
    push_alloc(out, id);
    out.push(item);
}

fn push_task(out: &mut Vec<u8>, id: AllocId, task: &TaskName) {
    push_alloc(out, id);
    out.push(ALLOC_TASK);
    out.extend_from_slice(task.as_str().as_bytes());
    out.push(TASK_END);
}

fn push_beside(out: &mut Vec<u8>, job: &JobId) {
    out.push(JOB);
    out.extend_from_slice(job.qualified_id().as_bytes());
    out.push(JOB_END);
}

/// The allocation whose record these bytes name, or whose records they begin. This is checked
/// before the key as a whole is parsed.
#[must_use]
pub fn alloc_of(key: &[u8]) -> Option<AllocId> {
    let (area, rest) = key.split_first()?;
    let (id, _) = rest.split_first_chunk::<16>()?;
    (*area == ALLOC).then(|| AllocId::new(Uuid::from_bytes(*id)))
}

fn parse_alloc(rest: &[u8]) -> Result<RecordKey, KeyError> {
    let (id, rest) = rest.split_first_chunk::<16>().ok_or(KeyError::Length)?;
    let id = AllocId::new(Uuid::from_bytes(*id));
    match rest {
        [ALLOC_SPEC] => Ok(RecordKey::Alloc(id)),
        [ALLOC_STATE] => Ok(RecordKey::AllocState(id)),
        [ALLOC_DEPLOYMENT] => Ok(RecordKey::DeploymentStatus(id)),
        [ALLOC_NETWORK] => Ok(RecordKey::NetworkStatus(id)),
        [ALLOC_ACKNOWLEDGED] => Ok(RecordKey::AcknowledgedState(id)),
        [ALLOC_TASK, name @ .., TASK_END, item] => {
            let task = TaskName::new(utf8(name)?).map_err(KeyError::Name)?;
            match *item {
                TASK_LOCAL => Ok(RecordKey::TaskLocal(id, task)),
                TASK_STATE => Ok(RecordKey::TaskState(id, task)),
                tag => Err(KeyError::Unknown { tag }),
            }
        }
        [] | [ALLOC_SPEC..=ALLOC_ACKNOWLEDGED | ALLOC_TASK, ..] => Err(KeyError::Length),
        [tag, ..] => Err(KeyError::Unknown { tag: *tag }),
    }
}

fn parse_job(rest: &[u8]) -> Result<RecordKey, KeyError> {
    let id = |bytes| JobId::from_qualified(utf8(bytes)?).map_err(KeyError::Name);
    // Names hold no NUL byte.
    let Some(end) = rest.iter().position(|byte| *byte == JOB_END) else {
        return id(rest).map(RecordKey::Job);
    };
    let (job, more) = rest.split_at(end);
    let job = id(job)?;
    match more {
        [JOB_END, JOB_ITEM, JOB_VERSIONS] => return Ok(RecordKey::JobVersions(job)),
        [JOB_END, JOB_ITEM, JOB_DEPLOYMENTS] => return Ok(RecordKey::JobDeployments(job)),
        [JOB_END, JOB_ITEM, tag] => return Err(KeyError::Unknown { tag: *tag }),
        _ => {}
    }
    match more.split_last_chunk::<4>() {
        Some(([JOB_END, group @ .., GROUP_END], block)) => {
            let group = GroupName::new(utf8(group)?).map_err(KeyError::Name)?;
            let block = u32::from_be_bytes(*block);
            Ok(RecordKey::EndedPlaces(Box::new(EndedBlock { job, group, block })))
        }
        _ => Err(KeyError::Length),
    }
}

fn parse_variable(rest: &[u8]) -> Result<RecordKey, KeyError> {
    if let [VARIABLE_ITEM, item @ ..] = rest {
        return match item {
            [VARIABLES_INDEX] => Ok(RecordKey::VariablesIndex),
            [tag] => Err(KeyError::Unknown { tag: *tag }),
            _ => Err(KeyError::Length),
        };
    }
    let end = rest.iter().position(|byte| *byte == NAMESPACE_END).ok_or(KeyError::Length)?;
    let (namespace, path) = rest.split_at(end);
    let path = path.split_first().map(|(_, path)| path).unwrap_or_default();
    let key = VarKey::new(utf8(namespace)?, utf8(path)?).map_err(KeyError::Variable)?;
    Ok(RecordKey::Variable(Box::new(key)))
}

fn utf8(bytes: &[u8]) -> Result<&str, KeyError> {
    std::str::from_utf8(bytes).map_err(|_| KeyError::NotUtf8)
}

#[cfg(test)]
mod tests;
