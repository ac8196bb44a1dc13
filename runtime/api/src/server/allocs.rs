//! Allocations: looked at and stopped.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};

use super::error::Failure;
use super::evaluations;
use super::json::alloc::{Seen, full, stub};
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::{AllocRef, AllocView, Stopped};
use ostler_model::alloc::Allocation;
use ostler_model::ids::AllocId;
use ostler_wire as wire;

/// Longest text of a UUID.
const UUID_BYTES: usize = 36;

/// Whole ids only, as in Nomad's paths.
pub(super) fn alloc_id(text: &str) -> Result<AllocId, Failure> {
    text.parse().map_err(|_| not_an_id(text))
}

fn not_an_id(text: &str) -> Failure {
    Failure::NotAllocId(text.chars().take(64).collect())
}

/// The beginning of an id. Nomad's command line takes the dash away that a prefix may end with, so
/// dashes are where they belong and digits are hex.
fn prefix(params: &Params) -> Result<String, Failure> {
    let prefix = params.prefix();
    let fits = |(at, c): (usize, char)| match at {
        8 | 13 | 18 | 23 => c == '-',
        _ => c.is_ascii_hexdigit(),
    };
    if prefix.len() <= UUID_BYTES && prefix.chars().enumerate().all(fits) {
        Ok(prefix.to_ascii_lowercase())
    } else {
        Err(not_an_id(prefix))
    }
}

/// Every allocation that `wanted` takes, by id, and the index of the list as a whole.
pub(super) fn look(api: &Api, wanted: impl Fn(&Allocation) -> bool) -> Found<Vec<AllocRef>> {
    // What went may have been one that was wanted: that is the floor. It is read first, so that what goes
    // meanwhile is not hidden. An agent's indices begin above any that an earlier one gave out.
    let floor = api.agent.allocs_forgot().max(api.began_at);
    let allocs = api.agent.alloc_refs(wanted);
    let index = allocs.iter().map(|alloc| alloc.modify_index).fold(floor, u64::max);
    Found { index, value: Ok(allocs) }
}

/// A list of every allocation that `wanted` takes.
pub(super) async fn listed(
    api: &Api,
    params: &Params,
    wanted: impl Fn(&Allocation) -> bool,
) -> Result<Response, Failure> {
    let found = wait::found(api, params, || look(api, &wanted)).await?;
    let response = match found.value {
        Ok(allocs) => stubs(api, params, allocs).await?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::read_at(found.index, response))
}

/// The short form of those that are on the page that is asked for.
async fn stubs(api: &Api, params: &Params, allocs: Vec<AllocRef>) -> Result<Response, Failure> {
    let (node, resources) = (api.agent.node(), params.flag("resources")?);
    let (allocs, next) = params.page(allocs, |alloc| alloc.allocation.id.to_string())?;
    if !resources && !params.pretty() {
        let stubs = api.stubs.of(allocs, &node, &api.leaving)?;
        return Ok(reply::with_next(reply::written(stubs), next.as_deref()));
    }
    // Nothing of these is kept.
    let shape = params.clone();
    let write = move || {
        let views: Vec<AllocView> = allocs.into_iter().map(AllocRef::view).collect();
        let stubs = views.iter().map(|view| stub(Seen::new(view, &node), resources));
        reply::page(&shape, &stubs.collect::<Vec<_>>(), next.as_deref())
    };
    api.computing.answer(params.access().caller(), write).await
}

/// `GET /v1/allocations`
pub(super) async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let prefix = prefix(&params)?;
    let wanted = |alloc: &Allocation| {
        (prefix.is_empty() || alloc.id.to_string().starts_with(&prefix))
            && params.means_namespace(alloc.job.namespace())
    };
    listed(&api, &params, wanted).await
}

/// `GET /v1/job/ID/allocations`. Of a job that is not there: none, as in Nomad.
pub(super) async fn of_job(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = params.job_id(&id)?;
    listed(&api, &params, |alloc| alloc.job.id == id).await
}

/// `GET /v1/node/ID/allocations`: the full form.
pub(super) async fn of_node(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    super::nodes::check_id(&api, &id)?;
    let (agent, shape) = (api.agent.clone(), params.clone());
    wait::answer_whole(
        &api,
        &params,
        || look(&api, |_| true),
        move |found| {
            let node = agent.node();
            let views: Vec<AllocView> = found.into_iter().map(AllocRef::view).collect();
            let next: BTreeMap<AllocId, AllocId> = views
                .iter()
                .filter_map(|view| Some((view.allocation.previous?, view.allocation.id)))
                .collect();
            let next = |view: &AllocView| next.get(&view.allocation.id).copied();
            let seen = |view| full(Seen::new(view, &node).before(next(view)));
            let all: Vec<_> = views.iter().map(seen).collect();
            reply::json(&shape, &all)
        },
    )
    .await
}

/// `GET /v1/allocation/ID`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = alloc_id(&id)?;
    let look = || match api.agent.alloc(id) {
        Some(view) => Found { index: view.modify_index, value: Ok(view) },
        None => {
            Found { index: look(&api, |_| false).index, value: Err(Failure::NotThere("alloc")) }
        }
    };
    let (agent, shape) = (api.agent.clone(), params.clone());
    wait::answer_whole(&api, &params, look, move |view| {
        let node = agent.node();
        let next = agent.alloc_refs(|alloc| alloc.previous == Some(id));
        let next = next.iter().max_by_key(|next| next.allocation.create_index);
        let next = next.map(|next| next.allocation.id);
        reply::json(&shape, &full(Seen::new(&view, &node).before(next)))
    })
    .await
}

/// `PUT /v1/allocation/ID/stop`
pub(super) async fn stop(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = alloc_id(&id)?;
    let view = api.agent.alloc(id).ok_or(Failure::NotThere("alloc"))?;
    let stopped = api.agent.stop_alloc(id, params.flag("no_shutdown_delay")?).await?;
    let Stopped { index, unwritten: warnings } = stopped;
    let eval_id = evaluations::id(&view.allocation.job.id, index);
    let answer = wire::Stopped { eval_id, index, warnings };
    Ok(reply::at_index(index, reply::json(&params, &answer)?))
}
