//! No key of the configuration is forgotten by a reload: each one that the agent knows is changed, alone and
//! together with others, and what is reported is exactly what was changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;

use ostler_agent::reload::diff::diff;
use ostler_jobspec::{agent_key_paths, parse_agent_config};
use ostler_model::config::AgentConfig;

/// What stands at a key, and by what name a change of it is reported. Keys of `tls` belong together, and so do
/// those of the log's file; what has no effect is reported by nobody.
const SAMPLES: &[(&str, &str, &str)] = &[
    ("name", "name = \"n\"", "name"),
    ("datacenter", "datacenter = \"d\"", "datacenter"),
    ("host_ip", "host_ip = \"10.0.0.1\"", "host_ip"),
    ("data_dir", "data_dir = \"/d\"", "data_dir"),
    ("plugin_dir", "plugin_dir = \"/p\"", "plugin_dir"),
    ("jobs_dir", "jobs_dir = \"/j\"", "jobs_dir"),
    ("device_stats_interval", "device_stats_interval = \"7s\"", "device_stats_interval"),
    ("log_level", "log_level = \"DEBUG\"", "log_level"),
    ("log_json", "log_json = true", "log_json"),
    ("log_file", "log_file = \"/l\"", "log_file"),
    ("log_rotate_bytes", "log_file = \"/l\"\nlog_rotate_bytes = 7", "log_file"),
    ("log_rotate_duration", "log_file = \"/l\"\nlog_rotate_duration = \"7h\"", "log_file"),
    ("log_rotate_max_files", "log_file = \"/l\"\nlog_rotate_max_files = 7", "log_file"),
    ("gc.interval", "interval = \"7s\"", "gc.interval"),
    ("gc.disk_usage_threshold", "disk_usage_threshold = 7", "gc.disk_usage_threshold"),
    ("gc.inode_usage_threshold", "inode_usage_threshold = 7", "gc.inode_usage_threshold"),
    ("gc.max_allocs", "max_allocs = 7", "gc.max_allocs"),
    ("gc.parallel_destroys", "parallel_destroys = 7", "gc.parallel_destroys"),
    ("wasm_worker.per", "per = \"job\"", "wasm_worker.per"),
    ("wasm_worker.memory_max_mb", "memory_max_mb = 77", "wasm_worker.memory_max_mb"),
    ("wasm_worker.threads_max", "threads_max = 77", "wasm_worker.threads_max"),
    ("client.cpu_total_compute", "cpu_total_compute = 7", "client.cpu_total_compute"),
    ("client.memory_total_mb", "memory_total_mb = 7", "client.memory_total_mb"),
    ("client.max_kill_timeout", "max_kill_timeout = \"7s\"", "client.max_kill_timeout"),
    ("client.servers", "servers = [\"s\"]", "client.servers"),
    ("client.node_class", "node_class = \"c\"", "client.node_class"),
    ("client.node_pool", "node_pool = \"p\"", "client.node_pool"),
    ("client.meta", "meta { a = \"b\" }", "meta"),
    ("client.host_volume", "host_volume \"v\" { path = \"/v\" }", "client.host_volume"),
    ("client.cni_path", "cni_path = \"/c\"", "client.cni_path"),
    ("client.cni_config_dir", "cni_config_dir = \"/c\"", "client.cni_config_dir"),
    ("client.bridge_network_name", "bridge_network_name = \"b\"", "client.bridge_network_name"),
    (
        "client.bridge_network_subnet",
        "bridge_network_subnet = \"10.9.0.0/16\"",
        "client.bridge_network_subnet",
    ),
    ("client.host_network", "host_network \"p\" { interface = \"lo\" }", "client.host_network"),
    ("client.users.dynamic_user_min", "dynamic_user_min = 80001", "client.users"),
    ("client.users.dynamic_user_max", "dynamic_user_max = 80777", "client.users"),
    ("client.disable_remote_exec", "disable_remote_exec = true", "client.disable_remote_exec"),
    ("client.enabled", "enabled = true", ""),
    ("client.artifact.http_read_timeout", "http_read_timeout = \"7s\"", "client.artifact"),
    ("client.artifact.http_max_size", "http_max_size = \"7MB\"", "client.artifact"),
    (
        "client.artifact.decompression_size_limit",
        "decompression_size_limit = \"7MB\"",
        "client.artifact",
    ),
    (
        "client.artifact.decompression_file_count_limit",
        "decompression_file_count_limit = 7",
        "client.artifact",
    ),
    ("client.artifact.file_sources", "file_sources = [\"/f\"]", "client.artifact"),
    ("client.artifact.cache_size", "cache_size = \"7MB\"", "client.artifact"),
    ("region", "region = \"mars\"", "region"),
    ("tls.rpc", "rpc = true", "tls"),
    ("tls.ca_file", "ca_file = \"/ca\"", "tls"),
    ("tls.cert_file", "cert_file = \"/c\"\nkey_file = \"/k\"", "tls"),
    ("tls.key_file", "cert_file = \"/c\"\nkey_file = \"/k\"", "tls"),
    ("tls.verify_server_hostname", "verify_server_hostname = false", "tls"),
    ("tls.http", "http = false", "tls"),
    ("tls.verify_https_client", "ca_file = \"/ca\"\nverify_https_client = true", "tls"),
    ("bind_addr", "bind_addr = \"127.0.0.2\"", "bind_addr"),
    ("ports.http", "http = 4747", "ports"),
    ("addresses.http", "http = \"127.0.0.3\"", "addresses"),
    ("advertise.http", "http = \"a.example\"", "advertise"),
    ("acl.enabled", "enabled = true", "acl.enabled"),
    ("http_hosts", "http_hosts = [\"h.example\"]", "http_hosts"),
    ("wasm.tasks_max", "tasks_max = 7", "wasm.tasks_max"),
    ("wasm.dense", "dense = true", "wasm.dense"),
    ("meta", "meta { a = \"b\" }", "meta"),
    ("telemetry.traces.endpoint", "endpoint = \"http://c:1\"", "telemetry.traces"),
    ("telemetry.traces.sample_percent", "sample_percent = 7", "telemetry.traces"),
    ("trust.file", "file = \"/t\"", "trust"),
    ("trust.require_signature", "file = \"/t\"\nrequire_signature = [\"oci\"]", "trust"),
    ("registry", "registry \"r.example\" { insecure = true }", "registry"),
    ("namespace", "namespace \"web\" { description = \"d\" }", "namespace"),
    ("plugin", "plugin \"exec\" { enabled = false }", "plugin \"exec\""),
];

/// A token needs `enabled`, so a change of it alone is that of two files.
const TOKEN: (&str, &str) = ("acl.token", "token \"ci\" {\n policies = [\"read\"]\n sha256 = ");

fn read(text: &str) -> AgentConfig {
    let read = parse_agent_config(text.as_bytes(), Path::new("/etc/agent.hcl"));
    read.unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A file with these keys in their blocks.
fn file(keys: &[(&str, &str)]) -> AgentConfig {
    let mut blocks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, text) in keys {
        let block = path.rsplit_once('.').map_or("", |(block, _)| block);
        blocks.entry(block).or_default().push(text);
    }
    let inner = ["artifact", "users"].map(|name| {
        let lines = blocks.remove(format!("client.{name}").as_str());
        lines.map(|lines| format!("{name} {{\n{}\n}}", lines.join("\n")))
    });
    for text in inner.iter().flatten() {
        blocks.entry("client").or_default().push(text);
    }
    let mut text = String::new();
    for (block, lines) in blocks {
        let lines = lines.join("\n");
        match block {
            "" => text.push_str(&format!("{lines}\n")),
            block => {
                let within = |text: String, name: &str| format!("{name} {{\n{text}\n}}\n");
                text.push_str(&block.split('.').rev().fold(lines, within));
            }
        }
    }
    read(&text)
}

fn reported(old: &AgentConfig, new: &AgentConfig) -> BTreeSet<String> {
    diff(old, new).into_iter().map(|changed| changed.key).collect()
}

#[test]
fn a_change_of_any_key_is_reported_by_its_name_and_of_no_other_one() {
    let sampled: BTreeSet<&str> = SAMPLES.iter().map(|(path, ..)| *path).chain([TOKEN.0]).collect();
    let known = agent_key_paths();
    let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
    let missing: Vec<_> = known.symmetric_difference(&sampled).collect();
    assert!(
        missing.is_empty(),
        "say in `reload::diff` what a change of {missing:?} means, and here"
    );
    for (path, text, name) in SAMPLES {
        let new = file(&[(path, text)]);
        let expected: BTreeSet<String> =
            Some((*name).to_owned()).filter(|name| !name.is_empty()).into_iter().collect();
        // A block that is not there and one that says the default may be the same or not.
        let found = reported(&AgentConfig::default(), &new);
        assert_eq!(found, expected, "{path}");
        assert_eq!(reported(&new, &new), BTreeSet::new(), "{path}");
    }
    let [one, other] = ["a", "b"].map(|digit| {
        let token = format!("{}\"{}\"\n}}", TOKEN.1, digit.repeat(64));
        file(&[("acl.enabled", "enabled = true"), (TOKEN.0, &token)])
    });
    assert_eq!(reported(&one, &other), BTreeSet::from(["acl.token".to_owned()]));
}

proptest! {
    #[test]
    fn of_many_changes_exactly_those_are_reported(chosen in prop::collection::vec(any::<bool>(), SAMPLES.len())) {
        // Texts of which another one is a part would stand there twice.
        let alone = |path: &str| {
            !path.starts_with("tls.") && path != "trust.require_signature" && !path.starts_with("log_rotate") && path != "client.meta"
        };
        let some = SAMPLES.iter().zip(chosen).filter(|((path, ..), chosen)| *chosen && alone(path));
        let some: Vec<_> = some.map(|(sample, _)| *sample).collect();
        let expected: BTreeSet<String> = some.iter().map(|(.., name)| (*name).to_owned()).filter(|name| !name.is_empty()).collect();
        let keys: Vec<(&str, &str)> = some.iter().map(|(path, text, _)| (*path, *text)).collect();
        prop_assert_eq!(reported(&AgentConfig::default(), &file(&keys)), expected);
    }
}
