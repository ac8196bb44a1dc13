//! Keys as people write them. `Display` and [`Key::from_str`] are inverse to each other.
//!
//! ```text
//! meta/schema                             allocation/ID/task/NAME/local
//! meta/counters                           allocation/ID/task/NAME/state
//! allocation/ID                           device/ledger
//! allocation/ID/state                     plugin/NAME
//! allocation/ID/deployment                node/registration, node/boot, node/tokens
//! allocation/ID/network                   node/scheduling, manager/driver
//! allocation/ID/acknowledged              manager/device
//!                                         job/ID
//!                                         job/ID/ended/GROUP/BLOCK
//!                                         job/ID/versions
//!                                         job/ID/deployments
//! variable/index                          variable/NAMESPACE/PATH
//! namespace/NAME
//! ```
//!
//! Names hold no slash, so the parts are never ambiguous. In the id of a job a slash is
//! written `%2F`, and a per cent sign is written `%25`. The path of a variable is everything
//! after its namespace.

use std::fmt;
use std::str::FromStr;

use super::{EndedBlock, KeyPrefix, MetaItem, RecordKey};
use ostler_model::ids::{
    AllocId, GroupName, JobId, NameError, Namespace, NotNamespace, PluginName, TaskName,
};
use ostler_model::vars::{VarKey, VarPathError};

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// No key is written this way.
    #[error("no record is called {given:?}; a dump of the state lists those there are")]
    Unknown {
        /// The text, cut to a hundred characters.
        given: String,
    },
    /// The id or the name in it is not valid.
    #[error("no record is called so")]
    Name(#[source] NameError),
    /// The text can be no namespace.
    #[error("no record is called so")]
    Namespace(#[source] NotNamespace),
    /// No variable can have this path or namespace.
    #[error("no record is called so")]
    Variable(#[source] VarPathError),
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta(MetaItem::SchemaVersion) => f.write_str("meta/schema"),
            Self::Meta(MetaItem::Counters) => f.write_str("meta/counters"),
            Self::Alloc(id) => write!(f, "allocation/{id}"),
            Self::AllocState(id) => write!(f, "allocation/{id}/state"),
            Self::DeploymentStatus(id) => write!(f, "allocation/{id}/deployment"),
            Self::NetworkStatus(id) => write!(f, "allocation/{id}/network"),
            Self::AcknowledgedState(id) => write!(f, "allocation/{id}/acknowledged"),
            Self::TaskLocal(id, task) => write!(f, "allocation/{id}/task/{task}/local"),
            Self::TaskState(id, task) => write!(f, "allocation/{id}/task/{task}/state"),
            Self::DeviceLedger => f.write_str("device/ledger"),
            Self::PluginHandle(name) => write!(f, "plugin/{name}"),
            Self::NodeRegistration => f.write_str("node/registration"),
            Self::NodeBoot => f.write_str("node/boot"),
            Self::NodeScheduling => f.write_str("node/scheduling"),
            Self::Tokens => f.write_str("node/tokens"),
            Self::DriverManager => f.write_str("manager/driver"),
            Self::DeviceManager => f.write_str("manager/device"),
            Self::Job(id) => write!(f, "job/{}", escape_job(id)),
            Self::JobVersions(id) => write!(f, "job/{}/versions", escape_job(id)),
            Self::JobDeployments(id) => write!(f, "job/{}/deployments", escape_job(id)),
            Self::EndedPlaces(of) => {
                write!(f, "job/{}/ended/{}/{}", escape_job(&of.job), of.group, of.block)
            }
            Self::Variable(of) => write!(f, "variable/{}/{}", of.namespace, of.path),
            Self::VariablesIndex => f.write_str("variable/index"),
            Self::Namespace(name) => write!(f, "namespace/{name}"),
        }
    }
}

impl FromStr for RecordKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        // A path has any number of parts.
        if let Some((namespace, path)) =
            text.strip_prefix("variable/").and_then(|rest| rest.split_once('/'))
        {
            let key = VarKey::new(namespace, path).map_err(KeyTextError::Variable)?;
            return Ok(Self::Variable(Box::new(key)));
        }
        // The limit is one more than the parts of any key, so that a key with something after it is
        // refused.
        let parts: Vec<&str> = text.splitn(6, '/').collect();
        match parts.as_slice() {
            ["meta", "schema"] => Ok(Self::Meta(MetaItem::SchemaVersion)),
            ["meta", "counters"] => Ok(Self::Meta(MetaItem::Counters)),
            ["allocation", id] => Ok(Self::Alloc(parse_alloc_id(id)?)),
            ["allocation", id, "state"] => Ok(Self::AllocState(parse_alloc_id(id)?)),
            ["allocation", id, "deployment"] => Ok(Self::DeploymentStatus(parse_alloc_id(id)?)),
            ["allocation", id, "network"] => Ok(Self::NetworkStatus(parse_alloc_id(id)?)),
            ["allocation", id, "acknowledged"] => Ok(Self::AcknowledgedState(parse_alloc_id(id)?)),
            ["allocation", id, "task", name, "local"] => {
                Ok(Self::TaskLocal(parse_alloc_id(id)?, parse_task_name(name)?))
            }
            ["allocation", id, "task", name, "state"] => {
                Ok(Self::TaskState(parse_alloc_id(id)?, parse_task_name(name)?))
            }
            ["device", "ledger"] => Ok(Self::DeviceLedger),
            ["plugin", name] => {
                PluginName::new(*name).map(Self::PluginHandle).map_err(KeyTextError::Name)
            }
            ["node", "registration"] => Ok(Self::NodeRegistration),
            ["node", "boot"] => Ok(Self::NodeBoot),
            ["node", "scheduling"] => Ok(Self::NodeScheduling),
            ["namespace", name] => {
                Namespace::new(name).map(Self::Namespace).map_err(KeyTextError::Namespace)
            }
            ["node", "tokens"] => Ok(Self::Tokens),
            ["manager", "driver"] => Ok(Self::DriverManager),
            ["manager", "device"] => Ok(Self::DeviceManager),
            ["variable", "index"] => Ok(Self::VariablesIndex),
            ["job", id] => parse_job_id(id).map(Self::Job),
            ["job", id, "versions"] => parse_job_id(id).map(Self::JobVersions),
            ["job", id, "deployments"] => parse_job_id(id).map(Self::JobDeployments),
            ["job", id, "ended", group, block] => parse_ended_block(id, group, block),
            _ => Err(KeyTextError::Unknown { given: text.chars().take(100).collect() }),
        }
    }
}

impl KeyPrefix {
    /// A small group that holds every key whose text starts with `text`. Read it instead of
    /// everything, then compare the texts.
    #[must_use]
    pub fn covering(text: &str) -> Self {
        let Some((area, rest)) = text.split_once('/') else { return Self::All };
        match area {
            "meta" => Self::Meta,
            "allocation" => match rest.get(..UUID_TEXT).map(AllocId::from_str) {
                Some(Ok(id)) => Self::Alloc(id),
                _ => Self::Allocs,
            },
            "plugin" => Self::Plugins,
            "node" => Self::Node,
            "manager" => Self::Managers,
            "job" => Self::Jobs,
            "variable" => Self::Variables,
            "namespace" => Self::Namespaces,
            _ => Self::All,
        }
    }
}

/// The number of characters in the text of an id.
const UUID_TEXT: usize = 36;

fn parse_alloc_id(text: &str) -> Result<AllocId, KeyTextError> {
    text.parse().map_err(KeyTextError::Name)
}

fn escape_job(id: &JobId) -> String {
    id.qualified_id().replace('%', "%25").replace('/', "%2F").replace(' ', "%20")
}

fn parse_job_id(text: &str) -> Result<JobId, KeyTextError> {
    let id =
        JobId::from_qualified(text.replace("%20", " ").replace("%2F", "/").replace("%25", "%"));
    let id = id.map_err(KeyTextError::Name)?;
    // Only the exact spelling is accepted: `%2f` is another text.
    let unknown = || KeyTextError::Unknown { given: text.chars().take(100).collect() };
    (escape_job(&id) == text).then_some(id).ok_or_else(unknown)
}

fn parse_ended_block(id: &str, group: &str, block: &str) -> Result<RecordKey, KeyTextError> {
    let group = GroupName::new(group).map_err(KeyTextError::Name)?;
    let number: Option<u32> = block.parse().ok();
    // Only the exact spelling is accepted: `+1` and `01` are other texts of the same number.
    let number = number.filter(|number| number.to_string() == block);
    let unknown = || KeyTextError::Unknown { given: block.chars().take(100).collect() };
    let (job, block) = (parse_job_id(id)?, number.ok_or_else(unknown)?);
    Ok(RecordKey::EndedPlaces(Box::new(EndedBlock { job, group, block })))
}

fn parse_task_name(text: &str) -> Result<TaskName, KeyTextError> {
    TaskName::new(text).map_err(KeyTextError::Name)
}
