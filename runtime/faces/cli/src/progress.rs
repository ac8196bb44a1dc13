//! From the states of an allocation, in this process or over HTTP, to reports of what is new. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::report::{Label, PlacementReport, RunReport};
use ostler_model::alloc::{AllocState, ClientStatus};
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;
use ostler_model::job::Job;
use ostler_model::task::TaskState;

/// Longest label, characters: a longer one would leave no room for the text of the line.
const LABEL_CHARS_MAX: usize = 40;

/// The labels of the tasks of an allocation, by the name of the task.
pub(super) type Labels = BTreeMap<TaskName, Arc<Label>>;

/// The labels for every allocation of a job, by the name of the allocation. All are equally wide.
pub(super) fn labels(job: &Job) -> BTreeMap<String, Labels> {
    let several = job.groups.iter().map(|group| group.count).sum::<u32>() > 1;
    let mut labelled: BTreeMap<String, Labels> = BTreeMap::new();
    let (mut number, mut width) = (0, 0);
    for group in &job.groups {
        for index in 0..group.count {
            let place = format!("{}[{index}]", group.name);
            let mut of_tasks = Labels::new();
            for task in group.tasks.iter().map(|task| &task.name) {
                let text = if several { format!("{place}/{task}") } else { task.to_string() };
                let text: String = text.chars().take(LABEL_CHARS_MAX).collect();
                width = width.max(text.chars().count());
                of_tasks.insert(task.clone(), Arc::new(Label { text, number }));
                number += 1;
            }
            labelled.insert(format!("{}.{place}", job.id), of_tasks);
        }
    }
    for label in labelled.values_mut().flat_map(BTreeMap::values_mut) {
        let Label { text, number } = &**label;
        *label = Arc::new(Label { text: format!("{text:width$}"), number: *number });
    }
    labelled
}

/// What was already reported of one allocation.
pub(super) struct AllocProgress {
    placed: PlacementReport,
    labels: Labels,
    /// Whether its placement was reported, or is no news.
    told: bool,
    status: ClientStatus,
    healthy: Option<bool>,
    /// The number of events reported of each task.
    events: BTreeMap<TaskName, u64>,
}

impl AllocProgress {
    /// The state before the first report.
    pub(super) fn new(placed: PlacementReport, labels: Labels) -> Self {
        let (status, events) = (ClientStatus::default(), BTreeMap::new());
        Self { placed, labels, told: false, status, healthy: None, events }
    }

    /// The state for an allocation that was there before: what happened to it up to `state`
    /// is no news.
    pub(super) fn skip_known(self, state: &AllocState) -> Self {
        let events = state.tasks.iter().map(|(name, task)| (name.clone(), task.events_total));
        Self { told: true, events: events.collect(), ..self }
    }

    /// Reports of what is new in `state`, in order of time.
    pub(super) fn update(&mut self, state: &AllocState) -> Vec<RunReport> {
        let (alloc, mut news) = (self.placed.alloc, Vec::new());
        for (task, state) in state.tasks.iter() {
            let Some(label) = self.labels.get(task) else { continue };
            let told = self.events.insert(task.clone(), state.events_total).unwrap_or(0);
            let (fresh, missed) = fresh_events(state, told);
            if missed {
                let at = fresh.first().map(|event| event.time).unwrap_or_default();
                let (task, label) = (task.clone(), Arc::clone(label));
                news.push((at, RunReport::EventsMissed { alloc, task, label }));
            }
            for event in fresh {
                let (task, label) = (task.clone(), Arc::clone(label));
                let at = event.time;
                news.push((at, RunReport::Event { alloc, task, event: event.clone(), label }));
            }
        }
        // Stable: events of one task stay in their order.
        news.sort_by_key(|(at, _)| *at);
        let placed = (!self.told).then(|| RunReport::Placed(self.placed.clone()));
        self.told = true;
        let mut news: Vec<RunReport> =
            placed.into_iter().chain(news.into_iter().map(|(_, report)| report)).collect();
        // An allocation is pending again between two of its tasks, or between two runs of one. The
        // events of the tasks say that already.
        let between =
            (self.status, state.client_status) == (ClientStatus::Running, ClientStatus::Pending);
        if state.client_status != self.status && !between {
            self.status = state.client_status;
            news.push(RunReport::Status {
                alloc,
                name: self.placed.name.clone(),
                status: state.client_status,
                description: state.client_description.clone(),
            });
        }
        let healthy = state.health.as_ref().and_then(|health| health.healthy);
        if healthy != self.healthy {
            self.healthy = healthy;
            let name = self.placed.name.clone();
            news.extend(healthy.map(|healthy| RunReport::Health { alloc, name, healthy }));
        }
        news
    }
}

/// The events after the first `told` of all events, and whether some of those are not
/// kept any more.
fn fresh_events(state: &TaskState, told: u64) -> (&[TaskEvent], bool) {
    let kept = u64::try_from(state.events.len()).unwrap_or(u64::MAX);
    let gone = state.events_total.saturating_sub(kept);
    let begin = usize::try_from(told.saturating_sub(gone)).unwrap_or(usize::MAX);
    (state.events.get(begin..).unwrap_or_default(), told < gone)
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
