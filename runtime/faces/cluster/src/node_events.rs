//! Events of this node for `nomad node status`: drivers and devices that become unhealthy or
//! healthy. Pure.
//!
//! ```text
//! view before, view now ─► WireNodeEvent, one for each change ─► queue (bounded, the oldest go) ─► Node.EmitEvents
//! ```
//! The servers themselves record that a node has registered or was lost.

use std::collections::{BTreeMap, VecDeque};

use ostler_model::device::{Health, HealthState};
use ostler_model::limits::CLUSTER_EVENTS_MAX;
use ostler_model::printable::printable_line;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;
use ostler_wire::{WireNodeEvent, moment};

/// The longest text of an event, bytes.
const TEXT_BYTES_MAX: usize = 512;

/// The events between one view of the node and the next.
pub(crate) fn events_between(
    before: &NodeView,
    now: &NodeView,
    at: Timestamp,
) -> Vec<WireNodeEvent<'static>> {
    let event =
        |subsystem: &'static str, message: String, (name, value): (&'static str, String)| {
            WireNodeEvent {
                message: message.into(),
                subsystem: subsystem.into(),
                details: Some(BTreeMap::from([(name.into(), value.into())])),
                timestamp: moment(at),
                ..WireNodeEvent::default()
            }
        };
    let drivers = before.drivers.iter().filter_map(|(name, known)| {
        let now = now.drivers.get(name).map(|driver| &driver.health);
        let message = change_text(&known.health, now)?;
        Some(event("Driver", message, ("driver", name.to_string())))
    });
    let devices = before.devices.iter().flat_map(|group| {
        let now = now.devices.iter().find(|now| now.key == group.key);
        group.instances.iter().filter_map(move |known| {
            let now = now.and_then(|now| now.instances.iter().find(|now| now.id == known.id));
            let message = change_text(&known.health, now.map(|now| &now.health))?;
            Some(event("Device", message, ("device", format!("{}[{}]", group.key, known.id))))
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
pub(crate) struct EventQueue(VecDeque<WireNodeEvent<'static>>);

impl EventQueue {
    /// Add events. Servers keep ten of a node, so the oldest are dropped when there are more.
    pub(crate) fn add(&mut self, events: Vec<WireNodeEvent<'static>>) {
        self.0.extend(events);
        let excess = self.0.len().saturating_sub(CLUSTER_EVENTS_MAX);
        self.0.drain(..excess);
    }

    /// Whether there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Take the events to report.
    pub(crate) fn take(&mut self) -> Vec<WireNodeEvent<'static>> {
        self.0.drain(..).collect()
    }

    /// Put events back that could not be reported, before those that came meanwhile.
    pub(crate) fn put_back(&mut self, events: Vec<WireNodeEvent<'static>>) {
        let newer = self.take();
        self.add(events);
        self.add(newer);
    }
}

#[cfg(test)]
#[path = "node_events_tests.rs"]
mod tests;
