//! The agent's configuration file. It has the same syntax, machinery and messages as a job file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::acl::{AclKeys, acl};
use super::client::{ClientBlock, ClientKeys, TlsKeys, client, tls};
use super::grants::GrantKeys;
use super::http::{AddressesKeys, AdvertiseKeys, PortsKeys, hosts, http, ip};
use super::log::{FILES_MAX, LogFileKeys, ROTATE_AFTER_MAX, ROTATE_BYTES_MAX, log};
use super::namespaces::{NamespaceKeys, namespaces};
use super::telemetry::{TelemetryKeys, telemetry};
use super::trust::{RegistryKeys, TrustKeys, registries, trust};
use super::{accept_name, offset};
use crate::diagnostic::Diagnostics;
use crate::keys::FieldBounds::{Time, Whole};
#[cfg(test)]
use crate::keys::tests::reference::{gc_defaults, limit_defaults, wasm_defaults};
use crate::keys::{
    BlockForm, Context, Field, FieldShape, FreeForm, Keys as _, ScalarType, Setting, Texts, hint,
    keys, keyword, text,
};
use crate::tree::{Block, SpannedValue};
use crate::{Inputs, Syntax, hcl};
use ostler_model::config::{
    AgentConfig, ConfigOrigin, FailurePolicy, GcConfig, LimitOverrides, PluginBlock, QuarantineFor,
    UpgradeMode, WasmConfig, WasmWorkerConfig, WorkerScope,
};
use ostler_model::ids::PluginName;
use ostler_model::limits::{
    CONFIG_FILE_BYTES_MAX, GUEST_CORE_INSTANCES_MAX, GUEST_MEMORIES_MAX, GUEST_TABLES_MAX, MIB,
    PLUGIN_FILE_BYTES_MAX, PLUGIN_RING_CALLS_MAX, PLUGIN_STRIKES_KEPT_MAX, QUARANTINE_MAX,
    TASK_INSTANCES_CEILING,
};
use ostler_model::log_config::LogLevel;
use ostler_model::oci::OciReference;
use ostler_text::duration::parse_duration;
use serde_json::Value as Json;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The bounds of the deadline of a call: in less time no guest can answer, and nobody waits longer for a plugin.
const CALL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(120));
/// The bounds of the wait between retries: no plugin is asked without a pause, or so rarely that it is as good as
/// given up.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), HOUR);
/// The largest number of strikes: the number of those that are kept.
const STRIKES: i64 = PLUGIN_STRIKES_KEPT_MAX as i64;
/// The largest memory, in MiB: 16 TiB, which is more than a machine has.
const MEMORY_MB_MAX: i64 = 16 * 1_024 * 1_024;

keys! {
    struct AgentKeys: "the agent's configuration" {
        /// Name of the node that people see.
        name: Setting<String>, "the host name";
        /// Data center of the node.
        datacenter: Setting<String>, "`dc1`";
        /// Address that is assigned with ports.
        host_ip: Setting<String>, "`127.0.0.1`";
        /// Directory of state, allocations and compiled code; an agent without one keeps jobs in memory.
        data_dir: Setting<PathBuf>, "none";
        /// Directory whose `*.wasm` files are plugins, each named by its file.
        plugin_dir: Setting<PathBuf>, "none";
        /// Directory whose job files (`*.hcl`, `*.nomad`, `*.json`) run, with `ostler agent`.
        jobs_dir: Setting<PathBuf>, "none";
        /// From one collection of a device plugin's statistics to the next.
        device_stats_interval: Setting<Duration> [Time(SECOND, DAY)], "`5s`";
        /// How much the agent logs, in large or small letters; OSTLER_LOG comes before it.
        log_level: Setting<LogLevel>, "`info`";
        /// Log one JSON object a line, in Nomad's form, in place of text.
        log_json: Setting<bool>, "`false`";
        /// The log is also written to this file; of a directory (with `/` at its end), to `ostler.log` in it.
        log_file: Setting<PathBuf>, "none; standard error alone";
        /// Bytes from which on another file is begun, the one before being renamed (`ostler-TIME.log`); 0: however
        /// large.
        log_rotate_bytes: Setting<u64> [Whole(0, ROTATE_BYTES_MAX)], "`0`";
        /// How long one file is written before another one is begun.
        log_rotate_duration: Setting<Duration> [Time(SECOND, ROTATE_AFTER_MAX)], "`1day`";
        /// Earlier files that are kept; 0: all.
        log_rotate_max_files: Setting<u32> [Whole(0, FILES_MAX)], "`0`";
        /// When allocations that are over are removed, oldest first.
        gc: Option<GcKeys>;
        /// The processes that run WASM tasks, and go on without the agent.
        wasm_worker: Option<WasmWorkerKeys>;
        /// What the node has to give, where that is not to be what was found, and the cluster it is in.
        client: Option<ClientKeys>;
        /// Region of the cluster's servers.
        region: Setting<String>, "`global`";
        /// How servers are known, and this node to them.
        tls: Option<TlsKeys>;
        /// Address of the API over TCP, or in a cluster of what other nodes are answered at, where `addresses`
        /// says nothing.
        bind_addr: Setting<String>, "`127.0.0.1`; in a cluster `host_ip`";
        /// The port of that. The API is over TCP only where one of these keys is given.
        ports: Option<PortsKeys>;
        /// The address of that.
        addresses: Option<AddressesKeys>;
        /// What others are told of that.
        advertise: Option<AdvertiseKeys>;
        /// Who may do what over the API.
        acl: Option<AclKeys>;
        /// Names by which the API over TCP may be asked for, beside addresses, `localhost` and what `advertise`
        /// names: against pages that let a name of theirs point to this machine.
        http_hosts: Texts, "none";
        /// How many WASM tasks there may be, and how they are held.
        wasm: Option<WasmKeys>;
        /// What `${meta.…}` stands for on this node.
        meta: BTreeMap<String, String>;
        /// What is told to collectors.
        telemetry: Option<TelemetryKeys>;
        /// Whose plugins are trusted.
        trust: Option<TrustKeys>;
        /// An OCI registry, by host and port.
        registries "registry": Vec<RegistryKeys>;
        /// A namespace of jobs, beside `default`.
        namespaces "namespace": Vec<NamespaceKeys>;
        /// A plugin that is loaded, or one that is built in and changed.
        plugins "plugin": Vec<PluginKeys>;
    }
    not_yet {
        "server"; "log_include_location"; "enable_syslog" [hint("standard error of a service goes to the journal")]; "syslog_facility"; "consul"; "vault";
        "limits" [hint("limits of a plugin belong in its plugin block")];
    }
}

/// The description of a key at the top of the agent's configuration, as in the reference, for command line flags
/// that set the same value. There is none where no key has this name.
#[must_use]
pub fn agent_key(name: &str) -> Option<String> {
    let field = AgentKeys::SCHEMA.fields.iter().find(|field| field.hcl == name)?;
    let text = field.doc.text.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(text).filter(|text| !text.is_empty())
}

/// The paths of all keys of the agent's configuration, with the blocks around them: `gc.interval`. A block with a
/// label is one path: `plugin`. The list is for callers that have to handle every key.
#[must_use]
pub fn agent_key_paths() -> Vec<String> {
    let mut paths = Vec::new();
    // Blocks that were not visited yet, the next one last.
    let mut left = vec![(String::new(), AgentKeys::SCHEMA)];
    while let Some((prefix, schema)) = left.pop() {
        for field in schema.fields {
            let path = format!("{prefix}{}", field.hcl);
            match field.shape {
                FieldShape::Unsupported { .. } | FieldShape::Served => {}
                FieldShape::Block { schema, form: BlockForm::One } => {
                    left.push((format!("{path}."), schema))
                }
                _ => paths.push(path),
            }
        }
    }
    paths.sort();
    paths
}

keys! {
    struct GcKeys: "gc", for GcConfig (gc_defaults()) {
        /// From one look for what can be removed to the next.
        interval: Setting<Duration> [Time(SECOND, DAY)];
        /// Percent of the file system in use above which allocations that are over are removed.
        disk_usage_percent "disk_usage_threshold": Setting<u8> [Whole(1, 100)];
        /// The same of inodes.
        inode_usage_percent "inode_usage_threshold": Setting<u8> [Whole(1, 100)];
        /// Number of allocations, live ones too, above which those that are over are removed.
        max_allocs: Setting<u32> [Whole(1, 100_000)];
        /// How many allocations are removed at the same time.
        parallel "parallel_destroys": Setting<u32> [Whole(1, 64)];
    }
}

// The lower bounds let the engine of the worker start, also on a machine with many cores.
keys! {
    struct WasmWorkerKeys: "wasm_worker", for WasmWorkerConfig (WasmWorkerConfig::default()) {
        /// Whose tasks share one: a fault of the engine ends those in one process. Each costs some MiB.
        per: Setting<WorkerScope>;
        /// Memory of one process with all its tasks, MiB; beyond it they end. Needs cgroups (version 2).
        memory_max_mb: Setting<u64> [Whole(64, MEMORY_MB_MAX)], "none; each task has its own";
        /// Threads of one process. Needs cgroups (version 2).
        threads_max: Setting<u32> [Whole(64, 32_768)];
    }
}

keyword! {
    WorkerScope, "scope of a worker": "node" = Node, "namespace" = Namespace, "job" = Job;
}

keys! {
    struct WasmKeys: "wasm", for WasmConfig (wasm_defaults()) {
        /// WASM tasks alive at once; those beyond wait until one ends. Without `dense`, more than
        /// the default need a larger `vm.max_map_count`: six mappings each.
        tasks_max: Setting<u32> [Whole(1, TASK_INSTANCES_CEILING as i64)], "`10000`; with `dense`, `50000`";
        /// Hold tasks side by side in two large mappings, so that 50,000 idle ones fit a kernel as it
        /// comes (6.13 or later). Every access to memory is checked by code: computing takes 15 to
        /// 30 % longer. Each program is compiled once more.
        dense: Setting<bool>;
    }
}

keys! {
    struct PluginKeys: "a plugin block", label Name {
        /// The component; without it and `source`, one that is built in or in `plugin_dir`.
        file: Setting<PathBuf>, "none";
        /// The component in a registry: `oci://host/path:tag`.
        source: Setting<String>, "none";
        /// The only bytes that will do: `sha256:…`.
        digest: Setting<String>, "any";
        /// Whether somebody of the trust file must vouch for it.
        require_signature: Setting<bool>, "what `trust` says of its source";
        /// Whether it is loaded.
        enabled: Setting<bool>, "`true`; of `raw_exec` and `mock_device`, `false`";
        /// Given to the plugin; replaces the built-in one as a whole.
        config: FreeForm;
        /// What the plugin may do; replaces the built-in grants as a whole.
        grants: Option<GrantKeys>;
        /// What one call may use.
        limits: Option<LimitKeys>;
        /// What happens when the plugin fails.
        failure: Option<FailureKeys>;
        /// Who puts a changed file in use: a person, by `ostler plugin upgrade`, or the agent.
        upgrade: Setting<String>, "`manual`";
    }
    not_yet {
        "args" [hint("a plugin is not a program; use config")];
    }
}

// The upper bounds keep one plugin from taking the whole machine.
keys! {
    struct LimitKeys: "limits", for LimitOverrides (limit_defaults()) {
        /// Wall time of one call.
        call_wall: Setting<Duration> [Time(CALL.0, CALL.1)];
        /// Processor time of one call.
        call_cpu: Setting<Duration> [Time(CALL.0, CALL.1)];
        /// Linear memory and tables, MiB.
        memory_mb: Setting<u64> [Whole(1, 4_096)];
        /// Table elements.
        table_elements: Setting<u64> [Whole(1, 40_000)];
        /// Core instances.
        instances: Setting<u32> [Whole(1, GUEST_CORE_INSTANCES_MAX as i64)];
        /// Linear memories.
        memories: Setting<u32> [Whole(1, GUEST_MEMORIES_MAX as i64)];
        /// Tables.
        tables: Setting<u32> [Whole(1, GUEST_TABLES_MAX as i64)];
        /// The plugin's file, MiB.
        file_mb: Setting<u64> [Whole(1, (PLUGIN_FILE_BYTES_MAX / MIB) as i64)];
        /// Memory of its compiler, MiB.
        compile_memory_mb: Setting<u64> [Whole(256, 64 * 1_024)];
        /// Processor time of its compiler, in whole seconds.
        compile_cpu: Setting<Duration> [Time(SECOND, Duration::from_secs(600))];
        /// Wall time of its compiler.
        compile_wall: Setting<Duration> [Time(SECOND, Duration::from_secs(900))];
        /// Bytes handed over in one host call, KiB.
        host_call_kb: Setting<u64> [Whole(1, 64 * 1_024)];
        /// Bytes between plugin and host in one call, KiB.
        transfer_kb: Setting<u64> [Whole(1, 256 * 1_024)];
        /// Host functions called in one call.
        host_calls: Setting<u64> [Whole(1, 100_000_000)];
        /// One answer, KiB.
        answer_kb: Setting<u64> [Whole(1, 64 * 1_024)];
        /// Log text, KiB per second.
        log_kb_per_second: Setting<u64> [Whole(1, 64 * 1_024)];
        /// Component resources alive at once.
        handles: Setting<u32> [Whole(1, 100_000)];
        /// One request for random bytes, KiB.
        random_kb: Setting<u64> [Whole(1, 1_024)];
        /// Last calls that are kept for a recording; 0 records nothing.
        recorded_calls: Setting<u32> [Whole(0, PLUGIN_RING_CALLS_MAX as i64)];
    }
}

keys! {
    struct FailureKeys: "failure", for FailurePolicy (FailurePolicy::default()) {
        /// Wait after the first failed fingerprint; doubles with each further one.
        retry_first: Setting<Duration> [Time(RETRY.0, RETRY.1)];
        /// Longest such wait; at least `retry_first`.
        retry_max: Setting<Duration> [Time(RETRY.0, RETRY.1)];
        /// How long a failed call counts as a strike.
        strike_window: Setting<Duration> [Time(SECOND, DAY)];
        /// Strikes after which the plugin is put into quarantine.
        strikes_max: Setting<u32> [Whole(1, STRIKES)];
        /// How long the first quarantine lasts, or `manual`: until a person lifts it.
        quarantine: Setting<QuarantineFor>;
        /// Failed calls of a plugin just upgraded after which the one before comes back.
        upgrade_strikes: Setting<u32> [Whole(1, STRIKES)];
        /// For how long it is watched so.
        upgrade_window: Setting<Duration> [Time(SECOND, DAY)];
    }
}

impl ScalarType for QuarantineFor {
    const SHAPE: FieldShape = FieldShape::Text;

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let at = value.span;
        match text(value, field, cx)? {
            text if text == "manual" => Some(Self::Manual),
            text => {
                let given = parse_duration(&text).ok();
                let given = given.filter(|time| (SECOND..=QUARANTINE_MAX).contains(time));
                if given.is_none() {
                    let [least, most] = [SECOND, QUARANTINE_MAX].map(humantime::format_duration);
                    cx.error(at, format!("quarantine must be {least} to {most}, or \"manual\""));
                }
                given.map(Self::Time)
            }
        }
    }

    fn json(&self) -> Json {
        match self {
            Self::Time(time) => humantime::format_duration(*time).to_string().into(),
            Self::Manual => "manual".into(),
        }
    }
}

/// Read an agent's configuration, with the paths as they are written. An empty file gives the default.
///
/// # Errors
/// All problems of the text, with their places; never empty.
pub fn agent_config(input: &[u8], file: &Path) -> Result<AgentConfig, Diagnostics> {
    let (mut config, text, _) = crate::text::read_whole(
        input,
        file,
        CONFIG_FILE_BYTES_MAX,
        "the configuration",
        |text, sink| {
            let body = hcl::read(text, &Inputs::default(), sink)?;
            Some(agent(Block::from_body(body), &mut Context::new(sink, Syntax::Hcl)))
        },
    )?;
    let line = crate::text::lines_of(text);
    for origin in config.plugins.values_mut().filter_map(|block| block.origin.as_mut()) {
        origin.file = file.display().to_string();
        line(&mut origin.line);
        origin.lines.values_mut().for_each(&line);
    }
    Ok(config)
}

fn agent(file: Block, cx: &mut Context<'_>) -> AgentConfig {
    let keys = AgentKeys::read(file, cx);
    let tls = keys.tls.and_then(|block| tls(block, cx));
    let http = http(keys.bind_addr, keys.ports, keys.addresses, keys.advertise, cx);
    let ClientBlock { node: client, cluster, mut meta, artifact } =
        client(keys.client.unwrap_or_default(), keys.region.non_empty(cx), tls, http, cx);
    // A key that stands in both places is taken from the top.
    meta.extend(keys.meta);
    AgentConfig {
        node_name: keys.name.non_empty(cx),
        datacenter: keys.datacenter.non_empty(cx),
        host_ip: ip(keys.host_ip, cx),
        data_dir: keys.data_dir.value,
        plugin_dir: keys.plugin_dir.value,
        jobs_dir: keys.jobs_dir.value,
        device_stats_interval: keys.device_stats_interval.value,
        log: log(
            keys.log_level,
            keys.log_json,
            LogFileKeys {
                path: keys.log_file,
                rotate_bytes: keys.log_rotate_bytes,
                rotate_after: keys.log_rotate_duration,
                files_max: keys.log_rotate_max_files,
            },
            cx,
        ),
        gc: keys.gc.unwrap_or_default().apply_to(GcConfig::default()),
        wasm_worker: keys.wasm_worker.unwrap_or_default().apply_to(WasmWorkerConfig::default()),
        client,
        artifact,
        cluster,
        acl: keys.acl.map(|block| acl(block, cx)).unwrap_or_default(),
        http_hosts: hosts(keys.http_hosts, cx),
        wasm: keys.wasm.unwrap_or_default().apply_to(WasmConfig::default()),
        node_meta: meta,
        telemetry: keys.telemetry.map(|block| telemetry(block, cx)).unwrap_or_default(),
        trust: keys.trust.map(|block| trust(block, cx)).unwrap_or_default(),
        registries: registries(keys.registries, cx),
        namespaces: namespaces(keys.namespaces, cx),
        plugins: plugins(keys.plugins, cx),
    }
}

fn plugins(blocks: Vec<PluginKeys>, cx: &mut Context<'_>) -> BTreeMap<String, PluginBlock> {
    let mut plugins = BTreeMap::new();
    let mut names = BTreeSet::new();
    for keys in blocks {
        cx.add_unique(&mut names, "a plugin", &keys.label);
        let name = accept_name(PluginName::new(&keys.label.name), keys.label.span, cx);
        let plugin = plugin(keys, cx);
        if let Some(name) = name {
            plugins.entry(name.into()).or_insert(plugin);
        }
    }
    plugins
}

fn plugin(keys: PluginKeys, cx: &mut Context<'_>) -> PluginBlock {
    if let (true, Some(at)) = (keys.file.was_given, keys.source.place()) {
        cx.error(at, "file and source exclude each other; give one");
    }
    let digest = |text: String| text.parse().map_err(|error| format!("digest: {error}"));
    let upgrade = |text: String| match text.as_str() {
        "manual" => Ok(UpgradeMode::Manual),
        "auto" => Ok(UpgradeMode::Auto),
        _ => Err("upgrade must be \"manual\" or \"auto\""),
    };
    let lines = keys.config.places.into_iter().map(|(path, at)| (path, offset(at))).collect();
    PluginBlock {
        file: keys.file.value,
        source: keys.source.parse_with(cx, |text| text.parse::<OciReference>()),
        digest: keys.digest.parse_with(cx, digest),
        require_signature: keys.require_signature.value,
        enabled: keys.enabled.value,
        config: keys.config.was_given.then_some(keys.config.members),
        grants: keys.grants.map(|grants| grants.grants(cx)),
        limits: keys.limits.unwrap_or_default().apply_to(LimitOverrides::default()),
        failure: failure(keys.failure.unwrap_or_default(), cx),
        upgrade: keys.upgrade.parse_with(cx, upgrade).unwrap_or_default(),
        origin: Some(ConfigOrigin { file: String::new(), line: offset(keys.at), lines }),
    }
}

fn failure(keys: FailureKeys, cx: &mut Context<'_>) -> FailurePolicy {
    let mut base = FailurePolicy::default();
    // A first wait that is longer than the default bound is the bound, unless the file gives another one.
    base.retry_max = base.retry_max.max(keys.retry_first.value.unwrap_or_default());
    let at = keys.at;
    let policy = keys.apply_to(base);
    if policy.retry_max < policy.retry_first {
        let shown = humantime::format_duration(policy.retry_first);
        cx.error(at, format!("retry_max must be at least retry_first, {shown}"));
    }
    policy
}
