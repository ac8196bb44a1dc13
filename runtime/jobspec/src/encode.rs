//! Job → JSON as Nomad's API has it: its names, units (nanoseconds, MHz, MiB) and the fields that
//! are always there. What is read back from it is the same job.

use std::time::Duration;

use serde_json::{Map, Value, json};

use ostler_model::job::{
    Check, CheckKind, Constraint, EphemeralDisk, HealthCheck, HealthPolicy, Job, JobKind,
    Lifecycle, LifecycleHook, LogConfig, NetworkSpec, Operator, PortSpec, RestartMode,
    RestartPolicy, Service, Task, TaskGroup,
};
use ostler_model::resources::{DeviceRequest, Resources};

/// The job as the object that stands at `Job` in a request to Nomad's API and that `/v1/job/ID`
/// answers with, less what only the keeper of jobs knows (`Status`, `Version`, `SubmitTime`,
/// `Stable`, `Stop` and the indexes). One field is Ostler's own: `SourceDir`, for `${job.dir}`; it is
/// null where there is none or its name is not text.
#[must_use]
pub fn nomad_json(job: &Job) -> Value {
    let groups: Vec<Value> = job.groups.iter().map(|g| group(g, job.kind)).collect();
    let source_dir = job.source_dir.as_ref().and_then(|dir| dir.to_str());
    json!({
        "ID": job.id.as_str(),
        "Name": job.name,
        "Namespace": job.namespace,
        "Region": "global",
        "Type": kind(job.kind),
        "Priority": job.priority,
        "Datacenters": job.datacenters,
        "Meta": map(&job.meta),
        "Constraints": constraints(&job.constraints),
        "TaskGroups": groups,
        "SourceDir": source_dir,
        "AllAtOnce": false,
        "Affinities": null,
        "Spreads": null,
        "Update": update(None, job.kind),
        "Multiregion": null,
        "Periodic": null,
        "ParameterizedJob": null,
        "Dispatched": false,
        "ParentID": "",
        "Payload": null,
        "ConsulToken": "",
        "VaultToken": "",
        "VaultNamespace": "",
        "NomadTokenID": "",
    })
}

fn group(group: &TaskGroup, job: JobKind) -> Value {
    let tasks: Vec<Value> = group.tasks.iter().map(|t| task(t, &group.services)).collect();
    let services = services(group.services.iter().filter(|service| service.task.is_none()));
    json!({
        "Name": group.name.as_str(),
        "Count": group.count,
        "Meta": map(&group.meta),
        "Constraints": constraints(&group.constraints),
        "Networks": group.network.as_ref().map(|network| vec![self::network(network)]),
        "Tasks": tasks,
        "Services": services,
        "ShutdownDelay": group.shutdown_delay.map(nanos),
        "MaxRunDuration": group.max_run_duration.map(nanos),
        "EphemeralDisk": ephemeral_disk(group.ephemeral_disk),
        "Update": group.health.map(|health| update(Some(health), job)),
        "Migrate": (job == JobKind::Service).then(migrate),
        // Each task has its own, which is what counts.
        "RestartPolicy": restart(RestartPolicy::default_for(job)),
        "ReschedulePolicy": null,
        "Affinities": null,
        "Spreads": null,
        "Scaling": null,
        "Volumes": null,
        "StopAfterClientDisconnect": null,
    })
}

fn task(task: &Task, services: &[Service]) -> Value {
    let services = services.iter().filter(|service| service.task.as_ref() == Some(&task.name));
    json!({
        "Name": task.name.as_str(),
        "Driver": task.driver.as_str(),
        "Config": task.config.map(),
        "Env": map(&task.env),
        "Meta": map(&task.meta),
        "Constraints": constraints(&task.constraints),
        "Resources": resources(&task.resources),
        "RestartPolicy": restart(task.restart),
        "KillTimeout": nanos(task.kill_timeout),
        "KillSignal": task.kill_signal.as_deref().unwrap_or_default(),
        "Leader": task.leader,
        "Lifecycle": task.lifecycle.map(lifecycle),
        "LogConfig": logs(task.logs),
        "User": task.user.as_deref().unwrap_or_default(),
        "ShutdownDelay": nanos(task.shutdown_delay.unwrap_or_default()),
        "Services": self::services(services),
        "Affinities": null,
        "Artifacts": null,
        "CSIPluginConfig": null,
        "DispatchPayload": null,
        "Kind": "",
        "ScalingPolicies": null,
        "Templates": null,
        "Vault": null,
        "VolumeMounts": null,
    })
}

/// What always is a list but for being null when empty.
fn list(items: impl IntoIterator<Item = Value>) -> Value {
    let items: Vec<Value> = items.into_iter().collect();
    if items.is_empty() { Value::Null } else { Value::Array(items) }
}

/// As [`list`], for names with texts.
fn map(map: &std::collections::BTreeMap<String, String>) -> Value {
    if map.is_empty() {
        return Value::Null;
    }
    let members = map.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
    Value::Object(members.collect::<Map<_, _>>())
}

/// Nomad's durations are signed; a job file has none that does not fit.
fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn kind(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Service => "service",
        JobKind::Batch => "batch",
        JobKind::System => "system",
        JobKind::Sysbatch => "sysbatch",
    }
}

fn constraints(constraints: &[Constraint]) -> Value {
    list(constraints.iter().map(|constraint| Value::Object(rule(constraint))))
}

fn rule(constraint: &Constraint) -> Map<String, Value> {
    let mut rule = Map::new();
    rule.insert("LTarget".to_owned(), constraint.left.as_str().into());
    rule.insert("RTarget".to_owned(), constraint.right.as_str().into());
    rule.insert("Operand".to_owned(), operator(constraint.operator).into());
    rule
}

fn operator(operator: Operator) -> &'static str {
    match operator {
        Operator::Equal => "=",
        Operator::NotEqual => "!=",
        Operator::Less => "<",
        Operator::LessOrEqual => "<=",
        Operator::Greater => ">",
        Operator::GreaterOrEqual => ">=",
        Operator::Version => "version",
        Operator::Semver => "semver",
        Operator::Regexp => "regexp",
        Operator::SetContainsAll => "set_contains",
        Operator::SetContainsAny => "set_contains_any",
        Operator::IsSet => "is_set",
        Operator::IsNotSet => "is_not_set",
    }
}

fn network(network: &NetworkSpec) -> Value {
    let port = |port: &PortSpec| {
        json!({
            "Label": port.label,
            "Value": port.fixed.unwrap_or(0),
            "To": port.to.unwrap_or(0),
            "HostNetwork": "default",
        })
    };
    let (fixed, dynamic): (Vec<_>, Vec<_>) =
        network.ports.iter().partition(|port| port.fixed.is_some());
    json!({
        "Mode": "host",
        "Device": "",
        "CIDR": "",
        "IP": "",
        "MBits": 0,
        "DNS": null,
        "ReservedPorts": list(fixed.into_iter().map(port)),
        "DynamicPorts": list(dynamic.into_iter().map(port)),
    })
}

fn ephemeral_disk(disk: EphemeralDisk) -> Value {
    json!({ "Sticky": disk.sticky, "SizeMB": disk.size_mb, "Migrate": disk.migrate })
}

fn health_check(check: HealthCheck) -> &'static str {
    match check {
        HealthCheck::Checks => "checks",
        HealthCheck::TaskStates => "task_states",
        HealthCheck::Manual => "manual",
    }
}

/// A group's block, or the job's, which says nothing. `MaxParallel` 0 is what happens: all are
/// replaced at once.
fn update(health: Option<HealthPolicy>, job: JobKind) -> Value {
    let judged = !job.runs_to_completion();
    json!({
        "Stagger": if judged { 30_000_000_000_i64 } else { 0 },
        "MaxParallel": 0,
        "HealthCheck": health.map_or("", |health| health_check(health.check)),
        "MinHealthyTime": health.map_or(0, |health| nanos(health.min_healthy_time)),
        "HealthyDeadline": health.map_or(0, |health| nanos(health.healthy_deadline)),
        "ProgressDeadline": if health.is_some() { 600_000_000_000_i64 } else { 0 },
        "AutoRevert": false,
        "AutoPromote": false,
        "Canary": 0,
    })
}

/// What Nomad fills in; `Update` says what counts.
fn migrate() -> Value {
    let health = HealthPolicy::default();
    json!({
        "MaxParallel": 1,
        "HealthCheck": health_check(health.check),
        "MinHealthyTime": nanos(health.min_healthy_time),
        "HealthyDeadline": nanos(health.healthy_deadline),
    })
}

fn restart(policy: RestartPolicy) -> Value {
    json!({
        "Attempts": policy.attempts,
        "Interval": nanos(policy.interval),
        "Delay": nanos(policy.delay),
        "Mode": match policy.mode {
            RestartMode::Fail => "fail",
            RestartMode::Delay => "delay",
        },
    })
}

fn services<'a>(services: impl Iterator<Item = &'a Service>) -> Value {
    list(services.map(|service| {
        json!({
            "Id": "",
            "Name": service.name,
            "PortLabel": service.port.as_deref().unwrap_or_default(),
            "TaskName": service.task.as_ref().map(|task| task.as_str()).unwrap_or_default(),
            "Provider": "nomad",
            "Checks": list(service.checks.iter().map(check)),
            "Tags": null,
            "CanaryTags": null,
            "EnableTagOverride": false,
            "AddressMode": "auto",
            "CheckRestart": null,
            "Connect": null,
            "Meta": null,
            "CanaryMeta": null,
            "OnUpdate": "require_healthy",
        })
    }))
}

fn check(check: &Check) -> Value {
    let (kind, method, path) = match &check.kind {
        CheckKind::Tcp => ("tcp", "", ""),
        CheckKind::Http { method, path } => ("http", method.as_str(), path.as_str()),
    };
    json!({
        "Id": "",
        "Name": check.name,
        "Type": kind,
        "Path": path,
        "Method": method,
        "PortLabel": check.port.as_deref().unwrap_or_default(),
        "Interval": nanos(check.interval),
        "Timeout": nanos(check.timeout),
        "Protocol": "",
        "AddressMode": "",
        "Command": "",
        "Args": null,
        "Header": null,
        "Body": "",
        "TLSSkipVerify": false,
        "InitialStatus": "",
        "CheckRestart": null,
        "GRPCService": "",
        "GRPCUseTLS": false,
        "TaskName": "",
        "Expose": false,
        "SuccessBeforePassing": 0,
        "FailuresBeforeCritical": 0,
        "OnUpdate": "require_healthy",
    })
}

fn resources(resources: &Resources) -> Value {
    json!({
        "CPU": resources.cpu_mhz,
        "Cores": 0,
        "MemoryMB": resources.memory_mb,
        "MemoryMaxMB": resources.memory_max_mb.unwrap_or(0),
        "DiskMB": 0,
        "IOPS": 0,
        "Networks": null,
        "Devices": list(resources.devices.iter().map(device)),
    })
}

fn device(device: &DeviceRequest) -> Value {
    let affinities = device.affinities.iter().map(|affinity| {
        let mut members = rule(&affinity.rule);
        members.insert("Weight".to_owned(), affinity.weight.into());
        Value::Object(members)
    });
    json!({
        "Name": device.name,
        "Count": device.count,
        "Constraints": constraints(&device.constraints),
        "Affinities": list(affinities),
    })
}

fn lifecycle(lifecycle: Lifecycle) -> Value {
    let hook = match lifecycle.hook {
        LifecycleHook::Prestart => "prestart",
        LifecycleHook::Poststart => "poststart",
        LifecycleHook::Poststop => "poststop",
    };
    json!({ "Hook": hook, "Sidecar": lifecycle.sidecar })
}

fn logs(logs: LogConfig) -> Value {
    json!({
        "MaxFiles": logs.max_files,
        "MaxFileSizeMB": logs.max_file_size_mb,
        "Disabled": logs.disabled,
    })
}

#[cfg(test)]
mod tests;
