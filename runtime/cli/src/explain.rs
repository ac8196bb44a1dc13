//! `ostler explain`: what is meant is looked for, its record is asked for, and `ostler_explain` says why.
//!
//! ```text
//! WHAT ─► candidates (jobs, allocations, plugins, devices) ─ exact before prefix ─► one ─► its record ─► sentences
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

use super::args::explain::{ExplainArgs, ExplainKind};
use super::connect::{self, Stop};
use super::exit::Exit;
use super::output;
use super::terminal::{Terminal, one_line, plain};
use ostler_api::client::{ApiClient, segment};
use ostler_explain::alloc::AllocHistory;
use ostler_explain::device::DeviceHistory;
use ostler_explain::job::{JobEvent, JobHistory};
use ostler_explain::plugin::PluginHistory;
use ostler_explain::{BlockedPlace, Explanation, alloc, device, job, plugin};
use ostler_model::clock::Clock;
use ostler_model::ids::AllocId;
use ostler_model::time::Timestamp;
use ostler_wire::{Alloc, Deployment, Evaluation, Job, JobStub};

/// Of a job, allocations that are explained with all of their record.
const WHOLE_ALLOCS_MAX: usize = 8;

/// Something that is called as asked.
#[derive(Clone, Debug)]
enum Candidate {
    Job { id: String, namespace: String },
    Alloc { id: AllocId, name: String },
    Plugin(Box<PluginHistory>),
    Device(Box<DeviceHistory>),
}

impl Candidate {
    fn shown(&self) -> String {
        match self {
            Self::Job { id, namespace } => format!("job {id} (namespace {namespace})"),
            Self::Alloc { id, name } => format!("allocation {id} ({name})"),
            Self::Plugin(record) => format!("plugin {} ({})", record.name, record.source),
            Self::Device(record) => format!("device {}/{}", record.group, record.instance.id),
        }
    }
}

/// Say why.
pub(super) async fn explain(args: &ExplainArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.agent)?;
    let found = find(&client, args).await?;
    let now = Clock::system().now();
    let told = match found {
        Candidate::Alloc { id, .. } => {
            let mut record = alloc_record(&client, id).await?;
            record.file = file_of(&client, &record.alloc).await;
            alloc::explain(&record, now)
        }
        Candidate::Job { id, namespace } => {
            let client = client.within(&namespace);
            job::explain(&job_record(&client, &id).await?, now)
        }
        Candidate::Plugin(record) => plugin::explain(&record, now),
        Candidate::Device(record) => device::explain(&record, now),
    };
    output::show(args.json, &told, || text(&told, now), terminal)?;
    Ok(Exit::Success)
}

/// Why a job is as it is, as a text.
pub(super) async fn of_job(client: &ApiClient, id: &str, now: Timestamp) -> Result<String, Stop> {
    Ok(text(&job::explain(&job_record(client, id).await?, now), now))
}

/// Texts of strangers are in it: lines stay, what hides does not.
fn text(told: &Explanation, now: Timestamp) -> String {
    plain(&told.text(now))
}

/// The one that is meant: of exactly this name first, then by the beginning of ids.
async fn find(client: &ApiClient, args: &ExplainArgs) -> Result<Candidate, Stop> {
    let (given, wanted) = (args.what.as_str(), |kind| args.kind.is_none_or(|of| of == kind));
    let (mut exact, mut begins) = (Vec::new(), Vec::new());
    if given.is_empty() {
        return Err(Stop::Wrong("name a job, an allocation, a plugin or a device".to_owned()));
    }
    if wanted(ExplainKind::Job) {
        let path = format!("/v1/jobs?namespace={}&prefix={}", client.namespaces(), segment(given));
        for stub in client.get::<Vec<JobStub>>(&path).await? {
            let same = stub.id == given;
            let (id, namespace) = (stub.id.into_owned(), stub.namespace.into_owned());
            if same { &mut exact } else { &mut begins }.push(Candidate::Job { id, namespace });
        }
    }
    let prefix = given.strip_suffix('-').unwrap_or(given).to_ascii_lowercase();
    let hex = prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if wanted(ExplainKind::Allocation) && hex {
        let path = format!("/v1/allocations?namespace={}&prefix={prefix}", client.namespaces());
        for alloc in client.get::<Vec<Alloc>>(&path).await? {
            let (id, name) = (alloc.id, alloc.name.into_owned());
            let same = id.to_string() == prefix;
            if same { &mut exact } else { &mut begins }.push(Candidate::Alloc { id, name });
        }
    }
    if wanted(ExplainKind::Plugin) {
        for record in listed::<PluginHistory>(client, "/v1/ostler/plugins/status", args).await? {
            let same = record.name == given || record.block == given;
            if same || record.name.starts_with(given) {
                if same { &mut exact } else { &mut begins }.push(Candidate::Plugin(record.into()));
            }
        }
    }
    if wanted(ExplainKind::Device) {
        let groups: Vec<Value> = listed(client, "/v1/ostler/devices", args).await?;
        for record in groups.into_iter().flat_map(instances) {
            let (id, full) =
                (&record.instance.id, format!("{}/{}", record.group, record.instance.id));
            let same = *id == given || full == given;
            if same || id.starts_with(given) {
                if same { &mut exact } else { &mut begins }.push(Candidate::Device(record.into()));
            }
        }
    }
    let found = if exact.is_empty() { begins } else { exact };
    let given = one_line(given);
    connect::only(
        found,
        &format!(
            "nothing is called {given}; ostler job status, alloc status, plugin list and device list show what there is"
        ),
        &format!("things are called {given} (--kind tells kinds apart)"),
        Candidate::shown,
    )
}

/// A list of the node. Who may not see it is told so only where something of it is asked for.
async fn listed<T: serde::de::DeserializeOwned>(
    client: &ApiClient,
    path: &str,
    args: &ExplainArgs,
) -> Result<Vec<T>, Stop> {
    match client.get(path).await {
        Err(error) if args.kind.is_none() => {
            tracing::debug!(%error, path, "not looked through");
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

/// Everything that is on record of an allocation.
async fn alloc_record(client: &ApiClient, id: AllocId) -> Result<AllocHistory<'static>, Stop> {
    let alloc: Alloc = client.get(&format!("/v1/allocation/{id}")).await?;
    let checks = match alloc.client_status.terminal() {
        // Of one that has ended there are none.
        true => BTreeMap::new(),
        false => {
            let path = format!("/v1/client/allocation/{id}/checks");
            client.get(&path).await.unwrap_or_default()
        }
    };
    let successor_at = match alloc.followup_eval_id.as_deref() {
        None | Some("") => None,
        Some(followup) => {
            let path = format!("/v1/evaluation/{followup}");
            let found: Option<Evaluation> = client.get(&path).await.ok();
            found.and_then(|found| Timestamp::parse(found.wait_until.as_deref()?))
        }
    };
    Ok(AllocHistory { alloc, checks, successor_at, file: None })
}

/// The file of the jobs directory that gives the job of an allocation. None of a job that is gone, or that who asks
/// may not see.
async fn file_of(client: &ApiClient, alloc: &Alloc<'_>) -> Option<String> {
    let (client, job) = (client.clone().within(&alloc.namespace), segment(&alloc.job_id));
    let job: Job = client.get(&format!("/v1/job/{job}")).await.ok()?;
    job::file_of(&job)
}

/// Why places of a job are empty.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Blocked {
    places: Vec<BlockedPlace>,
    holders: BTreeMap<String, String>,
}

/// Everything that is on record of a job.
async fn job_record(client: &ApiClient, id: &str) -> Result<JobHistory<'static>, Stop> {
    let path = format!("/v1/job/{}", segment(id));
    let job: Job = client.get(&path).await?;
    let summary = client.get(&format!("{path}/summary")).await?;
    let mut deployments: Vec<Deployment> = client.get(&format!("{path}/deployments")).await?;
    deployments.sort_by_key(|one| std::cmp::Reverse(one.create_index));
    let allocs = client.get::<Vec<Alloc>>(&format!("{path}/allocations")).await?;
    let bare = |alloc| AllocHistory { alloc, ..AllocHistory::default() };
    let mut allocs: Vec<AllocHistory> = allocs.into_iter().map(bare).collect();
    // Those that are told of first, the newest of them before others.
    allocs.sort_by_key(|one| {
        let calm = !job::in_trouble(&job, &deployments, one);
        (calm, std::cmp::Reverse(one.alloc.create_time))
    });
    for one in allocs.iter_mut().take(WHOLE_ALLOCS_MAX) {
        // One that was collected meanwhile stays as the list has it.
        if let Ok(whole) = alloc_record(client, one.alloc.id).await {
            *one = whole;
        }
    }
    let file = job::file_of(&job);
    allocs.iter_mut().for_each(|one| one.file.clone_from(&file));
    let path = format!("/v1/ostler/job/{}/blocked", segment(id));
    // An agent of before has no such path.
    let Blocked { places, holders } = client.get(&path).await.unwrap_or_default();
    let path = format!("/v1/ostler/events?namespace={}&job={}", client.namespaces(), segment(id));
    // Who may not see them is told without them.
    let Events { events } = client.get(&path).await.unwrap_or_default();
    Ok(JobHistory { job, summary, allocs, blocked: places, deployments, holders, events })
}

/// What happened to a job.
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
