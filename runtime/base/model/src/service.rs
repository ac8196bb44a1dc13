//! Services: what an allocation offers and how its health is checked, as the job file says it; and
//! what the node knows of the services that run ([`ServiceInstance`], [`Services`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AllocId, JobId, TaskName};
use super::ports::BoxFuture;

/// A service that an allocation offers to others. `${…}` in its texts are not replaced yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Name of the service, by which others find it.
    pub name: String,
    /// Port of the service: the label of a port of the allocation, or a number.
    pub port: Option<String>,
    /// The task that offers the service; absent for a service of the whole group.
    pub task: Option<TaskName>,
    /// For a service of the group: the task that stands for it. The service exists as long as that
    /// task runs, and its scripts run in that task.
    pub runs_in: Option<TaskName>,
    /// Tags for clients that look for the service.
    pub tags: Vec<String>,
    /// Tags in place of `tags` while the allocation is a canary.
    pub canary_tags: Vec<String>,
    /// Key-value pairs for clients that look for the service.
    pub meta: BTreeMap<String, String>,
    /// Pairs in place of `meta` while the allocation is a canary.
    pub canary_meta: BTreeMap<String, String>,
    /// Which address the service is reached at.
    pub address_mode: AddressMode,
    /// An explicit address, in place of the one that the mode selects.
    pub address: Option<String>,
    /// Checks that tell whether the service works.
    pub checks: Vec<Check>,
}

/// Which address a service is reached at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressMode {
    /// The address that the driver gives the task, otherwise the node's.
    #[default]
    Auto,
    /// The address of the node.
    Host,
    /// The address in the allocation's own network.
    Alloc,
    /// The address in the network in which the driver runs the task.
    Driver,
}

/// How a deployment judges an allocation with a check that does not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUpdate {
    /// The check must pass.
    #[default]
    RequireHealthy,
    /// The check may warn.
    IgnoreWarnings,
    /// The check does not matter.
    Ignore,
}

/// How the node checks whether a service works. Texts may have `${…}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name for people, unique in its service.
    pub name: String,
    /// How the service is checked.
    pub kind: CheckKind,
    /// Port, written as that of a service; the service's unless given.
    pub port: Option<String>,
    /// Which address is checked; the service's unless given.
    pub address_mode: Option<AddressMode>,
    /// Time between two requests.
    pub interval: Duration,
    /// Longest time for an answer.
    pub timeout: Duration,
    /// Status before the first answer.
    pub initial: CheckStatus,
    /// Number of good answers in a row after which the check passes.
    pub success_before_passing: u32,
    /// Number of bad answers in a row after which the check is critical.
    pub failures_before_critical: u32,
    /// Number of bad answers in a row after which the check warns, where that is fewer.
    pub failures_before_warning: u32,
    /// When the check restarts its task.
    pub restart: Option<CheckRestart>,
    /// What the check means for deployments.
    pub on_update: OnUpdate,
    /// For a script: the task that it runs in, where that is not the service's.
    pub task: Option<TaskName>,
}

impl Check {
    /// A check with the defaults of a job file for all else.
    #[must_use]
    pub fn new(name: String, kind: CheckKind, interval: Duration, timeout: Duration) -> Self {
        Self {
            name,
            kind,
            port: None,
            address_mode: None,
            interval,
            timeout,
            initial: CheckStatus::default(),
            success_before_passing: 0,
            failures_before_critical: 0,
            failures_before_warning: 0,
            restart: None,
            on_update: OnUpdate::default(),
            task: None,
        }
    }
}

/// When a check that does not pass restarts its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRestart {
    /// Number of unhealthy answers in a row after which the task is restarted, at least 1.
    pub limit: u32,
    /// Time after the start of the task in which answers do not count.
    pub grace: Duration,
    /// A warning counts as healthy.
    pub ignore_warnings: bool,
}

/// How a [`Check`] asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// A connection is accepted.
    Tcp,
    /// An HTTP request is answered with a status from 200 to 299; 429 warns.
    Http(Box<HttpCheck>),
    /// The standard health service answers `SERVING`.
    Grpc {
        /// Name of the service to ask for; empty for the server as a whole.
        service: String,
        /// Set when the connection uses TLS.
        tls: Option<CheckTls>,
    },
    /// A program inside a task ends with 0; 1 warns.
    Script {
        /// Path of the program, as the task sees it.
        command: String,
        /// Arguments of the program.
        args: Vec<String>,
    },
}

impl CheckKind {
    /// Whether the check needs a port, because it asks over the network.
    #[must_use]
    pub const fn needs_port(&self) -> bool {
        !matches!(self, Self::Script { .. })
    }
}

/// The request of an HTTP check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpCheck {
    /// Method of the request; `GET` unless given.
    pub method: String,
    /// Path of the request, which begins with a slash and may have a query.
    pub path: String,
    /// Set when the connection uses TLS.
    pub tls: Option<CheckTls>,
    /// Headers by name, each with its values in order.
    pub headers: BTreeMap<String, Vec<String>>,
    /// Body of the request.
    pub body: String,
}

impl HttpCheck {
    /// A request with the defaults of a job file for all else.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let (method, path) = (method.to_owned(), path.to_owned());
        Self { method, path, tls: None, headers: BTreeMap::new(), body: String::new() }
    }
}

/// How a check speaks TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckTls {
    /// The certificate is not verified.
    pub skip_verify: bool,
    /// Name that the certificate must be for; the address unless given.
    pub server_name: Option<String>,
}

/// The result of a check.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// There is no result yet.
    #[default]
    Pending,
    /// The service works.
    Passing,
    /// The service works, but not quite as it should.
    Warning,
    /// The service does not work.
    Critical,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

/// A running service that others can use now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInstance {
    /// Id that is unique on the node. It names the allocation, the task, the service and the port.
    pub id: String,
    /// Name of the service, by which others find it.
    pub name: String,
    /// Namespace of the job.
    pub namespace: String,
    /// Id of the job that the service belongs to.
    pub job: JobId,
    /// Id of the allocation that offers the service.
    pub alloc: AllocId,
    /// Tags for clients that look for the service, in the order of the job file.
    pub tags: Vec<String>,
    /// Key-value pairs for clients that look for the service.
    pub meta: BTreeMap<String, String>,
    /// Address or name at which the service is reached.
    pub address: String,
    /// Port at which the service is reached; 0 where the job names none.
    pub port: u16,
    /// Index of the list when the service was added.
    pub create_index: u64,
    /// Index of the list when the service changed last.
    pub modify_index: u64,
}

/// The services of a node, at one moment.
#[derive(Clone, Debug, Default)]
pub struct ServiceList {
    /// Grows with each change; see [`Services::wait_for_change`].
    pub index: u64,
    /// The services, sorted by name, namespace and id.
    pub instances: Arc<[Arc<ServiceInstance>]>,
}

impl ServiceList {
    /// The services of one name in a namespace.
    pub fn find_by_name<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Arc<ServiceInstance>> {
        let such = move |of: &&Arc<ServiceInstance>| of.namespace == namespace && of.name == name;
        self.instances.iter().filter(such)
    }
}

/// The list of the services that run on this node.
pub trait Services: Send + Sync {
    /// The services that run now.
    fn list(&self) -> ServiceList;
    /// The index of the last change.
    fn index(&self) -> u64;
    /// Wait until the list is no longer the one of `index`. Never ends where no change comes any
    /// more. The future may be dropped and the call repeated.
    fn wait_for_change(&self, index: u64) -> BoxFuture<'static, ()>;
    /// Wait, for a bounded time, until the services that an earlier agent left running are in the
    /// list again. Before that, a service that is not in the list may run all the same.
    fn wait_until_restored(&self) -> BoxFuture<'static, ()>;
}
