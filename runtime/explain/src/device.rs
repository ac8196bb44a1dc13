//! Why a device is as it is.

use ostler_model::device::{GroupKey, Health, HealthState, Locality};
use ostler_model::time::Timestamp;
use serde::Deserialize;

use crate::commands;
use crate::words::{ago, sentence};
use crate::{ExplainedKind, Explanation};

/// What is on record of a device, as the agent tells it (`/v1/ostler/devices`).
#[derive(Clone, Debug, Deserialize)]
pub struct DeviceHistory {
    /// Its group.
    pub group: GroupKey,
    /// The plugin that reports it.
    #[serde(default)]
    pub plugin: Option<String>,
    /// Why its statistics are old.
    #[serde(default)]
    pub stale: Option<String>,
    /// Of all instances the one that is asked about.
    pub instance: InstanceTold,
}

/// One device.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceTold {
    /// Unique in its group.
    pub id: String,
    /// Only healthy ones are assigned.
    pub health: Health,
    /// Where it sits in the machine.
    #[serde(default)]
    pub locality: Option<Locality>,
    /// Who has it.
    #[serde(default)]
    pub holder: Option<HolderTold>,
    /// What it measured last.
    #[serde(default)]
    pub stats: Option<MeasureTold>,
}

/// Who holds a device.
#[derive(Clone, Debug, Deserialize)]
pub struct HolderTold {
    /// The allocation.
    pub alloc: String,
    /// Its task.
    pub task: String,
    /// Its job; absent where that is not known any longer.
    #[serde(default)]
    pub job: Option<String>,
    /// What is to be said beyond that it holds the device.
    #[serde(default)]
    pub note: Option<String>,
}

/// When it was measured.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MeasureTold {
    /// When.
    pub taken_at: Timestamp,
}

/// Why it is as it is.
#[must_use]
pub fn explain(record: &DeviceHistory, now: Timestamp) -> Explanation {
    let DeviceHistory { group, plugin, stale, instance } = record;
    let by = match plugin {
        Some(plugin) => format!("reported by plugin {plugin}"),
        None => "reported by no plugin now".to_owned(),
    };
    let mut told = Explanation::new(ExplainedKind::Device, format!("{group}/{}", instance.id), by);
    let mut said = Vec::new();
    let reason = match instance.health.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    said.push(match (instance.health.state, &instance.holder) {
        (HealthState::Healthy, None) => "it is healthy and free".to_owned(),
        (HealthState::Healthy, Some(_)) => "it is healthy and held".to_owned(),
        (HealthState::Unhealthy, _) => format!("it is not healthy, and no task gets it{reason}"),
        (HealthState::Undetected, _) => format!("it is not there any longer{reason}"),
    });
    if instance.health.state != HealthState::Healthy {
        match plugin {
            Some(plugin) => told.advise(format!(
                "{} says how the plugin does that reports it",
                commands::explain_plugin(plugin)
            )),
            None => told.advise(format!(
                "{} says how the plugin does that reported it",
                commands::plugins_status()
            )),
        }
    }
    if let Some(HolderTold { alloc, task, job, note }) = &instance.holder {
        let short = alloc.get(..8).unwrap_or(alloc);
        let of = job.as_ref().map(|job| format!(" of job {job}")).unwrap_or_default();
        said.push(format!(
            "task {task} of allocation {short}{of} has it until that allocation ends"
        ));
        said.extend(note.iter().map(|note| format!("of this: {note}")));
        told.advise(match job {
            // In the place of one that is stopped alone the job puts another.
            Some(job) => format!("{} gives it back", commands::stop_job(job)),
            None => format!("{} gives it back", commands::stop_alloc(short)),
        });
    }
    if let Some(stale) = stale {
        let since = instance.stats.map(|stats| format!(" of {}", ago(stats.taken_at, now)));
        said.push(format!("its measurements{} are old: {stale}", since.unwrap_or_default()));
    }
    told.because = said.iter().map(|text| sentence(text)).collect();
    told
}
