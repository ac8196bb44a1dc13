//! The findings of the suite.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Subject;
use super::rules::{self, Rule};
use ostler_health::meter::PluginActivity;
use ostler_health::metrics::FunctionStats;
use ostler_model::grants::{Authority, Grants};
use ostler_model::limits::{PLUGIN_CHECK_DETAIL_BYTES_MAX, PluginLimits};
use ostler_model::plugin::PluginKind;
use ostler_model::plugin::PluginManifest;
use ostler_model::printable::printable_lines;
use ostler_model::words::{count_noun, format_nanos};

/// The result for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleVerdict {
    /// The rule is kept.
    Pass,
    /// The behaviour is allowed but not advisable.
    Warn,
    /// The rule was not tried.
    Skip,
    /// The rule is broken.
    Fail,
}

/// A rule, and the result for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule that was tried.
    #[serde(flatten)]
    pub rule: Rule,
    /// The result for the rule.
    pub verdict: RuleVerdict,
    /// The observation; it may have bounded text from the plugin in it.
    pub detail: String,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn pass(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, RuleVerdict::Pass, detail.into());
    }

    pub(super) fn warn(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, RuleVerdict::Warn, detail.into());
    }

    pub(super) fn skip(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, RuleVerdict::Skip, detail.into());
    }

    pub(super) fn fail(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, RuleVerdict::Fail, detail.into());
    }

    /// Add the result for a rule that can only be kept or broken.
    pub(super) fn outcome(&mut self, rule: Rule, outcome: Result<String, String>) {
        match outcome {
            Ok(detail) => self.pass(rule, detail),
            Err(detail) => self.fail(rule, detail),
        }
    }

    /// Skip every rule for this kind of plugin that was not tried.
    pub(super) fn skip_rest(&mut self, kind: PluginKind, reason: &str) {
        for rule in rules::of_kind(kind) {
            if !self.0.iter().any(|finding| finding.rule.id == rule.id) {
                self.skip(*rule, reason);
            }
        }
    }

    fn add(&mut self, rule: Rule, verdict: RuleVerdict, detail: String) {
        let detail = printable_lines(detail, PLUGIN_CHECK_DETAIL_BYTES_MAX);
        // The costs of calls are known at the end, even if the suite stopped early.
        self.0.retain(|before| before.rule.id != rule.id || before.verdict != RuleVerdict::Skip);
        self.0.push(Finding { rule, verdict, detail });
    }
}

/// The costs of the calls of the suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// The most linear memory of one call, in bytes.
    pub peak_memory_bytes: u64,
    /// The most host calls of one call, WASI included.
    pub peak_host_calls: u64,
    /// The costs of the calls, by function.
    pub calls: BTreeMap<String, FunctionStats>,
}

impl Costs {
    pub(super) fn from_activity(activity: &PluginActivity) -> Self {
        Self {
            peak_memory_bytes: activity.peak_memory_bytes,
            peak_host_calls: activity.peak_host_calls,
            calls: activity.calls.clone(),
        }
    }

    /// Compare the peaks with the limits. More than half of a limit is close enough for a warning.
    pub(super) fn judge_peaks(&self, limits: &PluginLimits, findings: &mut Findings) {
        let mut judge = |rule, peak: u64, limit: u64, shown: &dyn Fn(u64) -> String| {
            let detail = format!("at most {} in one call, of {}", shown(peak), shown(limit));
            if peak.saturating_mul(2) > limit {
                findings.warn(rule, detail);
            } else {
                findings.pass(rule, detail);
            }
        };
        judge(rules::MEMORY, self.peak_memory_bytes, limits.memory_bytes_max, &|n| {
            count_noun(n, "byte")
        });
        judge(rules::HOST_CALLS, self.peak_host_calls, limits.host_calls_max, &|n| {
            count_noun(n, "host call")
        });
        let slowest = self.calls.values().map(|call| call.p99_nanos).max().unwrap_or(0);
        let wall: Duration = limits.call_wall_max;
        let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        judge(rules::TIME, slowest, wall, &format_nanos);
    }
}

/// The report of the suite on one plugin.
#[derive(Clone, Debug, Serialize)]
pub struct ConformanceReport {
    /// Whether no rule is broken.
    pub conforms: bool,
    /// The name of the plugin's block.
    pub name: String,
    /// Driver or device plugin.
    pub kind: Option<PluginKind>,
    /// The name the plugin gives itself.
    pub describes_as: Option<String>,
    /// The version that the plugin reports, such as `1.2.0`.
    pub version: Option<String>,
    /// SHA-256 of the file, hex.
    pub digest: Option<String>,
    /// The authorities that the plugin asks for.
    pub asks: Vec<Authority>,
    /// The grants that the plugin had.
    pub grants: Grants,
    /// The findings for all rules, in the order in which they were tried.
    pub findings: Vec<Finding>,
    /// The costs of its calls; `None` if no call was made.
    pub costs: Option<Costs>,
}

impl ConformanceReport {
    pub(super) fn for_subject(subject: &Subject, manifest: Option<&PluginManifest>) -> Self {
        let asks = manifest.map(|manifest| manifest.asks()).unwrap_or_default();
        Self {
            conforms: false,
            name: subject.name.clone(),
            kind: manifest.map(|manifest| manifest.kind),
            describes_as: None,
            version: None,
            digest: manifest.map(|manifest| manifest.digest.clone()),
            asks: asks.into_iter().map(|(authority, _)| authority).collect(),
            grants: subject.grants.clone(),
            findings: Vec::new(),
            costs: None,
        }
    }

    pub(super) fn take_findings(&mut self, findings: Findings) {
        self.findings = findings.0;
        self.conforms = self.findings.iter().all(|one| one.verdict != RuleVerdict::Fail);
    }

    /// The number of findings with this verdict.
    #[must_use]
    pub fn count(&self, verdict: RuleVerdict) -> usize {
        self.findings.iter().filter(|one| one.verdict == verdict).count()
    }
}
