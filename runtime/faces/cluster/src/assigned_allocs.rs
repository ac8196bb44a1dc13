//! Converts an allocation as a server describes it into the model's allocation.
//!
//! ```text
//! answer ─► fields of the allocation ──────────────────────────────► Allocation
//!             ├─ AllocatedResources: ports, devices ────────────────────▲
//!             └─ Job ─ without the servers' keys ──► JSON ─► jobspec ─┘
//! ```
//! The parts of a job that are for the servers (constraints, updates, counts …) are removed by
//! name. This node must support everything else; a part that it does not support is an error that
//! names it. Pure.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use ostler_jobspec::{FileDiagnostic, Syntax};
use ostler_model::alloc::{AllocDeployment, Allocation, DesiredStatus};
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, GroupName, TaskName};
use ostler_model::job::{Job, TaskPayload};
use ostler_model::limits::{CLUSTER_TEXT_BYTES_MAX, DISPATCH_PAYLOAD_BYTES_MAX};
use ostler_model::printable::printable_line;
use ostler_model::resources::{AllocatedDevice, AllocatedPort};
use ostler_model::time::Timestamp;
use ostler_wire::{AllocatedResources, TaskDevices, TaskResources, Text};
use serde_json::{Map, Value as Json};

use super::msgpack::Value;
use super::rpc::{field, text};

/// Whether servers count an allocation with this client status as ended.
pub(crate) fn is_terminal(client_status: &str) -> bool {
    ["complete", "failed", "lost"].contains(&client_status)
}

/// Keys of a job that are only for the servers, without those that any reader of jobs ignores.
const OF_SERVERS: [&str; 17] = [
    "Affinities",
    "AllAtOnce",
    "Constraints",
    "ConsulToken",
    "ConsulNamespace",
    "Dispatched",
    "DispatchIdempotencyToken",
    "Multiregion",
    "ParameterizedJob",
    "ParentID",
    "Periodic",
    "Region",
    "Spreads",
    "Stop",
    "VaultNamespace",
    "VaultToken",
    "VersionTag",
];
/// Keys of a task group that are only for the servers.
const OF_SERVERS_IN_GROUPS: [&str; 8] = [
    "Affinities",
    "Constraints",
    "MaxClientDisconnect",
    "Migrate",
    "PreventRescheduleOnLost",
    "ReschedulePolicy",
    "Scaling",
    "Spreads",
];
/// Keys of a task that are only for the servers.
const OF_SERVERS_IN_TASKS: [&str; 3] = ["Affinities", "Constraints", "ScalingPolicies"];
/// Keys of an update block that tell this node when an allocation is healthy.
const OF_HEALTH: [&str; 3] = ["HealthCheck", "MinHealthyTime", "HealthyDeadline"];

/// Why an allocation of a server cannot be run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignedError {
    /// A field is missing or has the wrong type.
    #[error("the server describes it without a readable {0}")]
    Field(&'static str),
    /// This node does not support something in the job.
    #[error("this node cannot run it: {0}")]
    Job(String),
    /// The payload that the job was dispatched with cannot be read.
    #[error("what its job was dispatched with {0}")]
    Payload(&'static str),
    /// The job has no such task group.
    #[error("its job has no task group {0}")]
    Group(GroupName),
}

/// The id of the allocation.
///
/// # Errors
/// When it has no id that can be read.
pub fn id_of(alloc: &Value) -> Result<AllocId, AssignedError> {
    let id = text_of(alloc, "ID")?.parse();
    id.map_err(|_| AssignedError::Field("ID"))
}

/// The allocation that a server describes. The indices of this node in it are zero.
///
/// # Errors
/// When it cannot be read, or its job needs something that this node does not support.
pub fn allocation(alloc: &Value) -> Result<Allocation, AssignedError> {
    let id = id_of(alloc)?;
    let name = text_of(alloc, "Name")?.to_owned();
    let group: GroupName =
        text_of(alloc, "TaskGroup")?.parse().map_err(|_| AssignedError::Field("TaskGroup"))?;
    let wanted = field(alloc, "Job").ok_or(AssignedError::Field("Job"))?;
    // Only a deployment needs its health.
    let deployment = field(alloc, "DeploymentID").and_then(text).filter(|id| !id.is_empty());
    let job = job(wanted, deployment.is_some())?;
    let Some(tasks) = job.group(&group).map(|group| &group.tasks) else {
        return Err(AssignedError::Group(group));
    };
    if let Some(task) = tasks.iter().find(|task| task.resources.cores.is_some()) {
        let name = &task.name;
        return Err(AssignedError::Job(format!("no server has assigned the cores of task {name}")));
    }
    let resources = allocated_resources(alloc)?;
    let desired = match text_of(alloc, "DesiredStatus")? {
        "run" => DesiredStatus::Run,
        "stop" | "evict" => DesiredStatus::Stop,
        _ => return Err(AssignedError::Field("DesiredStatus")),
    };
    let previous = field(alloc, "PreviousAllocation").and_then(text);
    let previous = previous.filter(|id| !id.is_empty()).map(str::parse).transpose();
    let number = |name| field(alloc, name).and_then(Value::as_u64);
    let described = field(alloc, "DesiredDescription").and_then(text);
    let created_at = number("CreateTime").ok_or(AssignedError::Field("CreateTime"))?;
    // An allocation that stays joins a deployment by a change.
    let deployed_at = Timestamp::from_nanos(number("ModifyTime").unwrap_or(created_at));
    Ok(Allocation {
        id,
        index: index_in_name(&name).ok_or(AssignedError::Field("Name"))?,
        name,
        group,
        created_at: Timestamp::from_nanos(created_at),
        desired,
        ports: ports(&resources)?,
        devices: devices(&resources)?,
        cores: BTreeMap::new(),
        modify_index: 0,
        create_index: 0,
        job_version: field(wanted, "Version")
            .and_then(Value::as_u64)
            .ok_or(AssignedError::Field("Job.Version"))?,
        previous: previous.map_err(|_| AssignedError::Field("PreviousAllocation"))?,
        desired_description: printable_line(described.unwrap_or_default(), CLUSTER_TEXT_BYTES_MAX),
        deployment: deployment.map(|id| AllocDeployment {
            id: id.into(),
            since: deployed_at,
            canary: false,
        }),
        reschedules: Vec::new(),
        job: Arc::new(job),
    })
}

fn text_of<'a>(value: &'a Value, name: &'static str) -> Result<&'a str, AssignedError> {
    field(value, name).and_then(text).ok_or(AssignedError::Field(name))
}

/// The index at the end of a name of the form `JOB.GROUP[INDEX]`.
fn index_in_name(name: &str) -> Option<u32> {
    name.strip_suffix(']')?.rsplit_once('[')?.1.parse().ok()
}

fn allocated_resources(alloc: &Value) -> Result<AllocatedResources<'static>, AssignedError> {
    const NAME: &str = "AllocatedResources";
    let Some(found) = field(alloc, NAME).filter(|found| !found.is_nil()) else {
        return Ok(AllocatedResources::default());
    };
    rmpv::ext::from_value(without_nil(found)).map_err(|_| AssignedError::Field(NAME))
}

/// A value without the keys that are nil: Go reads those as if they had not been sent.
fn without_nil(value: &Value) -> Value {
    match value {
        Value::Map(entries) => {
            let sent = entries.iter().filter(|(_, value)| !value.is_nil());
            Value::Map(sent.map(|(key, value)| (key.clone(), without_nil(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nil).collect()),
        other => other.clone(),
    }
}

/// The ports of the group, and then those that a task has alone.
fn ports(resources: &AllocatedResources<'_>) -> Result<Vec<AllocatedPort>, AssignedError> {
    let shared = resources.shared.ports.iter();
    let shared = shared.map(|p| port(&p.label, p.value, p.to, &p.host_ip, None));
    let of_tasks = resources.tasks.iter().flat_map(|(task, resources)| {
        resources.networks.iter().flatten().flat_map(move |network| {
            let ports = network.reserved_ports.iter().chain(&network.dynamic_ports).flatten();
            ports.map(move |p| port(&p.label, p.value, p.to, &network.ip, Some(task)))
        })
    });
    shared.chain(of_tasks).collect()
}

fn port(
    label: &str,
    value: u16,
    to: i32,
    host_ip: &str,
    task: Option<&Text<'_>>,
) -> Result<AllocatedPort, AssignedError> {
    // Without a number, or with -1, it is the port itself.
    let to = if to <= 0 { Some(value) } else { u16::try_from(to).ok() };
    let to = to.ok_or(AssignedError::Field("port"))?;
    let task = task.map(|name| task_name(name)).transpose()?;
    Ok(AllocatedPort { label: label.to_owned(), value, to, host_ip: host_ip.to_owned(), task })
}

fn task_name(name: &str) -> Result<TaskName, AssignedError> {
    name.parse().map_err(|_| AssignedError::Field("name of a task"))
}

fn devices(
    resources: &AllocatedResources<'_>,
) -> Result<BTreeMap<TaskName, Vec<AllocatedDevice>>, AssignedError> {
    let device = |TaskDevices { vendor, kind, name, ids }: &TaskDevices<'_>| {
        let [vendor, kind, name] = [vendor, kind, name].map(ToString::to_string);
        AllocatedDevice { group: GroupKey { vendor, kind, name }, ids: ids.to_vec() }
    };
    let of_task = |(name, resources): (&Text<'_>, &TaskResources<'_>)| {
        let devices: Vec<_> = resources.devices.iter().flatten().map(device).collect();
        (!devices.is_empty()).then(|| task_name(name).map(|name| (name, devices)))
    };
    resources.tasks.iter().filter_map(of_task).collect()
}

fn job(wanted: &Value, deployed: bool) -> Result<Job, AssignedError> {
    let Json::Object(mut job) = to_json(wanted) else { return Err(AssignedError::Field("Job")) };
    if job.get("Namespace").and_then(Json::as_str).is_none_or(str::is_empty) {
        return Err(AssignedError::Field("Job.Namespace"));
    }
    let payload = payload(wanted)?;
    drop(job.remove("Payload"));
    let (mut files, mut unheard) = (BTreeMap::new(), BTreeMap::new());
    let of_all = job.remove("Update");
    OF_SERVERS.iter().for_each(|key| drop(job.remove(*key)));
    for group in objects(&mut job, "TaskGroups") {
        OF_SERVERS_IN_GROUPS.iter().for_each(|key| drop(group.remove(*key)));
        // The servers decide how many allocations there are; this is one of them.
        group.insert("Count".to_owned(), 1.into());
        let update = group.remove("Update").or_else(|| of_all.clone());
        if let Some(Json::Object(mut update)) = update.filter(|_| deployed) {
            update.retain(|key, _| OF_HEALTH.contains(&key.as_str()));
            group.insert("Update".to_owned(), Json::Object(update));
        }
        let name = group.get("Name").and_then(Json::as_str).unwrap_or_default().to_owned();
        if let Some(after) = stop_after_disconnect(group)? {
            unheard.insert(name.clone(), after);
        }
        for task in objects(group, "Tasks") {
            if let Some(file) = payload_file(task)? {
                let task = task.get("Name").and_then(Json::as_str).unwrap_or_default();
                files.insert((name.clone(), task.to_owned()), file);
            }
            OF_SERVERS_IN_TASKS.iter().for_each(|key| drop(task.remove(*key)));
            if let Some(Json::Object(resources)) = task.get_mut("Resources") {
                // The devices are given outside the job; the constraints on them stay.
                for unused in ["DiskMB", "IOPS"] {
                    resources.remove(unused);
                }
            }
        }
    }
    remove_unset(&mut job);
    let bytes = Json::Object(job).to_string();
    let read = ostler_jobspec::parse(bytes.as_bytes(), Path::new("job"), Some(Syntax::Json));
    let job = read.map_err(|wrong| {
        let all: Vec<_> = wrong.iter().map(FileDiagnostic::message_with_path).collect();
        AssignedError::Job(printable_line(all.join("; "), CLUSTER_TEXT_BYTES_MAX))
    })?;
    let parent = field(wanted, "ParentID").and_then(text).filter(|id| !id.is_empty());
    let parent = parent.map(|id| job.id.sibling(id)).transpose();
    let parent = parent.map_err(|_| AssignedError::Field("Job.ParentID"))?;
    let mut job = Job { parent, ..job };
    for group in job.groups.iter_mut().filter(|_| !deployed) {
        // A service job has a health policy by default.
        group.health = None;
    }
    for group in &mut job.groups {
        group.stop_after_disconnect = unheard.get(group.name.as_str()).copied();
        for task in &mut group.tasks {
            let key = (group.name.to_string(), task.name.to_string());
            let Some(file) = files.remove(&key) else { continue };
            task.payload = Some(TaskPayload { file, bytes: payload.clone() }.into());
        }
    }
    Ok(job)
}

/// The silence of the servers after which a group must stop. It stands in one of two places,
/// depending on the version of the servers.
fn stop_after_disconnect(group: &mut Map<String, Json>) -> Result<Option<Duration>, AssignedError> {
    let (of_group, disconnect) =
        (group.remove("StopAfterClientDisconnect"), group.remove("Disconnect"));
    let of_block = disconnect.as_ref().and_then(|block| block.get("StopOnClientAfter")).cloned();
    let Some(given) = of_group.or(of_block).filter(|given| !given.is_null()) else {
        return Ok(None);
    };
    let nanos = given.as_u64().ok_or(AssignedError::Field("StopAfterClientDisconnect"))?;
    Ok(Some(Duration::from_nanos(nanos)).filter(|after| !after.is_zero()))
}

/// The payload that the job was dispatched with, decompressed; empty if it was not dispatched.
fn payload(job: &Value) -> Result<Vec<u8>, AssignedError> {
    let packed = match field(job, "Payload") {
        None | Some(Value::Nil) => return Ok(Vec::new()),
        Some(Value::Binary(bytes)) => bytes.as_slice(),
        Some(Value::String(text)) => text.as_bytes(),
        Some(_) => return Err(AssignedError::Field("Job.Payload")),
    };
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    let unread = |_| AssignedError::Payload("is not as servers pack it");
    if snap::raw::decompress_len(packed).map_err(unread)? > DISPATCH_PAYLOAD_BYTES_MAX {
        return Err(AssignedError::Payload("is longer than servers take"));
    }
    snap::raw::Decoder::new().decompress_vec(packed).map_err(unread)
}

/// The file to which a task wants the payload written, if it does.
fn payload_file(task: &mut Map<String, Json>) -> Result<Option<String>, AssignedError> {
    let wanted = task.remove("DispatchPayload");
    let file = wanted.as_ref().and_then(|wanted| wanted.get("File")).and_then(Json::as_str);
    let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(file).components().all(plain) {
        return Err(AssignedError::Payload("would be written outside of the task's directory"));
    }
    Ok(Some(file.to_owned()))
}

fn objects<'a>(
    of: &'a mut Map<String, Json>,
    name: &str,
) -> impl Iterator<Item = &'a mut Map<String, Json>> + use<'a> {
    let list = of.get_mut(name).and_then(Json::as_array_mut);
    list.into_iter().flatten().filter_map(Json::as_object_mut)
}

/// Remove keys that are not set, because servers write every key of a job, with empty values for
/// those that nobody gave. Keys that people name themselves stay as they are.
fn remove_unset(object: &mut Map<String, Json>) {
    object.retain(|key, value| {
        if ["Config", "Env", "Meta"].contains(&key.as_str()) {
            return !value.is_null();
        }
        match value {
            Json::Null => false,
            Json::String(text) => !text.is_empty(),
            Json::Array(list) => {
                list.iter_mut().filter_map(Json::as_object_mut).for_each(remove_unset);
                !list.is_empty()
            }
            Json::Object(inner) => {
                remove_unset(inner);
                !inner.is_empty()
            }
            Json::Bool(_) | Json::Number(_) => true,
        }
    });
}

/// A value as JSON. As in Go, bytes of a text that are not UTF-8 are replaced.
fn to_json(value: &Value) -> Json {
    match value {
        Value::Nil | Value::Ext(..) => Json::Null,
        Value::Boolean(is) => (*is).into(),
        Value::Integer(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => Json::Null,
        },
        Value::F32(number) => f64::from(*number).into(),
        Value::F64(number) => (*number).into(),
        Value::String(text) => String::from_utf8_lossy(text.as_bytes()).into_owned().into(),
        Value::Binary(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
        Value::Array(list) => list.iter().map(to_json).collect(),
        Value::Map(fields) => {
            let named = fields.iter().filter_map(|(key, value)| Some((text(key)?, value)));
            named.map(|(key, value)| (key.to_owned(), to_json(value))).collect()
        }
    }
}

#[cfg(test)]
#[path = "assigned_tests.rs"]
mod tests;
