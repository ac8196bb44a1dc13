//! What the agent says about itself.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use ostler_model::time::Timestamp;
use ostler_node::NodeView;
use ostler_wire::{
    AgentHealth, AgentMember, AgentPart, AgentSelf, AgentSelfConfig, AgentVersion, MetricGauge,
    MetricsSummary, PartHealth, Text,
};

/// The answer of `/v1/agent/self`.
pub(crate) fn agent_self<'a>(
    node: &'a NodeView,
    data_dir: &'a str,
    counts: Value,
    state: Value,
) -> AgentSelf<'a> {
    let version = env!("CARGO_PKG_VERSION");
    let mut client = texts(counts);
    client.insert("node_id".into(), node.id.to_string());
    // `nomad check` judges by these values. A node alone is its own server, which it never has to
    // wait for.
    let alone = [("known_servers", "1"), ("heartbeat_ttl", "0s"), ("last_heartbeat", "0s")];
    client.extend(alone.map(|(name, value)| (name.into(), value.to_owned())));
    let own = BTreeMap::from([("version".into(), version.to_owned())]);
    AgentSelf {
        config: AgentSelfConfig {
            region: super::REGION.into(),
            datacenter: (&node.datacenter).into(),
            node_name: (&node.name).into(),
            data_dir: data_dir.into(),
            client: AgentPart { enabled: true, meta: Some(Cow::Borrowed(&node.meta)) },
            server: AgentPart::default(),
            version: AgentVersion { version: version.into() },
        },
        member: AgentMember {
            name: (&node.name).into(),
            addr: node.host_ip.to_string().into(),
            status: "alive".into(),
            ..AgentMember::default()
        },
        stats: BTreeMap::from([
            ("client".into(), client),
            ("ostler".into(), own),
            ("state".into(), texts(state)),
        ]),
    }
}

fn texts(value: Value) -> BTreeMap<Text<'static>, String> {
    let Value::Object(members) = value else { return BTreeMap::new() };
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    members.into_iter().map(|(name, value)| (name.into(), text(value))).collect()
}

/// The answer of `/v1/agent/health`. Both parts are this one process, which runs allocations and
/// takes jobs.
pub(crate) fn health(ok: bool, message: &str) -> AgentHealth<'_> {
    let part = || PartHealth { ok, message: message.into() };
    AgentHealth { client: part(), server: part() }
}

/// The answer of `/v1/metrics`: every number of each object, named `ostler.<object>.<member>`.
pub(crate) fn metrics(now: Timestamp, objects: &[(&str, Value)]) -> MetricsSummary<'static> {
    let mut gauges = Vec::new();
    for (object, members) in objects {
        for (name, value) in members.as_object().into_iter().flatten() {
            if let Some(value) = value.as_f64() {
                let name = format!("ostler.{object}.{name}").into();
                gauges.push(MetricGauge { name, value, ..MetricGauge::default() });
            }
        }
    }
    MetricsSummary { timestamp: now.to_string().into(), gauges, ..MetricsSummary::default() }
}
