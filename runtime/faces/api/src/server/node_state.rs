//! The state of the node as answers tell it, and the index of its last change.

use std::sync::Arc;

use ostler_agent::{AgentHandle, AgentStage, Readiness};
use ostler_model::scheduling::NodeScheduling;
use ostler_node::NodeView;

/// What keeps the agent from being ready, in words; empty if it is ready.
pub(super) fn unready_reason(readiness: &Readiness) -> String {
    let stage = match readiness.stage {
        AgentStage::Starting => "starting".to_owned(),
        AgentStage::Restoring { done, total } => format!("restoring {done} of {total} allocations"),
        AgentStage::Ready => String::new(),
        AgentStage::Leaving => "leaving".to_owned(),
    };
    let waiting: Vec<&str> = readiness.waiting.iter().map(|name| name.as_str()).collect();
    let lists = [
        ("loading plugins", readiness.loading.join(", ")),
        ("waiting for plugins", waiting.join(", ")),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let lists = lists.map(|(what, names)| format!("{what}: {names}"));
    let parts: Vec<String> =
        Some(stage).filter(|stage| !stage.is_empty()).into_iter().chain(lists).collect();
    parts.join("; ")
}

/// The status of the node, in the words of Nomad's lists.
pub(super) const fn stage_word(stage: AgentStage) -> &'static str {
    match stage {
        AgentStage::Starting | AgentStage::Restoring { .. } => "initializing",
        AgentStage::Ready => "ready",
        AgentStage::Leaving => "down",
    }
}

/// The node as it was when it was last read, and the index of its last change.
#[derive(Default)]
pub(super) struct LastNodeState {
    view: Option<Arc<NodeView>>,
    readiness: Readiness,
    index: u64,
}

impl LastNodeState {
    /// The index of the last change. A change of the view counts from the index at which it was
    /// first noticed. The agent was at the index `began_at` when the API started.
    pub(super) fn index(
        &mut self,
        (agent, began_at): (&AgentHandle, u64),
        readiness: &Readiness,
        scheduling: &NodeScheduling,
    ) -> u64 {
        let view = agent.node();
        let same = self.view.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &view));
        if !same || self.readiness != *readiness {
            self.index = if self.view.is_some() { agent.control().index() } else { began_at };
            (self.view, self.readiness) = (Some(view), readiness.clone());
        }
        self.index.max(scheduling.modify_index)
    }
}
