//! Devices as people see them: statistics, holders, claims.

use super::AgentHandle;
use ostler_device::ledger::DeviceLedger;
use ostler_device::manager::ClaimReport;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::TaskStatus;

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
        let view = self.alloc(alloc)?;
        let runs = |task: &TaskName| {
            view.state.tasks.get(task).is_some_and(|state| state.status == TaskStatus::Running)
        };
        let assigned = view.allocation.devices.iter();
        let devices =
            assigned.filter(|(task, _)| wanted(task) && runs(task)).flat_map(|(_, of)| of);
        Some(self.0.devices.stats_of(devices))
    }

    /// Which allocation holds which device instance: running allocations, and those that are over
    /// while a plugin does not know it yet.
    #[must_use]
    pub fn device_holders(&self) -> DeviceLedger {
        self.0.control.device_holders()
    }

    /// The claims of the tasks that hold devices, with the progress of each at its plugin.
    #[must_use]
    pub fn device_claims(&self) -> Vec<ClaimReport> {
        self.0.devices.claims()
    }
}
