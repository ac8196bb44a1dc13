//! Why a plugin is as it is.

use ostler_model::device::{Health, HealthState};
use ostler_model::time::Timestamp;
use ostler_model::words::counted;
use serde::Deserialize;
use serde_json::Value;

use crate::words::{sentence, until};
use crate::{ExplainedKind, Explanation};

/// What is on record of a plugin, as the agent tells it (`/v1/ostler/plugins/status`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginHistory {
    /// The name it gives itself.
    pub name: String,
    /// Name of its block in the configuration.
    pub block: String,
    /// `driver` or `device`.
    pub kind: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// `built-in`, or the file.
    pub source: String,
    /// In use or not, and why.
    pub status: StatusTold,
    /// What it says of itself.
    pub health: Option<Health>,
    /// How it does.
    pub activity: Option<ActivityTold>,
    /// How its upgrades went.
    pub upgrade: Option<UpgradeTold>,
}

/// In use or not.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusTold {
    /// `loaded`, `refused`, `disabled`, `loading`, `waiting`.
    pub state: String,
    /// Why it is refused.
    pub reason: String,
}

/// How a plugin in use does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ActivityTold {
    /// `starting`, `running`, `backing_off`, `quarantined`.
    pub state: String,
    /// Calls that failed lately.
    pub strikes: u64,
    /// Of those: what counts towards the quarantine.
    pub strikes_counted: u64,
    /// With so many it is put there.
    pub strikes_max: u64,
    /// Why and for how long it gets no calls.
    pub quarantine: Option<QuarantineTold>,
    /// How often it was there since the agent started.
    pub quarantines: u64,
    /// Fingerprints that failed in a row.
    pub failures_in_a_row: u64,
    /// What went wrong last.
    pub last_error: Option<FailureTold>,
    /// When a call last answered.
    pub last_ok: Option<Timestamp>,
    /// When it is asked again.
    pub next_check: Option<Timestamp>,
}

/// A quarantine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QuarantineTold {
    /// Since when.
    pub since: Timestamp,
    /// When it is tried again; absent: when a person lifts it.
    pub until: Option<Timestamp>,
    /// What brought it here.
    pub reason: String,
    /// How often in a row it came back here.
    pub relapses: u64,
}

/// Something that went wrong.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FailureTold {
    /// When.
    pub at: Timestamp,
    /// What.
    pub reason: String,
}

/// How its upgrades went.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct UpgradeTold {
    /// When what runs was put in its place.
    pub upgraded_at: Option<Timestamp>,
    /// Until when what runs proves itself.
    pub proving_until: Option<Timestamp>,
    /// The last that was rolled back, and why.
    pub rolled_back: Option<Value>,
}

/// Why it is as it is.
#[must_use]
pub fn explain(record: &PluginHistory, now: Timestamp) -> Explanation {
    let kind = record.kind.as_deref().unwrap_or("plugin");
    let version = record.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let name = format!("{kind}{version}, {}", record.source);
    let mut told = Explanation::new(ExplainedKind::Plugin, record.name.clone(), name);
    let mut said = Vec::new();
    match record.status.state.as_str() {
        "loaded" => in_use(record, now, &mut said, &mut told),
        "refused" => {
            said.push(format!("it is refused and not in use: {}", record.status.reason));
            told.advise("mend that: ostler plugin inspect FILE says what it asks for, and which lines of the configuration grant it");
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

fn in_use(record: &PluginHistory, now: Timestamp, said: &mut Vec<String>, told: &mut Explanation) {
    let default = ActivityTold::default();
    let activity = record.activity.as_ref().unwrap_or(&default);
    match (&activity.quarantine, activity.state.as_str()) {
        (Some(quarantine), _) => quarantined(record, activity, quarantine, now, said, told),
        (None, "backing_off") => {
            let times = counted(activity.failures_in_a_row, "time");
            said.push(format!("it is backing off: its fingerprint failed {times} in a row"));
            let again = activity.next_check.map(|at| until(at, now));
            said.push(match again {
                Some(when) => format!("it is asked again {when}"),
                None => "it is asked again when what it watches changes".to_owned(),
            });
        }
        (None, "starting") => said.push("it is in use and was not heard of yet".to_owned()),
        (None, _) => said.push(health(record)),
    }
    if activity.quarantine.is_none() && activity.strikes > 0 {
        let left = activity.strikes_max.saturating_sub(activity.strikes_counted);
        said.push(format!(
            "{} of its calls failed lately; with {left} more it is put into quarantine",
            activity.strikes
        ));
        told.advise(format!(
            "ostler plugin record {} keeps its last calls for its author",
            record.name
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
                "it proves itself until {until}: failures bring the version before it back"
            ));
        }
        let why = upgrade.rolled_back.as_ref().and_then(|report| {
            report
                .pointer("/reason")
                .or(report.pointer("/why"))
                .or(report.pointer("/outcome/reason"))
        });
        if let Some(why) = why.and_then(Value::as_str) {
            said.push(format!("a newer version was taken back: {why}"));
        }
    }
    told.happened.sort_by_key(|one| one.at);
}

/// What it says of itself.
fn health(record: &PluginHistory) -> String {
    let Some(Health { state, reason }) = &record.health else { return "it is in use".to_owned() };
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match state {
        HealthState::Healthy => format!("it is in use and healthy{reason}"),
        HealthState::Unhealthy => format!("it is in use, and says that it is unhealthy{reason}"),
        HealthState::Undetected => {
            format!("it works, and finds nothing on this node that it is for{reason}")
        }
    }
}

fn quarantined(
    record: &PluginHistory,
    activity: &ActivityTold,
    quarantine: &QuarantineTold,
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
            "{} counted, {} are allowed",
            counted(activity.strikes_counted, "strike"),
            activity.strikes_max
        ));
    }
    if quarantine.relapses > 0 {
        said.push(format!(
            "it was tried again and failed {}",
            counted(quarantine.relapses, "time")
        ));
    }
    said.push(match quarantine.until {
        Some(at) => format!("it is tried again {}", until(at, now)),
        None => "it stays there until somebody lifts it".to_owned(),
    });
    told.note(quarantine.since, "put into quarantine");
    told.advise(format!("ostler plugin lift {} lets it be tried now", record.name));
    told.advise(format!(
        "ostler plugin upgrade {} --file FILE puts a mended version in its place",
        record.name
    ));
}
