//! The agent about itself.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use ostler_node::NodeView;

/// What `/v1/agent/self` answers. `stats` is texts by topic, which Nomad's command line prints.
#[derive(Debug, Serialize)]
pub(in crate::api) struct OwnJson<'a> {
    config: Value,
    member: MemberJson<'a>,
    stats: BTreeMap<&'static str, BTreeMap<String, String>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct MemberJson<'a> {
    name: &'a str,
    addr: String,
    port: u16,
    tags: BTreeMap<String, String>,
    status: &'static str,
}

impl<'a> OwnJson<'a> {
    pub fn new(node: &'a NodeView, data_dir: &str, counts: Value, state: Value) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let texts = |value: Value| match value {
            Value::Object(members) => members
                .into_iter()
                .map(|(name, value)| match value {
                    Value::String(text) => (name, text),
                    other => (name, other.to_string()),
                })
                .collect(),
            _ => BTreeMap::new(),
        };
        Self {
            config: json!({
                "Region": super::REGION,
                "Datacenter": node.datacenter,
                "NodeName": node.name,
                "DataDir": data_dir,
                "Client": { "Enabled": true, "Meta": node.meta },
                "Server": { "Enabled": false },
                "Version": { "Version": version },
            }),
            member: MemberJson {
                name: &node.name,
                addr: node.host_ip.to_string(),
                port: 0,
                tags: BTreeMap::new(),
                status: "alive",
            },
            stats: BTreeMap::from([
                ("client", {
                    let mut client: BTreeMap<String, String> = texts(counts);
                    client.insert("node_id".to_owned(), node.id.to_string());
                    client
                }),
                ("ostler", BTreeMap::from([("version".to_owned(), version.to_owned())])),
                ("state", texts(state)),
            ]),
        }
    }
}

/// What `/v1/agent/health` answers.
#[derive(Debug, Serialize)]
pub(in crate::api) struct HealthJson<'a> {
    client: PartHealth<'a>,
    server: PartHealth<'a>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PartHealth<'a> {
    ok: bool,
    message: &'a str,
}

impl<'a> HealthJson<'a> {
    /// Both parts are this one process: it runs allocations and takes jobs.
    pub const fn new(ok: bool, message: &'a str) -> Self {
        let part = PartHealth { ok, message };
        Self { client: part, server: part }
    }
}

/// What `/v1/metrics` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct MetricsJson {
    timestamp: String,
    gauges: Vec<Gauge>,
    counters: Vec<()>,
    points: Vec<()>,
    samples: Vec<()>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Gauge {
    name: String,
    value: f64,
    labels: BTreeMap<String, String>,
}

impl MetricsJson {
    /// Every number of each object, named `<object>.<member>`.
    pub fn new(now: ostler_model::time::Timestamp, objects: &[(&str, Value)]) -> Self {
        let mut gauges = Vec::new();
        for (object, members) in objects {
            for (name, value) in members.as_object().into_iter().flatten() {
                if let Some(value) = value.as_f64() {
                    let name = format!("ostler.{object}.{name}");
                    gauges.push(Gauge { name, value, labels: BTreeMap::new() });
                }
            }
        }
        Self {
            timestamp: now.to_string(),
            gauges,
            counters: Vec::new(),
            points: Vec::new(),
            samples: Vec::new(),
        }
    }
}
