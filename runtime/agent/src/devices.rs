//! Devices as people see them: statistics, holders, claims.

use super::AgentHandle;
use ostler_device::ledger::DeviceLedger;
use ostler_device::manager::ClaimReport;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::TaskStatus;

impl AgentHandle {
    /// Newest statistics of every device of the node, by group. A group whose plugin does not
    /// measure is not among them; one whose plugin fails says so.
    #[must_use]
    pub fn device_stats(&self) -> Vec<DeviceGroupStats> {
        self.0.devices.all_stats()
    }

    /// Newest statistics of the devices of an allocation's running tasks, by group: what several
    /// tasks have of one group is one group. `None`: there is no such allocation.
    #[must_use]
    pub fn alloc_device_stats(&self, alloc: AllocId) -> Option<Vec<DeviceGroupStats>> {
        self.device_stats_of(alloc, |_| true)
    }

    /// As [`AgentHandle::alloc_device_stats`], for one task; none when it does not run.
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

    /// Who holds which device instance: running allocations, and those that are over while a
    /// plugin was not told of it yet.
    #[must_use]
    pub fn device_holders(&self) -> DeviceLedger {
        self.0.control.device_holders()
    }

    /// Where the tasks that hold devices are with their plugins.
    #[must_use]
    pub fn device_claims(&self) -> Vec<ClaimReport> {
        self.0.devices.claims()
    }
}
