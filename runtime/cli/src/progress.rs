//! What is seen of an allocation, in this process or over HTTP → what is new in it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::report::{Label, Placed, Report};
use ostler_model::alloc::{AllocState, ClientStatus};
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;
use ostler_model::job::Job;
use ostler_model::task::TaskState;

/// Longest label, characters: a longer one would leave no room for the line.
const LABEL_CHARS_MAX: usize = 40;

/// The labels of the tasks of an allocation.
pub(super) type Labels = BTreeMap<TaskName, Arc<Label>>;

/// The labels of every allocation of a job, by its name. All are equally wide.
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

/// What was told of one allocation.
pub(super) struct Seen {
    placed: Placed,
    labels: Labels,
    /// That it was placed is told, or is no news.
    told: bool,
    status: ClientStatus,
    healthy: Option<bool>,
    /// Events told of each task.
    events: BTreeMap<TaskName, u64>,
}

impl Seen {
    /// Nothing was told.
    pub(super) fn new(placed: Placed, labels: Labels) -> Self {
        let (status, events) = (ClientStatus::default(), BTreeMap::new());
        Self { placed, labels, told: false, status, healthy: None, events }
    }

    /// The same of an allocation that was there before: what happened to it until `state` is no news.
    pub(super) fn since(self, state: &AllocState) -> Self {
        let events = state.tasks.iter().map(|(name, task)| (name.clone(), task.events_total));
        Self { told: true, events: events.collect(), ..self }
    }

    /// What is new in `state`, in order of time.
    pub(super) fn update(&mut self, state: &AllocState) -> Vec<Report> {
        let (alloc, mut news) = (self.placed.alloc, Vec::new());
        for (task, state) in state.tasks.iter() {
            let Some(label) = self.labels.get(task) else { continue };
            let told = self.events.insert(task.clone(), state.events_total).unwrap_or(0);
            let (fresh, missed) = fresh_events(state, told);
            if missed {
                let at = fresh.first().map(|event| event.time).unwrap_or_default();
                let (task, label) = (task.clone(), Arc::clone(label));
                news.push((at, Report::EventsMissed { alloc, task, label }));
            }
            for event in fresh {
                let (task, label) = (task.clone(), Arc::clone(label));
                let at = event.time;
                news.push((at, Report::Event { alloc, task, event: event.clone(), label }));
            }
        }
        // Stable: events of one task stay in their order.
        news.sort_by_key(|(at, _)| *at);
        let placed = (!self.told).then(|| Report::Placed(self.placed.clone()));
        self.told = true;
        let mut news: Vec<Report> =
            placed.into_iter().chain(news.into_iter().map(|(_, report)| report)).collect();
        // Between two of its tasks, or two runs of one, an allocation is pending again: its tasks' events say that.
        let between =
            (self.status, state.client_status) == (ClientStatus::Running, ClientStatus::Pending);
        if state.client_status != self.status && !between {
            self.status = state.client_status;
            news.push(Report::Status {
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
            news.extend(healthy.map(|healthy| Report::Health { alloc, name, healthy }));
        }
        news
    }
}

/// The events after the first `told` that ever were, and whether some of them are not kept any more.
fn fresh_events(state: &TaskState, told: u64) -> (&[TaskEvent], bool) {
    let kept = u64::try_from(state.events.len()).unwrap_or(u64::MAX);
    let gone = state.events_total.saturating_sub(kept);
    let begin = usize::try_from(told.saturating_sub(gone)).unwrap_or(usize::MAX);
    (state.events.get(begin..).unwrap_or_default(), told < gone)
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
