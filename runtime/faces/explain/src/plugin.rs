//! Explains the state of a plugin.

use std::collections::BTreeMap;

use ostler_model::device::{Health, HealthState};
use ostler_model::time::Timestamp;
use ostler_model::words::count_noun;
use serde::Deserialize;
use serde_json::Value;

use crate::commands;
use crate::words::{sentence, time_until};
use crate::{Explanation, SubjectKind};

/// The records about a plugin, as the agent reports them (`/v1/ostler/plugins/status`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginHistory {
    /// The name that the plugin gives itself.
    pub name: String,
    /// Name of its block in the configuration.
    pub block: String,
    /// Kind of the plugin: `driver` or `device`.
    pub kind: Option<String>,
    /// Version of the plugin, as it reports it.
    pub version: Option<String>,
    /// `built-in`, or the path of its file.
    pub source: String,
    /// Whether it is in use, and why not.
    pub status: StatusFacts,
    /// What it reports about its own health.
    pub health: Option<Health>,
    /// The state of its calls, while it is in use.
    pub activity: Option<ActivityFacts>,
    /// The course of its upgrades.
    pub upgrade: Option<UpgradeFacts>,
}

/// Whether a plugin is in use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusFacts {
    /// One of `loaded`, `refused`, `disabled`, `loading`, `waiting`.
    pub state: String,
    /// The reason for a refusal.
    pub reason: String,
}

/// The state of a plugin in use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ActivityFacts {
    /// One of `starting`, `running`, `backing_off`, `quarantined`.
    pub state: String,
    /// Number of calls that failed lately.
    pub strikes: u64,
    /// Number of strikes that count towards a quarantine.
    pub strikes_counted: u64,
    /// Number of counted strikes that put the plugin into quarantine.
    pub strikes_max: u64,
    /// Failed calls about a task, by task.
    pub strikes_by_task: BTreeMap<String, u64>,
    /// The present quarantine: its reason and its end.
    pub quarantine: Option<QuarantineFacts>,
    /// Number of quarantines since the agent started.
    pub quarantines: u64,
    /// Number of fingerprints that failed in a row.
    pub failures_in_a_row: u64,
    /// The last failure.
    pub last_error: Option<FailureFacts>,
    /// When a call last answered.
    pub last_ok: Option<Timestamp>,
    /// When the plugin is asked again.
    pub next_check: Option<Timestamp>,
}

/// A quarantine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QuarantineFacts {
    /// When the quarantine began.
    pub since: Timestamp,
    /// When the plugin is tried again; absent: when a person lifts the quarantine.
    pub until: Option<Timestamp>,
    /// The failure that caused it.
    pub reason: String,
    /// How often in a row the plugin came back into quarantine.
    pub relapses: u64,
}

/// A failure of a plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FailureFacts {
    /// The time of the failure.
    pub at: Timestamp,
    /// The failure in words.
    pub reason: String,
}

/// The course of a plugin's upgrades.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct UpgradeFacts {
    /// When the present version was put in its place.
    pub upgraded_at: Option<Timestamp>,
    /// Until when the present version proves itself.
    pub proving_until: Option<Timestamp>,
    /// The last upgrade that was rolled back, with the reason.
    pub rolled_back: Option<Value>,
}

/// Explain the state of a plugin.
#[must_use]
pub fn explain(record: &PluginHistory, now: Timestamp) -> Explanation {
    let kind = record.kind.as_deref().unwrap_or("plugin");
    let version = record.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let name = format!("{kind}{version}, {}", record.source);
    let mut told = Explanation::new(SubjectKind::Plugin, record.name.clone(), name);
    let mut said = Vec::new();
    match record.status.state.as_str() {
        "loaded" => explain_in_use(record, now, &mut said, &mut told),
        "refused" => {
            let (why, next) = explain_refusal(record);
            said.push(format!("it is refused and not in use: {why}"));
            told.advise(next);
        }
        "disabled" => {
            said.push("it is switched off in the agent's configuration".to_owned());
            told.advise(format!(
                "plugin \"{}\" {{ enabled = true }} there, and a restart of the agent",
                record.block
            ));
        }
        "loading" => said.push("it is being read and compiled".to_owned()),
        _ => said
            .push("it is loaded and waits for the plugins that are still being loaded".to_owned()),
    }
    told.because = said.iter().map(|text| sentence(text)).collect();
    told
}

/// The reason for a refusal, and advice. A reason may end in lines of the configuration to copy.
fn explain_refusal(record: &PluginHistory) -> (String, String) {
    let (reason, block) = (record.status.reason.trim_end(), &record.block);
    let again = "restart the agent";
    if let Some((first, lines)) = reason.split_once('\n')
        && let Some((why, grant)) = first.trim_end_matches(':').rsplit_once("; to ")
    {
        return (why.to_owned(), format!("to {grant}, and {again}:\n{lines}"));
    }
    let file = Some(record.source.as_str()).filter(|source| source.starts_with('/'));
    let next = match file {
        Some(file) if reason.contains("No such file") => format!(
            "put the file of the plugin at {file}, or correct file in plugin \"{block}\" of the agent's configuration, and {again}"
        ),
        Some(file) => format!(
            "fix that, and {again}: {} says what it asks for, and which lines of the configuration grant it",
            commands::inspect_plugin(file)
        ),
        None => {
            format!("fix that ({} says more), and {again}", commands::plugin_status(block))
        }
    };
    (reason.to_owned(), next)
}

/// The calls that failed lately, and how many more cause a quarantine. Failures for one task count
/// once, and not at all while nothing else fails.
fn strikes(activity: &ActivityFacts) -> Vec<String> {
    let failed = format!("{} failed lately", calls_phrase(activity.strikes));
    let max = activity.strikes_max.max(1);
    if activity.strikes_counted == 0 {
        let about = match activity.strikes_by_task.keys().next() {
            Some(task) => format!(", {}for {task}", if activity.strikes > 1 { "all " } else { "" }),
            None => String::new(),
        };
        let left = max.saturating_sub(1).max(1);
        return vec![
            format!("{failed}{about}"),
            format!(
                "what fails for one task alone counts against that task: {} put the plugin into quarantine",
                strikes_left_phrase(left)
            ),
        ];
    }
    let left = max.saturating_sub(activity.strikes_counted).max(1);
    vec![format!(
        "{failed}, which count as {}: {} put it into quarantine",
        count_noun(activity.strikes_counted, "strike"),
        strikes_left_phrase(left)
    )]
}

fn calls_phrase(strikes: u64) -> String {
    match strikes {
        1 => "one of its calls".to_owned(),
        many => format!("{many} of its calls"),
    }
}

/// The calls that would add this many counted strikes, as the beginning of a clause.
fn strikes_left_phrase(left: u64) -> String {
    match left {
        1 => "one more call that fails for another task, or for none, would".to_owned(),
        many => format!(
            "{many} more calls that fail for other tasks, a different one each, or for none, would"
        ),
    }
}

fn explain_in_use(
    record: &PluginHistory,
    now: Timestamp,
    said: &mut Vec<String>,
    told: &mut Explanation,
) {
    let default = ActivityFacts::default();
    let activity = record.activity.as_ref().unwrap_or(&default);
    match (&activity.quarantine, activity.state.as_str()) {
        (Some(quarantine), _) => explain_quarantine(record, activity, quarantine, now, said, told),
        (None, "backing_off") => {
            let times = count_noun(activity.failures_in_a_row, "time");
            said.push(format!("it is backing off: its fingerprint failed {times} in a row"));
            let again = activity.next_check.map(|at| time_until(at, now));
            said.push(match again {
                Some(when) => format!("it is asked again {when}"),
                None => "it is asked again when what it watches changes".to_owned(),
            });
        }
        (None, "starting") => said.push("it is in use and has not answered yet".to_owned()),
        (None, _) => said.push(health(record)),
    }
    if activity.quarantine.is_none() && activity.strikes > 0 {
        said.extend(strikes(activity));
        told.advise(format!(
            "{} keeps its last calls for its author",
            commands::record_plugin(&record.name)
        ));
    }
    if let Some(error) = &activity.last_error {
        told.note(error.at, error.reason.clone());
    }
    if let Some(upgrade) = &record.upgrade {
        if let Some(at) = upgrade.upgraded_at {
            told.note(at, "this version was put in its place");
        }
        if let Some(until) = upgrade.proving_until.filter(|until| *until > now) {
            said.push(format!(
                "it has to prove itself until {until}: failures bring back the version before it"
            ));
        }
        let why = upgrade.rolled_back.as_ref().and_then(|report| {
            report
                .pointer("/reason")
                .or(report.pointer("/why"))
                .or(report.pointer("/outcome/reason"))
        });
        if let Some(why) = why.and_then(Value::as_str) {
            said.push(format!("a newer version was rolled back: {why}"));
        }
    }
    told.happened.sort_by_key(|one| one.at);
}

/// What the plugin reports about its own health.
fn health(record: &PluginHistory) -> String {
    let Some(Health { state, reason }) = &record.health else { return "it is in use".to_owned() };
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match state {
        HealthState::Healthy => format!("it is in use and healthy{reason}"),
        HealthState::Unhealthy => format!("it is in use, and says that it is unhealthy{reason}"),
        HealthState::Undetected => {
            format!("it works, and finds nothing for it on this node{reason}")
        }
    }
}

fn explain_quarantine(
    record: &PluginHistory,
    activity: &ActivityFacts,
    quarantine: &QuarantineFacts,
    now: Timestamp,
    said: &mut Vec<String>,
    told: &mut Explanation,
) {
    said.push(format!(
        "it is quarantined and gets no calls but those that end what it runs: {}",
        quarantine.reason
    ));
    told.since = Some(quarantine.since);
    if activity.strikes_counted > 0 {
        said.push(format!(
            "{} {} against it now; {} are a quarantine",
            count_noun(activity.strikes_counted, "strike"),
            if activity.strikes_counted == 1 { "counts" } else { "count" },
            activity.strikes_max
        ));
    }
    if quarantine.relapses > 0 {
        said.push(format!(
            "it was tried again and failed {}",
            count_noun(quarantine.relapses, "time")
        ));
    }
    said.push(match quarantine.until {
        Some(at) => format!("it is tried again {}", time_until(at, now)),
        None => "it stays there until it is lifted".to_owned(),
    });
    told.note(quarantine.since, "put into quarantine");
    told.advise(format!("{} has it tried now", commands::lift_plugin(&record.name)));
    told.advise(format!(
        "{} puts a fixed version in its place",
        commands::upgrade_plugin(&record.name)
    ));
}
