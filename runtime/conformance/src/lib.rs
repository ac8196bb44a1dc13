//! The conformance suite for authors: is this component a plugin that an agent can rely on?
//!
//! ```text
//! bytes ─► manifest ─► asks ─► loaded several times, in other surroundings ─► rules of its kind
//!                                                                                  │
//!   Report { findings: rule, verdict, what was seen; costs by function; peaks } ◄──┴─ meter
//! ```
//! It runs without an agent and only in the sandbox. What is not granted is refused call by call, so
//! that a plugin can be looked at before it is trusted; rules that need a grant are skipped.
//!
//! It uses what the agent uses of plugins, and nothing of the agent uses it. Start with `rules.rs`: what
//! is asked of a plugin, and why.

mod bench;
mod device;
mod driver;
mod report;
mod rules;
mod settings;

use std::sync::Arc;

pub use bench::Bench;
pub use report::{Costs, Finding, Report, Verdict};
pub use rules::Rule;

use ostler_model::grants::Grants;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::plugin::Manifest;
use ostler_plugin::manifest::{self, ManifestError};
use ostler_plugin::{Plugin, PluginError};
use report::Findings;

/// What is checked, and with what.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name of its `plugin` block.
    pub name: String,
    /// The component.
    pub bytes: Arc<[u8]>,
    /// Its configuration.
    pub config: JsonObject,
    /// What it may do during the check.
    pub grants: Grants,
    /// What one call may use.
    pub limits: PluginLimits,
    /// The `config` of a task, with which a driver starts one; without it none is started.
    pub task_config: Option<JsonObject>,
}

/// Check a plugin by every rule. Never fails: what goes wrong is in the report.
pub async fn check(bench: &Bench, subject: &Subject) -> Report {
    let mut findings = Findings::default();
    let manifest = match manifest::read(&subject.bytes) {
        Ok(manifest) => manifest,
        Err(error) => return not_a_plugin(&error, subject, findings),
    };
    let kind = format!("{} plugin, ostler:plugin@{}", manifest.kind, manifest.interface_version);
    findings.pass(rules::MANIFEST, kind);
    let mut report = Report::of(subject, Some(&manifest));
    if asks(subject, &manifest, &mut findings) {
        run(bench, subject, &manifest, &mut findings, &mut report).await;
    } else {
        findings.skip_rest(manifest.kind, "it cannot be loaded with what it imports");
    }
    report.take(findings);
    report
}

fn not_a_plugin(error: &ManifestError, subject: &Subject, mut findings: Findings) -> Report {
    findings.fail(rules::MANIFEST, error.to_string());
    let mut report = Report::of(subject, None);
    report.take(findings);
    report
}

/// May it be run at all?
fn asks(subject: &Subject, manifest: &Manifest, findings: &mut Findings) -> bool {
    let Some(missing) = subject.grants.missing(&subject.name, manifest) else {
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
    manifest: &Manifest,
    findings: &mut Findings,
    report: &mut Report,
) {
    let plugin = match bench.load(subject, manifest, bench::Surroundings::Here).await {
        Ok(plugin) => plugin,
        Err(error) => {
            findings.fail(rule_of(&error), error.to_string());
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
    let costs = Costs::of(&meter.report());
    costs.judge(&subject.limits, findings);
    report.costs = Some(costs);
}

/// The rule that a plugin breaks which does not load.
fn rule_of(error: &PluginError) -> Rule {
    match error {
        PluginError::Schema { .. } => rules::SCHEMA,
        PluginError::Config(_) => rules::CONFIG,
        PluginError::Answer(_) | PluginError::Call { .. } => rules::DESCRIBES,
        PluginError::Manifest(_) => rules::MANIFEST,
        PluginError::NotGranted(_) => rules::ASKS,
        PluginError::Code(_) | PluginError::Link(_) => rules::LOADS,
    }
}
