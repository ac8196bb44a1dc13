//! `/v1/search`: everything whose id or name begins with a text, by kind. `nomad status PREFIX`
//! uses it.

use axum::extract::State;
use axum::response::Response;

use super::body::{self, Body};
use super::error::RequestFailure;
use super::evaluations;
use super::params::Params;
use super::reply;
use super::scaling;
use super::state::{Api, ApiState};
use ostler_model::access::AccessLevel;
use ostler_model::ids::Namespace;
use ostler_wire::{SearchAnswer, SearchRequest};

/// The most matches of each kind in an answer, as in Nomad.
const MATCHES_MAX: usize = 20;

/// The kinds of objects, by Nomad's names. A node alone has no storage plugins and no volumes of them.
const KINDS: [&str; 9] = [
    "allocs",
    "deployment",
    "evals",
    "jobs",
    "namespaces",
    "nodes",
    "plugins",
    "scaling_policy",
    "volumes",
];

/// The same kinds, for an error message.
const WANTED: &str =
    "allocs, deployment, evals, jobs, namespaces, nodes, plugins, scaling_policy, volumes or all";

/// `PUT /v1/search`
pub(super) async fn search(
    State(api): ApiState,
    params: Params,
    body: Body,
) -> Result<Response, RequestFailure> {
    let SearchRequest { prefix, context } = body::read(&params, body)?;
    let kinds: Vec<&'static str> = match context.as_str() {
        "" | "all" => KINDS.to_vec(),
        named => {
            let known = KINDS.iter().find(|kind| **kind == named);
            vec![known.ok_or_else(|| RequestFailure::bad_param("Context", named, WANTED))?]
        }
    };
    let index = api.agent.control().index();
    let mut answer = SearchAnswer { index, known_leader: true, ..SearchAnswer::default() };
    for kind in kinds {
        let mut found = names_of_kind(&api, &params, kind, &prefix);
        answer.truncations.insert(kind.into(), found.len() > MATCHES_MAX);
        found.truncate(MATCHES_MAX);
        answer.matches.insert(kind.into(), Some(found).filter(|found| !found.is_empty()));
    }
    Ok(reply::with_read_index(index, reply::json(&params, &answer)?))
}

/// The ids or names of a kind that begin with `prefix`, in order. They are not cut here, so that
/// the caller sees whether there are more than it names.
fn names_of_kind(api: &Api, params: &Params, kind: &str, prefix: &str) -> Vec<String> {
    let id = prefix.to_ascii_lowercase();
    let here = |namespace: &str| params.includes_namespace(namespace);
    let mut found: Vec<String> = match kind {
        "allocs" => {
            let all = api.agent.control().alloc_refs(|alloc| here(alloc.job.namespace()));
            all.iter().map(|view| view.allocation.id.to_string()).collect()
        }
        "deployment" => {
            let all = api.agent.control().deployments().into_iter();
            all.filter(|(job, _)| here(job.namespace()))
                .map(|(_, one)| one.id.to_string())
                .collect()
        }
        "evals" => evaluations::evaluation_ids(api, here),
        "jobs" => {
            let all = api.agent.control().jobs().into_iter().map(|view| view.record.job.clone());
            all.filter(|job| here(job.namespace())).map(|job| job.id.as_str().to_owned()).collect()
        }
        "namespaces" => {
            let seen = |name: &&Namespace| params.access().allow(AccessLevel::Read, name.as_str());
            api.agent.namespaces().keys().filter(seen).map(ToString::to_string).collect()
        }
        "nodes" if params.access().allow_everywhere(AccessLevel::Read) => {
            vec![api.agent.node().id.to_string()]
        }
        "scaling_policy" => scaling::policy_ids(api, here),
        _ => Vec::new(),
    };
    let named = ["jobs", "namespaces"].contains(&kind);
    found.retain(|name| name.starts_with(if named { prefix } else { &id }));
    found.sort_unstable();
    found
}
