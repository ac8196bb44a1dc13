//! What the operator configures, as data. Read, checked and made absolute by
//! `ostler_jobspec::parse_agent_config`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::access::AclConfig;
use super::artifact::ArtifactConfig;
use super::digest::Digest;
use super::endpoint::Endpoint;
use super::ids::Namespace;
use super::isolation::IsolationGrant;
use super::json::JsonObject;
use super::log_config::AgentLogConfig;
use super::network::NetworkConfig;
use super::oci::OciReference;
use super::server_address::ServerAddress;
use super::telemetry::TelemetryConfig;
use super::trust::TrustConfig;
use super::volume::HostVolume;
use crate::limits::{
    CompileLimits, DENSE_TASKS_MAX, FINGERPRINT_RETRY_FIRST, FINGERPRINT_RETRY_MAX, KIB, MIB,
    PluginLimits, QUARANTINE_DEFAULT, STRIKE_WINDOW, STRIKES_MAX_DEFAULT, TASK_INSTANCES_MAX,
    UPGRADE_STRIKES_DEFAULT, UPGRADE_WINDOW_DEFAULT, WORKER_THREADS_MAX,
};

/// An agent's configuration; everything absent means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentConfig {
    /// Directory of the state, the allocations and the compiled code.
    pub data_dir: Option<PathBuf>,
    /// Directory whose `*.wasm` files are plugins, each named by its file stem.
    pub plugin_dir: Option<PathBuf>,
    /// Directory whose job files all run; for agents that serve.
    pub jobs_dir: Option<PathBuf>,
    /// The agent's own log.
    pub log: AgentLogConfig,
    /// When allocations that have ended are removed.
    pub gc: GcConfig,
    /// The processes that run WASM tasks.
    pub wasm_worker: WasmWorkerConfig,
    /// Resources of the node, where they are not to be those that were found.
    pub client: ClientConfig,
    /// Bounds of the artifacts of tasks.
    pub artifact: ArtifactConfig,
    /// The cluster that the agent is a node of, and how its API is reached over TCP and protected.
    pub cluster: ClusterConfig,
    /// Access rights at the API.
    pub acl: AclConfig,
    /// Names by which browsers and others may ask for the API, beside addresses and `localhost`.
    pub http_hosts: Vec<String>,
    /// How many WASM tasks there may be, and whether they are held densely.
    pub wasm: WasmConfig,
    /// Time between two collections of a device plugin's statistics; 5 s unless given.
    pub device_stats_interval: Option<Duration>,
    /// Name of the node that people see; the host name unless given.
    pub node_name: Option<String>,
    /// The node's data center; `dc1` unless given.
    pub datacenter: Option<String>,
    /// Address that is assigned with ports; 127.0.0.1 unless given.
    pub host_ip: Option<IpAddr>,
    /// Values of `${meta.…}` on this node.
    pub node_meta: BTreeMap<String, String>,
    /// What is sent to collectors of telemetry.
    pub telemetry: TelemetryConfig,
    /// Whose plugins are trusted.
    pub trust: TrustConfig,
    /// `registry "host" { … }`, by host and port.
    pub registries: BTreeMap<String, RegistryConfig>,
    /// `namespace "name" { … }`: the description of each. `default` exists without a block.
    pub namespaces: BTreeMap<Namespace, String>,
    /// `plugin "name" { … }`, by name.
    pub plugins: BTreeMap<String, PluginBlock>,
}

/// A `registry` block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Asked over plain HTTP.
    pub insecure: bool,
}

/// A `client` block: the resources of the node, where they are not to be those that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// MHz of processor time; cores times frequency unless given.
    pub cpu_total_compute: Option<u32>,
    /// MiB of memory; the machine's unless given.
    pub memory_total_mb: Option<u32>,
    /// Directories that jobs may mount, by name.
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Networks of allocations.
    pub network: NetworkConfig,
    /// Range of the user ids that allocations get for themselves; `DYNAMIC_USERS` unless given.
    pub users: Option<RangeInclusive<u32>>,
    /// Longest `kill_timeout` of a task; `KILL_TIMEOUT_MAX` unless given.
    pub max_kill_timeout: Option<Duration>,
}

/// The servers of the cluster that the node is in, and what they are told of the node. It comes
/// from the `client` block, the `tls` block and `region`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Addresses of the servers. With none, the agent keeps jobs of its own.
    pub servers: Vec<ServerAddress>,
    /// Region of the servers; see [`ClusterConfig::region`].
    pub region: Option<String>,
    /// Class of the node, for constraints of jobs.
    pub node_class: Option<String>,
    /// Pool of the node; the servers' default unless given.
    pub node_pool: Option<String>,
    /// Nobody may run commands inside tasks, neither through servers nor at the node's own API.
    pub disable_remote_exec: bool,
    /// Certificates by which servers, the node and clients of the API know each other.
    pub tls: Option<TlsConfig>,
    /// Where the API is over TCP, and where other nodes fetch the disks of this node's allocations.
    pub http: HttpConfig,
}

/// Where the API is over TCP, or where a node of a cluster answers other nodes. It comes from
/// `bind_addr` and the `http` keys of the blocks `ports`, `addresses` and `advertise`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// Port to listen on; 0: the agent does not listen.
    pub port: Option<u16>,
    /// Default address of everything that listens.
    pub bind_addr: Option<IpAddr>,
    /// Address to listen at.
    pub address: Option<IpAddr>,
    /// Host, and perhaps port, by which others reach the agent.
    pub advertised: Option<(String, Option<u16>)>,
}

impl ClusterConfig {
    /// Region of the servers: `global` unless given.
    #[must_use]
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or("global")
    }

    /// Keys that were given and have a meaning only for a node of a cluster.
    #[must_use]
    pub fn cluster_only_keys(&self) -> Vec<&'static str> {
        let keys = [
            ("region", self.region() != "global"),
            ("node_class", self.node_class.is_some()),
            ("node_pool", self.node_pool.is_some()),
        ];
        keys.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }
}

/// A `tls` block. Files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates that vouch for servers and, at the API, for clients. A node of a cluster has
    /// this file.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key of this node.
    pub own: Option<(PathBuf, PathBuf)>,
    /// A server's certificate must name it as a server of the region.
    pub verify_server_hostname: bool,
    /// The API over TCP uses TLS, which is the default.
    pub http: bool,
    /// Clients of the API must have a certificate that `ca_file` vouches for. Unless given, other
    /// nodes must and browsers need none.
    pub verify_https_client: Option<bool>,
}

/// A `wasm` block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WasmConfig {
    /// Most WASM tasks alive at once; further ones wait. See [`WasmConfig::tasks`].
    pub tasks_max: Option<u32>,
    /// The dense profile is used: tasks take no kernel mappings of their own, and compute
    /// more slowly.
    pub dense: Option<bool>,
}

impl WasmConfig {
    /// Most WASM tasks alive at once, with the defaults of the profile.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        let dense = self.dense.unwrap_or(false);
        self.tasks_max.unwrap_or(if dense { DENSE_TASKS_MAX } else { TASK_INSTANCES_MAX })
    }
}

/// A `gc` block: when allocations that have ended are removed, oldest first. Absent keys mean
/// Nomad's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcConfig {
    /// Time between two checks; 1 min unless given.
    pub interval: Option<Duration>,
    /// Percent of the file system in use above which allocations are removed; 80 unless given.
    pub disk_usage_percent: Option<u8>,
    /// Percent of inodes in use above which allocations are removed; 70 unless given.
    pub inode_usage_percent: Option<u8>,
    /// Number of allocations, live ones included, above which some are removed; 50 unless given.
    pub max_allocs: Option<u32>,
    /// Allocations that are removed at the same time; 2 unless given.
    pub parallel: Option<u32>,
}

/// A `wasm_worker` block: which WASM tasks share a process, and what that process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasmWorkerConfig {
    /// Which tasks share a process.
    pub per: WorkerScope,
    /// Most memory of one process with its tasks, MiB, where cgroups allow; no limit unless given.
    pub memory_max_mb: Option<u64>,
    /// Most threads of one process, where cgroups allow.
    pub threads_max: u32,
}

impl Default for WasmWorkerConfig {
    fn default() -> Self {
        Self { per: WorkerScope::Node, memory_max_mb: None, threads_max: WORKER_THREADS_MAX }
    }
}

/// Which WASM tasks share a process, and so end together when its engine fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerScope {
    /// All tasks of the node.
    #[default]
    Node,
    /// The tasks of all jobs of one namespace.
    Namespace,
    /// The tasks of one job.
    Job,
}

/// A `plugin` block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginBlock {
    /// File of the component; absent for a built-in plugin, one of `plugin_dir` or one of
    /// a registry.
    pub file: Option<PathBuf>,
    /// Place of the component in a registry, in place of `file`.
    pub source: Option<OciReference>,
    /// SHA-256 that the component must have.
    pub digest: Option<Digest>,
    /// Whether the trust file must vouch for the component. Overrides the setting for its source.
    pub require_signature: Option<bool>,
    /// `false` switches the plugin off.
    pub enabled: Option<bool>,
    /// Configuration for the plugin; replaces the built-in default as a whole.
    pub config: Option<JsonObject>,
    /// What the plugin may do; replaces the built-in default as a whole.
    pub grants: Option<Grants>,
    /// What one call may use, where it differs from the default.
    pub limits: LimitOverrides,
    /// What happens when the plugin fails.
    pub failure: FailurePolicy,
    /// What happens when its file changes.
    pub upgrade: UpgradeMode,
    /// Place of the block in the configuration; absent where there is no block.
    pub origin: Option<ConfigOrigin>,
}

/// Where a plugin's configuration is written, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigOrigin {
    /// The file, as it was named.
    pub file: String,
    /// Line of the block.
    pub line: u32,
    /// Line of each value in `config`, by its dotted path (`a.b`, `list.0`).
    pub lines: BTreeMap<String, u32>,
}

impl ConfigOrigin {
    /// `file:line` of a dotted path in `config`: of the nearest thing around it that is written.
    #[must_use]
    pub fn place(&self, path: &str) -> String {
        let mut at = path;
        let line = loop {
            if let Some(line) = self.lines.get(at) {
                break *line;
            }
            match at.rsplit_once('.') {
                Some((outer, _)) => at = outer,
                None => break self.lines.get("").copied().unwrap_or(self.line),
            }
        };
        format!("{}:{line}", self.file)
    }
}

/// A `failure` block: how a plugin that fails is treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// Wait after the first failed fingerprint; doubles with each further one.
    pub retry_first: Duration,
    /// Longest such wait.
    pub retry_max: Duration,
    /// How long a failed call counts as a strike.
    pub strike_window: Duration,
    /// Strikes after which the plugin is put into quarantine.
    pub strikes_max: u32,
    /// How long the quarantine lasts.
    pub quarantine: QuarantineFor,
    /// Failed calls of an upgraded plugin after which the plugin from before comes back.
    pub upgrade_strikes: u32,
    /// How long after an upgrade such calls are counted.
    pub upgrade_window: Duration,
}

/// Who replaces a plugin in use when its file has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpgradeMode {
    /// A person, by a command.
    #[default]
    Manual,
    /// The agent, when it sees that the file changed.
    Auto,
}

/// How long a quarantine lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineFor {
    /// It lasts this long the first time, and twice as long with each relapse.
    Time(Duration),
    /// It lasts until a person lifts it.
    Manual,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            retry_first: FINGERPRINT_RETRY_FIRST,
            retry_max: FINGERPRINT_RETRY_MAX,
            strike_window: STRIKE_WINDOW,
            strikes_max: STRIKES_MAX_DEFAULT,
            quarantine: QuarantineFor::Time(QUARANTINE_DEFAULT),
            upgrade_strikes: UPGRADE_STRIKES_DEFAULT,
            upgrade_window: UPGRADE_WINDOW_DEFAULT,
        }
    }
}

/// Limits of one plugin that differ from [`PluginLimits::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitOverrides {
    /// Wall time of one call of the plugin.
    pub call_wall: Option<Duration>,
    /// Processor time of one call of the plugin.
    pub call_cpu: Option<Duration>,
    /// Linear memory and tables, MiB.
    pub memory_mb: Option<u64>,
    /// Elements of all tables together.
    pub table_elements: Option<u64>,
    /// Core instances in the component.
    pub instances: Option<u32>,
    /// Linear memories in the component.
    pub memories: Option<u32>,
    /// Tables in the component.
    pub tables: Option<u32>,
    /// The file, MiB.
    pub file_mb: Option<u64>,
    /// Memory of its compiler, MiB.
    pub compile_memory_mb: Option<u64>,
    /// Processor time of its compiler.
    pub compile_cpu: Option<Duration>,
    /// Wall time of its compiler.
    pub compile_wall: Option<Duration>,
    /// Bytes handed over in one host call, KiB.
    pub host_call_kb: Option<u64>,
    /// Bytes between guest and host in one call, KiB.
    pub transfer_kb: Option<u64>,
    /// Host functions called in one call.
    pub host_calls: Option<u64>,
    /// Size of one answer, KiB.
    pub answer_kb: Option<u64>,
    /// Log text, KiB per second.
    pub log_kb_per_second: Option<u64>,
    /// Component resources alive at once.
    pub handles: Option<u32>,
    /// Bytes of one request for random bytes, KiB.
    pub random_kb: Option<u64>,
    /// Last calls kept for a recording; 0 records nothing.
    pub recorded_calls: Option<u32>,
}

impl LimitOverrides {
    /// `limits`, with the values that are given here in their place.
    #[must_use]
    pub fn apply(&self, limits: PluginLimits) -> PluginLimits {
        let scaled = |given: Option<u64>, unit: u64, default: u64| {
            given.map_or(default, |amount| amount.saturating_mul(unit))
        };
        PluginLimits {
            call_wall_max: self.call_wall.unwrap_or(limits.call_wall_max),
            call_cpu_max: self.call_cpu.unwrap_or(limits.call_cpu_max),
            memory_bytes_max: scaled(self.memory_mb, MIB, limits.memory_bytes_max),
            table_elements_max: self.table_elements.unwrap_or(limits.table_elements_max),
            instances_max: self.instances.unwrap_or(limits.instances_max),
            memories_max: self.memories.unwrap_or(limits.memories_max),
            tables_max: self.tables.unwrap_or(limits.tables_max),
            compile: CompileLimits {
                file_bytes_max: scaled(self.file_mb, MIB, limits.compile.file_bytes_max),
                address_space_bytes_max: scaled(
                    self.compile_memory_mb,
                    MIB,
                    limits.compile.address_space_bytes_max,
                ),
                cpu_max: self.compile_cpu.unwrap_or(limits.compile.cpu_max),
                wall_max: self.compile_wall.unwrap_or(limits.compile.wall_max),
            },
            host_call_bytes_max: scaled(self.host_call_kb, KIB, limits.host_call_bytes_max),
            transfer_bytes_max: scaled(self.transfer_kb, KIB, limits.transfer_bytes_max),
            host_calls_max: self.host_calls.unwrap_or(limits.host_calls_max),
            answer_bytes_max: scaled(self.answer_kb, KIB, limits.answer_bytes_max),
            log_bytes_per_second: scaled(self.log_kb_per_second, KIB, limits.log_bytes_per_second),
            handles_max: self.handles.unwrap_or(limits.handles_max),
            random_bytes_max: scaled(self.random_kb, KIB, limits.random_bytes_max),
            recorded_calls_max: self.recorded_calls.unwrap_or(limits.recorded_calls_max),
        }
    }
}

/// A directory a plugin may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileGrant {
    /// Absolute directory; the plugin sees it under the same path.
    pub path: PathBuf,
    /// The plugin may write to the directory too.
    pub write: bool,
}

/// A program a plugin may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandGrant {
    /// Absolute path.
    pub program: PathBuf,
    /// Allowed argument lists; see [`crate::grants`] for what matches.
    pub args: Vec<Vec<String>>,
}

/// Device nodes that a plugin may assign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeGrant {
    /// Absolute path on the node, or a pattern.
    pub path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// What a plugin's answers may cause. An absent grant allows nothing outside the plugin's own names,
/// and to a built-in plugin what it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerGrants {
    /// Paths of the node that tasks may be shown, with all below them.
    pub mounts: Option<Vec<FileGrant>>,
    /// Device nodes that tasks may be assigned.
    pub device_nodes: Option<Vec<NodeGrant>>,
    /// Variables of tasks that it may set, by name or pattern, besides those with its prefix.
    pub task_env: Option<Vec<String>>,
    /// Device groups that it may announce, by pattern, besides those of the vendor it is called as.
    pub groups: Option<Vec<String>>,
    /// The name a driver may take in place of its block's.
    pub driver: Option<String>,
    /// The attributes below `driver.NAME.` that it may publish, by name or pattern. Absent: any.
    pub attributes: Option<Vec<String>>,
}

impl AnswerGrants {
    /// These grants, and those of `defaults` where none is given here.
    #[must_use]
    pub fn or_defaults(self, defaults: Self) -> Self {
        Self {
            mounts: self.mounts.or(defaults.mounts),
            device_nodes: self.device_nodes.or(defaults.device_nodes),
            task_env: self.task_env.or(defaults.task_env),
            groups: self.groups.or(defaults.groups),
            driver: self.driver.or(defaults.driver),
            attributes: self.attributes.or(defaults.attributes),
        }
    }
}

/// Everything the configuration allows a plugin beyond the harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Directories that the plugin may read, or write too.
    pub files: Vec<FileGrant>,
    /// Programs that the plugin may run to completion.
    pub commands: Vec<CommandGrant>,
    /// The plugin may start and control task processes.
    pub process: bool,
    /// How those processes are isolated. Absent: they need not be isolated.
    pub isolation: Option<IsolationGrant>,
    /// Users that tasks of jobs with a `user` may run as, by name or pattern; without one they run
    /// as the agent's own.
    pub users: Vec<String>,
    /// What may be started as a task process: absolute paths or patterns. Absent: any program, with
    /// any environment in any directory.
    pub programs: Option<Vec<String>>,
    /// Where `programs` may be started besides the task's own directories: absolute paths or patterns.
    #[serde(default)]
    pub dirs: Vec<String>,
    /// The plugin may start and control WASM tasks.
    pub wasm_task: bool,
    /// Endpoints that the plugin may open TCP connections to.
    pub connect: Vec<Endpoint>,
    /// Variables of the agent's environment that it sees, by name or pattern.
    pub env: Vec<String>,
    /// Imports that the plugin does not get. It loads all the same, and their functions refuse.
    #[serde(default)]
    pub deny: Vec<String>,
    /// What the plugin's answers may cause.
    #[serde(default)]
    pub answers: AnswerGrants,
}
