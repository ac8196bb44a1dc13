//! The services that run on this node, and the results of their checks.
//!
//! The list has an index of its own, because it changes with the tasks and not with the jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::client::find_alloc;
use super::error::RequestFailure;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::{AllocView, CheckId, CheckResult};
use ostler_model::digest::Digest;
use ostler_model::ids::AllocId;
use ostler_model::job::{CheckStatus, OnUpdate};
use ostler_model::service::{ServiceInstance, ServiceList, Services as _};
use ostler_model::time::Timestamp;
use ostler_wire as wire;

fn find_services(api: &Api) -> IndexedValue<ServiceList> {
    let list = api.agent.services().list();
    IndexedValue { index: list.index, value: Ok(list) }
}

fn stub<'a>((name, tags): (&&'a str, &BTreeSet<&'a str>)) -> wire::ServiceStub<'a> {
    wire::ServiceStub {
        service_name: (*name).into(),
        tags: tags.iter().map(|tag| (*tag).into()).collect(),
    }
}

/// `GET /v1/services`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let kept = api.agent.services();
    let (wait, changes) = (params.wait_from(kept.index())?, kept.indexes());
    let shape = params.clone();
    let show = move |list: ServiceList| {
        let params = shape;
        let mut namespaces: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        for service in list.instances.iter().filter(|of| params.includes_namespace(&of.namespace)) {
            let names = namespaces.entry(&service.namespace).or_default();
            let tags = names.entry(&service.name).or_default();
            tags.extend(service.tags.iter().map(String::as_str));
        }
        let shown: Vec<_> = namespaces
            .iter()
            .map(|(namespace, names)| wire::ServiceNamespace {
                namespace: (*namespace).into(),
                services: names.iter().map(stub).collect(),
            })
            .collect();
        reply::json(&params, &shown)
    };
    wait::answer_whole_on(&api, &params, wait, changes, || find_services(&api), show).await
}

/// `GET /v1/service/NAME`. An unknown name has no instances, as in Nomad.
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    if let Some(choose) = params.text("choose") {
        return Err(RequestFailure::bad_param("choose", choose, "left out: all are answered"));
    }
    let kept = api.agent.services();
    let (wait, changes) = (params.wait_from(kept.index())?, kept.indexes());
    let node = api.agent.node();
    let (node_id, shape) = (node.id.to_string(), params.clone());
    let show = move |list: ServiceList| {
        let params = shape;
        let such =
            |of: &&Arc<ServiceInstance>| of.name == id && params.includes_namespace(&of.namespace);
        let found: Vec<_> = list.instances.iter().filter(such).map(|of| &**of).collect();
        let allocs: Vec<String> = found.iter().map(|of| of.alloc.to_string()).collect();
        let shown: Vec<_> = found
            .iter()
            .zip(&allocs)
            .map(|(of, alloc)| registration(of, alloc, &node_id, &node.datacenter))
            .collect();
        reply::json(&params, &shown)
    };
    wait::answer_whole_on(&api, &params, wait, changes, || find_services(&api), show).await
}

fn registration<'a>(
    of: &'a ServiceInstance,
    alloc: &'a str,
    node: &'a str,
    datacenter: &'a str,
) -> wire::ServiceRegistration<'a> {
    wire::ServiceRegistration {
        id: (&*of.id).into(),
        service_name: (&*of.name).into(),
        namespace: (&*of.namespace).into(),
        node_id: node.into(),
        datacenter: datacenter.into(),
        job_id: of.job.as_str().into(),
        alloc_id: alloc.into(),
        tags: of.tags.iter().map(|tag| (&**tag).into()).collect(),
        meta: of.meta.iter().map(|(key, text)| ((&**key).into(), (&**text).into())).collect(),
        address: (&*of.address).into(),
        port: of.port,
        create_index: of.create_index,
        modify_index: of.modify_index,
    }
}

/// `GET /v1/client/allocation/ID/checks`
pub(super) async fn checks(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let view = find_alloc(&api, &id)?;
    let caller = params.access().caller();
    api.computing.answer(caller, move || answer_checks(&view, &params)).await
}

fn answer_checks(view: &AllocView, params: &Params) -> Result<Response, RequestFailure> {
    let results = view.handle.checks();
    let name = &view.allocation.name;
    let group = view.allocation.task_group();
    let ignored: BTreeSet<CheckId> = group
        .into_iter()
        .flat_map(|group| &group.services)
        .flat_map(|service| service.checks.iter().map(move |check| (service, check)))
        .filter(|(_, check)| check.on_update == OnUpdate::Ignore)
        .map(|(service, check)| CheckId::from_check(service, check))
        .collect();
    let mode = |result: &CheckResult| {
        if ignored.contains(&result.id) { "readiness" } else { "healthiness" }
    };
    let shown: BTreeMap<String, _> = results
        .iter()
        .map(|result| {
            let id = check_id(view.allocation.id, result);
            let status = wire::CheckQueryResult {
                id: id.clone().into(),
                mode: mode(result).into(),
                status: word(result.status).into(),
                status_code: result.code,
                output: (&*result.output).into(),
                timestamp: result.answered.map_or(0, seconds),
                group: name.as_str().into(),
                task: result.id.task.as_ref().map_or("", |task| task.as_str()).into(),
                service: (&*result.service).into(),
                check: (&*result.name).into(),
            };
            (id, status)
        })
        .collect();
    reply::json(params, &shown)
}

/// The status of a check in Nomad's words.
const fn word(status: CheckStatus) -> &'static str {
    match status {
        CheckStatus::Pending => "pending",
        CheckStatus::Passing => "success",
        CheckStatus::Warning => "warning",
        CheckStatus::Critical => "failure",
    }
}

fn seconds(at: Timestamp) -> u64 {
    at.since(Timestamp::default()).as_secs()
}

/// The id of a check. It is the same for the same check of the same allocation.
fn check_id(alloc: AllocId, result: &CheckResult) -> String {
    let id = &result.id;
    let task = id.task.as_ref().map_or("", |task| task.as_str());
    let port = id.port.as_deref().unwrap_or_default();
    let parts = [&*alloc.to_string(), task, &id.service, port, &id.check];
    let digest = Digest::compute(parts.join("\0").as_bytes());
    digest.as_bytes().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
