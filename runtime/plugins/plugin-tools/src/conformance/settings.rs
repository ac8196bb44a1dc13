//! The rules for both kinds of plugins: descriptions, schemas, configurations, grants.

use serde_json::{Value, json};

use super::bench::{Bench, BenchSurroundings, CallReply, call_reply};
use super::report::Findings;
use super::{Subject, rules};
use ostler_model::json::JsonObject;
use ostler_model::plugin::PluginManifest;
use ostler_plugin::Plugin;
use ostler_plugin::schema::ConfigSchema;

/// The number of fresh instances that must describe themselves alike, in each of the surroundings.
const DESCRIPTIONS: usize = 3;

pub(super) async fn check(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    plugin: &Plugin,
    findings: &mut Findings,
) {
    findings.outcome(
        rules::DETERMINISM,
        check_same_description(bench, subject, manifest, plugin).await,
    );
    schemas(plugin, findings);
    findings.outcome(rules::NO_GRANTS, try_without_grants(bench, subject, manifest).await);
    findings.outcome(rules::OTHER_CONFIG, try_other_configs(bench, subject, manifest).await);
}

/// Everything that a plugin says of itself, as a text.
fn description(plugin: &Plugin) -> String {
    match plugin {
        Plugin::Driver(driver) => format!(
            "{} {} {:?} {} {}",
            driver.name,
            driver.version,
            driver.capabilities,
            driver.config_schema.text(),
            driver.task_schema.text()
        ),
        Plugin::Device(device) => {
            format!("{} {} {}", device.name, device.version, device.config_schema.text())
        }
    }
}

async fn check_same_description(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    plugin: &Plugin,
) -> Result<String, String> {
    let first = description(plugin);
    for surroundings in [BenchSurroundings::Here, BenchSurroundings::Elsewhere] {
        for _ in 0..DESCRIPTIONS {
            let again = bench.load(subject, manifest, surroundings).await;
            let again = again.map_err(|error| format!("described itself once, then: {error}"))?;
            let again = description(&again);
            if again != first {
                return Err(format!("described itself as {first}, then as {again}"));
            }
        }
    }
    Ok(format!("{} descriptions, in two surroundings, are the same", 2 * DESCRIPTIONS + 1))
}

fn schemas(plugin: &Plugin, findings: &mut Findings) {
    let schemas: Vec<(&str, &ConfigSchema)> = match plugin {
        Plugin::Driver(driver) => {
            vec![("plugin", &driver.config_schema), ("task", &driver.task_schema)]
        }
        Plugin::Device(device) => vec![("plugin", &device.config_schema)],
    };
    let unknown = as_object(json!({ "ostler check: no plugin has this key": 1 }));
    let open: Vec<&str> = schemas
        .iter()
        .filter(|(_, schema)| schema.check(&unknown).is_empty())
        .map(|(which, _)| *which)
        .collect();
    if open.is_empty() {
        findings.pass(rules::SCHEMA, "its schemas are valid and refuse unknown keys");
    } else {
        findings.warn(
            rules::SCHEMA,
            format!("the schema of the {} configuration allows unknown keys", open.join(" and ")),
        );
    }
}

async fn fingerprint(what: &str, plugin: &Plugin) -> Result<CallReply<()>, String> {
    match plugin {
        Plugin::Driver(driver) => call_reply(what, driver.fingerprint().await.map(drop)),
        Plugin::Device(device) => call_reply(what, device.raw_fingerprint().await.map(drop)),
    }
}

async fn try_without_grants(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
) -> Result<String, String> {
    let bare = bench.load_bare(subject, manifest).await;
    let bare = bare.ok_or("does not load without its grants, which describe must not need")?;
    Ok(match fingerprint("without any grant", &bare).await? {
        CallReply::Yes(()) => "without any grant, fingerprint answers".to_owned(),
        CallReply::No(error) => format!("without any grant, fingerprint is refused: {error}"),
    })
}

/// Configurations that have little to do with the given one.
fn odd_configs() -> [Value; 4] {
    let deep = (0..64).fold(json!({}), |inner, _| json!({ "a": inner }));
    [json!({}), json!({ "unexpected": null }), json!({ "dir": 1, "mode": [] }), deep]
}

async fn try_other_configs(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
) -> Result<String, String> {
    let (mut tried, mut refused) = (0, 0);
    for config in odd_configs() {
        let what = format!("with the configuration {config}");
        match bench.load_with(subject, manifest, as_object(config)).await {
            Some(plugin) => {
                fingerprint(&what, &plugin).await?;
                tried += 1;
            }
            None => refused += 1,
        }
    }
    Ok(format!("{refused} odd configurations are refused by its schema, {tried} by itself or not"))
}

pub(super) fn as_object(value: Value) -> JsonObject {
    match value {
        Value::Object(map) => JsonObject::from(map),
        _ => JsonObject::default(),
    }
}
