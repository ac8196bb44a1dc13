//! `/v1/search`: everything whose id or name begins with a text, by kind. `nomad status PREFIX` asks it.

use axum::extract::State;
use axum::response::Response;

use super::body;
use super::error::Failure;
use super::evaluations;
use super::jobs::Body;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use super::scaling;
use ostler_model::access::Level;
use ostler_model::ids::Namespace;
use ostler_wire::{SearchAnswer, SearchRequest};

/// Of each kind at most so many are named, as in Nomad.
const MATCHES_MAX: usize = 20;

/// The kinds that there are, by Nomad's names. Of storage plugins and their volumes a node alone has
/// none.
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

/// The same for people.
const WANTED: &str =
    "allocs, deployment, evals, jobs, namespaces, nodes, plugins, scaling_policy, volumes or all";

/// `PUT /v1/search`
pub(super) async fn search(
    State(api): Shared,
    params: Params,
    body: Body,
) -> Result<Response, Failure> {
    let SearchRequest { prefix, context } = body::read(&params, body)?;
    let kinds: Vec<&'static str> = match context.as_str() {
        "" | "all" => KINDS.to_vec(),
        named => {
            let known = KINDS.iter().find(|kind| **kind == named);
            vec![known.ok_or_else(|| Failure::bad_param("Context", named, WANTED))?]
        }
    };
    let index = api.agent.index();
    let mut answer = SearchAnswer { index, known_leader: true, ..SearchAnswer::default() };
    for kind in kinds {
        let mut found = of_kind(&api, &params, kind, &prefix);
        answer.truncations.insert(kind.into(), found.len() > MATCHES_MAX);
        found.truncate(MATCHES_MAX);
        answer.matches.insert(kind.into(), Some(found).filter(|found| !found.is_empty()));
    }
    Ok(reply::read_at(index, reply::json(&params, &answer)?))
}

/// Those that begin so, in order; at least one more than are named, where there are.
fn of_kind(api: &Api, params: &Params, kind: &str, prefix: &str) -> Vec<String> {
    let id = prefix.to_ascii_lowercase();
    let here = |namespace: &str| params.means_namespace(namespace);
    let mut found: Vec<String> = match kind {
        "allocs" => {
            let all = api.agent.alloc_refs(|alloc| here(alloc.job.namespace()));
            all.iter().map(|view| view.allocation.id.to_string()).collect()
        }
        "deployment" => {
            let all = api.agent.deployments().into_iter();
            all.filter(|(job, _)| here(job.namespace()))
                .map(|(_, one)| one.id.to_string())
                .collect()
        }
        "evals" => evaluations::ids(api, here),
        "jobs" => {
            let all = api.agent.jobs().into_iter().map(|view| view.record.job.clone());
            all.filter(|job| here(job.namespace())).map(|job| job.id.as_str().to_owned()).collect()
        }
        "namespaces" => {
            let seen = |name: &&Namespace| params.access().allow(Level::Read, name.as_str());
            api.agent.namespaces().keys().filter(seen).map(ToString::to_string).collect()
        }
        "nodes" if params.access().allow_everywhere(Level::Read) => {
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
