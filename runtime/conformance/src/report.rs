//! What the suite found.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Subject;
use super::rules::{self, Rule};
use ostler_health::meter::PluginActivity;
use ostler_health::metrics::FunctionStats;
use ostler_model::grants::{Authority, Grants};
use ostler_model::limits::{PLUGIN_CHECK_DETAIL_BYTES_MAX, PluginLimits};
use ostler_model::plugin::Manifest;
use ostler_model::plugin::PluginKind;
use ostler_model::shown::shown_lines;
use ostler_model::words::{counted, took};

/// What became of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Kept.
    Pass,
    /// Allowed and not advisable.
    Warn,
    /// Not tried.
    Skip,
    /// Broken.
    Fail,
}

/// A rule and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// Kept or not.
    pub verdict: Verdict,
    /// What was seen; bounded text from the plugin may be in it.
    pub detail: String,
}

/// Findings as they come.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn pass(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, Verdict::Pass, detail.into());
    }

    pub(super) fn warn(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, Verdict::Warn, detail.into());
    }

    pub(super) fn skip(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, Verdict::Skip, detail.into());
    }

    pub(super) fn fail(&mut self, rule: Rule, detail: impl Into<String>) {
        self.add(rule, Verdict::Fail, detail.into());
    }

    /// What a rule that can only be broken came to.
    pub(super) fn outcome(&mut self, rule: Rule, outcome: Result<String, String>) {
        match outcome {
            Ok(detail) => self.pass(rule, detail),
            Err(detail) => self.fail(rule, detail),
        }
    }

    /// Skip every rule of this kind of plugin that was not tried.
    pub(super) fn skip_rest(&mut self, kind: PluginKind, reason: &str) {
        for rule in rules::of_kind(kind) {
            if !self.0.iter().any(|finding| finding.rule.id == rule.id) {
                self.skip(*rule, reason);
            }
        }
    }

    fn add(&mut self, rule: Rule, verdict: Verdict, detail: String) {
        let detail = shown_lines(detail, PLUGIN_CHECK_DETAIL_BYTES_MAX);
        // What calls cost is known at the end even of a suite that broke off.
        self.0.retain(|before| before.rule.id != rule.id || before.verdict != Verdict::Skip);
        self.0.push(Finding { rule, verdict, detail });
    }
}

/// What the calls of the suite cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Most linear memory of one call, bytes.
    pub peak_memory_bytes: u64,
    /// Most host calls of one call, WASI included.
    pub peak_host_calls: u64,
    /// By function.
    pub calls: BTreeMap<String, FunctionStats>,
}

impl Costs {
    pub(super) fn of(activity: &PluginActivity) -> Self {
        Self {
            peak_memory_bytes: activity.peak_memory_bytes,
            peak_host_calls: activity.peak_host_calls,
            calls: activity.calls.clone(),
        }
    }

    /// Hold the peaks against the limits: more than half is near enough to be told.
    pub(super) fn judge(&self, limits: &PluginLimits, findings: &mut Findings) {
        let mut judge = |rule, peak: u64, limit: u64, shown: &dyn Fn(u64) -> String| {
            let detail = format!("at most {} in one call, of {}", shown(peak), shown(limit));
            match peak.saturating_mul(2) > limit {
                true => findings.warn(rule, detail),
                false => findings.pass(rule, detail),
            }
        };
        judge(rules::MEMORY, self.peak_memory_bytes, limits.memory_bytes_max, &|n| {
            counted(n, "byte")
        });
        judge(rules::HOST_CALLS, self.peak_host_calls, limits.host_calls_max, &|n| {
            counted(n, "host call")
        });
        let slowest = self.calls.values().map(|call| call.p99_nanos).max().unwrap_or(0);
        let wall: Duration = limits.call_wall_max;
        let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        judge(rules::TIME, slowest, wall, &took);
    }
}

/// What the suite found of one plugin.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// No rule is broken.
    pub conforms: bool,
    /// Name of its block.
    pub name: String,
    /// Driver or device plugin.
    pub kind: Option<PluginKind>,
    /// What it calls itself.
    pub describes_as: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// SHA-256 of the file, hex.
    pub digest: Option<String>,
    /// What it asks for.
    pub asks: Vec<Authority>,
    /// What it was given.
    pub grants: Grants,
    /// Every rule, in the order tried.
    pub findings: Vec<Finding>,
    /// What its calls cost; absent when none was made.
    pub costs: Option<Costs>,
}

impl Report {
    pub(super) fn of(subject: &Subject, manifest: Option<&Manifest>) -> Self {
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

    pub(super) fn take(&mut self, findings: Findings) {
        self.findings = findings.0;
        self.conforms = self.findings.iter().all(|one| one.verdict != Verdict::Fail);
    }

    /// How many findings have this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|one| one.verdict == verdict).count()
    }
}
