//! Why each device request of a job gets what it gets, for those who plan.

use serde::{Deserialize, Serialize};

use super::tried::Tried;
use ostler_device::matching::Explained;
use ostler_model::ids::{GroupName, TaskName};
use ostler_model::limits::PLAN_DEVICE_REQUESTS_MAX;

/// One device request of one task of one allocation, explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceExplanation {
    /// The task group.
    pub group: GroupName,
    /// Index of the allocation in it.
    pub index: u32,
    /// The task.
    pub task: TaskName,
    /// Every candidate and the choice.
    #[serde(flatten)]
    pub explained: Explained,
}

/// The explanations of a plan, in the order of the job file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicePlan {
    /// At most [`PLAN_DEVICE_REQUESTS_MAX`].
    pub requests: Vec<DeviceExplanation>,
    /// Requests that are not explained, because there are too many.
    pub left_out: usize,
}

impl DevicePlan {
    /// Name those that were only tried by their names.
    pub(crate) fn name(&mut self, tried: &Tried<'_>) {
        let all = self.requests.iter_mut().flat_map(|request| &mut request.explained.candidates);
        all.for_each(|candidate| {
            candidate.why = tried.name_in(std::mem::take(&mut candidate.why));
        });
    }

    /// Note a request, while there is room.
    pub(super) fn add(
        &mut self,
        group: &GroupName,
        index: u32,
        task: &TaskName,
        explain: impl FnOnce() -> Explained,
    ) {
        if self.requests.len() >= PLAN_DEVICE_REQUESTS_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        let (group, task) = (group.clone(), task.clone());
        self.requests.push(DeviceExplanation { group, index, task, explained: explain() });
    }
}
