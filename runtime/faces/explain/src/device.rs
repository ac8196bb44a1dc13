//! Explains the state of a device.

use ostler_model::device::{GroupKey, Health, HealthState, Locality};
use ostler_model::time::Timestamp;
use ostler_model::words::time_ago;
use serde::Deserialize;

use crate::commands;
use crate::words::sentence;
use crate::{Explanation, SubjectKind};

/// The records about a device, as the agent reports them (`/v1/ostler/devices`).
#[derive(Clone, Debug, Deserialize)]
pub struct DeviceHistory {
    /// Name of the device group it belongs to.
    pub group: GroupKey,
    /// The plugin that reports it.
    #[serde(default)]
    pub plugin: Option<String>,
    /// Why its statistics are old; absent where they are not.
    #[serde(default)]
    pub stale: Option<String>,
    /// The instance that the question is about.
    pub instance: InstanceFacts,
}

/// One device.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceFacts {
    /// Id of the instance, unique in its group.
    pub id: String,
    /// Its health; only healthy instances are assigned.
    pub health: Health,
    /// Where the device is in the machine.
    #[serde(default)]
    pub locality: Option<Locality>,
    /// The task that has it.
    #[serde(default)]
    pub holder: Option<HolderFacts>,
    /// The last measurement of it.
    #[serde(default)]
    pub stats: Option<MeasureFacts>,
}

/// The task that holds a device.
#[derive(Clone, Debug, Deserialize)]
pub struct HolderFacts {
    /// Id of the allocation.
    pub alloc: String,
    /// Name of the task in its allocation.
    pub task: String,
    /// Id of its job; absent where that is not known any longer.
    #[serde(default)]
    pub job: Option<String>,
    /// Something to add to the statement that it holds the device.
    #[serde(default)]
    pub note: Option<String>,
}

/// The last measurement of a device.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MeasureFacts {
    /// The time of the measurement.
    pub taken_at: Timestamp,
}

/// Explain the state of a device.
#[must_use]
pub fn explain(record: &DeviceHistory, now: Timestamp) -> Explanation {
    let DeviceHistory { group, plugin, stale, instance } = record;
    let by = match plugin {
        Some(plugin) => format!("reported by plugin {plugin}"),
        None => "reported by no plugin now".to_owned(),
    };
    let mut told = Explanation::new(SubjectKind::Device, format!("{group}/{}", instance.id), by);
    let mut said = Vec::new();
    let reason = match instance.health.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    said.push(match (instance.health.state, &instance.holder) {
        (HealthState::Healthy, None) => "it is healthy and free".to_owned(),
        (HealthState::Healthy, Some(_)) => "it is healthy and held".to_owned(),
        (HealthState::Unhealthy, _) => format!("it is not healthy, and no task gets it{reason}"),
        (HealthState::Undetected, _) => format!("it is no longer there{reason}"),
    });
    if instance.health.state != HealthState::Healthy {
        match plugin {
            Some(plugin) => told.advise(format!(
                "{} shows the state of the plugin that reports it",
                commands::explain_plugin(plugin)
            )),
            None => told.advise(format!(
                "{} shows the state of the plugin that reported it",
                commands::plugins_status()
            )),
        }
    }
    if let Some(HolderFacts { alloc, task, job, note }) = &instance.holder {
        let short = alloc.get(..8).unwrap_or(alloc);
        let of = job.as_ref().map(|job| format!(" of job {job}")).unwrap_or_default();
        said.push(format!(
            "task {task} of allocation {short}{of} has it until that allocation ends"
        ));
        said.extend(note.iter().map(|note| format!("of this: {note}")));
        told.advise(match job {
            // An allocation that is stopped alone is replaced by its job.
            Some(job) => format!("{} gives it back", commands::stop_job(job)),
            None => format!("{} gives it back", commands::stop_alloc(short)),
        });
    }
    if let Some(stale) = stale {
        let since = instance.stats.map(|stats| format!(" of {}", time_ago(stats.taken_at, now)));
        said.push(format!("its measurements{} are old: {stale}", since.unwrap_or_default()));
    }
    told.because = said.iter().map(|text| sentence(text)).collect();
    told
}
