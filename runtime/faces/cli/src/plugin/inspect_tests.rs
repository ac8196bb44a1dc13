#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;

use super::*;
use crate::connect::report_result;

fn manifest() -> PluginManifest {
    let imports = [
        "ostler:plugin/log@0.1.0",
        "ostler:plugin/process@0.1.0",
        "wasi:filesystem/types@0.2.6",
        "wasi:sockets/tcp@0.2.6",
        "evil:all/things@1.0.0",
    ];
    PluginManifest {
        kind: PluginKind::Driver,
        interface_version: "0.1.0".into(),
        exports: vec!["ostler:plugin/driver@0.1.0".into()],
        imports: imports.map(str::to_owned).to_vec(),
        size_bytes: 2_048,
        digest: "ab".repeat(32),
    }
}

#[test]
fn everything_a_plugin_could_do_is_told_with_its_condition() {
    let manifest = manifest();
    let text = inspect_text(
        &inspect_manifest("x/mine.wasm", "mine", &manifest),
        "mine",
        &TerminalInfo::default(),
    );
    for expected in [
        "kind       driver plugin\n",
        "interface  ostler:plugin@0.1.0\n",
        "size       2.0 KiB (2048 bytes)\n",
        "  log, read its own configuration, report events (always granted)\n    ostler:plugin/log@0.1.0\n",
        "  start and control task processes (needs a grant)\n    ostler:plugin/process@0.1.0\n",
        "  open TCP connections to granted places (needs a grant)\n    wasi:sockets/tcp@0.2.6\n",
        "(cannot be granted: the plugin is refused, or does without by deny)\n    \
         evil:all/things@1.0.0\n",
        "  be the driver mine, publish attributes below driver.mine.\n",
        "    deny = [\"files\", \"process\", \"connect\", \"evil:all\"]\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    assert!(!text.contains('\x1b'));
}

#[test]
fn the_lines_that_grant_all_of_it_are_a_valid_configuration() {
    let manifest = manifest();
    let inspected = inspect_manifest("mine.wasm", "mine", &manifest);
    let lines = all_grants("mine", &inspected.asks).unwrap();
    let config =
        ostler_jobspec::parse_agent_config(lines.as_bytes(), Path::new("ostler.hcl")).unwrap();
    let grants = config.plugins["mine"].grants.clone().unwrap();
    assert!(grants.process && grants.files.len() == 1 && !grants.wasm_task);
    assert_eq!(all_grants("mine", &[]), None);
}

#[test]
fn as_json_the_manifest_stands_beside_its_asks() {
    let manifest = manifest();
    let json = serde_json::to_value(inspect_manifest("mine.wasm", "mine", &manifest)).unwrap();
    assert_eq!(json["kind"], "driver");
    assert_eq!(json["asks"][0]["always_granted"], true);
    assert_eq!(json["asks"][0]["deny"], serde_json::json!([]));
    assert_eq!(json["answers"]["driver"], "mine");
    assert_eq!(json["asks"][2]["authority"], "process");
    assert!(json["asks"][2]["grant"].as_str().unwrap().contains("process = true"));
}

#[test]
fn a_file_that_is_no_plugin_is_an_input_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.wasm");
    for bytes in [&b""[..], b"#!/bin/sh", b"\0asm\x01\0\0\0"] {
        std::fs::write(&file, bytes).unwrap();
        let args = InspectArgs { file: file.clone(), json: false };
        let wrong = inspect(&args, &TerminalInfo::default());
        assert_eq!(report_result(wrong, &TerminalInfo::default()), Exit::Input);
    }
}
