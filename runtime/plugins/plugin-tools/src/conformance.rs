//! The conformance suite for authors of plugins: it checks whether an agent can rely on
//! a component.
//!
//! ```text
//! bytes ─► manifest ─► asks ─► loaded several times, in other surroundings ─► rules of its kind
//!                                                                                  │
//! ConformanceReport { findings: rule, verdict, detail; costs by function; peaks } ◄┴─ meter
//! ```
//! It runs without an agent and only in the sandbox. Functions that are not granted are refused
//! call by call, so that a plugin can be examined before it is trusted. Rules that need a grant
//! are skipped.
//!
//! It uses the parts of the agent that handle plugins, and nothing of the agent uses it. Start
//! reading with `rules.rs`: what is asked of a plugin, and why.

mod bench;
mod device;
mod driver;
mod report;
mod rules;
mod settings;

use std::sync::Arc;

pub use bench::Bench;
pub use report::{ConformanceReport, Costs, Finding, RuleVerdict};
pub use rules::Rule;

use ostler_model::grants::Grants;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::plugin::PluginManifest;
use ostler_plugin::manifest::{self, ManifestError};
use ostler_plugin::{Plugin, PluginError};
use report::Findings;

/// The plugin to check, with its settings.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name of its `plugin` block.
    pub name: String,
    /// The bytes of the component.
    pub bytes: Arc<[u8]>,
    /// The configuration of the plugin, as in its block.
    pub config: JsonObject,
    /// The grants of the plugin during the check.
    pub grants: Grants,
    /// The limits of one call.
    pub limits: PluginLimits,
    /// The `config` of a task that the driver can start; without it no task is started.
    pub task_config: Option<JsonObject>,
}

/// Check a plugin by every rule. This never fails: problems are in the report.
pub async fn check(bench: &Bench, subject: &Subject) -> ConformanceReport {
    let mut findings = Findings::default();
    let manifest = match manifest::read(&subject.bytes) {
        Ok(manifest) => manifest,
        Err(error) => return manifest_report(&error, subject, findings),
    };
    let kind = format!("{} plugin, ostler:plugin@{}", manifest.kind, manifest.interface_version);
    findings.pass(rules::MANIFEST, kind);
    let mut report = ConformanceReport::for_subject(subject, Some(&manifest));
    if check_asks(subject, &manifest, &mut findings) {
        run(bench, subject, &manifest, &mut findings, &mut report).await;
    } else {
        findings.skip_rest(manifest.kind, "it cannot be loaded with what it imports");
    }
    report.take_findings(findings);
    report
}

fn manifest_report(
    error: &ManifestError,
    subject: &Subject,
    mut findings: Findings,
) -> ConformanceReport {
    findings.fail(rules::MANIFEST, error.to_string());
    let mut report = ConformanceReport::for_subject(subject, None);
    report.take_findings(findings);
    report
}

/// Check whether the plugin may be run at all.
fn check_asks(subject: &Subject, manifest: &PluginManifest, findings: &mut Findings) -> bool {
    let Some(missing) = subject.grants.find_missing(&subject.name, manifest) else {
        findings.pass(rules::ASKS, "all that it imports is harmless or granted");
        return true;
    };
    let beyond = missing.missing.iter().filter(|one| !one.authority.can_be_granted());
    let beyond: Vec<&str> = beyond.flat_map(|one| &one.imports).map(String::as_str).collect();
    if !beyond.is_empty() {
        findings.fail(rules::ASKS, format!("no grant exists for {}", beyond.join(", ")));
        return false;
    }
    let lines = &missing.lines;
    findings.warn(
        rules::ASKS,
        format!("not granted here, so refused when it is used; an agent needs:\n{lines}"),
    );
    true
}

async fn run(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    findings: &mut Findings,
    report: &mut ConformanceReport,
) {
    let plugin = match bench.load(subject, manifest, bench::BenchSurroundings::Here).await {
        Ok(plugin) => plugin,
        Err(error) => {
            findings.fail(broken_rule(&error), error.to_string());
            findings.skip_rest(manifest.kind, "it did not load");
            return;
        }
    };
    findings.pass(rules::LOADS, "compiled, linked and instantiated");
    let (name, version) = match &plugin {
        Plugin::Driver(driver) => (driver.name.to_string(), driver.version.clone()),
        Plugin::Device(device) => (device.name.to_string(), device.version.clone()),
    };
    findings.pass(rules::DESCRIBES, format!("calls itself {name}, version {version}"));
    report.describes_as = Some(name);
    report.version = Some(version);
    findings.pass(rules::CONFIG, "the given configuration fits its schema");
    settings::check(bench, subject, manifest, &plugin, findings).await;
    match &plugin {
        Plugin::Device(plugin) => device::check(bench, subject, manifest, plugin, findings).await,
        Plugin::Driver(plugin) => driver::check(bench, subject, manifest, plugin, findings).await,
    }
    let meter = match &plugin {
        Plugin::Driver(plugin) => plugin.meter(),
        Plugin::Device(plugin) => plugin.meter(),
    };
    let costs = Costs::from_activity(&meter.report());
    costs.judge_peaks(&subject.limits, findings);
    report.costs = Some(costs);
}

/// The rule that a plugin breaks if it does not load.
fn broken_rule(error: &PluginError) -> Rule {
    match error {
        PluginError::Schema { .. } => rules::SCHEMA,
        PluginError::Config(_) => rules::CONFIG,
        PluginError::Answer(_) | PluginError::Call { .. } => rules::DESCRIBES,
        PluginError::Manifest(_) => rules::MANIFEST,
        PluginError::NotGranted(_) => rules::ASKS,
        PluginError::Code(_) | PluginError::Link(_) => rules::LOADS,
    }
}
