//! What the world sees of an allocation, and the verdict on its health.

use std::sync::Arc;

use super::types::AllocEffect;
use super::{AllocMachine, AllocPhase};
use crate::alloc::status::client_status;
use ostler_model::alloc::ClientStatus;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::TaskName;
use ostler_model::saved::DeploymentStatus;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

impl AllocMachine {
    /// The status the tasks alone give.
    pub(super) fn derived(&self) -> (ClientStatus, &'static str) {
        client_status(&self.states)
    }

    /// Bring the public state up to date.
    pub(super) fn refresh_public(&mut self, now: Timestamp) {
        let (status, description) = match &self.forced {
            Some((status, description)) => (*status, description.as_str()),
            None => self.derived(),
        };
        let waits = self.phase == AllocPhase::Preparing && status == ClientStatus::Pending;
        let description = self.waiting.as_deref().filter(|_| waits).unwrap_or(description);
        // Most steps change nothing of it.
        if self.public.client_description != description {
            self.public.client_description = description.to_owned();
        }
        let mut tasks = Arc::clone(&self.states);
        if status.terminal() {
            // Whoever reads an ended allocation may count on every task's end being dated.
            let ended = *self.ended_at.get_or_insert(now);
            let undated =
                |t: &HeldOnce<TaskState>| t.status == TaskStatus::Dead && t.finished_at.is_none();
            if tasks.values().any(undated) {
                let tasks = Arc::make_mut(&mut tasks).values_mut().filter(|task| undated(task));
                tasks.for_each(|task| task.finished_at = Some(ended));
            }
        }
        self.public.client_status = status;
        self.public.tasks = tasks;
        self.public.health.clone_from(&self.health);
    }

    /// One that failed without a verdict, where one was asked for, is not healthy.
    pub(super) fn judge_failure(&mut self, now: Timestamp) {
        let forced = self.forced.as_ref().map(|(status, _)| *status);
        let status = forced.unwrap_or_else(|| self.derived().0);
        if status == ClientStatus::Failed && self.group.health.is_some() {
            self.judge(now, false, &[]);
        }
    }

    /// A verdict for another deployment says nothing of this one; one on its way to the disk is told to
    /// nobody.
    pub(super) fn deployed(&mut self, deployment: Option<Box<str>>) {
        self.deployment = deployment;
        let of_another = |status: &DeploymentStatus| status.deployment != self.deployment;
        if self.health.as_ref().is_some_and(of_another) {
            self.health = None;
        }
        if self.verdict.as_ref().is_some_and(|(verdict, _)| of_another(verdict)) {
            self.verdict = None;
        }
    }

    /// Judge its health, unless it was judged.
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

    /// The verdict is durable: tell it.
    pub(super) fn health_saved(&mut self) {
        let Some((verdict, notes)) = self.verdict.take() else {
            return;
        };
        self.health = Some(verdict);
        if !notes.is_empty() {
            self.effects.push(AllocEffect::Notes(notes));
        }
    }
}
