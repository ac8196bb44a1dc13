//! Tests of the store as its users see it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod behaviour;
mod conformance;
mod faults;
mod files;
mod journal;
mod later;
mod model;
mod random;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::disk_store::DiskBackend;
use super::mem_store::MemBackend;
use super::testing::FaultyBackend;
use super::{RecordKey, StateStore};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, GroupName, JobId, PluginName, TaskName};
use ostler_model::job::{
    Constraint, EphemeralDisk, Job, JobKind, Lifecycle, LifecycleHook, LogConfig, NetworkSpec,
    Operator, PortSpec, RestartPolicy, Task, TaskGroup,
};
use ostler_model::json::JsonObject;
use ostler_model::resources::{
    AllocatedCores, AllocatedDevice, AllocatedPort, DeviceRequest, Resources,
};
use ostler_model::time::Timestamp;

/// The content of a new, empty state file.
pub(super) fn empty_state_file() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    drop(DiskBackend::open(&path).unwrap());
    std::fs::read(path).unwrap()
}

fn id(n: u128) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(n))
}

fn task(name: &str) -> TaskName {
    TaskName::new(name).unwrap()
}

/// A store over a backend with faults that has seen no commit yet.
fn faulty_store() -> (StateStore, Arc<FaultyBackend>) {
    let memory = Arc::new(MemBackend::default());
    // The first opening writes the schema version.
    drop(StateStore::with_backend(Path::new("(test)"), memory.clone()).unwrap());
    let backend = FaultyBackend::new(memory);
    (StateStore::with_backend(Path::new("(test)"), backend.clone()).unwrap(), backend)
}

/// Whether long runs are asked for.
fn soak() -> bool {
    std::env::var_os("OSTLER_SOAK").is_some_and(|value| value == "1")
}

/// Poll a future once: enough to queue a write without waiting for it.
async fn polled_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context))).await
}

/// Wait for a condition that another task or thread brings about. Fails after ten seconds.
async fn until(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    ostler_model::clock::timeout(Duration::from_secs(10), reached)
        .await
        .expect("condition not reached");
}

/// An allocation with something in every field.
fn allocation(id: AllocId) -> Allocation {
    let object = serde_json::json!({
        "command": "cache.wasm", "args": ["--level", 3, 2.5, null, true], "nested": {"z": {}, "a": []}
    });
    let config = JsonObject::from(object.as_object().unwrap().clone());
    let rule = Constraint {
        left: "${attr.kernel.name}".to_owned(),
        operator: Operator::Equal,
        right: "linux".to_owned(),
    };
    let pairs = |n: &str| BTreeMap::from([(format!("{n}_KEY"), "value ü\n".to_owned())]);
    let web = Task {
        name: task("web"),
        driver: PluginName::new("wasm").unwrap(),
        config,
        env: pairs("ENV"),
        meta: pairs("META"),
        constraints: vec![rule.clone()],
        resources: Resources {
            devices: vec![DeviceRequest {
                name: "nvidia/gpu".to_owned(),
                count: 2,
                constraints: vec![rule.clone()],
                affinities: Vec::new(),
            }],
            ..Resources::default()
        },
        restart: RestartPolicy::default_for(JobKind::Service),
        kill_timeout: Duration::from_millis(2_500),
        kill_signal: Some("SIGINT".to_owned()),
        leader: true,
        lifecycle: Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: true }),
        logs: LogConfig::default(),
        user: Some("nobody".to_owned()),
        shutdown_delay: Some(Duration::from_secs(1)),
        payload: None,
        volume_mounts: Vec::new(),
        artifacts: Vec::new(),
        affinities: Vec::new(),
        templates: Vec::new(),
    };
    let group = GroupName::new("cache").unwrap();
    let job = Job {
        id: JobId::new("example").unwrap(),
        name: "example".to_owned(),
        kind: JobKind::Service,
        priority: 50,
        datacenters: vec!["dc1".to_owned()],
        meta: pairs("JOB"),
        constraints: vec![rule],
        groups: vec![TaskGroup {
            name: group.clone(),
            count: 3,
            meta: pairs("GROUP"),
            constraints: Vec::new(),
            network: Some(NetworkSpec {
                ports: vec![PortSpec {
                    label: "db".to_owned(),
                    fixed: None,
                    to: Some(6379),
                    host_network: None,
                }],
                ..NetworkSpec::default()
            }),
            tasks: vec![web.into()],
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
        }],
        source_dir: Some("/jobs".into()),
        placement: ostler_model::placement::Placement::default(),
        all_at_once: false,
        parent: None,
    };
    let gpu = GroupKey { vendor: "nvidia".into(), kind: "gpu".into(), name: "A/B".into() };
    Allocation {
        id,
        name: "example.cache[0]".to_owned(),
        job: Arc::new(job),
        group,
        cores: BTreeMap::from([(
            task("web"),
            AllocatedCores { cores: "0-1,3".parse().unwrap(), cpu_mhz: 7_500 },
        )]),
        index: 0,
        created_at: Timestamp::from_nanos(1_700_000_000_000_000_001),
        desired: DesiredStatus::Run,
        ports: vec![AllocatedPort {
            label: "db".to_owned(),
            value: 20_001,
            to: 6_379,
            host_ip: "127.0.0.1".to_owned(),
            task: None,
        }],
        devices: BTreeMap::from([(
            task("web"),
            vec![AllocatedDevice { group: gpu, ids: vec!["GPU-1".to_owned()] }],
        )]),
        modify_index: u64::MAX,
        create_index: 1,
        job_version: 0,
        previous: None,
        deployment: None,
        reschedules: Vec::new(),
        desired_description: String::new(),
    }
}

fn text(store: &StateStore, key: &RecordKey) -> Option<String> {
    store.get(key).unwrap()
}
