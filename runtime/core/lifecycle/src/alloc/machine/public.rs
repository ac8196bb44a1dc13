//! The public state of an allocation, and the verdict on its health.

use std::sync::Arc;

use super::types::AllocEffect;
use super::{AllocMachine, AllocPhase};
use crate::alloc::status::client_status;
use ostler_model::alloc::ClientStatus;
use ostler_model::cow_arc::CowArc;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::TaskName;
use ostler_model::saved::DeploymentStatus;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

impl AllocMachine {
    /// The client status by the tasks alone, and a sentence on it.
    pub(super) fn status_of_tasks(&self) -> (ClientStatus, &'static str) {
        client_status(&self.states)
    }

    /// Bring the public state up to date.
    pub(super) fn refresh_public(&mut self, now: Timestamp) {
        let (status, description) = match &self.forced {
            Some((status, description)) => (*status, description.as_str()),
            None => self.status_of_tasks(),
        };
        let waits = self.phase == AllocPhase::Preparing && status == ClientStatus::Pending;
        let description = self.waiting.as_deref().filter(|_| waits).unwrap_or(description);
        // Most steps do not change the description.
        if self.public.client_description != description {
            self.public.client_description = description.to_owned();
        }
        let mut tasks = Arc::clone(&self.states);
        if status.is_terminal() {
            // Readers of an ended allocation may rely on an end time of every task.
            let ended = *self.ended_at.get_or_insert(now);
            let undated =
                |t: &CowArc<TaskState>| t.status == TaskStatus::Dead && t.finished_at.is_none();
            if tasks.values().any(undated) {
                let tasks = Arc::make_mut(&mut tasks).values_mut().filter(|task| undated(task));
                tasks.for_each(|task| task.finished_at = Some(ended));
            }
        }
        self.public.client_status = status;
        self.public.tasks = tasks;
        self.public.health.clone_from(&self.health);
    }

    /// Judge an allocation unhealthy that failed without a verdict, where the group asks for one.
    pub(super) fn judge_failure(&mut self, now: Timestamp) {
        let forced = self.forced.as_ref().map(|(status, _)| *status);
        let status = forced.unwrap_or_else(|| self.status_of_tasks().0);
        if status == ClientStatus::Failed && self.group.health.is_some() {
            self.judge(now, false, &[]);
        }
    }

    /// Set the deployment that verdicts are for. A verdict for another deployment is dropped; if it
    /// is on its way to the disk, nobody is told of it.
    pub(super) fn set_deployment(&mut self, deployment: Option<Box<str>>) {
        self.deployment = deployment;
        let of_another = |status: &DeploymentStatus| status.deployment != self.deployment;
        if self.health.as_ref().is_some_and(of_another) {
            self.health = None;
        }
        if self.verdict.as_ref().is_some_and(|(verdict, _)| of_another(verdict)) {
            self.verdict = None;
        }
    }

    /// Give the verdict on the health, unless there is one.
    pub(super) fn judge(&mut self, now: Timestamp, healthy: bool, reasons: &[(TaskName, String)]) {
        let known = self.health.clone().unwrap_or_default();
        if known.healthy.is_some() || self.verdict.is_some() {
            return;
        }
        let verdict = DeploymentStatus {
            healthy: Some(healthy),
            changed_at: Some(now),
            deployment: self.deployment.clone(),
            ..known
        };
        self.effects.push(AllocEffect::SaveHealth(verdict.clone()));
        let notes = reasons.iter().map(|(task, why)| {
            (task.clone(), TaskEvent::new(EventKind::AllocUnhealthy, now, why.clone()))
        });
        self.verdict = Some((verdict, notes.collect()));
    }

    /// The verdict is durable: publish it.
    pub(super) fn publish_verdict(&mut self) {
        let Some((verdict, notes)) = self.verdict.take() else {
            return;
        };
        self.health = Some(verdict);
        if !notes.is_empty() {
            self.effects.push(AllocEffect::Notes(notes));
        }
    }
}
