//! `ostler explain`: finds what is meant, asks the agent for its record, and lets `ostler_explain`
//! say why it is as it is.
//!
//! ```text
//! WHAT ─► candidates (jobs, allocations, plugins, devices) ─ exact before prefix ─► one ─► its record ─► sentences
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

use super::answer;
use super::args::explain::{ExplainArgs, ExplainKind};
use super::connect::{self, CliError};
use super::exit::Exit;
use super::terminal::{TerminalInfo, one_line, plain};
use ostler_api::client::ApiClient;
use ostler_api::request::ApiRequest;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_explain::alloc::AllocHistory;
use ostler_explain::device::DeviceHistory;
use ostler_explain::job::{JobEvent, JobHistory};
use ostler_explain::plugin::PluginHistory;
use ostler_explain::{BlockedPlace, Explanation, alloc, device, job, plugin};
use ostler_model::clock::Clock;
use ostler_model::ids::AllocId;
use ostler_model::time::Timestamp;
use ostler_wire::Alloc;

/// Most allocations of a job that are explained with all of their record.
const WHOLE_ALLOCS_MAX: usize = 8;

/// Something whose name or id matches what was asked for.
#[derive(Clone, Debug)]
enum ExplainCandidate {
    Job { id: String, namespace: String },
    Alloc { id: AllocId, name: String },
    Plugin(Box<PluginHistory>),
    Device(Box<DeviceHistory>),
}

impl ExplainCandidate {
    fn describe(&self) -> String {
        match self {
            Self::Job { id, namespace } => format!("job {id} (namespace {namespace})"),
            Self::Alloc { id, name } => format!("allocation {id} ({name})"),
            Self::Plugin(record) => format!("plugin {} ({})", record.name, record.source),
            Self::Device(record) => format!("device {}/{}", record.group, record.instance.id),
        }
    }
}

/// Say why something is as it is.
pub(super) async fn explain(args: &ExplainArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let found = find(&client, args).await?;
    let now = Clock::system().now();
    let told = match found {
        ExplainCandidate::Alloc { id, .. } => {
            let mut record = alloc_record(&client, id).await?;
            record.file = find_job_file(&client, &record.alloc).await;
            alloc::explain(&record, now)
        }
        ExplainCandidate::Job { id, namespace } => {
            let client = client.in_namespace(&namespace);
            job::explain(&job_record(&client, &id).await?, now)
        }
        ExplainCandidate::Plugin(record) => plugin::explain(&record, now),
        ExplainCandidate::Device(record) => device::explain(&record, now),
    };
    answer::show(&told, || text(&told, now), terminal)
}

/// Why a job is as it is, as a text.
pub(super) async fn explain_job(
    client: &ApiClient,
    id: &str,
    now: Timestamp,
) -> Result<String, CliError> {
    Ok(text(&job::explain(&job_record(client, id).await?, now), now))
}

/// The explanation as text. It has texts of other people in it: line breaks stay, hidden characters
/// become visible.
fn text(told: &Explanation, now: Timestamp) -> String {
    plain(&told.text(now))
}

/// Find what is meant: first by the exact name, then by the beginning of names and ids.
async fn find(client: &ApiClient, args: &ExplainArgs) -> Result<ExplainCandidate, CliError> {
    let (given, wanted) = (args.what.as_str(), |kind| args.kind.is_none_or(|of| of == kind));
    let (mut exact, mut begins) = (Vec::new(), Vec::new());
    if given.is_empty() {
        return Err(CliError::Wrong("name a job, an allocation, a plugin or a device".to_owned()));
    }
    if wanted(ExplainKind::Job) {
        let request = connect::in_namespaces(client, routes::ListJobs::request([]));
        for stub in client.send(&request.with(QueryKey::Prefix, given)).await? {
            let same = stub.id == given;
            let (id, namespace) = (stub.id.into_owned(), stub.namespace.into_owned());
            if same { &mut exact } else { &mut begins }
                .push(ExplainCandidate::Job { id, namespace });
        }
    }
    let prefix = connect::id_prefix(given).filter(|_| wanted(ExplainKind::Allocation));
    if let Some(prefix) = prefix {
        let request = connect::in_namespaces(client, routes::ListAllocs::request([]));
        for alloc in client.send(&request.with(QueryKey::Prefix, &prefix)).await? {
            let (id, name) = (alloc.id, alloc.name.into_owned());
            let same = id.to_string() == prefix;
            if same { &mut exact } else { &mut begins }.push(ExplainCandidate::Alloc { id, name });
        }
    }
    if wanted(ExplainKind::Plugin) {
        let request = routes::ListPluginStates::request([]).read_as::<Vec<PluginHistory>>();
        for record in fetch_list(client, &request, args).await? {
            let same = record.name == given || record.block == given;
            if same || record.name.starts_with(given) {
                if same { &mut exact } else { &mut begins }
                    .push(ExplainCandidate::Plugin(record.into()));
            }
        }
    }
    if wanted(ExplainKind::Device) {
        let request = routes::ListDevices::request([]).read_as::<Vec<Value>>();
        let groups = fetch_list(client, &request, args).await?;
        for record in groups.into_iter().flat_map(instances) {
            let (id, full) =
                (&record.instance.id, format!("{}/{}", record.group, record.instance.id));
            let same = *id == given || full == given;
            if same || id.starts_with(given) {
                if same { &mut exact } else { &mut begins }
                    .push(ExplainCandidate::Device(record.into()));
            }
        }
    }
    let found = if exact.is_empty() { begins } else { exact };
    let given = one_line(given);
    connect::single_match(
        found,
        &format!(
            "nothing is called {given}; ostler job status, alloc status, plugin list and device list show what there is"
        ),
        &format!("things are called {given} (--kind tells kinds apart)"),
        ExplainCandidate::describe,
    )
}

/// Get a list from the agent. A list that may not be read is an error only if its kind
/// was asked for.
async fn fetch_list<T: serde::de::DeserializeOwned>(
    client: &ApiClient,
    request: &ApiRequest<(), Vec<T>>,
    args: &ExplainArgs,
) -> Result<Vec<T>, CliError> {
    match client.send(request).await {
        Err(error) if args.kind.is_none() => {
            tracing::debug!(%error, path = request.target(), "not looked through");
            Ok(Vec::new())
        }
        other => Ok(other?),
    }
}

/// A record for each instance of a group.
fn instances(group: Value) -> Vec<DeviceHistory> {
    let all = group.get("instances").and_then(Value::as_array).cloned().unwrap_or_default();
    let record = |instance: Value| {
        let mut of = group.clone();
        let members = of.as_object_mut()?;
        members.remove("instances");
        members.insert("instance".to_owned(), instance);
        serde_json::from_value(of).ok()
    };
    all.into_iter().filter_map(record).collect()
}

/// Everything that is on record about an allocation.
async fn alloc_record(client: &ApiClient, id: AllocId) -> Result<AllocHistory<'static>, CliError> {
    let alloc = client.send(&routes::ReadAlloc::request([&id])).await?;
    let checks = if alloc.client_status.is_terminal() {
        // An allocation that has ended has no checks.
        BTreeMap::new()
    } else {
        let request = routes::ListAllocChecks::request([&id]).read_as();
        client.send(&request).await.unwrap_or_default()
    };
    let successor_at = match alloc.followup_eval_id.as_deref() {
        None | Some("") => None,
        Some(followup) => {
            let found = client.send(&routes::ReadEvaluation::request([&followup])).await.ok();
            found.and_then(|found| Timestamp::parse(found.wait_until.as_deref()?))
        }
    };
    Ok(AllocHistory { alloc, checks, successor_at, file: None })
}

/// The file of the jobs directory that has the job of an allocation. `None` for a job that is gone,
/// or that the user may not see.
async fn find_job_file(client: &ApiClient, alloc: &Alloc<'_>) -> Option<String> {
    let client = client.clone().in_namespace(&alloc.namespace);
    let job = client.send(&routes::ReadJob::request([&alloc.job_id])).await.ok()?;
    job::file_of(&job)
}

/// Why places of a job are empty.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct BlockedPlaces {
    places: Vec<BlockedPlace>,
    holders: BTreeMap<String, String>,
}

/// Everything that is on record about a job.
async fn job_record(client: &ApiClient, id: &str) -> Result<JobHistory<'static>, CliError> {
    let job = client.send(&routes::ReadJob::request([&id])).await?;
    let summary = client.send(&routes::SummarizeJob::request([&id])).await?;
    let mut deployments = client.send(&routes::ListJobDeployments::request([&id])).await?;
    deployments.sort_by_key(|one| std::cmp::Reverse(one.create_index));
    let allocs = client.send(&routes::ListJobAllocs::request([&id])).await?;
    let bare = |alloc| AllocHistory { alloc, ..AllocHistory::default() };
    let mut allocs: Vec<AllocHistory> = allocs.into_iter().map(bare).collect();
    // Allocations in trouble first, and the newest of them before others.
    allocs.sort_by_key(|one| {
        let calm = !job::is_in_trouble(&job, &deployments, one);
        (calm, std::cmp::Reverse(one.alloc.create_time))
    });
    for one in allocs.iter_mut().take(WHOLE_ALLOCS_MAX) {
        // An allocation that was removed meanwhile stays as the list has it.
        if let Ok(whole) = alloc_record(client, one.alloc.id).await {
            *one = whole;
        }
    }
    let file = job::file_of(&job);
    allocs.iter_mut().for_each(|one| one.file.clone_from(&file));
    let request = routes::ReadBlockedJob::request([&id]).read_as::<BlockedPlaces>();
    // An older agent has no such path.
    let BlockedPlaces { places, holders } = client.send(&request).await.unwrap_or_default();
    let request = connect::in_namespaces(client, routes::ListNodeEvents::request([]));
    let request = request.with(QueryKey::Job, id).read_as::<Events>();
    // A user who may not see the events gets an explanation without them.
    let Events { events } = client.send(&request).await.unwrap_or_default();
    Ok(JobHistory { job, summary, allocs, blocked: places, deployments, holders, events })
}

/// The agent's list of events of a job.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Events {
    events: Vec<JobEvent>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_of_devices_has_a_record_for_each_of_them() {
        let health = json!({ "state": "healthy", "reason": "" });
        let group = json!({
            "group": { "vendor": "acme", "type": "gpu", "name": "x" }, "plugin": "files", "stale": null,
            "attributes": [],
            "instances": [{ "id": "0", "health": health }, { "id": "1", "health": health }],
        });
        let records = instances(group);
        let ids: Vec<_> = records.iter().map(|one| one.instance.id.as_str()).collect();
        assert_eq!((ids, records[0].plugin.as_deref()), (vec!["0", "1"], Some("files")));
    }
}
