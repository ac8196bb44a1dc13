//! The conformance suite: what comes with the agent keeps every rule, and who breaks one is told
//! which.

use std::path::Path;
use std::sync::Arc;

use ostler_agent::offline::{self, ConformanceReport, OfflinePlace, RuleVerdict, Subject};
use ostler_guests::fixtures::{
    DEVICE_FILES, DEVICE_MOCK, DRIVER_EXEC, DRIVER_MOCK, DRIVER_RAW_EXEC, HOSTILE_DEVICE,
    HOSTILE_DRIVER, HOSTILE_OTHER_WORLD,
};
use ostler_model::config::{FileGrant, Grants};
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use serde_json::{Value, json};

use crate::support::OSTLER;
use crate::support::binary::ostler;

/// A device plugin that imports what no agent has.
const UNKNOWN: &str = r#"(component
    (import "somebody:else/magic@1.0.0" (instance))
    (instance $i)
    (export "ostler:plugin/device@0.1.0" (instance $i)))"#;

fn object(value: Value) -> JsonObject {
    JsonObject::from(value.as_object().unwrap().clone())
}

fn subject(bytes: Vec<u8>, config: Value) -> Subject {
    let limits = PluginLimits {
        call_wall_max: std::time::Duration::from_secs(2),
        ..PluginLimits::default()
    };
    Subject {
        name: "checked".to_owned(),
        bytes: Arc::from(bytes),
        config: object(config),
        grants: Grants::default(),
        limits,
        task_config: None,
    }
}

async fn checked(subject: &Subject) -> ConformanceReport {
    // Shared by all tests of all runs: what is compiled stays the same.
    let code_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("check-code");
    let place = OfflinePlace { code_dir, compiler: Some(OSTLER.into()) };
    offline::check(subject, place).await.unwrap()
}

fn with(report: &ConformanceReport, verdict: RuleVerdict) -> Vec<(&str, &str)> {
    let found = report.findings.iter().filter(|finding| finding.verdict == verdict);
    found.map(|finding| (finding.rule.id, &*finding.detail)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_built_in_plugin_keeps_every_rule_with_its_grants_and_without() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("card"), "x").unwrap();
    let read = |path: &std::path::Path| FileGrant { path: path.to_owned(), write: false };
    for guest in ostler_guests::builtin_plugins() {
        for granted in [false, true] {
            let mut subject = subject(guest.bytes.to_vec(), json!({}));
            subject.limits = PluginLimits::default();
            if guest.name == "device-files" {
                subject.config = object(json!({ "dir": dir.path() }));
            }
            if granted {
                let files = vec![read("/sys".as_ref()), read(dir.path())];
                let (process, wasm_task) =
                    (guest.name.ends_with("exec"), guest.name == "driver-wasm");
                subject.grants = Grants { files, process, wasm_task, ..Grants::default() };
            }
            let report = checked(&subject).await;
            let failed = with(&report, RuleVerdict::Fail);
            assert!(failed.is_empty(), "{} (granted: {granted}): {failed:#?}", guest.name);
            assert!(report.conforms && report.count(RuleVerdict::Pass) >= 10, "{report:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_keep_the_rules_of_a_task_s_life() {
    for (file, config) in [
        (DRIVER_MOCK, json!({ "run_for": "1m" })),
        (DRIVER_EXEC, json!({ "command": "/bin/sleep", "args": ["60"] })),
        (DRIVER_RAW_EXEC, json!({ "command": "/bin/sleep", "args": ["60"] })),
    ] {
        let mut subject = subject(std::fs::read(file).unwrap(), json!({}));
        subject.grants.process = file != DRIVER_MOCK;
        subject.task_config = Some(object(config));
        let report = checked(&subject).await;
        let passed: Vec<&str> =
            with(&report, RuleVerdict::Pass).into_iter().map(|(rule, _)| rule).collect();
        assert!(report.conforms, "{file}: {report:#?}");
        assert!(passed.contains(&"life") && passed.contains(&"cancelled"), "{file}: {report:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_breaks_a_rule_is_told_which() {
    let device = |config| subject(std::fs::read(HOSTILE_DEVICE).unwrap(), config);
    let file = |file: &str| subject(std::fs::read(file).unwrap(), json!({}));
    let cases = [
        (subject(b"hello".to_vec(), json!({})), "manifest"),
        (file(HOSTILE_OTHER_WORLD), "manifest"),
        (subject(wat::parse_str(UNKNOWN).unwrap(), json!({})), "asks"),
        (device(json!({ "mode": "trap" })), "fingerprint"),
        (device(json!({ "mode": "spin" })), "fingerprint"),
        (device(json!({ "mode": "stack-overflow" })), "fingerprint"),
        (device(json!({ "mode": "memory-bomb" })), "fingerprint"),
        (device(json!({ "mode": "hostcall-flood" })), "fingerprint"),
        (device(json!({ "mode": "duplicate-ids" })), "fingerprint"),
        (device(json!({ "mode": "nan" })), "fingerprint"),
        (device(json!({ "mode": "huge-string" })), "fingerprint"),
        (device(json!({ "reserve": "trap" })), "order"),
        (device(json!({ "reserve": "bad-permissions" })), "reserve"),
        (device(json!({})), "reserve-unknown"),
        (device(json!({ "release": "trap" })), "release"),
        (device(json!({ "stats": "foreign-ids" })), "stats"),
        (device(json!({ "stats": "nan" })), "stats"),
    ];
    for (subject, rule) in cases {
        let report = checked(&subject).await;
        let failed = with(&report, RuleVerdict::Fail);
        let config = subject.config.text();
        assert!(failed.iter().any(|(broken, _)| *broken == rule), "{rule}, {config}: {report:#?}");
        assert!(!report.conforms);
        let rules: Vec<&str> = report.findings.iter().map(|finding| finding.rule.id).collect();
        let once: std::collections::BTreeSet<&str> = rules.iter().copied().collect();
        assert_eq!(rules.len(), once.len(), "each rule once: {rules:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_that_finds_nothing_is_to_say_that_it_is_undetected_and_why() {
    let says = |does| json!({ "fingerprint": [{ "do": does, "message": "no card" }] });
    for (config, verdict, text) in [
        (says("undetected"), RuleVerdict::Pass, "Undetected: no card"),
        (json!({}), RuleVerdict::Warn, "healthy, and finds nothing"),
        (says("error"), RuleVerdict::Warn, "cannot: no card"),
        (says("undetected_groups"), RuleVerdict::Fail, "health is undetected"),
    ] {
        let report = checked(&subject(std::fs::read(DEVICE_MOCK).unwrap(), config.clone())).await;
        let told = with(&report, verdict);
        let told = told.iter().find(|(rule, _)| *rule == "fingerprint");
        assert!(told.is_some_and(|(_, told)| told.contains(text)), "{config}: {report:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_traps_is_shown_with_its_last_words() {
    let subject = subject(std::fs::read(HOSTILE_DEVICE).unwrap(), json!({ "mode": "panic" }));
    let report = checked(&subject).await;
    let words = r"the reason stands\nin two lines\u{1b}[2J";
    let failed = with(&report, RuleVerdict::Fail);
    let told = failed.iter().any(|(rule, text)| *rule == "fingerprint" && text.contains(words));
    assert!(told, "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_whose_configuration_does_not_fit_its_schema_is_told_so() {
    let report =
        checked(&subject(std::fs::read(DEVICE_FILES).unwrap(), json!({ "nope": 1 }))).await;
    let failed = with(&report, RuleVerdict::Fail);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].0 == "config" && failed[0].1.contains("nope"), "{failed:?}");
}

#[tokio::test]
async fn the_command_says_what_is_wrong_and_ends_with_one() {
    let ok = ostler(["plugin", "check", DRIVER_MOCK]).await;
    assert_eq!(ok.code, Some(0), "{}{}", ok.stdout, ok.stderr);
    assert!(ok.stdout.contains("0 failed") && ok.stdout.contains("grants  none"), "{}", ok.stdout);
    let config = r#"{"mode": "trap"}"#;
    let broken = ostler(["plugin", "check", "--json", "--config", config, HOSTILE_DEVICE]).await;
    assert_eq!(broken.code, Some(1), "{}", broken.stderr);
    let report: Value = serde_json::from_str(&broken.stdout).unwrap();
    let failed = report["findings"].as_array().unwrap().iter().find(|one| one["verdict"] == "fail");
    assert_eq!(failed.unwrap()["id"], "no-grants");
    assert!(failed.unwrap()["advice"].as_str().is_some_and(|text| !text.is_empty()));
    let absent = ostler(["plugin", "check", "/nowhere/x.wasm"]).await;
    assert_eq!(absent.code, Some(2));
    let odd = ostler(["plugin", "check", "--config", "{", HOSTILE_DRIVER]).await;
    assert_eq!(odd.code, Some(2), "{}", odd.stderr);
}
