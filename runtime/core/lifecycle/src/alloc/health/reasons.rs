//! The texts of a verdict. They name the tasks and checks that are to blame, and no others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{CheckId, CheckResult, Duty, HealthMachine, HealthVerdict, WatchedTask};
use ostler_model::ids::TaskName;
use ostler_model::limits::{HEALTH_REASON_BYTES_MAX, HEALTH_TEXT_BYTES_MAX};
use ostler_model::printable::printable_line;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_text::duration::short_duration;

/// Bytes of a quoted output or event, so that what comes after it in a reason is not cut off.
const QUOTE_BYTES_MAX: usize = 256;

/// Reasons against a task (`Some`) or the group as a whole.
type Reasons = Vec<(Option<TaskName>, String)>;

/// Text of the event that made a task fail, or else of its newest event.
pub(super) fn last_event(state: &TaskState) -> String {
    let failing = state.events.iter().rev().find(|event| event.fails_task);
    let event = failing.or(state.events.last());
    let of_event = |event: &ostler_model::event::TaskEvent| match event.message.as_str() {
        "" => event.kind.as_str().to_owned(),
        message => format!("{}: {message}", event.kind),
    };
    cut(event.map(of_event).unwrap_or_default(), QUOTE_BYTES_MAX)
}

impl HealthMachine {
    pub(super) fn healthy_verdict(&self) -> HealthVerdict {
        let time = short_duration(self.policy.min_healthy_time);
        let text = match self.expected.len() {
            0 => format!("all tasks have run for {time}"),
            1 => format!("all tasks have run and the check has passed for {time}"),
            n => format!("all tasks have run and all {n} checks have passed for {time}"),
        };
        HealthVerdict { healthy: true, text, tasks: Vec::new() }
    }

    pub(super) fn requested_verdict(&self, healthy: bool) -> HealthVerdict {
        let text = if healthy { "set healthy by request" } else { "set unhealthy by request" };
        let tasks = if healthy {
            Vec::new()
        } else {
            self.main_tasks().map(|task| (task.clone(), text.to_owned())).collect()
        };
        HealthVerdict { healthy, text: text.to_owned(), tasks }
    }

    /// The verdict when some task can no longer become good.
    pub(super) fn broken_verdict(&self) -> HealthVerdict {
        let broken = self.tasks.iter().filter(|task| task.is_broken());
        let reason = |task: &WatchedTask| {
            let what =
                if task.failed { "the task failed" } else { "the task ended but should run" };
            (Some(task.name.clone()), with_last_event(what.to_owned(), task))
        };
        self.unhealthy_verdict(broken.map(reason).collect())
    }

    /// The verdict when the deadline is over.
    pub(super) fn late_verdict(&self, now: Timestamp) -> HealthVerdict {
        let mut reasons: Reasons = Vec::new();
        for task in &self.tasks {
            reasons.extend(
                self.late_task_reason(task).map(|reason| (Some(task.name.clone()), reason)),
            );
        }
        for id in &self.expected {
            reasons.extend(self.late_check_reason(id, now).map(|reason| (id.task.clone(), reason)));
        }
        self.unhealthy_verdict(reasons)
    }

    fn late_task_reason(&self, task: &WatchedTask) -> Option<String> {
        let deadline = short_duration(self.policy.healthy_deadline);
        if !task.is_good() {
            let what = match (task.duty, task.status) {
                (Duty::Run, _) => "the task does not run",
                (Duty::Succeed, TaskStatus::Running) => "the task has not finished yet",
                (Duty::Succeed, _) => "the task has not run yet",
            };
            return Some(with_last_event(
                format!("{what} at the healthy_deadline of {deadline}"),
                task,
            ));
        }
        let since = task.good_since().filter(|since| self.too_late(*since))?;
        let (ran, least) = (self.until_deadline(since), self.policy.min_healthy_time);
        Some(format!(
            "the task had run for {ran} at the healthy_deadline of {deadline}; min_healthy_time is {}",
            short_duration(least)
        ))
    }

    fn late_check_reason(&self, id: &CheckId, now: Timestamp) -> Option<String> {
        let result = self.results.get(id);
        let (check, service) = match result {
            Some(result) => (&result.name, &result.service),
            None => (&id.check, &id.service),
        };
        let name = format!("check {check:?} of service {service:?}");
        match result {
            None | Some(CheckResult { passing: false, answered: None, .. }) => {
                Some(format!("{name} was not answered yet"))
            }
            Some(CheckResult { passing: false, output, since, .. }) => {
                let time = short_duration(whole_seconds(now.since(*since)));
                let output = cut(printable_line(output.trim(), QUOTE_BYTES_MAX), QUOTE_BYTES_MAX);
                Some(format!("{name} fails (for {time}): {output}"))
            }
            Some(CheckResult { since, .. }) if self.too_late(*since) => Some(format!(
                "{name} had passed for {} at the healthy_deadline of {}; min_healthy_time is {}",
                self.until_deadline(*since),
                short_duration(self.policy.healthy_deadline),
                short_duration(self.policy.min_healthy_time),
            )),
            Some(_) => None,
        }
    }

    /// Does `since` leave less than `min_healthy_time` before the deadline?
    fn too_late(&self, since: Timestamp) -> bool {
        since.plus(self.policy.min_healthy_time) > self.deadline
    }

    fn until_deadline(&self, since: Timestamp) -> String {
        short_duration(whole_seconds(self.deadline.since(since)))
    }

    fn main_tasks(&self) -> impl Iterator<Item = &TaskName> {
        self.tasks.iter().filter(|task| task.is_main).map(|task| &task.name)
    }

    fn unhealthy_verdict(&self, reasons: Reasons) -> HealthVerdict {
        let mut texts = Vec::with_capacity(reasons.len());
        let mut tasks: BTreeMap<&TaskName, Vec<&str>> = BTreeMap::new();
        for (task, reason) in &reasons {
            match task {
                Some(task) => {
                    texts.push(format!("task {:?}: {reason}", task.as_str()));
                    tasks.entry(task).or_default().push(reason);
                }
                None => {
                    texts.push(reason.clone());
                    for task in self.main_tasks() {
                        tasks.entry(task).or_default().push(reason);
                    }
                }
            }
        }
        let told = |(task, reasons): (&TaskName, Vec<&str>)| {
            (task.clone(), cut(reasons.join("; "), HEALTH_REASON_BYTES_MAX))
        };
        HealthVerdict {
            healthy: false,
            text: cut(texts.join("; "), HEALTH_TEXT_BYTES_MAX),
            tasks: tasks.into_iter().map(told).collect(),
        }
    }
}

fn with_last_event(what: String, task: &WatchedTask) -> String {
    match task.last_event.as_str() {
        "" => what,
        last => format!("{what} (last: {last})"),
    }
}

/// Without the parts of a second.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

/// Cut at a character, with a mark where something is missing.
fn cut(mut text: String, most: usize) -> String {
    const MARK: &str = "…";
    if text.len() > most {
        let mut end = most.saturating_sub(MARK.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MARK);
    }
    text
}
