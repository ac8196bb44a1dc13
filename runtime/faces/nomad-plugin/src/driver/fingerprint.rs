//! The fingerprints of a driver, for Nomad's stream.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::proto::driver::FingerprintResponse;
use crate::proto::driver::fingerprint_response::HealthState as WireHealth;
use crate::proto::structs::{Attribute, attribute::Value};
use ostler_health::refresh::{FingerprintOutcome, Refresher};
use ostler_model::attribute::{self, AttributeValue};
use ostler_model::device::{Health, HealthState};
use ostler_model::ports::PluginCallError;
use ostler_model::rng::Rng;
use ostler_node::watch::ChangeWatcher;
use ostler_plugin::convert::DriverFingerprint;
use ostler_plugin::driver::LoadedDriver;

/// Asks the driver for fingerprints, by the same rules as an agent, and keeps the newest.
pub(crate) struct Fingerprints(watch::Receiver<Option<FingerprintResponse>>);

impl Fingerprints {
    /// Ask the driver for fingerprints from here on, in the background.
    pub(crate) fn follow(plugin: Arc<LoadedDriver>) -> Self {
        let (found, newest) = watch::channel(None);
        let found = Arc::new(found);
        tokio::spawn(async move {
            let refresher = Refresher::new(ChangeWatcher::new(), Rng::system());
            let meter = Arc::clone(plugin.meter());
            let ask = move || {
                let (plugin, found) = (Arc::clone(&plugin), Arc::clone(&found));
                async move {
                    let name = plugin.name.to_string();
                    let asked = plugin.fingerprint().await;
                    let (said, outcome) = wire_fingerprint(&name, &plugin.version, asked);
                    found.send_if_modified(|known| {
                        let news = known.as_ref() != Some(&said);
                        *known = Some(said);
                        news
                    });
                    outcome
                }
            };
            refresher.add(meter, ask).await;
            // The loop of the refresher ends with the process.
            std::future::pending::<()>().await;
        });
        Self(newest)
    }

    /// The newest answer, and those to come.
    pub(crate) fn newest(&self) -> watch::Receiver<Option<FingerprintResponse>> {
        self.0.clone()
    }
}

fn wire_fingerprint(
    name: &str,
    version: &str,
    asked: Result<DriverFingerprint, PluginCallError>,
) -> (FingerprintResponse, FingerprintOutcome) {
    let (health, attributes, outcome) = match asked {
        Ok(found) => {
            let outcome = FingerprintOutcome::from_health(&found.health, found.next);
            (found.health, found.attributes, outcome)
        }
        Err(error) => {
            let reason = error.to_string();
            let health = Health { state: HealthState::Unhealthy, reason: reason.clone() };
            (health, Vec::new(), FingerprintOutcome::Failed(reason))
        }
    };
    let named = attributes.into_iter().map(|one| (one.name, attribute(one.attribute)));
    let mut attributes: HashMap<String, Attribute> = named.collect();
    if health.state != HealthState::Undetected {
        // Constraints of jobs ask about these attributes, as with Nomad's own drivers.
        attributes.insert(format!("driver.{name}"), text("1"));
        attributes.insert(format!("driver.{name}.version"), text(version));
    }
    let state = match health.state {
        HealthState::Undetected => WireHealth::Undetected,
        HealthState::Unhealthy => WireHealth::Unhealthy,
        HealthState::Healthy => WireHealth::Healthy,
    };
    let health_description = if health.reason.is_empty() && state == WireHealth::Healthy {
        "Healthy".to_owned()
    } else {
        health.reason
    };
    let err = String::new();
    (FingerprintResponse { attributes, health: state.into(), health_description, err }, outcome)
}

/// The fingerprint of a driver that this process cannot run.
pub(crate) fn unhealthy(why: &str) -> FingerprintResponse {
    let (health, health_description) = (WireHealth::Unhealthy.into(), why.to_owned());
    FingerprintResponse { health, health_description, ..Default::default() }
}

fn text(text: &str) -> Attribute {
    Attribute { value: Some(Value::StringVal(text.to_owned())), unit: String::new() }
}

/// An attribute on the wire.
pub(crate) fn attribute(given: attribute::Attribute) -> Attribute {
    let value = match given.value {
        AttributeValue::Int(number) => Value::IntVal(number),
        AttributeValue::Float(number) => Value::FloatVal(number),
        AttributeValue::Bool(truth) => Value::BoolVal(truth),
        AttributeValue::Text(text) => Value::StringVal(text),
    };
    Attribute { value: Some(value), unit: given.unit.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_model::attribute::NamedAttribute;

    #[test]
    fn what_a_driver_finds_is_told_with_the_attributes_that_jobs_ask_for() {
        let health = Health { state: HealthState::Healthy, reason: String::new() };
        let memory =
            attribute::Attribute { value: AttributeValue::Int(5), unit: Some("MiB".to_owned()) };
        let attributes = vec![NamedAttribute { name: "memory".to_owned(), attribute: memory }];
        let found = DriverFingerprint { health, attributes, next: Default::default() };
        let (said, _) = wire_fingerprint("wasm", "1.2.3", Ok(found));
        assert_eq!(said.health, i32::from(WireHealth::Healthy));
        assert_eq!(said.attributes.get("driver.wasm"), Some(&text("1")));
        let memory = said.attributes.get("memory");
        assert_eq!(memory.map(|one| one.unit.as_str()), Some("MiB"));
    }

    #[test]
    fn a_driver_that_cannot_be_asked_is_unhealthy_with_the_reason() {
        let (said, outcome) =
            wire_fingerprint("x", "1", Err(PluginCallError::Fatal("no kernel".to_owned())));
        assert_eq!(said.health, i32::from(WireHealth::Unhealthy));
        assert_eq!(said.health_description, "no kernel");
        assert!(matches!(outcome, FingerprintOutcome::Failed(_)));
    }
}
