#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;

use super::*;
use ostler_model::plugin::PluginKind;

#[test]
fn the_list_has_a_row_per_plugin_and_the_reasons_below() {
    let loaded = PluginEntry {
        name: "exec".into(),
        source: "built-in".into(),
        kind: Some(PluginKind::Driver),
        describes_as: Some("exec".into()),
        version: Some("0.1.0".into()),
        interface_version: Some("0.1.0".into()),
        digest: Some("0123456789abcdef".into()),
        trust: Some(Voucher::Agent),
        size_bytes: 1_024,
        status: PluginStatus::Loaded,
        grants: Grants::default(),
        asks: vec![Authority::Always, Authority::Process],
    };
    let refused = PluginEntry {
        name: "bad".into(),
        status: PluginStatus::Refused("imports x".into()),
        ..loaded.clone()
    };
    let text = list_text(&[loaded, refused], &TerminalInfo::default());
    let lines: Vec<&str> = text.lines().collect();
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    let expected =
        "exec driver 0.1.0 loaded 1.0 KiB !process 0123456789ab agent built-in".split(' ');
    assert_eq!(words, expected.collect::<Vec<_>>());
    assert!(text.ends_with("\nexec (block bad) is refused: imports x\n"), "{text}");
}

/// A plugin with these lines of grants that asks for this.
fn granted(kind: PluginKind, grants: &str, asks: &[Authority]) -> PluginEntry {
    let text = format!("plugin \"x\" {{\n grants {{\n {grants}\n }}\n}}");
    let config =
        ostler_jobspec::parse_agent_config(text.as_bytes(), Path::new("/etc/ostler.hcl")).unwrap();
    PluginEntry {
        name: "x".into(),
        source: "/x.wasm".into(),
        kind: Some(kind),
        describes_as: None,
        version: None,
        interface_version: None,
        digest: None,
        trust: None,
        size_bytes: 1,
        status: PluginStatus::Loaded,
        grants: config.plugins["x"].grants.clone().unwrap(),
        asks: asks.to_vec(),
    }
}

#[test]
fn what_a_plugin_may_is_what_it_asks_for_as_far_as_it_is_granted() {
    let grants = "files \"/sys\" {}\n files \"/run/x\" { write = true }\n process = true\n \
                  users = [\"nobody\"]\n connect = [\"10.0.0.0/8:443\"]\n wasm_task = true";
    let asks = [
        Authority::Always,
        Authority::Files,
        Authority::Command,
        Authority::Process,
        Authority::Network,
    ];
    let entry = granted(PluginKind::Driver, grants, &asks);
    let expected = "files(/sys, /run/x rw) !command process(as nobody) connect(10.0.0.0/8:443)";
    assert_eq!(grants_text(&entry), expected, "wasm_task is granted and not asked for");
}

#[test]
fn the_list_shows_what_answers_may_cause_and_what_is_denied() {
    let grants = "deny = [\"connect\"]\n mounts \"/srv/a\" {}\n mounts \"/srv/b\" { write = true \
                  }\n device_nodes \"/dev/dri/*\" {}\n task_env = [\"CUDA_*\"]\n groups = \
                  [\"nvidia/gpu/*\"]\n driver = \"d\"\n attributes = [\"version\"]";
    let entry = granted(PluginKind::Device, grants, &[Authority::Command, Authority::Network]);
    assert_eq!(grants_text(&entry), "!command -connect");
    let text = list_text(&[entry], &TerminalInfo::default());
    let expected = "outside a plugin's own names:\n  x: mounts(/srv/a, /srv/b rw) \
                    device_nodes(/dev/dri/* rw) task_env(CUDA_*) groups(nvidia/gpu/*) driver(d) \
                    attributes(version) deny(connect)\n";
    assert!(text.ends_with(expected), "{text}");
}
