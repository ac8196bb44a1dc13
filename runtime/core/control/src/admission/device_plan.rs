//! Explains in a plan why each device request of a job gets what it gets.

use serde::{Deserialize, Serialize};

use super::attempt_names::AttemptNames;
use ostler_device::matching::RequestExplanation;
use ostler_model::ids::{GroupName, TaskName};
use ostler_model::limits::PLAN_DEVICE_REQUESTS_MAX;

/// The explanation of one device request of one task of one allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceExplanation {
    /// Name of the task group.
    pub group: GroupName,
    /// Index of the allocation in its group.
    pub index: u32,
    /// Name of the task that asks.
    pub task: TaskName,
    /// Every candidate, and the choice.
    #[serde(flatten)]
    pub explained: RequestExplanation,
}

/// The explanations of a plan, in the order of the job file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicePlan {
    /// At most [`PLAN_DEVICE_REQUESTS_MAX`] explanations.
    pub requests: Vec<DeviceExplanation>,
    /// Number of requests that are not explained, because there are too many.
    pub left_out: usize,
}

impl DevicePlan {
    /// Replace the ids of allocations that were only tried by their names.
    pub(crate) fn name(&mut self, tried: &AttemptNames<'_>) {
        let all = self.requests.iter_mut().flat_map(|request| &mut request.explained.candidates);
        all.for_each(|candidate| {
            candidate.why = tried.replace_ids(std::mem::take(&mut candidate.why));
        });
    }

    /// Add the explanation of a request, while there is room.
    pub(super) fn add(
        &mut self,
        group: &GroupName,
        index: u32,
        task: &TaskName,
        explain: impl FnOnce() -> RequestExplanation,
    ) {
        if self.requests.len() >= PLAN_DEVICE_REQUESTS_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        let (group, task) = (group.clone(), task.clone());
        self.requests.push(DeviceExplanation { group, index, task, explained: explain() });
    }
}
