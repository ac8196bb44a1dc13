//! What happened to this node, as `nomad node status` shows it: drivers and devices that become ill or well. Pure.
//!
//! ```text
//! view before, view now ─► NodeEvent, one for each change ─► queue (bounded, the oldest go) ─► Node.EmitEvents
//! ```
//! That a node has registered or was lost is the servers' to say.

use std::collections::VecDeque;

use ostler_model::device::{Health, HealthState};
use ostler_model::limits::CLUSTER_EVENTS_MAX;
use ostler_model::shown::shown;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

use super::go_time;
use super::msgpack::Value;
use super::rpc::map;

/// Longest text of an event, bytes.
const TEXT_BYTES_MAX: usize = 512;

/// Something that happened to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeEvent {
    subsystem: &'static str,
    message: String,
    details: Vec<(&'static str, String)>,
    at: Timestamp,
}

impl NodeEvent {
    /// As servers take it.
    pub(crate) fn value(&self) -> Value {
        let details = self.details.iter().map(|(name, value)| (*name, value.as_str().into()));
        map([
            ("Message", self.message.as_str().into()),
            ("Subsystem", self.subsystem.into()),
            ("Details", map(details)),
            ("Timestamp", Value::Binary(go_time::to_bytes(Some(self.at)).to_vec())),
        ])
    }
}

/// What changed from one view of the node to the next.
pub(crate) fn between(before: &NodeView, now: &NodeView, at: Timestamp) -> Vec<NodeEvent> {
    let drivers = before.drivers.iter().filter_map(|(name, known)| {
        let now = now.drivers.get(name).map(|driver| &driver.health);
        let message = changed(&known.health, now)?;
        let details = vec![("driver", name.to_string())];
        Some(NodeEvent { subsystem: "Driver", message, details, at })
    });
    let devices = before.devices.iter().flat_map(|group| {
        let now = now.devices.iter().find(|now| now.key == group.key);
        group.instances.iter().filter_map(move |known| {
            let now = now.and_then(|now| now.instances.iter().find(|now| now.id == known.id));
            let message = changed(&known.health, now.map(|now| &now.health))?;
            let details = vec![("device", format!("{}[{}]", group.key, known.id))];
            Some(NodeEvent { subsystem: "Device", message, details, at })
        })
    });
    drivers.chain(devices).collect()
}

/// What is told of this change; none of what is as it was.
fn changed(before: &Health, now: Option<&Health>) -> Option<String> {
    match now {
        None => Some("It is not found any more".to_owned()),
        Some(now) => (before.state != now.state).then(|| said(now.state, &now.reason)),
    }
}

fn said(state: HealthState, reason: &str) -> String {
    let word = match state {
        HealthState::Healthy => "Healthy",
        HealthState::Unhealthy => "Unhealthy",
        HealthState::Undetected => "Undetected",
    };
    match reason {
        "" => word.to_owned(),
        reason => shown(format!("{word}: {reason}"), TEXT_BYTES_MAX),
    }
}

/// Events that servers have not heard of.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(VecDeque<NodeEvent>);

impl EventQueue {
    /// Add events. Servers keep ten of a node: the oldest go when there are more.
    pub(crate) fn add(&mut self, events: Vec<NodeEvent>) {
        self.0.extend(events);
        let excess = self.0.len().saturating_sub(CLUSTER_EVENTS_MAX);
        self.0.drain(..excess);
    }

    /// Is there nothing to be told?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Take what is to be told.
    pub(crate) fn take(&mut self) -> Vec<NodeEvent> {
        self.0.drain(..).collect()
    }

    /// It could not be told: it waits again, before what has come meanwhile.
    pub(crate) fn put_back(&mut self, events: Vec<NodeEvent>) {
        let newer = self.take();
        self.add(events);
        self.add(newer);
    }
}

#[cfg(test)]
#[path = "node_events_tests.rs"]
mod tests;
