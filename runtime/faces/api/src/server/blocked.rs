//! `GET /v1/ostler/job/ID/blocked`: why places of a job are empty, as data and in words.

use std::collections::BTreeMap;

use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::RequestFailure;
use super::jobs::current_job;
use super::reply;
use super::state::{Api, NamedRequest};
use ostler_agent::BlockedPlacement;
use ostler_model::access::AccessLevel;
use ostler_model::device::{DeviceGroup, GroupKey};
use ostler_model::ids::{JobId, PluginName};
use ostler_node::NodeView;

/// The most places in an answer; further places of one job wait for the same.
const PLACES_MAX: usize = 64;

/// What keeps the allocations of a job from being placed.
#[derive(Serialize)]
struct BlockedJob {
    /// The empty places, each with all its problems.
    places: Vec<Value>,
    /// The jobs of the allocations that hold what the job asks for, by the id of the allocation.
    holders: BTreeMap<String, String>,
}

/// `GET /v1/ostler/job/ID/blocked`: see the module.
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let job = current_job(&api, &params, &id)?;
    let node = api.agent.node();
    let of = |one: &BlockedPlacement| place(one, &node);
    let places: Vec<Value> = job.blocked.iter().take(PLACES_MAX).map(of).collect();
    let holders =
        holders(&api, &places, |job| params.access().allow(AccessLevel::Read, job.namespace()));
    reply::json(&params, &BlockedJob { places, holders })
}

fn place(place: &BlockedPlacement, node: &NodeView) -> Value {
    let BlockedPlacement { group, index, soon, refusal, .. } = place;
    let groups = refusal.groups.iter();
    let of = groups.filter(|one| one.group.is_none() || one.group.as_ref() == Some(group));
    let problems: Vec<Value> = of
        .flat_map(|one| &one.problems)
        .map(|problem| {
            let mut data = serde_json::to_value(problem).unwrap_or_default();
            name_plugins(&mut data, node);
            if let Some(data) = data.as_object_mut() {
                data.insert("text".to_owned(), refusal.text_of(problem).into());
            }
            data
        })
        .collect();
    json!({ "group": group, "index": index, "soon": soon, "problems": problems })
}

/// Add plugins to a problem with devices: the plugin of each device group that was considered, and,
/// if no group has the requested name, the loaded device plugins that find nothing (`silent`), with
/// their reasons.
fn name_plugins(problem: &mut Value, node: &NodeView) {
    let Some(candidates) = problem.pointer_mut("/refusal/candidates").and_then(Value::as_array_mut)
    else {
        return;
    };
    let mut offered = false;
    for candidate in candidates.iter_mut().filter_map(Value::as_object_mut) {
        offered |= candidate.get("why").is_none_or(|why| why.as_str() != Some("Name"));
        let key = candidate.get("group").cloned().unwrap_or_default();
        let of = |group: &&DeviceGroup| {
            let GroupKey { vendor, kind, name } = &group.key;
            json!({ "vendor": vendor, "type": kind, "name": name }) == key
        };
        if let Some(group) = node.devices.iter().find(of) {
            candidate.insert("plugin".to_owned(), group.plugin.as_str().into());
        }
    }
    let finds = |name: &PluginName| node.devices.iter().any(|group| group.plugin == *name);
    let all = node.device_plugins.iter().filter(|(name, _)| !offered && !finds(name));
    let silent: Map<String, Value> =
        all.map(|(name, health)| (name.to_string(), health.reason.as_str().into())).collect();
    if let Some(data) = problem.as_object_mut().filter(|_| !silent.is_empty()) {
        data.insert("silent".to_owned(), silent.into());
    }
}

/// The jobs of the allocations that problems name, as far as they may be seen.
fn holders(
    api: &Api,
    places: &[Value],
    may_see: impl Fn(&JobId) -> bool,
) -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    places.iter().for_each(|place| ids(place, &mut named));
    if named.is_empty() {
        return named;
    }
    let all = api.agent.control().alloc_refs(|alloc| named.contains_key(&alloc.id.to_string()));
    let jobs = all.iter().filter(|one| may_see(&one.allocation.job.id));
    jobs.map(|one| (one.allocation.id.to_string(), one.allocation.job.id.to_string())).collect()
}

/// Collect the id of every `"alloc": "ID"` inside a value.
fn ids(value: &Value, named: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(id)) = members.get("alloc") {
                named.insert(id.clone(), String::new());
            }
            members.values().for_each(|member| ids(member, named));
        }
        Value::Array(members) => members.iter().for_each(|member| ids(member, named)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ostler_model::device::{Health, HealthState};
    use ostler_model::ids::NodeId;
    use ostler_model::rng::Rng;

    use super::*;

    #[test]
    fn a_device_that_is_missing_is_told_with_the_plugins_that_find_nothing() {
        let plugin = |name: &str| PluginName::new(name).unwrap();
        let mut node = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
        let reason = "/usr/bin/nvidia-smi is missing".to_owned();
        let undetected = Health { state: HealthState::Undetected, reason };
        let healthy = Health { state: HealthState::Healthy, reason: String::new() };
        node.device_plugins.insert(plugin("nvidia"), undetected);
        node.device_plugins.insert(plugin("pci"), healthy);
        let key = GroupKey { vendor: "intel".into(), kind: "bridge".into(), name: "0d57".into() };
        node.devices = vec![DeviceGroup {
            key,
            plugin: plugin("pci"),
            instances: Vec::new(),
            attributes: Vec::new(),
        }];
        let group = json!({ "vendor": "intel", "type": "bridge", "name": "0d57" });
        let told = |why: Value| {
            let candidates = json!([{ "group": group, "why": why }]);
            let mut problem = json!({ "refusal": { "candidates": candidates } });
            name_plugins(&mut problem, &node);
            assert_eq!(problem["refusal"]["candidates"][0]["plugin"], "pci");
            problem.get("silent").cloned()
        };
        let silent = json!({ "nvidia": "/usr/bin/nvidia-smi is missing" });
        assert_eq!(told(json!("Name")), Some(silent));
        assert_eq!(told(json!({ "TooFew": {} })), None);
        let mut other = json!({ "kind": "port" });
        name_plugins(&mut other, &node);
        assert_eq!(other, json!({ "kind": "port" }));
    }
}
