#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;
use ostler_health::refresh::NextCheck;
use ostler_model::attribute::{Attribute, AttributeValue, NamedAttribute};
use ostler_model::rng::Rng;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodeId, NodeView};
use ostler_testing::fake_driver::FakeNode;

fn manager() -> (DriverManager, NodePublisher) {
    let node = NodePublisher::new(NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box"));
    let refresher = Refresher::new(ChangeWatcher::new(), Rng::from_seed(1));
    (DriverManager::new(node.clone(), Arc::new(FakeNode::new()), refresher), node)
}

fn described(name: &str) -> DriverDescription {
    DriverDescription {
        name: PluginName::new(name).unwrap(),
        version: "1.0.0".to_owned(),
        capabilities: String::new(),
        gives_cores: false,
    }
}

fn answer(
    state: HealthState,
    attributes: &[(&str, i64)],
) -> Result<DriverFingerprint, PluginCallError> {
    let attribute = |(name, value): &(&str, i64)| NamedAttribute {
        name: (*name).to_owned(),
        attribute: Attribute::new(AttributeValue::Int(*value), None).unwrap(),
    };
    Ok(DriverFingerprint {
        health: Health { state, reason: String::new() },
        attributes: attributes.iter().map(attribute).collect(),
        next: NextCheck::default(),
    })
}

fn trapped() -> Result<DriverFingerprint, PluginCallError> {
    Err(PluginCallError::CallFailed {
        plugin: "exec".to_owned(),
        call: "fingerprint",
        reason: "trapped".to_owned(),
    })
}

/// State and names of attributes, as the node has them.
fn seen(node: &NodePublisher, name: &str) -> (HealthState, Vec<String>) {
    let view = node.current();
    let driver = &view.drivers[name];
    (driver.health.state, driver.attributes.keys().cloned().collect())
}

#[test]
fn the_newest_answer_replaces_the_one_before_whatever_that_was() {
    let (manager, node) = manager();
    let driver = described("exec");
    let publish = |found| {
        let asked = manager.publish(&driver, found);
        (asked, seen(&node, "exec"))
    };
    let (asked, now) = publish(trapped());
    assert!(matches!(asked, FingerprintOutcome::Failed(reason) if reason.contains("trapped")));
    assert_eq!(now, (HealthState::Unhealthy, vec![]), "it starts unhealthy");
    let (asked, now) = publish(answer(HealthState::Healthy, &[("a", 1), ("b", 2)]));
    assert_eq!(asked, FingerprintOutcome::Answered(NextCheck::default()));
    assert_eq!(now, (HealthState::Healthy, vec!["a".to_owned(), "b".to_owned()]));
    let (_, now) = publish(answer(HealthState::Healthy, &[("b", 3), ("c", 4)]));
    assert_eq!(now.1, ["b", "c"], "what vanished is gone");
    let view = node.current();
    assert!(!view.attribute_texts().contains_key("driver.exec.a"), "for constraints as well");
    let (asked, now) = publish(answer(HealthState::Undetected, &[]));
    assert_eq!(asked, FingerprintOutcome::Undetected(NextCheck::default()));
    assert_eq!(now, (HealthState::Undetected, vec![]));
    let (_, now) = publish(trapped());
    assert_eq!(now.0, HealthState::Unhealthy);
    let (_, now) = publish(answer(HealthState::Healthy, &[]));
    assert_eq!(now.0, HealthState::Healthy);
}

#[test]
fn an_equal_answer_publishes_nothing() {
    let (manager, node) = manager();
    let driver = described("exec");
    manager.publish(&driver, answer(HealthState::Healthy, &[("a", 1)]));
    let mut changes = node.subscribe();
    manager.publish(&driver, answer(HealthState::Healthy, &[("a", 1)]));
    assert!(!changes.has_changed().unwrap());
    manager.publish(&driver, answer(HealthState::Healthy, &[("a", 2)]));
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
}

proptest! {
    #[test]
    fn after_any_history_the_node_has_the_newest_answer_of_each_driver_and_nothing_else(
        history in prop::collection::vec((0usize..3, 0u8..4, prop::collection::vec(0i64..3, 0..4)), 1..30)
    ) {
        let (manager, node) = manager();
        let names = ["exec", "mock", "wasm"];
        let mut newest = BTreeMap::new();
        for (driver, state, values) in history {
            let state = match state {
                0 => HealthState::Undetected,
                1 => HealthState::Unhealthy,
                2 => HealthState::Healthy,
                _ => {
                    manager.publish(&described(names[driver]), trapped());
                    newest.insert(names[driver], (HealthState::Unhealthy, vec![]));
                    continue;
                }
            };
            let letters = ["a", "b", "c", "d"];
            let attributes: Vec<_> = letters.into_iter().zip(values).collect();
            manager.publish(&described(names[driver]), answer(state, &attributes));
            let kept = attributes.iter().map(|(name, _)| (*name).to_owned()).collect();
            newest.insert(names[driver], (state, kept));
        }
        for (name, expected) in &newest {
            prop_assert_eq!(&seen(&node, name), expected);
        }
        prop_assert_eq!(node.current().drivers.len(), newest.len());
    }
}

#[test]
fn a_driver_that_may_still_be_loaded_is_waited_for_and_one_that_does_not_come_is_unknown() {
    let (manager, node) = manager();
    let exec = PluginName::new("exec").unwrap();
    let refused = || manager.dispense(&exec).err().unwrap();
    node.update(|view| view.loading = vec!["exec".to_owned(), "slow".to_owned()]);
    let error = refused();
    assert!(error.is_recoverable(), "{error}");
    assert!(error.to_string().ends_with("is loaded yet; still loading: exec, slow"), "{error}");
    node.update(|view| view.loading = Vec::new());
    let error = refused();
    assert!(matches!(error, PluginCallError::UnknownPlugin { .. }), "{error}");
}
