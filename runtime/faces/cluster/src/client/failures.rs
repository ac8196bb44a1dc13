//! Reports allocations that end before this node has taken them.

use ostler_model::alloc::ClientStatus;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::saved::AcknowledgedState;
use ostler_model::task::{TaskState, TaskStatus};

use super::ClusterClient;
use crate::msgpack::Value;
use crate::rpc::{field, text};

impl ClusterClient {
    /// Report that an allocation cannot be run, and why. The servers place another one instead.
    pub(super) fn fail(&self, id: AllocId, described: &Value, why: &str) {
        let status = field(described, "ClientStatus").and_then(text);
        if status == Some("failed") {
            return;
        }
        let tasks = field(described, "AllocatedResources").and_then(|of| field(of, "Tasks"));
        let names = tasks.and_then(Value::as_map).into_iter().flatten();
        let names = names.filter_map(|(name, _)| text(name)?.parse().ok()).collect();
        self.fail_with(id, names, why);
    }

    pub(super) fn fail_with(&self, id: AllocId, tasks: Vec<TaskName>, why: &str) {
        tracing::warn!(alloc = %id, why, "an allocation of the servers cannot be run");
        self.report_over(id, tasks, ClientStatus::Failed, why);
    }

    /// Report that an allocation that never was on this node has ended.
    pub(super) fn report_over(
        &self,
        id: AllocId,
        tasks: Vec<TaskName>,
        status: ClientStatus,
        why: &str,
    ) {
        let now = self.options.clock.now();
        let failed = status == ClientStatus::Failed;
        let mut state = TaskState { status: TaskStatus::Dead, failed, ..TaskState::default() };
        state.finished_at = Some(now);
        if failed {
            let mut event = TaskEvent::new(EventKind::SetupFailure, now, why);
            event.fails_task = true;
            state.push_event(event);
        }
        let over = AcknowledgedState {
            client_status: status,
            client_description: why.to_owned(),
            tasks: tasks.into_iter().map(|name| (name, state.clone())).collect(),
            ..AcknowledgedState::default()
        };
        self.updates().update_state(id, over);
        self.news.notify_one();
    }
}
