//! Events of this node for `nomad node status`: drivers and devices that become unhealthy or
//! healthy. Pure.
//!
//! ```text
//! view before, view now ─► HealthEvent, one for each change ─► queue (bounded, the oldest go) ─► Node.EmitEvents
//! ```
//! The servers themselves record that a node has registered or was lost.

use std::collections::VecDeque;

use ostler_model::device::{Health, HealthState};
use ostler_model::limits::CLUSTER_EVENTS_MAX;
use ostler_model::printable::printable_line;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

use super::go_time;
use super::msgpack::Value;
use super::rpc::map;

/// The longest text of an event, bytes.
const TEXT_BYTES_MAX: usize = 512;

/// An event of the node: a change of health of a driver or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthEvent {
    subsystem: &'static str,
    message: String,
    details: Vec<(&'static str, String)>,
    at: Timestamp,
}

impl HealthEvent {
    /// The event in the form that servers accept.
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

/// The events between one view of the node and the next.
pub(crate) fn events_between(before: &NodeView, now: &NodeView, at: Timestamp) -> Vec<HealthEvent> {
    let drivers = before.drivers.iter().filter_map(|(name, known)| {
        let now = now.drivers.get(name).map(|driver| &driver.health);
        let message = change_text(&known.health, now)?;
        let details = vec![("driver", name.to_string())];
        Some(HealthEvent { subsystem: "Driver", message, details, at })
    });
    let devices = before.devices.iter().flat_map(|group| {
        let now = now.devices.iter().find(|now| now.key == group.key);
        group.instances.iter().filter_map(move |known| {
            let now = now.and_then(|now| now.instances.iter().find(|now| now.id == known.id));
            let message = change_text(&known.health, now.map(|now| &now.health))?;
            let details = vec![("device", format!("{}[{}]", group.key, known.id))];
            Some(HealthEvent { subsystem: "Device", message, details, at })
        })
    });
    drivers.chain(devices).collect()
}

/// The message about a change of health; none if the health is the same.
fn change_text(before: &Health, now: Option<&Health>) -> Option<String> {
    match now {
        None => Some("It is no longer found".to_owned()),
        Some(now) => (before.state != now.state).then(|| state_text(now.state, &now.reason)),
    }
}

fn state_text(state: HealthState, reason: &str) -> String {
    let word = match state {
        HealthState::Healthy => "Healthy",
        HealthState::Unhealthy => "Unhealthy",
        HealthState::Undetected => "Undetected",
    };
    match reason {
        "" => word.to_owned(),
        reason => printable_line(format!("{word}: {reason}"), TEXT_BYTES_MAX),
    }
}

/// The events that were not reported to servers yet.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(VecDeque<HealthEvent>);

impl EventQueue {
    /// Add events. Servers keep ten of a node, so the oldest are dropped when there are more.
    pub(crate) fn add(&mut self, events: Vec<HealthEvent>) {
        self.0.extend(events);
        let excess = self.0.len().saturating_sub(CLUSTER_EVENTS_MAX);
        self.0.drain(..excess);
    }

    /// Whether there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Take the events to report.
    pub(crate) fn take(&mut self) -> Vec<HealthEvent> {
        self.0.drain(..).collect()
    }

    /// Put events back that could not be reported, before those that came meanwhile.
    pub(crate) fn put_back(&mut self, events: Vec<HealthEvent>) {
        let newer = self.take();
        self.add(events);
        self.add(newer);
    }
}

#[cfg(test)]
#[path = "node_events_tests.rs"]
mod tests;
