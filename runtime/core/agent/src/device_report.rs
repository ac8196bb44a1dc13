//! Every device of the node: its description, its health, its holder and its measurements.
//!
//! ```text
//! node view ── groups, health, locality ─┐
//! ledger ───── holders ──────────────────┼─► DeviceGroupReport ─► API, CLI
//! managers ─── statistics, staleness ────┘
//! ```
//! An assigned device stays in the list when no plugin reports it any longer, because its holder
//! still holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::AgentHandle;
use ostler_device::ledger::{DeviceLedger, InstanceHolder};
use ostler_device::manager::{ClaimReport, ClaimState};
use ostler_model::attribute::NamedAttribute;
use ostler_model::device::{DeviceGroup, GroupKey, Health, HealthState, Locality};
use ostler_model::ids::{AllocId, JobId, PluginName, TaskName};
use ostler_model::stats::{DeviceGroupStats, InstanceStats};
use ostler_model::task::TaskStatus;

/// A device group and its instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceGroupReport {
    /// The vendor, the type and the name that the instances share.
    pub group: GroupKey,
    /// The plugin that reports the group; `None` if none does now but somebody holds an instance.
    pub plugin: Option<PluginName>,
    /// The attributes that constraints may refer to, sorted by name.
    pub attributes: Vec<NamedAttribute>,
    /// Why the statistics are not what the devices measure now; `None` if they are, or if there
    /// are none.
    pub stale: Option<String>,
    /// The instances, sorted by id.
    pub instances: Vec<DeviceReport>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Unique in its group.
    pub id: String,
    /// The health of the instance. Only healthy instances are assigned.
    pub health: Health,
    /// Where the device sits in the machine.
    pub locality: Option<Locality>,
    /// Who holds the device; `None` if nobody does.
    pub holder: Option<DeviceHolder>,
    /// The last measurements of the device; `None` if it has none.
    pub stats: Option<Arc<InstanceStats>>,
}

/// Who holds a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHolder {
    /// The id of the allocation.
    pub alloc: AllocId,
    /// The name of the task in that allocation.
    pub task: TaskName,
    /// The job of the allocation; `None` if the allocation is not known any longer.
    pub job: Option<JobId>,
    /// A remark beyond that the device is held: plugins are still being asked, or do not know yet
    /// that the task has ended, and why.
    pub note: Option<String>,
}

impl AgentHandle {
    /// The newest statistics of every device of the node, by group. A group whose plugin does not
    /// measure is left out; a group whose plugin fails says so.
    #[must_use]
    pub fn device_stats(&self) -> Vec<DeviceGroupStats> {
        self.0.devices.all_stats()
    }

    /// The newest statistics of the devices of an allocation's running tasks, by group.
    /// Devices of one group that several tasks hold form one group. Returns `None` if there is
    /// no such allocation.
    #[must_use]
    pub fn alloc_device_stats(&self, alloc: AllocId) -> Option<Vec<DeviceGroupStats>> {
        self.device_stats_of(alloc, |_| true)
    }

    /// The same as [`AgentHandle::alloc_device_stats`] for one task; `None` if it does not run.
    #[must_use]
    pub fn task_device_stats(
        &self,
        alloc: AllocId,
        task: &TaskName,
    ) -> Option<Vec<DeviceGroupStats>> {
        self.device_stats_of(alloc, |name| name == task)
    }

    fn device_stats_of(
        &self,
        alloc: AllocId,
        wanted: impl Fn(&TaskName) -> bool,
    ) -> Option<Vec<DeviceGroupStats>> {
        let view = self.0.control.alloc(alloc)?;
        let runs = |task: &TaskName| {
            view.state.tasks.get(task).is_some_and(|state| state.status == TaskStatus::Running)
        };
        let assigned = view.allocation.devices.iter();
        let devices =
            assigned.filter(|(task, _)| wanted(task) && runs(task)).flat_map(|(_, of)| of);
        Some(self.0.devices.stats_of(devices))
    }

    /// The claims of the tasks that hold devices, with the progress of each at its plugin.
    #[must_use]
    pub fn device_claims(&self) -> Vec<ClaimReport> {
        self.0.devices.claims()
    }

    /// Every device of the node, by group and id.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceGroupReport> {
        let (node, ledger) = (self.node(), self.0.control.device_holders());
        let (stats, claims) = (self.device_stats(), self.device_claims());
        let holder = |InstanceHolder { alloc, task }: InstanceHolder| {
            let job_of = |entry: &ostler_control::AllocEntry| entry.allocation.job.id.clone();
            let job = self.0.control.read_tables(|tables| tables.alloc(alloc).map(job_of));
            let mut claims = claims.iter();
            let claim = claims.find(|claim| claim.alloc == alloc && claim.task == task);
            DeviceHolder { alloc, task, job, note: claim.and_then(claim_note) }
        };
        report(&node.devices, &ledger, &stats, holder)
    }
}

/// The remark on a claim that is neither released nor simply held.
fn claim_note(claim: &ClaimReport) -> Option<String> {
    let because = |text: &str| match &claim.last_error {
        Some(error) => format!("{text}: {error}"),
        None => text.to_owned(),
    };
    match claim.state {
        ClaimState::Reserved => None,
        ClaimState::Reserving => Some("its plugin is being asked".to_owned()),
        ClaimState::Claimed => claim.last_error.is_some().then(|| because("not reserved")),
        ClaimState::Releasing if claim.tries > 1 => Some(because(&format!(
            "its plugin could not be told of the end in {} tries",
            claim.tries
        ))),
        ClaimState::Releasing => Some(because("its plugin is being told of the end")),
    }
}

/// Combine what the node, the ledger and the managers know of devices.
fn report(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    stats: &[DeviceGroupStats],
    holder: impl Fn(InstanceHolder) -> DeviceHolder,
) -> Vec<DeviceGroupReport> {
    let mut reports: BTreeMap<&GroupKey, DeviceGroupReport> = BTreeMap::new();
    for group in groups {
        let stats = stats.iter().find(|stats| stats.key == group.key);
        let mut instances: Vec<DeviceReport> = group
            .instances
            .iter()
            .map(|instance| DeviceReport {
                id: instance.id.clone(),
                health: instance.health.clone(),
                locality: instance.locality.clone(),
                holder: None,
                stats: stats.and_then(|stats| stats.instances.get(&instance.id)).cloned(),
            })
            .collect();
        instances.sort_by(|a, b| a.id.cmp(&b.id));
        let report = DeviceGroupReport {
            group: group.key.clone(),
            plugin: Some(group.plugin.clone()),
            attributes: group.attributes.clone(),
            stale: stats.and_then(|stats| stats.stale.clone()),
            instances,
        };
        reports.insert(&group.key, report);
    }
    let mut reports: Vec<DeviceGroupReport> = reports.into_values().collect();
    for held in ledger.holders() {
        set_holder(&mut reports, held.group, held.instance, holder(held.holder));
    }
    reports.sort_by(|a, b| a.group.cmp(&b.group));
    reports
}

/// Set the holder of an instance, also of one that no plugin reports.
fn set_holder(
    reports: &mut Vec<DeviceGroupReport>,
    key: GroupKey,
    id: String,
    holder: DeviceHolder,
) {
    let at = reports.iter().position(|report| report.group == key).unwrap_or_else(|| {
        let attributes = Vec::new();
        let (plugin, stale, instances) = (None, None, Vec::new());
        reports.push(DeviceGroupReport { group: key, plugin, attributes, stale, instances });
        reports.len() - 1
    });
    let Some(report) = reports.get_mut(at) else { return };
    if let Some(known) = report.instances.iter_mut().find(|instance| instance.id == id) {
        known.holder = Some(holder);
        return;
    }
    let reason = "no plugin reports it now".to_owned();
    report.instances.push(DeviceReport {
        id,
        health: Health { state: HealthState::Undetected, reason },
        locality: None,
        holder: Some(holder),
        stats: None,
    });
    report.instances.sort_by(|a, b| a.id.cmp(&b.id));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use ostler_model::device::DeviceInstance;
    use ostler_model::resources::AllocatedDevice;

    fn key(name: &str) -> GroupKey {
        GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() }
    }

    #[test]
    fn a_claim_that_is_not_simply_held_is_explained() {
        let claim = |state, tries, error: Option<&str>| {
            claim_note(&ClaimReport {
                alloc: AllocId::new(uuid::Uuid::nil()),
                task: TaskName::new("t").unwrap(),
                devices: vec![],
                state,
                tries,
                last_error: error.map(str::to_owned),
            })
        };
        assert_eq!(claim(ClaimState::Reserved, 0, Some("before")), None);
        assert_eq!(claim(ClaimState::Claimed, 0, None), None);
        assert_eq!(claim(ClaimState::Claimed, 0, Some("no")).unwrap(), "not reserved: no");
        let late = claim(ClaimState::Releasing, 3, Some("it hangs")).unwrap();
        assert_eq!(late, "its plugin could not be told of the end in 3 tries: it hangs");
    }

    #[test]
    fn a_device_is_told_with_its_holder_and_what_it_measures_also_one_that_is_gone() {
        let instance = |id: &str| DeviceInstance {
            id: id.into(),
            health: Health { state: HealthState::Healthy, reason: String::new() },
            locality: None,
        };
        let group = DeviceGroup {
            key: key("b"),
            plugin: PluginName::new("files").unwrap(),
            instances: vec![instance("1"), instance("0")],
            attributes: vec![],
        };
        let alloc = AllocId::new(uuid::Uuid::from_u128(7));
        let holder = InstanceHolder { alloc, task: TaskName::new("train").unwrap() };
        let mut ledger = DeviceLedger::default();
        let held =
            |name: &str, id: &str| AllocatedDevice { group: key(name), ids: vec![id.into()] };
        ledger.claim(&holder, &[held("b", "0"), held("b", "9"), held("a", "0")]).unwrap();
        let measured = Arc::new(InstanceStats::default());
        let stats = DeviceGroupStats {
            key: key("b"),
            instances: BTreeMap::from([("1".to_owned(), Arc::clone(&measured))]),
            stale: Some("late".into()),
        };
        let reports = report(&[group], &ledger, &[stats], |InstanceHolder { alloc, task }| {
            let job = JobId::new("web").ok();
            DeviceHolder { alloc, task, job, note: None }
        });
        let seen: Vec<_> = reports
            .iter()
            .flat_map(|group| {
                group.instances.iter().map(move |one| {
                    let held = one.holder.is_some();
                    (group.group.name.as_str(), one.id.as_str(), one.health.state, held)
                })
            })
            .collect();
        use HealthState::{Healthy, Undetected};
        assert_eq!(
            seen,
            [
                ("a", "0", Undetected, true),
                ("b", "0", Healthy, true),
                ("b", "1", Healthy, false),
                ("b", "9", Undetected, true),
            ]
        );
        assert_eq!((reports[0].plugin.as_ref(), reports[1].stale.as_deref()), (None, Some("late")));
        assert_eq!(reports[1].instances[1].stats, Some(measured));
        let holder = reports[1].instances[0].holder.clone().unwrap();
        assert_eq!((holder.alloc, holder.job), (alloc, JobId::new("web").ok()));
    }
}
