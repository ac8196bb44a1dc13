//! `GET /v1/ostler/job/ID/blocked`: why places of a job are empty, as data and in words.

use std::collections::BTreeMap;

use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::Failure;
use super::jobs::found;
use super::params::Asked;
use super::reply;
use super::router::Api;
use ostler_agent::BlockedPlacement;
use ostler_model::access::Level;
use ostler_model::ids::JobId;

/// Places that are told; more of one job wait for the same.
const PLACES_MAX: usize = 64;

/// What stands in the way of a job.
#[derive(Serialize)]
struct Blocked {
    /// Each with all its problems.
    places: Vec<Value>,
    /// Jobs of the allocations that hold what it asks for, by id.
    holders: BTreeMap<String, String>,
}

/// See the module.
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let job = found(&api, &params, &id)?;
    let places: Vec<Value> = job.blocked.iter().take(PLACES_MAX).map(place).collect();
    let holders = holders(&api, &places, |job| params.access().allow(Level::Read, job.namespace()));
    reply::json(&params, &Blocked { places, holders })
}

fn place(place: &BlockedPlacement) -> Value {
    let BlockedPlacement { group, index, soon, refusal, .. } = place;
    let groups = refusal.groups.iter();
    let of = groups.filter(|one| one.group.is_none() || one.group.as_ref() == Some(group));
    let problems: Vec<Value> = of
        .flat_map(|one| &one.problems)
        .map(|problem| {
            let mut data = serde_json::to_value(problem).unwrap_or_default();
            if let Some(data) = data.as_object_mut() {
                data.insert("text".to_owned(), refusal.text_of(problem).into());
            }
            data
        })
        .collect();
    json!({ "group": group, "index": index, "soon": soon, "problems": problems })
}

/// The jobs of the allocations that problems name, of those that may be seen.
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
    let all = api.agent.alloc_refs(|alloc| named.contains_key(&alloc.id.to_string()));
    let jobs = all.iter().filter(|one| may_see(&one.allocation.job.id));
    jobs.map(|one| (one.allocation.id.to_string(), one.allocation.job.id.to_string())).collect()
}

/// Every `"alloc": "ID"` below a value.
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
