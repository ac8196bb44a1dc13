//! Writes a job as JSON in the form of Nomad's API: with its names, its units (nanoseconds, MHz, MiB) and the
//! fields that are always there. Reading the JSON gives the same job again.

#[path = "encode_services.rs"]
mod services;

use std::time::Duration;

use serde_json::Value;

use self::services::service;
use crate::decode::artifact::ArtifactKeys;
use crate::decode::constraint::{AffinityKeys, ConstraintKeys};
use crate::decode::group::GroupKeys;
use crate::decode::health::{MigratePolicy, UpdateKeys};
use crate::decode::job::{JobKeys, REGION};
use crate::decode::network::{DnsKeys, NetworkKeys, PortKeys, TaskNetworkKeys};
use crate::decode::placement::ScalingKeys;
use crate::decode::reschedule::RescheduleKeys;
use crate::decode::resources::{DeviceKeys, NumaKeys, ResourceKeys};
use crate::decode::task::TaskKeys;
use crate::decode::template;
use crate::decode::volume::{VolumeKeys, VolumeMountKeys};
use crate::diagnostic::Span;
use crate::keys::{ByName, FreeForm, Keys as _};
use crate::tree::SpannedKey;
use ostler_model::artifact::TaskArtifact;
use ostler_model::job::{
    Affinity, Constraint, HealthPolicy, Job, JobKind, NetworkSpec, PortSpec, RestartPolicy,
    Service, Task, TaskGroup,
};
use ostler_model::resources::{DeviceRequest, NumaAffinity, Resources};
use ostler_model::rollout::{ReschedulePolicy, UpdatePolicy};

/// The job as the object that stands at `Job` in a request to Nomad's API, and that `/v1/job/ID` answers with.
/// The fields that do not depend on the job alone are left out (`Status`, `Version`, `SubmitTime`, `Stable`,
/// `Stop` and the indexes). Two fields are Ostler's own: `SourceDir`, for `${job.dir}`, which is null where there
/// is no directory or its name is not text; and `SizeStated` of an `EphemeralDisk`.
#[must_use]
pub fn nomad_json(job: &Job) -> Value {
    let keys = JobKeys {
        id: job.id.to_string().into(),
        name: job.name.clone().into(),
        region: REGION.to_owned().into(),
        datacenters: spanned_texts(&job.datacenters).into(),
        kind: job.kind.into(),
        namespace: job.namespace().to_owned().into(),
        priority: job.priority.into(),
        meta: job.meta.clone(),
        constraints: constraints(&job.constraints),
        affinities: affinities(&job.placement.affinities),
        spreads: job.placement.spreads.iter().map(Into::into).collect(),
        all_at_once: job.all_at_once.into(),
        groups: job.groups.iter().map(|group| self::group(group, job)).collect(),
        source_dir: job.source_dir.clone().into(),
        update: Some(update_of_job(job.kind)),
        ..JobKeys::default()
    };
    keys.json().into()
}

fn group(group: &TaskGroup, of: &Job) -> GroupKeys {
    let job = of.kind;
    let own = group.services.iter().filter(|service| service.task.is_none());
    GroupKeys {
        label: label(group.name.as_str()),
        count: group.count.into(),
        meta: group.meta.clone(),
        constraints: constraints(&group.constraints),
        affinities: affinities(&group.placement.affinities),
        spreads: group.placement.spreads.iter().map(Into::into).collect(),
        scaling: group
            .scaling
            .as_ref()
            .map(|own| ScalingKeys::from_policy(own, &of.id, &group.name)),
        networks: group.network.iter().map(network).collect(),
        tasks: group.tasks.iter().map(|t| task(t, &group.services)).collect(),
        services: own.map(service).collect(),
        shutdown_delay: group.shutdown_delay.into(),
        max_run_duration: group.max_run_duration.into(),
        ephemeral_disk: Some(group.ephemeral_disk.into()),
        volumes: ByName(group.volumes.iter().map(VolumeKeys::from_request).collect()),
        update: group.health.map(|health| update(health, group.update.unwrap_or_default())),
        reschedule: reschedule(group.reschedule, job),
        // Nomad fills this in; `Update` has the values that count.
        migrate: (job == JobKind::Service || group.migrate_parallel != 1)
            .then(|| MigratePolicy::new(HealthPolicy::default(), group.migrate_parallel).into()),
        // Each task has its own policy, and that one counts.
        restart: Some(RestartPolicy::default_for(job).into()),
        ..GroupKeys::default()
    }
}

fn task(task: &Task, services: &[Service]) -> TaskKeys {
    let own = services.iter().filter(|service| service.task.as_ref() == Some(&task.name));
    TaskKeys {
        label: label(task.name.as_str()),
        driver: task.driver.to_string().into(),
        config: FreeForm { members: task.config.clone(), ..FreeForm::default() },
        env: task.env.clone(),
        meta: task.meta.clone(),
        constraints: constraints(&task.constraints),
        affinities: affinities(&task.affinities),
        resources: Some(resources(&task.resources)),
        restart: Some(task.restart.into()),
        kill_timeout: task.kill_timeout.into(),
        kill_signal: task.kill_signal.clone().into(),
        leader: task.leader.into(),
        lifecycle: task.lifecycle.map(Into::into),
        logs: Some(task.logs.into()),
        user: task.user.clone().into(),
        shutdown_delay: task.shutdown_delay.unwrap_or_default().into(),
        services: own.map(service).collect(),
        artifacts: task.artifacts.iter().map(artifact).collect(),
        templates: task.templates.iter().map(template::keys).collect(),
        volume_mounts: task.volume_mounts.iter().map(VolumeMountKeys::from).collect(),
        ..TaskKeys::default()
    }
}

fn artifact(artifact: &TaskArtifact) -> ArtifactKeys {
    ArtifactKeys {
        source: artifact.source.clone().into(),
        destination: artifact.destination.clone().into(),
        mode: artifact.mode.into(),
        options: artifact.options.clone(),
        headers: artifact.headers.clone(),
        ..ArtifactKeys::default()
    }
}

fn label(name: &str) -> SpannedKey {
    SpannedKey::new(name, Span::default())
}

fn spanned_texts(texts: &[String]) -> Vec<(String, Span)> {
    texts.iter().map(|text| (text.clone(), Span::default())).collect()
}

fn constraints(constraints: &[Constraint]) -> Vec<ConstraintKeys> {
    constraints.iter().map(ConstraintKeys::from).collect()
}

fn network(network: &NetworkSpec) -> NetworkKeys {
    let texts = |texts: &Vec<String>| (!texts.is_empty()).then(|| spanned_texts(texts));
    let (fixed, dynamic) = ports(&network.ports);
    NetworkKeys {
        mode: network.mode.text().into(),
        ports: fixed,
        dynamic,
        dns: network.dns.as_ref().map(|dns| DnsKeys {
            servers: texts(&dns.servers).into(),
            searches: texts(&dns.searches).into(),
            options: texts(&dns.options).into(),
            ..DnsKeys::default()
        }),
        hostname: network.hostname.clone().into(),
        ..NetworkKeys::default()
    }
}

fn network_of_task(own: &[PortSpec]) -> TaskNetworkKeys {
    let (fixed, dynamic) = ports(own);
    TaskNetworkKeys {
        mode: "host".to_owned().into(),
        ports: fixed,
        dynamic,
        ..TaskNetworkKeys::default()
    }
}

/// The ports with a fixed number, and the other ones.
fn ports(ports: &[PortSpec]) -> (Vec<PortKeys>, Vec<PortKeys>) {
    let port = |port: &PortSpec| PortKeys {
        label: label(&port.label),
        fixed: port.fixed.into(),
        to: port.to.map(i32::from).into(),
        host_network: port.host_network.clone().unwrap_or_else(|| "default".to_owned()).into(),
        ..PortKeys::default()
    };
    let (fixed, dynamic): (Vec<_>, Vec<_>) = ports.iter().partition(|port| port.fixed.is_some());
    (fixed.into_iter().map(port).collect(), dynamic.into_iter().map(port).collect())
}

fn update(health: HealthPolicy, policy: UpdatePolicy) -> UpdateKeys {
    UpdateKeys {
        health_check: health.check.into(),
        min_healthy_time: health.min_healthy_time.into(),
        healthy_deadline: health.healthy_deadline.into(),
        max_parallel: policy.max_parallel.into(),
        stagger: policy.stagger.into(),
        progress_deadline: policy.progress_deadline.into(),
        canary: policy.canary.into(),
        auto_revert: policy.auto_revert.into(),
        auto_promote: policy.auto_promote.into(),
        ..UpdateKeys::default()
    }
}

/// The block of the job itself, which is empty: the blocks of its groups have the values.
fn update_of_job(job: JobKind) -> UpdateKeys {
    let service = job == JobKind::Service;
    let stagger = if service { 30 } else { 0 };
    UpdateKeys {
        min_healthy_time: Duration::ZERO.into(),
        healthy_deadline: Duration::ZERO.into(),
        max_parallel: u32::from(service).into(),
        stagger: Duration::from_secs(stagger).into(),
        progress_deadline: Duration::ZERO.into(),
        canary: 0.into(),
        auto_revert: false.into(),
        auto_promote: false.into(),
        ..UpdateKeys::default()
    }
}

/// The `reschedule` block; a job that runs on every node has none.
fn reschedule(policy: ReschedulePolicy, job: JobKind) -> Option<RescheduleKeys> {
    let every = matches!(job, JobKind::System | JobKind::Sysbatch);
    (!every).then(|| policy.into())
}

fn resources(resources: &Resources) -> ResourceKeys {
    let of_task = resources.ports.as_slice();
    let numa = resources.cores.map(|cores| cores.numa);
    let numa = numa.filter(|affinity| *affinity != NumaAffinity::None);
    ResourceKeys {
        cpu: resources.cpu_mhz.into(),
        cores: resources.cores.map(|cores| cores.count).into(),
        memory: resources.memory_mb.into(),
        memory_max: resources.memory_max_mb.into(),
        secrets: resources.secrets_mb.into(),
        devices: resources.devices.iter().map(device).collect(),
        numa: numa.map(|affinity| NumaKeys { affinity: affinity.into(), ..NumaKeys::default() }),
        networks: (!of_task.is_empty()).then(|| network_of_task(of_task)).into_iter().collect(),
        ..ResourceKeys::default()
    }
}

fn affinities(affinities: &[Affinity]) -> Vec<AffinityKeys> {
    let affinity = |affinity: &Affinity| AffinityKeys {
        weight: affinity.weight.into(),
        ..AffinityKeys::from(&affinity.rule)
    };
    affinities.iter().map(affinity).collect()
}

fn device(device: &DeviceRequest) -> DeviceKeys {
    DeviceKeys {
        label: label(&device.name),
        count: device.count.into(),
        constraints: constraints(&device.constraints),
        affinities: affinities(&device.affinities),
        ..DeviceKeys::default()
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
