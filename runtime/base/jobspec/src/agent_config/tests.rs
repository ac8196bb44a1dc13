#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use ostler_model::limits::{CONFIG_FILE_BYTES_MAX, CompileLimits, PluginLimits};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use ostler_model::config::{
    AnswerGrants, FailurePolicy, GcConfig, HttpConfig, LimitOverrides, QuarantineFor, UpgradeMode,
    WasmConfig, WasmWorkerConfig, WorkerScope,
};
use ostler_model::grants::{CommandGrant, FileGrant};

fn parse(text: &str) -> AgentConfig {
    let parsed = parse_agent_config(text.as_bytes(), Path::new("/etc/ostler/ostler.hcl"));
    parsed.unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

/// `line:column message` of every problem.
fn problems(text: &str) -> Vec<String> {
    let parsed = parse_agent_config(text.as_bytes(), Path::new("ostler.hcl"));
    let diagnostics = parsed.expect_err("should be refused");
    diagnostics
        .iter()
        .map(|d| {
            let hint = d.suggestion.as_ref().map(|s| format!(" → {s}")).unwrap_or_default();
            format!("{}:{} {}{hint}", d.line, d.column, d.message)
        })
        .collect()
}

#[path = "acl_tests.rs"]
mod acl;
#[path = "grant_lines_tests.rs"]
mod grant_lines;

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse(""), AgentConfig::default());
    assert_eq!(parse("# nothing\n"), AgentConfig::default());
}

#[test]
fn everything_that_can_be_said_is_read() {
    let config = parse(
        r#"
name       = "edge-7"
datacenter = "dc2"
host_ip    = "10.1.2.3"
data_dir   = "state"
plugin_dir = "/usr/lib/ostler"
jobs_dir   = "jobs"
meta { rack = "r1" }
gc {
  interval              = "10m"
  disk_usage_threshold  = 90
  inode_usage_threshold = 85
  max_allocs            = 10
  parallel_destroys     = 4
}
wasm_worker {
  per           = "namespace"
  memory_max_mb = 2048
}
client {
  enabled           = true
  cpu_total_compute = 40000
  memory_total_mb   = 65536
  servers           = ["10.0.0.7", "[fd00::1]:14647"]
  node_class        = "edge"
  node_pool         = "gpus"
  meta { row = "7" }
}
region = "eu"
tls {
  rpc       = true
  ca_file   = "ca.pem"
  cert_file = "/etc/node.pem"
  key_file  = "node-key.pem"
  http      = true
  verify_https_client = true
}
bind_addr = "0.0.0.0"
ports {
  http = 5646
}
addresses {
  http = "10.1.2.4"
}
advertise {
  http = "edge.example"
}
wasm {
  tasks_max = 20000
  dense     = true
}

plugin "nvidia" {
  file = "nvidia.wasm"
  config {
    ignored = ["a"]
  }
  grants {
    files "data" { write = true }
    files "/sys" {}
    command "/usr/bin/nvidia-smi" {
      args = [["--query-gpu=*", "--format=csv"], []]
    }
    process = true
  }
  limits {
    call_wall  = "2s"
    memory_mb  = 32
    host_calls = 100
    call_cpu   = "1s"
    instances  = 3
    host_call_kb      = 16
    compile_cpu       = "5s"
    compile_memory_mb = 512
    file_mb           = 4
  }
}

plugin "mock" { enabled = false }
"#,
    );
    assert_eq!(config.node_name.as_deref(), Some("edge-7"));
    assert_eq!(config.datacenter.as_deref(), Some("dc2"));
    assert_eq!(config.host_ip, Some("10.1.2.3".parse().unwrap()));
    assert_eq!(config.node_meta["rack"], "r1");
    assert_eq!(config.jobs_dir, Some(PathBuf::from("/etc/ostler/jobs")));
    let gc = GcConfig {
        interval: Some(Duration::from_secs(600)),
        disk_usage_percent: Some(90),
        inode_usage_percent: Some(85),
        max_allocs: Some(10),
        parallel: Some(4),
    };
    assert_eq!(config.gc, gc);
    let worker = WasmWorkerConfig {
        per: WorkerScope::Namespace,
        memory_max_mb: Some(2_048),
        ..WasmWorkerConfig::default()
    };
    assert_eq!(config.wasm_worker, worker);
    let totals = (config.client.cpu_total_compute, config.client.memory_total_mb);
    assert_eq!(totals, (Some(40_000), Some(65_536)));
    assert_eq!(config.node_meta["row"], "7");
    let cluster = &config.cluster;
    let servers: Vec<_> = cluster.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["10.0.0.7:4647", "[fd00::1]:14647"]);
    let named = (cluster.region(), cluster.node_class.as_deref(), cluster.node_pool.as_deref());
    assert_eq!(named, ("eu", Some("edge"), Some("gpus")));
    let tls = cluster.tls.clone().unwrap();
    let own = ("/etc/node.pem".into(), "/etc/ostler/node-key.pem".into());
    assert_eq!((tls.ca_file, tls.own), (Some("/etc/ostler/ca.pem".into()), Some(own)));
    assert!(tls.verify_server_hostname);
    let http = HttpConfig {
        port: Some(5_646),
        bind_addr: "0.0.0.0".parse().ok(),
        address: "10.1.2.4".parse().ok(),
        advertised: Some(("edge.example".to_owned(), None)),
    };
    assert_eq!(cluster.http, http);
    assert_eq!(config.wasm, WasmConfig { tasks_max: Some(20_000), dense: Some(true) });
    assert_eq!(config.plugins["mock"].enabled, Some(false));
    assert_eq!(config.plugins["mock"].grants, None);
    let nvidia = &config.plugins["nvidia"];
    assert_eq!(nvidia.config.as_ref().unwrap().text(), r#"{"ignored":["a"]}"#);
    let grants = nvidia.grants.as_ref().unwrap();
    assert_eq!(
        grants.commands,
        [CommandGrant {
            program: "/usr/bin/nvidia-smi".into(),
            args: vec![vec!["--query-gpu=*".into(), "--format=csv".into()], vec![]],
        }]
    );
    assert!(grants.process && !grants.wasm_task);
    assert_eq!(
        grants.files,
        [
            FileGrant { path: "/etc/ostler/data".into(), write: true },
            FileGrant { path: "/sys".into(), write: false }
        ]
    );
    assert_eq!(nvidia.limits.call_wall, Some(Duration::from_secs(2)));
    let limits = nvidia.limits.apply(PluginLimits::default());
    assert_eq!((limits.call_cpu_max, limits.instances_max), (Duration::from_secs(1), 3));
    assert_eq!((limits.host_call_bytes_max, limits.tables_max), (16 << 10, 8));
    let compile = CompileLimits {
        file_bytes_max: 4 << 20,
        address_space_bytes_max: 512 << 20,
        cpu_max: Duration::from_secs(5),
        ..PluginLimits::default().compile
    };
    assert_eq!(limits.compile, compile);
}

#[test]
fn a_failure_policy_is_read_and_its_bounds_are_kept() {
    let policy =
        |text: &str| parse(&format!("plugin \"x\" {{\n{text}\n}}")).plugins["x"].failure.clone();
    let default = FailurePolicy::default();
    assert_eq!(policy(""), default);
    let given =
        policy("failure {\n retry_first = \"2s\"\n retry_max = \"1m\"\n strike_window = \"1h\"\n}");
    let secs = Duration::from_secs;
    let (retry_first, retry_max, strike_window) = (secs(2), secs(60), secs(3_600));
    assert_eq!(given, FailurePolicy { retry_first, retry_max, strike_window, ..default.clone() });
    let kept = policy("failure {\n strikes_max = 3\n quarantine = \"90s\"\n}");
    assert_eq!((kept.strikes_max, kept.quarantine), (3, QuarantineFor::Time(secs(90))));
    let kept = policy("failure {\n quarantine = \"manual\"\n}");
    assert_eq!((kept.strikes_max, kept.quarantine), (default.strikes_max, QuarantineFor::Manual));
    let kept = policy("failure {\n upgrade_strikes = 1\n upgrade_window = \"5m\"\n}");
    assert_eq!((kept.upgrade_strikes, kept.upgrade_window), (1, secs(300)));
    let mode = |text: &str| parse(&format!("plugin \"x\" {{\n{text}\n}}")).plugins["x"].upgrade;
    assert_eq!(mode(""), UpgradeMode::Manual);
    assert_eq!(mode("upgrade = \"auto\""), UpgradeMode::Auto);
    let found = problems("plugin \"x\" {\n upgrade = \"now\"\n}");
    assert_eq!(found, ["2:12 upgrade must be \"manual\" or \"auto\""]);
    for wrong in ["0s", "forever", "2d"] {
        let found =
            problems(&format!("plugin \"x\" {{\n failure {{\n quarantine = \"{wrong}\"\n }}\n}}"));
        assert_eq!(found, ["3:15 quarantine must be 1s to 1day, or \"manual\""], "{wrong}");
    }
    let long = policy("failure {\n retry_first = \"10m\"\n}");
    assert_eq!((long.retry_first, long.retry_max), (secs(600), secs(600)));
    let found = problems("plugin \"x\" {\n failure {\n retry_first = \"1ms\"\n }\n}");
    assert_eq!(found, ["3:16 retry_first must be 100ms to 1h"]);
    let found =
        problems("plugin \"x\" {\n failure {\n retry_first = \"5s\"\n retry_max = \"4s\"\n }\n}");
    assert_eq!(found, ["2:2 retry_max must be at least retry_first, 5s"]);
}

#[test]
fn the_places_of_a_plugins_configuration_are_kept_for_messages() {
    let config = parse(
        "\n\nplugin \"x\" {\n  config {\n    a = 1\n    list = [\n      1,\n      { b = 2 },\n    ]\n    \
         nested {\n      c = 3\n    }\n  }\n}\n",
    );
    let origin = config.plugins["x"].origin.clone().unwrap();
    let line = |path: &str| {
        let place = origin.place(path);
        place.strip_prefix("/etc/ostler/ostler.hcl:").unwrap().parse::<u32>().unwrap()
    };
    assert_eq!((line(""), line("no such thing")), (3, 3), "the block");
    assert_eq!((line("a"), line("list"), line("list.0"), line("list.1")), (5, 6, 7, 8));
    assert_eq!((line("list.1.b"), line("nested"), line("nested.c")), (8, 10, 11));
    assert_eq!(line("nested.c.deeper"), 11, "of what stands around it");
}

#[test]
fn relative_paths_belong_to_the_directory_of_the_file() {
    let config =
        parse("data_dir = \"state\"\nplugin_dir = \"/p\"\nplugin \"x\" { file = \"../x.wasm\" }");
    assert_eq!(config.data_dir, Some(PathBuf::from("/etc/ostler/state")));
    assert_eq!(config.plugin_dir, Some(PathBuf::from("/p")));
    assert_eq!(config.plugins["x"].file, Some(PathBuf::from("/etc/ostler/../x.wasm")));
    let beside = parse_agent_config(b"data_dir = \"state\"", Path::new("ostler.hcl")).unwrap();
    assert_eq!(beside.data_dir, Some(std::env::current_dir().unwrap().join("state")));
}

#[test]
fn all_problems_are_told_at_once_with_places_and_the_nearest_names() {
    let found = problems(
        r#"
datacentre = "dc1"
host_ip = "ten"
client {
  enabled = false
}
plugin "a" {
  grants { proces = true }
}
plugin "a" {
  limits {
    memory_mb = 0
    call_wall = "1h"
  }
}
plugin "b/c" {
  grants {
    command "nvidia-smi" { args = ["--a"] }
  }
}
"#,
    );
    let expected = [
        "2:1 datacentre is unknown in the agent's configuration → datacenter",
        "3:11 ten is not an IP address; write for example \"127.0.0.1\"",
        "5:13 enabled = false has no effect: an agent is always a client",
        "8:12 proces is unknown in grants → process",
        "10:8 a plugin a is already defined",
        "12:17 memory_mb must be 1 to 4096, not 0",
        "13:17 call_wall must be 10ms to 2m",
        "16:8 plugin name \"b/c\" contains '/'; names become directory names",
        "18:13 a command is granted by its full path, as in \"/usr/bin/nvidia-smi\"",
    ];
    assert_eq!(found.len(), expected.len() + 1, "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.replace('"', ""), expected.replace('"', ""));
    }
    assert!(found[9].starts_with("18:36 args must be a list of argument lists"), "{}", found[9]);
}

#[test]
fn a_garbage_collection_out_of_range_is_told_with_the_range() {
    let text = "gc {\n interval = \"1ms\"\n disk_usage_threshold = 101\n max_alloc = 3\n}";
    let found = problems(text);
    let expected =
        ["interval must be 1s to 1day", "disk_usage_threshold must be 1 to 100", "→ max_allocs"];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for part in expected {
        assert!(found.iter().any(|line| line.contains(part)), "{part}: {found:#?}");
    }
}

#[test]
fn a_worker_of_nothing_and_a_scope_that_is_none_are_told_with_their_lines() {
    let text = "wasm_worker {\n per = \"jobs\"\n memory_max_mb = 0\n threads_max = 0\n}";
    let expected = [
        "2:8 \"jobs\" is not a valid scope of a worker; valid values are node, namespace, job → job",
        "3:18 memory_max_mb must be 64 to 16777216, not 0",
        "4:16 threads_max must be 64 to 32768, not 0",
    ];
    assert_eq!(problems(text), expected);
}

#[test]
fn a_node_that_has_nothing_to_give_is_refused_with_the_range() {
    let found = problems("client {\n memory_total_mb = 0\n cpu_total_compute = -1\n}");
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("2:20 memory_total_mb must be at least 1"), "{found:#?}");
    assert!(found[1].starts_with("3:22 cpu_total_compute must be at least 1"), "{found:#?}");
    let found = problems("wasm {\n tasks_max = 0\n}");
    assert_eq!(found, ["2:14 tasks_max must be 1 to 100000, not 0"]);
}

#[test]
fn how_many_wasm_tasks_there_may_be_depends_on_how_they_are_held() {
    let tasks = |text: &str| parse(text).wasm.tasks();
    assert_eq!(tasks(""), 10_000);
    assert_eq!(tasks("wasm { dense = true }"), 50_000);
    assert_eq!(tasks("wasm { tasks_max = 7 }"), 7);
}

#[test]
fn what_is_no_text_is_refused() {
    assert_eq!(problems("a\0b"), ["1:2 not a text file: it contains the character NUL"]);
    let binary = parse_agent_config(&[b'a', 0xff], Path::new("x")).unwrap_err();
    assert!(binary.to_string().contains("not UTF-8"), "{binary}");
    let huge = vec![b' '; usize::try_from(CONFIG_FILE_BYTES_MAX).unwrap() + 1];
    let huge = parse_agent_config(&huge, Path::new("x")).unwrap_err();
    assert!(huge.to_string().contains("at most"), "{huge}");
}

#[test]
fn what_answers_may_cause_is_granted_key_by_key() {
    let text = "plugin \"x\" {\n grants {\n mounts \"cards\" {}\n mounts \"/srv/b\" { write = true }\n \
                device_nodes \"/dev/dri/*\" {}\n device_nodes \"/dev/x\" { permissions = \"r\" }\n \
                task_env = [\"CUDA_*\"]\n groups = [\"nvidia/gpu/*\"]\n driver = \"d\"\n \
                attributes = []\n deny = [\"connect\", \"wasi:http\"]\n }\n}";
    let grants = parse(text).plugins["x"].grants.clone().unwrap();
    let answers = grants.answers;
    let file = |path: &str, write| FileGrant { path: path.into(), write };
    let mounts = vec![file("/etc/ostler/cards", false), file("/srv/b", true)];
    assert_eq!(answers.mounts, Some(mounts), "relative to the file");
    let nodes = answers.device_nodes.clone().unwrap();
    let nodes: Vec<_> = nodes.iter().map(|n| (n.path.as_str(), n.permissions.as_str())).collect();
    assert_eq!(nodes, [("/dev/dri/*", "rw"), ("/dev/x", "r")]);
    assert_eq!((answers.driver.as_deref(), answers.attributes.clone()), (Some("d"), Some(vec![])));
    assert_eq!(grants.deny, ["connect", "wasi:http"]);
    // What a block does not say is what the plugin has by itself.
    let defaults = AnswerGrants { groups: Some(vec!["a".into()]), ..AnswerGrants::default() };
    assert_eq!(AnswerGrants::default().or_defaults(defaults.clone()), defaults);
    let none = AnswerGrants { groups: Some(vec![]), ..AnswerGrants::default() };
    assert_eq!(none.clone().or_defaults(defaults), none);
}

#[test]
fn grants_that_no_plugin_gets_are_refused_with_their_place() {
    let grants = |text: &str| problems(&format!("plugin \"x\" {{\n grants {{\n  {text}\n }}\n}}"));
    for (text, said) in [
        ("task_env = [\"LD_PRELOAD\"]", "3:15 \"LD_PRELOAD\" says which code a task runs"),
        ("task_env = [\"LD_*\"]", "no plugin sets it for a task"),
        ("task_env = [\"PATH\"]", "no plugin sets it for a task"),
        ("groups = [\"nvidia//x\"]", "as in \"vendor/type/*\""),
        ("driver = \"a/b\"", "3:12"),
        ("device_nodes \"dri\" {}", "by their full path"),
        ("device_nodes \"/dev/x\" { permissions = \"rwx\" }", "permissions are of r"),
        ("deny = [\"clock\"]", "\"clock\" cannot be denied; files, command"),
        ("deny = [\"connect\"]\n connect = [\"10.0.0.1:1\"]", "is granted here as well"),
        ("dirs = [\"/srv\"]", "write programs beside it"),
    ] {
        let problems = grants(text);
        assert!(problems.iter().any(|one| one.contains(said)), "{text}: {problems:?}");
    }
}

#[test]
fn grants_narrow_who_runs_what_and_where_it_connects() {
    let grants = |text: &str| {
        let text = format!("plugin \"x\" {{\n grants {{\n{text}\n }}\n}}");
        parse(&text).plugins["x"].grants.clone().unwrap()
    };
    let given = grants(
        "process = true\n users = [\"web-*\"]\n programs = [\"/opt/app/*\"]\n \
         connect = [\"10.0.0.0/8:443\", \"api.example.com:*\"]\n env = [\"LC_*\"]",
    );
    assert_eq!(given.users, ["web-*"]);
    assert_eq!(given.programs.unwrap(), ["/opt/app/*"]);
    assert_eq!(given.connect.len(), 2);
    assert_eq!(given.env, ["LC_*"]);
    assert_eq!(grants("").programs, None, "any, where processes may be started at all");
    let found = problems(
        "plugin \"x\" {\n grants {\n  users = [\"a\"]\n  programs = [\"sh\"]\n  \
         connect = [\"10.0.0.1\"]\n  env = [\"A=B\"]\n }\n}",
    );
    let expected = [
        "3:11 users narrows process; write process = true beside it",
        "4:14 programs narrows process; write process = true beside it",
        "4:15 a program is granted by its full path, as in \"/opt/app/*\"",
        "5:14 \"10.0.0.1\" has no port; write it after a colon, or * for any, as in \
         \"10.0.0.1:443\"",
        "6:10 expected the name of a variable, or a pattern such as \"LC_*\"",
    ];
    let mut found = found;
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_limit_has_the_ceiling_of_the_pool_and_a_misspelt_one_the_nearest_name() {
    let found = problems("plugin \"x\" {\n limits {\n memories = 5\n call_cpuu = \"1s\"\n }\n}");
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("memories must be 1 to 4, not 5"), "{found:#?}");
    assert!(found[1].contains("→ call_cpu") || found[1].contains("call_cpu"), "{found:#?}");
}

#[test]
fn only_the_limits_given_replace_the_defaults() {
    let default = PluginLimits::default();
    assert_eq!(LimitOverrides::default().apply(default.clone()), default);
    let given = LimitOverrides { memory_mb: Some(1), answer_kb: Some(2), ..Default::default() };
    let limits = given.apply(default.clone());
    assert_eq!((limits.memory_bytes_max, limits.answer_bytes_max), (1 << 20, 2 << 10));
    assert_eq!(limits.host_calls_max, default.host_calls_max);
}

#[test]
fn the_interval_of_device_statistics_is_a_time_within_its_range() {
    let interval = |value: &str| format!("device_stats_interval = {value}");
    for (value, secs) in [("\"1s\"", 1), ("\"90s\"", 90), ("\"1h30m\"", 5_400), ("\"24h\"", 86_400)]
    {
        let config = parse(&interval(value));
        assert_eq!(config.device_stats_interval, Some(Duration::from_secs(secs)), "{value}");
    }
    assert_eq!(parse("").device_stats_interval, None, "the default is the manager's");
    let range = "device_stats_interval must be 1s to 1day";
    for value in ["\"0s\"", "0", "\"999ms\"", "\"86401s\"", "\"25h\""] {
        let found = problems(&interval(value));
        assert!(found.len() == 1 && found[0].starts_with("1:25 "), "{value}: {found:?}");
        assert!(found[0].contains(range), "{value}: {found:?}");
    }
    for value in [
        "\"5 parsecs\"",
        "\"\"",
        "\"-5s\"",
        "\"5\"",
        "true",
        "[\"5s\"]",
        "\"99999999999999999999s\"",
    ] {
        let found = problems(&interval(value));
        assert!(found.len() == 1 && found[0].starts_with("1:25 "), "{value}: {found:?}");
        assert!(!found[0].contains(range), "{value}: it is no time at all: {found:?}");
    }
}

#[test]
fn trust_registries_and_what_a_plugin_demands_are_read() {
    use ostler_model::digest::Digest;
    use ostler_model::trust::PluginSource;
    let digest = Digest::compute(b"x").to_tagged();
    let config = parse(&format!(
        r#"
trust {{
  file              = "trust.hcl"
  require_signature = ["plugin_dir", "oci"]
}}
registry "Registry.local:5000" {{ insecure = true }}
plugin "a" {{
  source            = "oci://registry.local:5000/team/a:1"
  digest            = "{digest}"
  require_signature = false
}}
"#
    ));
    assert_eq!(config.trust.file, Some(PathBuf::from("/etc/ostler/trust.hcl")));
    let required = [PluginSource::PluginDir, PluginSource::Oci];
    assert_eq!(config.trust.require_signature, required.into());
    assert!(config.registries["registry.local:5000"].insecure);
    let plugin = &config.plugins["a"];
    let source = plugin.source.as_ref().map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("oci://registry.local:5000/team/a:1"));
    assert_eq!(plugin.digest, Some(Digest::compute(b"x")));
    assert_eq!(plugin.require_signature, Some(false));
}

#[test]
fn what_is_wrong_about_trust_is_said_with_its_place() {
    let found = problems(
        r#"
trust { require_signature = ["plugin_dir", "git"] }
registry "http://x" {}
plugin "a" {
  file   = "a.wasm"
  source = "oci://registry.example/a:1"
  digest = "md5:1"
}
plugin "b" { source = "registry.example/b:1" }
"#,
    );
    let expected = [
        "2:1 signatures are required and no key is known",
        "2:44 \"git\" is not a valid source of plugins; valid values are plugin_dir, file, oci",
        "3:10 \"http:\" is not a registry",
        "6:12 file and source exclude each other; give one",
        "7:12 digest: a digest is sha256: and 64",
        "9:23 a place in a registry begins with oci://",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} is not {expected}");
    }
}

#[test]
fn a_cluster_that_cannot_be_joined_so_is_told_with_the_lines() {
    let text =
        "client {\n servers = [\"a\", \"http://b\"]\n}\ntls {\n rpc = false\n cert_file = \"c\"\n}";
    let found = problems(text);
    let expected = [
        "2:18 \"http://b\" is not the address of a server",
        "5:8 rpc = false",
        "4:1 cert_file and key_file belong together",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for part in expected {
        assert!(found.iter().any(|line| line.starts_with(part)), "{part}: {found:#?}");
    }
}

#[test]
fn where_disks_cannot_be_served_is_told_with_the_lines() {
    let text = "bind_addr = \"everywhere\"\nports {\n http = 65536\n}\naddresses {\n http = \"edge\"\n}\n\
                advertise {\n http = \"http://edge\"\n}\ntls {\n ca_file = \"c\"\n http = false\n \
                verify_https_client = false\n}\nports {\n rpc = 4647\n}";
    let found = problems(text);
    let expected = [
        "1:13 \"everywhere\" is not an IP address",
        "3:9 http",
        "6:9 \"edge\" is not an IP address",
        "9:9 \"http://edge\" is not HOST or HOST:PORT",
    ];
    for part in expected {
        assert!(found.iter().any(|line| line.starts_with(part)), "{part}: {found:#?}");
    }
    let text = "advertise {\n http = \"[fd00::1]:81\"\n}\nports {\n http = 0\n}";
    let config =
        crate::parse_agent_config(text.as_bytes(), Path::new("/etc/ostler/a.hcl")).unwrap();
    assert_eq!(config.cluster.http.advertised, Some(("fd00::1".to_owned(), Some(81))));
    assert_eq!(config.cluster.http.port, Some(0));
}
