//! States of an allocation → what is new in them. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::report::{Label, Report};
use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;

/// Longest label, characters: a longer one would leave no room for the line.
const LABEL_CHARS_MAX: usize = 40;

/// The labels of every task of every allocation, in the same order. All are equally wide.
pub(super) fn labels(allocations: &[&Allocation]) -> Vec<BTreeMap<TaskName, Arc<Label>>> {
    let several = allocations.len() > 1;
    let name = |allocation: &Allocation, task: &TaskName| {
        let name = match several {
            true => format!("{}[{}]/{task}", allocation.group, allocation.index),
            false => task.to_string(),
        };
        name.chars().take(LABEL_CHARS_MAX).collect::<String>()
    };
    let tasks = |allocation: &Allocation| -> Vec<TaskName> {
        let group = allocation.task_group();
        group.map(|g| g.tasks.iter().map(|t| t.name.clone()).collect()).unwrap_or_default()
    };
    let names = allocations.iter().flat_map(|a| tasks(a).into_iter().map(|t| name(a, &t)));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let mut number = 0;
    let mut labelled = Vec::with_capacity(allocations.len());
    for allocation in allocations {
        let mut of_tasks = BTreeMap::new();
        for task in tasks(allocation) {
            let text = format!("{:width$}", name(allocation, &task));
            of_tasks.insert(task, Arc::new(Label { text, number }));
            number += 1;
        }
        labelled.push(of_tasks);
    }
    labelled
}

/// What was told of one allocation.
pub(super) struct Seen {
    allocation: Arc<Allocation>,
    labels: BTreeMap<TaskName, Arc<Label>>,
    status: ClientStatus,
    events: BTreeMap<TaskName, Vec<TaskEvent>>,
}

impl Seen {
    /// Nothing was told.
    pub(super) fn new(allocation: Arc<Allocation>, labels: BTreeMap<TaskName, Arc<Label>>) -> Self {
        Self { allocation, labels, status: ClientStatus::default(), events: BTreeMap::new() }
    }

    /// What is new in `state`, in order of time.
    pub(super) fn update(&mut self, state: &AllocState) -> Vec<Report> {
        let alloc = self.allocation.id;
        let mut news = Vec::new();
        for (task, state) in state.tasks.iter() {
            let Some(label) = self.labels.get(task) else {
                continue;
            };
            let told = self.events.entry(task.clone()).or_default();
            let (fresh, missed) = fresh_events(told, &state.events);
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
            told.clone_from(&state.events);
        }
        // Stable: events of one task stay in their order.
        news.sort_by_key(|(at, _)| *at);
        let mut news: Vec<Report> = news.into_iter().map(|(_, report)| report).collect();
        if state.client_status != self.status {
            self.status = state.client_status;
            news.push(Report::Status {
                alloc,
                name: self.allocation.name.clone(),
                status: state.client_status,
                description: state.client_description.clone(),
            });
        }
        news
    }
}

/// The events of `now` that come after those of `told`, and whether some between were lost. A
/// task keeps only its newest events, so the beginning of `told` may be gone.
fn fresh_events<'a>(told: &[TaskEvent], now: &'a [TaskEvent]) -> (&'a [TaskEvent], bool) {
    for gone in 0..=told.len() {
        let kept = told.get(gone..).unwrap_or_default();
        if let Some(fresh) = now.strip_prefix(kept) {
            // Nothing of what was told is left: whatever came between is lost.
            let missed = kept.is_empty() && !told.is_empty() && !fresh.is_empty();
            return (fresh, missed);
        }
    }
    (now, !told.is_empty())
}

#[cfg(test)]
mod tests;
