use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey};
use ostler_model::ids::{NodeId, PluginName};
use ostler_model::rng::Rng;
use ostler_node::DriverView;
use ostler_wire::{go_time, message};

use super::*;
use crate::msgpack::Value;
use crate::rpc::{field, text};

const AT: Timestamp = Timestamp::from_nanos(7);

fn health(state: HealthState, reason: &str) -> Health {
    Health { state, reason: reason.to_owned() }
}

fn view(driver: Health, devices: &[(&str, Health)]) -> NodeView {
    let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    let name = PluginName::new("exec").unwrap();
    view.drivers.insert(name.clone(), DriverView { health: driver, ..DriverView::default() });
    let instances = devices.iter().map(|(id, health)| DeviceInstance {
        id: (*id).to_owned(),
        health: health.clone(),
        locality: None,
    });
    view.devices.push(DeviceGroup {
        key: GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "G1".into() },
        plugin: name,
        instances: instances.collect(),
        attributes: Vec::new(),
    });
    view
}

fn messages(before: &NodeView, now: &NodeView) -> Vec<(String, String)> {
    let events = events_between(before, now, AT);
    let details =
        |event: &WireNodeEvent| event.details.iter().flatten().next().unwrap().1.to_string();
    events.iter().map(|event| (details(event), event.message.to_string())).collect()
}

#[test]
fn what_becomes_ill_well_or_lost_is_told_and_nothing_else() {
    let well = || health(HealthState::Healthy, "");
    let before = view(well(), &[("g0", well()), ("g1", well())]);
    assert_eq!(messages(&before, &before), []);
    let ill = health(HealthState::Unhealthy, "too hot");
    let now = view(health(HealthState::Healthy, "as ever"), &[("g0", ill.clone()), ("g2", well())]);
    let gone = ("acme/gpu/G1[g1]".to_owned(), "It is no longer found".to_owned());
    let hot = ("acme/gpu/G1[g0]".to_owned(), "Unhealthy: too hot".to_owned());
    assert_eq!(messages(&before, &now), [hot, gone]);
    let later = view(ill, &[]);
    let driver = ("exec".to_owned(), "Unhealthy: too hot".to_owned());
    assert_eq!(messages(&before, &later)[0], driver);
    assert_eq!(messages(&later, &before), [("exec".to_owned(), "Healthy".to_owned())]);
}

#[test]
fn an_event_is_as_servers_take_it() {
    let before = view(health(HealthState::Healthy, ""), &[]);
    let events = events_between(&before, &view(health(HealthState::Undetected, "gone"), &[]), AT);
    let value = message(&events[0]);
    assert_eq!(field(&value, "Subsystem").and_then(text), Some("Driver"));
    assert_eq!(field(&value, "Message").and_then(text), Some("Undetected: gone"));
    let details = field(&value, "Details").unwrap();
    assert_eq!(field(details, "driver").and_then(text), Some("exec"));
    assert_eq!(
        field(&value, "Timestamp"),
        Some(&Value::Binary(go_time::to_bytes(Some(AT)).to_vec()))
    );
}

#[test]
fn a_queue_keeps_the_newest_and_what_was_not_told_stands_before_what_came_since() {
    let event = |number: usize| WireNodeEvent {
        message: number.to_string().into(),
        ..WireNodeEvent::default()
    };
    let said = |queue: &mut EventQueue| -> Vec<String> {
        queue.take().into_iter().map(|event| event.message.into_owned()).collect()
    };
    let mut queue = EventQueue::default();
    queue.add((0..CLUSTER_EVENTS_MAX + 3).map(event).collect());
    let told = queue.take();
    assert_eq!((told.len(), &*told[0].message), (CLUSTER_EVENTS_MAX, "3"));
    assert!(queue.is_empty());
    queue.add(vec![event(50)]);
    queue.put_back(told[1..].to_vec());
    let kept = said(&mut queue);
    assert_eq!((kept[0].as_str(), kept.last().unwrap().as_str()), ("4", "50"));
    assert_eq!(kept.len(), CLUSTER_EVENTS_MAX);
}
