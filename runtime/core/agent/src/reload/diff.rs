//! Finds the keys in which two configurations differ, and those that the agent itself takes while
//! it runs. Pure.

use ostler_model::access::AclConfig;
use ostler_model::artifact::ArtifactConfig;
use ostler_model::config::{
    AgentConfig, ClientConfig, ClusterConfig, GcConfig, HttpConfig, PluginBlock, WasmConfig,
    WasmWorkerConfig,
};
use ostler_model::log_config::AgentLogConfig;
use ostler_model::network::NetworkConfig;
use ostler_model::telemetry::TelemetryConfig;

/// What the agent does when a key changes while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadAction {
    /// It collects garbage by other thresholds.
    Gc,
    /// It offers other metadata to jobs; what was placed stays.
    Meta,
    /// It offers other directories to tasks that start from now on.
    HostVolumes,
    /// It lets people run commands inside tasks, or not.
    RemoteExec,
}

/// A key that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedKey {
    /// The key with the block around it, as it is written: `gc.interval`, `plugin "nvidia"`.
    pub key: String,
    /// What the agent does for the key. `None` means that the key needs a restart, unless a part
    /// beside the agent takes it ([`super::ReloadPart`]).
    pub live: Option<ReloadAction>,
}

/// The keys that differ so far; it compares one key after the other.
#[derive(Default)]
struct Diff(Vec<ChangedKey>);

impl Diff {
    fn key<T: PartialEq>(&mut self, key: &str, old: &T, new: &T) {
        self.compare_key(key, None, old, new);
    }

    fn compare_key<T: PartialEq>(
        &mut self,
        key: &str,
        live: Option<ReloadAction>,
        old: &T,
        new: &T,
    ) {
        if old != new {
            self.0.push(ChangedKey { key: key.to_owned(), live });
        }
    }
}

/// The keys that differ, in the order of the reference. No key can be forgotten: the configuration
/// is taken apart completely, so a new key does not compile until it stands here.
#[must_use]
pub fn diff(old: &AgentConfig, new: &AgentConfig) -> Vec<ChangedKey> {
    let mut diff = Diff::default();
    let AgentConfig {
        data_dir,
        plugin_dir,
        jobs_dir,
        log,
        gc,
        wasm_worker,
        client,
        artifact,
        cluster,
        acl,
        http_hosts,
        wasm,
        device_stats_interval,
        node_name,
        datacenter,
        host_ip,
        node_meta,
        telemetry,
        trust,
        registries,
        namespaces,
        plugins,
    } = old;
    diff.key("name", node_name, &new.node_name);
    diff.key("datacenter", datacenter, &new.datacenter);
    diff.key("host_ip", host_ip, &new.host_ip);
    diff.key("data_dir", data_dir, &new.data_dir);
    diff.key("plugin_dir", plugin_dir, &new.plugin_dir);
    diff.key("jobs_dir", jobs_dir, &new.jobs_dir);
    diff.key("device_stats_interval", device_stats_interval, &new.device_stats_interval);
    diff.log(log, &new.log);
    diff.gc(*gc, new.gc);
    diff.wasm_worker(*wasm_worker, new.wasm_worker);
    diff.client(client, &new.client);
    diff.artifact(artifact, &new.artifact);
    diff.cluster(cluster, &new.cluster);
    diff.acl(acl, &new.acl);
    diff.key("http_hosts", http_hosts, &new.http_hosts);
    diff.wasm(*wasm, new.wasm);
    diff.compare_key("meta", Some(ReloadAction::Meta), node_meta, &new.node_meta);
    diff.telemetry(telemetry, &new.telemetry);
    diff.key("trust", trust, &new.trust);
    diff.key("registry", registries, &new.registries);
    diff.key("namespace", namespaces, &new.namespaces);
    let names = plugins.keys().chain(new.plugins.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort();
    names.dedup();
    for name in names {
        let [old, new] =
            [plugins.get(name), new.plugins.get(name)].map(|block| block.map(without_origin));
        diff.key(&format!("plugin {name:?}"), &old, &new);
    }
    diff.0
}

/// A block without its place in the file, which may have moved.
fn without_origin(block: &PluginBlock) -> PluginBlock {
    PluginBlock { origin: None, ..block.clone() }
}

impl Diff {
    fn log(&mut self, old: &AgentLogConfig, new: &AgentLogConfig) {
        let AgentLogConfig { level, json, file } = old;
        self.key("log_level", level, &new.level);
        self.key("log_json", json, &new.json);
        self.key("log_file", file, &new.file);
    }

    fn acl(&mut self, old: &AclConfig, new: &AclConfig) {
        let AclConfig { enabled, tokens } = old;
        self.key("acl.enabled", enabled, &new.enabled);
        self.key("acl.token", tokens, &new.tokens);
    }

    fn gc(&mut self, old: GcConfig, new: GcConfig) {
        let GcConfig { interval, disk_usage_percent, inode_usage_percent, max_allocs, parallel } =
            old;
        let live = Some(ReloadAction::Gc);
        self.compare_key("gc.interval", live, &interval, &new.interval);
        self.compare_key(
            "gc.disk_usage_threshold",
            live,
            &disk_usage_percent,
            &new.disk_usage_percent,
        );
        self.compare_key(
            "gc.inode_usage_threshold",
            live,
            &inode_usage_percent,
            &new.inode_usage_percent,
        );
        self.compare_key("gc.max_allocs", live, &max_allocs, &new.max_allocs);
        self.compare_key("gc.parallel_destroys", live, &parallel, &new.parallel);
    }

    fn wasm_worker(&mut self, old: WasmWorkerConfig, new: WasmWorkerConfig) {
        let WasmWorkerConfig { per, memory_max_mb, threads_max } = old;
        self.key("wasm_worker.per", &per, &new.per);
        self.key("wasm_worker.memory_max_mb", &memory_max_mb, &new.memory_max_mb);
        self.key("wasm_worker.threads_max", &threads_max, &new.threads_max);
    }

    fn client(&mut self, old: &ClientConfig, new: &ClientConfig) {
        let ClientConfig {
            cpu_total_compute,
            memory_total_mb,
            host_volumes,
            network,
            users,
            max_kill_timeout,
        } = old;
        self.key("client.cpu_total_compute", cpu_total_compute, &new.cpu_total_compute);
        self.key("client.memory_total_mb", memory_total_mb, &new.memory_total_mb);
        self.key("client.max_kill_timeout", max_kill_timeout, &new.max_kill_timeout);
        let live = Some(ReloadAction::HostVolumes);
        self.compare_key("client.host_volume", live, host_volumes, &new.host_volumes);
        self.key("client.users", users, &new.users);
        let NetworkConfig { cni_path, cni_config_dir, bridge_name, bridge_subnet, host_networks } =
            network;
        let new = &new.network;
        self.key("client.cni_path", cni_path, &new.cni_path);
        self.key("client.cni_config_dir", cni_config_dir, &new.cni_config_dir);
        self.key("client.bridge_network_name", bridge_name, &new.bridge_name);
        self.key("client.bridge_network_subnet", bridge_subnet, &new.bridge_subnet);
        self.key("client.host_network", host_networks, &new.host_networks);
    }

    fn artifact(&mut self, old: &ArtifactConfig, new: &ArtifactConfig) {
        self.key("client.artifact", old, new);
    }

    fn cluster(&mut self, old: &ClusterConfig, new: &ClusterConfig) {
        let ClusterConfig {
            servers,
            region,
            node_class,
            node_pool,
            disable_remote_exec,
            tls,
            http,
        } = old;
        self.key("client.servers", servers, &new.servers);
        self.key("client.node_class", node_class, &new.node_class);
        self.key("client.node_pool", node_pool, &new.node_pool);
        let exec = (disable_remote_exec, &new.disable_remote_exec);
        self.compare_key(
            "client.disable_remote_exec",
            Some(ReloadAction::RemoteExec),
            exec.0,
            exec.1,
        );
        self.key("region", region, &new.region);
        self.key("tls", tls, &new.tls);
        let HttpConfig { port, bind_addr, address, advertised } = http;
        self.key("bind_addr", bind_addr, &new.http.bind_addr);
        self.key("ports", port, &new.http.port);
        self.key("addresses", address, &new.http.address);
        self.key("advertise", advertised, &new.http.advertised);
    }

    fn telemetry(&mut self, old: &TelemetryConfig, new: &TelemetryConfig) {
        let TelemetryConfig { traces } = old;
        self.key("telemetry.traces", traces, &new.traces);
    }

    fn wasm(&mut self, old: WasmConfig, new: WasmConfig) {
        let WasmConfig { tasks_max, dense } = old;
        self.key("wasm.tasks_max", &tasks_max, &new.tasks_max);
        self.key("wasm.dense", &dense, &new.dense);
    }
}

/// Take the new value of one applied key into `running`. Keys that nobody applies are left.
pub(super) fn take_key(running: &mut AgentConfig, new: &AgentConfig, key: &str) {
    match key {
        "log_level" => running.log.level = new.log.level,
        "log_json" => running.log.json = new.log.json,
        "log_file" => running.log.file.clone_from(&new.log.file),
        "gc.interval" => running.gc.interval = new.gc.interval,
        "gc.disk_usage_threshold" => running.gc.disk_usage_percent = new.gc.disk_usage_percent,
        "gc.inode_usage_threshold" => running.gc.inode_usage_percent = new.gc.inode_usage_percent,
        "gc.max_allocs" => running.gc.max_allocs = new.gc.max_allocs,
        "gc.parallel_destroys" => running.gc.parallel = new.gc.parallel,
        "meta" => running.node_meta.clone_from(&new.node_meta),
        "client.host_volume" => {
            running.client.host_volumes.clone_from(&new.client.host_volumes);
        }
        "client.disable_remote_exec" => {
            running.cluster.disable_remote_exec = new.cluster.disable_remote_exec;
        }
        "acl.token" => running.acl.tokens.clone_from(&new.acl.tokens),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(old: &AgentConfig, new: &AgentConfig) -> Vec<String> {
        diff(old, new).into_iter().map(|changed| changed.key).collect()
    }

    #[test]
    fn what_is_taken_does_not_differ_any_more_and_all_else_still_does() {
        let old = AgentConfig::default();
        let mut new = AgentConfig::default();
        new.gc.max_allocs = Some(7);
        new.gc.parallel = Some(3);
        new.node_meta.insert("rack".into(), "r1".into());
        new.cluster.disable_remote_exec = true;
        new.log.json = Some(true);
        new.datacenter = Some("dc2".into());
        new.plugins.insert("exec".into(), PluginBlock::default());
        let mut running = old.clone();
        for ChangedKey { key, live } in diff(&old, &new) {
            if live.is_some() || key.starts_with("log_") {
                take_key(&mut running, &new, &key);
            }
        }
        assert_eq!(keys(&running, &new), ["datacenter", "plugin \"exec\""]);
    }

    #[test]
    fn a_block_that_moved_to_another_line_is_the_same() {
        let [mut old, mut new] = [AgentConfig::default(), AgentConfig::default()];
        let block = |line| PluginBlock {
            origin: Some(ostler_model::config::ConfigOrigin { line, ..Default::default() }),
            ..Default::default()
        };
        old.plugins.insert("exec".into(), block(3));
        new.plugins.insert("exec".into(), block(9));
        assert_eq!(keys(&old, &new), Vec::<String>::new());
        new.plugins.clear();
        assert_eq!(keys(&old, &new), ["plugin \"exec\""]);
    }
}
