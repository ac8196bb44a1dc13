//! Services: what an allocation offers and how it is asked whether it works, as the job file says it;
//! and what the node knows of those that run ([`ServiceInstance`], [`Services`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AllocId, JobId, TaskName};
use super::ports::BoxFuture;

/// Something an allocation offers to others. Its texts may have `${…}`, which are not replaced yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Where it is reached: the label of a port of the allocation, or a number.
    pub port: Option<String>,
    /// The task that offers it; absent: the group as a whole.
    pub task: Option<TaskName>,
    /// Of a service of the group: the task that stands for it. It is there as long as that task runs, and
    /// its scripts run there.
    pub runs_in: Option<TaskName>,
    /// For those who look for it.
    pub tags: Vec<String>,
    /// In place of `tags` while the allocation is a canary.
    pub canary_tags: Vec<String>,
    /// For those who look for it.
    pub meta: BTreeMap<String, String>,
    /// In place of `meta` while the allocation is a canary.
    pub canary_meta: BTreeMap<String, String>,
    /// Which address it is reached at.
    pub address_mode: AddressMode,
    /// An address of its own, in place of the one that the mode means.
    pub address: Option<String>,
    /// What asks whether it works.
    pub checks: Vec<Check>,
}

/// Which address a service is reached at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressMode {
    /// The driver's where it gives tasks one, else the node's.
    #[default]
    Auto,
    /// The node's.
    Host,
    /// That of the network that the allocation has for itself.
    Alloc,
    /// That of the network in which the driver runs the task.
    Driver,
}

/// What a check that does not pass means when a deployment judges the allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUpdate {
    /// It must pass.
    #[default]
    RequireHealthy,
    /// It may warn.
    IgnoreWarnings,
    /// It is not asked for.
    Ignore,
}

/// How the node asks whether a service works. Texts may have `${…}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// For people; unique in its service.
    pub name: String,
    /// What is asked.
    pub kind: CheckKind,
    /// The port, as that of the service; the service's unless given.
    pub port: Option<String>,
    /// The address; the service's unless given.
    pub address_mode: Option<AddressMode>,
    /// From one question to the next.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// What it says before the first answer.
    pub initial: CheckStatus,
    /// Good answers in a row until it passes.
    pub success_before_passing: u32,
    /// Bad answers in a row until it is critical.
    pub failures_before_critical: u32,
    /// Bad answers in a row until it warns, where that is sooner.
    pub failures_before_warning: u32,
    /// When it restarts what it asks.
    pub restart: Option<CheckRestart>,
    /// What it means for deployments.
    pub on_update: OnUpdate,
    /// Of a script: the task it runs in, where that is not the service's.
    pub task: Option<TaskName>,
}

impl Check {
    /// A check of which all else is as it is where a job file says nothing.
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

/// When a check that does not pass restarts what it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRestart {
    /// After so many unhealthy answers in a row; at least 1.
    pub limit: u32,
    /// Answers count from so long after the start of the task.
    pub grace: Duration,
    /// A warning is healthy.
    pub ignore_warnings: bool,
}

/// See [`Check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// A connection is accepted.
    Tcp,
    /// An HTTP request is answered with a status from 200 to 299; 429 warns.
    Http(Box<HttpCheck>),
    /// The standard health service answers `SERVING`.
    Grpc {
        /// Which service is asked for; the empty name is the server as a whole.
        service: String,
        /// Over TLS.
        tls: Option<CheckTls>,
    },
    /// A program inside a task ends with 0; 1 warns.
    Script {
        /// The program, as the task sees it.
        command: String,
        /// Its arguments.
        args: Vec<String>,
    },
}

impl CheckKind {
    /// Is it asked over the network?
    #[must_use]
    pub const fn needs_port(&self) -> bool {
        !matches!(self, Self::Script { .. })
    }
}

/// The request of an HTTP check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpCheck {
    /// `GET` unless given.
    pub method: String,
    /// Begins with a slash; may have a query.
    pub path: String,
    /// Over TLS.
    pub tls: Option<CheckTls>,
    /// Headers, those of one name in order.
    pub headers: BTreeMap<String, Vec<String>>,
    /// What is sent.
    pub body: String,
}

impl HttpCheck {
    /// A request of which all else is as it is where a job file says nothing.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let (method, path) = (method.to_owned(), path.to_owned());
        Self { method, path, tls: None, headers: BTreeMap::new(), body: String::new() }
    }
}

/// How a check speaks TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckTls {
    /// Any certificate will do.
    pub skip_verify: bool,
    /// The name that the certificate must be for; the address unless given.
    pub server_name: Option<String>,
}

/// What a check says.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Nothing yet.
    #[default]
    Pending,
    /// It works.
    Passing,
    /// It works, not quite as it should.
    Warning,
    /// It does not work.
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

/// A service that runs: one that others can use now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInstance {
    /// Unique on the node: says of which allocation, task, service and port it is.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The namespace of its job.
    pub namespace: String,
    /// Its job.
    pub job: JobId,
    /// Its allocation.
    pub alloc: AllocId,
    /// For those who look for it, in the order of the job file.
    pub tags: Vec<String>,
    /// For those who look for it.
    pub meta: BTreeMap<String, String>,
    /// Where it is reached: an address or a name.
    pub address: String,
    /// And at which port; 0: at none that was said.
    pub port: u16,
    /// Index of the list when it came.
    pub create_index: u64,
    /// Index of the list when it changed last.
    pub modify_index: u64,
}

/// The services of a node, at one moment.
#[derive(Clone, Debug, Default)]
pub struct ServiceList {
    /// Grows with each change; see [`Services::changed`].
    pub index: u64,
    /// By name, namespace and id.
    pub instances: Arc<[Arc<ServiceInstance>]>,
}

impl ServiceList {
    /// Those of one name in a namespace.
    pub fn named<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Arc<ServiceInstance>> {
        let such = move |of: &&Arc<ServiceInstance>| of.namespace == namespace && of.name == name;
        self.instances.iter().filter(such)
    }
}

/// Who knows which services run on this node.
pub trait Services: Send + Sync {
    /// Those that run now.
    fn list(&self) -> ServiceList;
    /// The index of the last change.
    fn index(&self) -> u64;
    /// Wait until the list is another one than that of `index`; never ends where none comes any more. May
    /// be dropped and called again.
    fn changed(&self, index: u64) -> BoxFuture<'static, ()>;
    /// Wait, not for ever, until what an earlier agent left running is in the list again: before, one that is
    /// not in there may run all the same.
    fn restored(&self) -> BoxFuture<'static, ()>;
}
