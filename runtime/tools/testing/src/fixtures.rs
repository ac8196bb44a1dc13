//! Jobs and allocations made in code, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::{AllocId, GroupName, JobId, NameError, PluginName, TaskName};
use ostler_model::job::{
    EphemeralDisk, Job, JobKind, Lifecycle, LifecycleHook, LogConfig, RestartMode, RestartPolicy,
    Task, TaskGroup,
};
use ostler_model::json::JsonObject;
use ostler_model::resources::Resources;
use ostler_model::rng::Rng;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;

/// A main task of driver `fake` that is not restarted.
///
/// # Errors
/// When `name` is not a task name.
pub fn task(name: &str) -> Result<Task, NameError> {
    Ok(Task {
        name: TaskName::new(name)?,
        driver: PluginName::new("fake")?,
        config: JsonObject::default(),
        env: BTreeMap::new(),
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        resources: Resources::default(),
        restart: restart(0, Duration::ZERO),
        kill_timeout: Duration::from_secs(5),
        kill_signal: None,
        leader: false,
        lifecycle: None,
        logs: LogConfig::default(),
        user: None,
        shutdown_delay: None,
        payload: None,
        volume_mounts: Vec::new(),
        artifacts: Vec::new(),
        affinities: Vec::new(),
        templates: Vec::new(),
    })
}

/// The record of an allocation's job, as of its registration over the API.
#[must_use]
pub fn job_record(alloc: &Allocation) -> JobRecord {
    JobRecord {
        job: Arc::clone(&alloc.job),
        version: 0,
        submitted_at: Timestamp::default(),
        create_index: 1,
        modify_index: 1,
        job_modify_index: 1,
        stopped: false,
        origin: JobOrigin::Api,
        stable: false,
    }
}

/// A policy that fails the task after `attempts` restarts within an hour.
#[must_use]
pub fn restart(attempts: u32, delay: Duration) -> RestartPolicy {
    RestartPolicy { attempts, interval: Duration::from_secs(3_600), delay, mode: RestartMode::Fail }
}

/// A task that runs before, beside or after the main ones, or a main one.
///
/// # Errors
/// When `name` is not a task name.
pub fn task_at(name: &str, when: Option<(LifecycleHook, bool)>) -> Result<Task, NameError> {
    let task = task(name)?;
    Ok(match when {
        Some((hook, sidecar)) => lifecycle(task, hook, sidecar),
        None => task,
    })
}

/// The task as a lifecycle task.
#[must_use]
pub fn lifecycle(task: Task, hook: LifecycleHook, sidecar: bool) -> Task {
    Task { lifecycle: Some(Lifecycle { hook, sidecar }), ..task }
}

/// A group of these tasks, count 1.
///
/// # Errors
/// When `name` is not a group name.
pub fn group(name: &str, tasks: Vec<Task>) -> Result<TaskGroup, NameError> {
    Ok(TaskGroup {
        name: GroupName::new(name)?,
        count: 1,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        network: None,
        tasks: tasks.into_iter().map(CowArc::from).collect(),
        shutdown_delay: None,
        ephemeral_disk: EphemeralDisk::default(),
        health: None,
        services: Vec::new(),
        max_run_duration: None,
        update: None,
        reschedule: ostler_model::rollout::ReschedulePolicy::NEVER,
        placement: ostler_model::placement::Placement::default(),
        scaling: None,
        stop_after_disconnect: None,
        migrate_parallel: 1,
        volumes: BTreeMap::new(),
    })
}

/// A job of these groups, for any datacenter.
///
/// # Errors
/// When `name` is not the id of a job.
pub fn job(name: &str, kind: JobKind, groups: Vec<TaskGroup>) -> Result<Job, NameError> {
    Ok(Job {
        id: JobId::new(name)?,
        name: name.to_owned(),
        kind,
        priority: 50,
        datacenters: vec!["*".to_owned()],
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        groups,
        source_dir: None,
        placement: ostler_model::placement::Placement::default(),
        all_at_once: false,
        parent: None,
    })
}

/// An allocation of a service of this name with the task `t`, made and last changed at an index.
///
/// # Errors
/// When `name` is not the id of a job.
pub fn allocation_of(name: &str, index: u64, rng: &Rng) -> Result<Allocation, NameError> {
    let alloc = allocation(JobKind::Service, vec![task("t")?], rng)?;
    let job = Job { id: JobId::new(name)?, ..(*alloc.job).clone() };
    Ok(Allocation { job: Arc::new(job), modify_index: index, create_index: index, ..alloc })
}

/// What no record of a state file can be read from.
#[derive(Debug)]
pub struct Garbage;

impl serde::Serialize for Garbage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(0xff)
    }
}

/// An allocation of a job with one group of these tasks.
///
/// # Errors
/// Never with the names used here.
pub fn allocation(kind: JobKind, tasks: Vec<Task>, rng: &Rng) -> Result<Allocation, NameError> {
    let group = GroupName::new("group")?;
    let groups = vec![self::group("group", tasks)?];
    let job = Job { datacenters: vec!["dc1".to_owned()], ..job("job", kind, groups)? };
    Ok(Allocation {
        id: AllocId::new(rng.uuid()),
        name: "job.group[0]".to_owned(),
        job: Arc::new(job),
        group,
        index: 0,
        created_at: Timestamp::from_nanos(1),
        desired: DesiredStatus::Run,
        ports: Vec::new(),
        devices: BTreeMap::new(),
        cores: BTreeMap::new(),
        modify_index: 1,
        create_index: 1,
        job_version: 0,
        previous: None,
        deployment: None,
        reschedules: Vec::new(),
        desired_description: String::new(),
    })
}
