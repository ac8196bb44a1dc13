//! Reads and stops allocations.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};

use super::error::RequestFailure;
use super::evaluation_ids;
use super::json::alloc::{AllocJsonInput, full, stub};
use super::nodes;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::{AllocRef, AllocView, StopOutcome};
use ostler_model::alloc::Allocation;
use ostler_model::ids::AllocId;
use ostler_wire as wire;

/// The length of the text of a UUID.
const UUID_BYTES: usize = 36;

/// Parse an allocation id. It must be complete, as in Nomad's paths.
pub(super) fn alloc_id(text: &str) -> Result<AllocId, RequestFailure> {
    text.parse().map_err(|_| invalid_id(text))
}

fn invalid_id(text: &str) -> RequestFailure {
    RequestFailure::NotAllocId(text.chars().take(64).collect())
}

/// The beginning of an id from the query. It must have hex digits, and dashes in their places;
/// Nomad's command line removes a dash at the end.
fn prefix(params: &Params) -> Result<String, RequestFailure> {
    let prefix = params.prefix();
    let fits = |(at, c): (usize, char)| match at {
        8 | 13 | 18 | 23 => c == '-',
        _ => c.is_ascii_hexdigit(),
    };
    if prefix.len() <= UUID_BYTES && prefix.chars().enumerate().all(fits) {
        Ok(prefix.to_ascii_lowercase())
    } else {
        Err(invalid_id(prefix))
    }
}

/// Every allocation that `wanted` accepts, by id, and the index of the list as a whole.
pub(super) fn find_allocs(
    api: &Api,
    wanted: impl Fn(&Allocation) -> bool,
) -> IndexedValue<Vec<AllocRef>> {
    // The index is at least that of the last removal, because a removed allocation may have been in
    // the list. It is read first, so that a removal meanwhile is not hidden. The indices of an
    // agent begin above all those of an earlier agent.
    let floor = api.agent.control().last_forget_index().max(api.began_at);
    let allocs = api.agent.control().alloc_refs(wanted);
    let index = allocs.iter().map(|alloc| alloc.modify_index).fold(floor, u64::max);
    IndexedValue { index, value: Ok(allocs) }
}

/// Answer with a list of every allocation that `wanted` accepts.
pub(super) async fn answer_list(
    api: &Api,
    params: &Params,
    wanted: impl Fn(&Allocation) -> bool,
) -> Result<Response, RequestFailure> {
    let found = wait::find_newer(api, params, || find_allocs(api, &wanted)).await?;
    let response = match found.value {
        Ok(allocs) => stubs(api, params, allocs).await?,
        Err(failure) => failure.into_response(),
    };
    Ok(reply::with_read_index(found.index, response))
}

/// Answer with the short form of the allocations on the requested page.
async fn stubs(
    api: &Api,
    params: &Params,
    allocs: Vec<AllocRef>,
) -> Result<Response, RequestFailure> {
    let (node, resources) = (api.agent.node(), params.flag("resources")?);
    let (allocs, next) = params.page(allocs, |alloc| alloc.allocation.id.to_string())?;
    if !resources && !params.pretty() {
        let stubs = api.stubs.stubs_of(allocs, &node, &api.leaving)?;
        return Ok(reply::with_next(reply::json_list(stubs), next.as_deref()));
    }
    // These forms are not cached.
    let shape = params.clone();
    let write = move || {
        let views: Vec<AllocView> = allocs.into_iter().map(AllocRef::view).collect();
        let stubs = views.iter().map(|view| stub(AllocJsonInput::new(view, &node), resources));
        reply::page(&shape, &stubs.collect::<Vec<_>>(), next.as_deref())
    };
    api.computing.answer(params.access().caller(), write).await
}

/// `GET /v1/allocations`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let prefix = prefix(&params)?;
    let wanted = |alloc: &Allocation| {
        (prefix.is_empty() || alloc.id.to_string().starts_with(&prefix))
            && params.includes_namespace(alloc.job.namespace())
    };
    answer_list(&api, &params, wanted).await
}

/// `GET /v1/job/ID/allocations`. An unknown job has none, as in Nomad.
pub(super) async fn list_of_job(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = params.job_id(&id)?;
    answer_list(&api, &params, |alloc| alloc.job.id == id).await
}

/// `GET /v1/node/ID/allocations`: allocations in the full form.
pub(super) async fn list_of_node(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    nodes::check_id(&api, &id)?;
    let (agent, shape) = (api.agent.clone(), params.clone());
    wait::answer_whole(
        &api,
        &params,
        || find_allocs(&api, |_| true),
        move |found| {
            let node = agent.node();
            let views: Vec<AllocView> = found.into_iter().map(AllocRef::view).collect();
            let next: BTreeMap<AllocId, AllocId> = views
                .iter()
                .filter_map(|view| Some((view.allocation.previous?, view.allocation.id)))
                .collect();
            let next = |view: &AllocView| next.get(&view.allocation.id).copied();
            let seen = |view| full(AllocJsonInput::new(view, &node).with_next(next(view)));
            let all: Vec<_> = views.iter().map(seen).collect();
            reply::json(&shape, &all)
        },
    )
    .await
}

/// `GET /v1/allocation/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = alloc_id(&id)?;
    let look = || match api.agent.control().alloc(id) {
        Some(view) => IndexedValue { index: view.modify_index, value: Ok(view) },
        None => IndexedValue {
            index: find_allocs(&api, |_| false).index,
            value: Err(RequestFailure::NotThere("alloc")),
        },
    };
    let (agent, shape) = (api.agent.clone(), params.clone());
    wait::answer_whole(&api, &params, look, move |view| {
        let node = agent.node();
        let next = agent.control().alloc_refs(|alloc| alloc.previous == Some(id));
        let next = next.iter().max_by_key(|next| next.allocation.create_index);
        let next = next.map(|next| next.allocation.id);
        reply::json(&shape, &full(AllocJsonInput::new(&view, &node).with_next(next)))
    })
    .await
}

/// `PUT /v1/allocation/ID/stop`
pub(super) async fn stop(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = alloc_id(&id)?;
    let view = api.agent.control().alloc(id).ok_or(RequestFailure::NotThere("alloc"))?;
    let stopped = api.agent.stop_alloc(id, params.flag("no_shutdown_delay")?).await?;
    let StopOutcome { index, unwritten: warnings } = stopped;
    let eval_id = evaluation_ids::evaluation_id(&view.allocation.job.id, index);
    let answer = wire::AllocStopResponse { eval_id, index, warnings };
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}
