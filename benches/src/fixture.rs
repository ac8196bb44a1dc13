//! Allocations and their task records as an agent writes them: a service of three tasks with
//! drivers' configuration, environment, ports and a device, about 2 KiB encoded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostler_model::alloc::{AllocState, Allocation, ClientStatus, DesiredStatus};
use ostler_model::device::GroupKey;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, GroupName, JobId, PluginName, RunId, TaskName};
use ostler_model::job::{
    Constraint, EphemeralDisk, Job, JobKind, Lifecycle, LifecycleHook, LogConfig, NetworkSpec,
    Operator, PortSpec, RestartPolicy, Task, TaskGroup,
};
use ostler_model::json::JsonObject;
use ostler_model::resources::{AllocatedDevice, AllocatedPort, DeviceRequest, Resources};
use ostler_model::task::{DriverHandle, TaskState, TaskStatus, Workload};
use ostler_model::time::Timestamp;
use ostler_state::testing::AnyKey;
use ostler_state::{PutOutcome, RecordKey, StateError, StateStore};
use serde::{Deserialize, Serialize};

/// The tasks of every allocation here.
pub const TASKS: [&str; 3] = ["server", "proxy", "log-shipper"];

/// Records per allocation: itself, its state, and two per task.
pub const RECORDS: usize = 2 + 2 * TASKS.len();

/// Nanoseconds since 1970 of everything that happened here.
const THEN: u64 = 1_760_000_000_000_000_000;

/// Stands for the private record of a task, whose type belongs to the task runner: the same fields
/// of the same sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRecord {
    /// The run there may be.
    pub run: Option<LocalRun>,
    /// Restarts used, and since when they are counted.
    pub tracker: (u32, Timestamp),
    /// The task ended for good.
    pub run_complete: bool,
}

/// One start of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRun {
    /// Its name.
    pub id: RunId,
    /// Process, start time, boot and control group of each process.
    pub identities: Vec<(u32, u64, String, Option<PathBuf>)>,
    /// What the driver answered.
    pub started: Option<(DriverHandle, Workload)>,
}

/// Everything the agent keeps of one allocation, with the keys.
#[derive(Clone, Debug)]
pub struct Records {
    /// Itself.
    pub alloc: (AnyKey, Allocation),
    /// Its state.
    pub state: (AnyKey, AllocState),
    /// The private record of each task.
    pub locals: Vec<(AnyKey, LocalRecord)>,
    /// The public state of each task.
    pub tasks: Vec<(AnyKey, TaskState)>,
}

impl Records {
    /// Of the allocation with this number; the ids are as scattered as random ones.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let alloc = allocation(number);
        let id = alloc.id;
        let tasks: Vec<_> = TASKS.into_iter().map(task_name).collect();
        let states: BTreeMap<_, _> =
            tasks.iter().map(|task| (task.clone(), task_state(number))).collect();
        Self {
            state: (
                AnyKey(RecordKey::AllocState(id)),
                AllocState {
                    client_status: ClientStatus::Running,
                    client_description: "Tasks are running".to_owned(),
                    tasks: Default::default(),
                    health: None,
                    network: None,
                },
            ),
            locals: tasks
                .iter()
                .map(|task| {
                    (AnyKey(RecordKey::TaskLocal(id, task.clone())), local(number, id, task))
                })
                .collect(),
            tasks: states
                .into_iter()
                .map(|(task, state)| (AnyKey(RecordKey::TaskState(id, task)), state))
                .collect(),
            alloc: (AnyKey(RecordKey::Alloc(id)), alloc),
        }
    }

    /// Write all of them, one after the other; returns how many were real writes.
    ///
    /// # Errors
    /// As [`StateStore::put`].
    pub async fn put(&self, store: &StateStore) -> Result<u64, StateError> {
        let mut written = 0;
        let mut count = |put| written += u64::from(put == PutOutcome::Written);
        count(store.put(&self.alloc.0, &self.alloc.1).await?);
        count(store.put(&self.state.0, &self.state.1).await?);
        for (key, local) in &self.locals {
            count(store.put(key, local).await?);
        }
        for (key, task) in &self.tasks {
            count(store.put(key, task).await?);
        }
        Ok(written)
    }

    /// Keys and records as bytes, enveloped as the store does it.
    ///
    /// # Panics
    /// When a record cannot be encoded.
    #[must_use]
    pub fn encoded(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all =
            vec![encode(&self.alloc.0.0, &self.alloc.1), encode(&self.state.0.0, &self.state.1)];
        all.extend(self.locals.iter().map(|(key, local)| encode(&key.0, local)));
        all.extend(self.tasks.iter().map(|(key, task)| encode(&key.0, task)));
        all
    }
}

/// A key and a record as bytes.
///
/// # Panics
/// When the value cannot be encoded.
#[must_use]
pub fn encode<T: Serialize>(key: &RecordKey, value: &T) -> (Vec<u8>, Vec<u8>) {
    let mut record = Vec::new();
    ostler_state::codec::encode(key.kind(), value, &mut record).expect("the value is encoded");
    (key.encode(), record)
}

/// Fill a store with the allocations of these numbers, many at a time.
///
/// # Panics
/// When a write fails.
pub async fn fill(store: &StateStore, numbers: std::ops::Range<u64>) {
    const AT_ONCE: u64 = 256;
    let (from, to) = (numbers.start, numbers.end);
    let writers = (0..AT_ONCE).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut number = from + writer;
            while number < to {
                Records::new(number).put(&store).await.expect("the write");
                number += AT_ONCE;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("the writer ends");
    }
}

/// The id of the allocation with this number.
///
/// # Panics
/// Never: the digits are those of a UUID.
#[must_use]
pub fn alloc_id(number: u64) -> AllocId {
    let (high, low) = (scatter(number), scatter(!number));
    let digits = format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    );
    digits.parse().expect("a UUID")
}

/// A bijection that scatters neighbours (the finaliser of splitmix64).
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A task name.
///
/// # Panics
/// When `name` is none.
#[must_use]
pub fn task_name(name: &str) -> TaskName {
    TaskName::new(name).expect("a task name")
}

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn allocation(number: u64) -> Allocation {
    let port = |label: &str, to| AllocatedPort {
        label: label.to_owned(),
        value: 20_000 + u16::try_from(number % 10_000).unwrap_or(0),
        to,
        host_ip: "10.20.30.40".to_owned(),
        task: None,
    };
    let gpu = AllocatedDevice {
        group: GroupKey {
            vendor: "acme".to_owned(),
            kind: "gpu".to_owned(),
            name: "m4-40g".to_owned(),
        },
        ids: vec![format!("GPU-{:016x}", scatter(number))],
    };
    Allocation {
        id: alloc_id(number),
        name: format!("storefront-{}.web[{}]", number / 10, number % 10),
        job: Arc::new(job(number)),
        group: GroupName::new("web").expect("a group name"),
        index: u32::try_from(number % 10).unwrap_or(0),
        created_at: Timestamp::from_nanos(THEN + number),
        desired: DesiredStatus::Run,
        ports: vec![port("http", 8080), port("metrics", 9102)],
        devices: BTreeMap::from([(task_name("server"), vec![gpu])]),
        cores: BTreeMap::new(),
        modify_index: 4_000 + number,
        create_index: 1,
        job_version: 0,
        previous: None,
        deployment: None,
        reschedules: Vec::new(),
        desired_description: String::new(),
    }
}

fn job(number: u64) -> Job {
    Job {
        id: JobId::new(format!("storefront-{}", number / 10)).expect("a job id"),
        name: format!("storefront-{}", number / 10),
        kind: JobKind::Service,
        priority: 70,
        datacenters: vec!["eu-west-1a".to_owned(), "eu-west-1b".to_owned()],
        meta: strings(&[("owner", "shop-platform"), ("revision", "7c1f0a9be3d24f55")]),
        constraints: vec![rule("${attr.kernel.name}", Operator::Equal, "linux")],
        groups: vec![TaskGroup {
            name: GroupName::new("web").expect("a group name"),
            count: 10,
            meta: strings(&[("tier", "frontend")]),
            constraints: vec![rule("${attr.cpu.numcores}", Operator::GreaterOrEqual, "2")],
            network: Some(NetworkSpec {
                ports: vec![
                    PortSpec {
                        label: "http".to_owned(),
                        fixed: None,
                        to: Some(8080),
                        host_network: None,
                    },
                    PortSpec {
                        label: "metrics".to_owned(),
                        fixed: None,
                        to: Some(9102),
                        host_network: None,
                    },
                ],
                ..NetworkSpec::default()
            }),
            tasks: vec![server().into(), proxy().into(), log_shipper().into()],
            shutdown_delay: Some(Duration::from_secs(5)),
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
        source_dir: Some(PathBuf::from("/srv/jobs/storefront")),
        placement: ostler_model::placement::Placement::default(),
        all_at_once: false,
        parent: None,
    }
}

fn rule(left: &str, operator: Operator, right: &str) -> Constraint {
    Constraint { left: left.to_owned(), operator, right: right.to_owned() }
}

fn config(text: &str) -> JsonObject {
    serde_json::from_str(text).expect("an object")
}

fn task(name: &str, driver: &str, config_text: &str, env: &[(&str, &str)]) -> Task {
    Task {
        name: task_name(name),
        driver: PluginName::new(driver).expect("a driver name"),
        config: config(config_text),
        env: strings(env),
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        resources: Resources::default(),
        restart: RestartPolicy::default_for(JobKind::Service),
        kill_timeout: Duration::from_secs(15),
        kill_signal: Some("SIGTERM".to_owned()),
        leader: false,
        lifecycle: None,
        logs: LogConfig::default(),
        user: Some("www-data".to_owned()),
        shutdown_delay: None,
        payload: None,
        volume_mounts: Vec::new(),
        artifacts: Vec::new(),
        affinities: Vec::new(),
        templates: Vec::new(),
    }
}

fn server() -> Task {
    let text = r#"{"command":"/opt/storefront/bin/server","args":["--listen","0.0.0.0:8080",
        "--config","${NOMAD_TASK_DIR}/server.toml","--workers","8","--log-format","json"],
        "work_dir":"/opt/storefront","limits":{"open_files":65536,"processes":512},
        "mounts":[{"source":"/srv/storefront/assets","target":"/assets","read_only":true},
        {"source":"/srv/storefront/cache","target":"/cache","read_only":false}]}"#;
    let env = [
        ("DATABASE_URL", "postgres://storefront@db.internal.example:5432/storefront"),
        ("CACHE_URL", "redis://cache.internal.example:6379/3"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"),
        ("OTEL_SERVICE_NAME", "storefront-web"),
        ("FEATURES", "checkout-v2,recommendations,fast-search"),
        ("RUST_LOG", "info,storefront=debug"),
        ("SESSION_COOKIE_DOMAIN", ".shop.example"),
        ("ASSETS_BASE_URL", "https://assets.shop.example/storefront/2026-11-03.4"),
        ("PAYMENT_GATEWAY", "https://payments.internal.example:8443/v3"),
    ];
    let mut task = task("server", "exec", text, &env);
    task.leader = true;
    task.meta = strings(&[("build", "2026-11-03.4"), ("commit", "9f2c1d7e4ab0")]);
    task.constraints = vec![rule("${attr.os.version}", Operator::Version, ">= 12, < 14")];
    task.resources = Resources {
        cpu_mhz: 2_000,
        cores: None,
        memory_mb: 1_024,
        memory_max_mb: Some(2_048),
        secrets_mb: None,
        devices: vec![DeviceRequest {
            name: "acme/gpu".to_owned(),
            count: 1,
            constraints: vec![rule("${device.attr.memory}", Operator::GreaterOrEqual, "24 GiB")],
            affinities: Vec::new(),
        }],
        ports: Vec::new(),
    };
    task.shutdown_delay = Some(Duration::from_secs(10));
    task
}

fn proxy() -> Task {
    let text = r#"{"module":"proxy.wasm","args":["--upstream","127.0.0.1:8080","--tls"],
        "allow_outbound":["127.0.0.1:8080","payments.internal.example:8443"],
        "dirs":[{"host":"/etc/storefront/tls","guest":"/tls","read_only":true}]}"#;
    let env = [("PROXY_TIMEOUT_MS", "2500"), ("PROXY_RETRIES", "2"), ("PROXY_LOG", "info")];
    let mut task = task("proxy", "wasm", text, &env);
    task.constraints = vec![rule("${attr.ostler.wasm.pooling}", Operator::IsSet, "")];
    task.lifecycle = Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: true });
    task
}

fn log_shipper() -> Task {
    let text = r#"{"command":"/usr/bin/vector","args":["--config","/etc/vector/storefront.toml"]}"#;
    let env = [("VECTOR_LOG", "warn"), ("LOKI_URL", "https://loki.internal.example/api/v1/push")];
    let mut task = task("log-shipper", "exec", text, &env);
    task.lifecycle = Some(Lifecycle { hook: LifecycleHook::Poststart, sidecar: true });
    task
}

fn task_state(number: u64) -> TaskState {
    let at = |seconds: u64| Timestamp::from_nanos(THEN + number + seconds * 1_000_000_000);
    let mut state = TaskState {
        status: TaskStatus::Running,
        restarts: 1,
        last_restart: Some(at(60)),
        started_at: Some(at(61)),
        ..TaskState::default()
    };
    state.push_event(TaskEvent::new(EventKind::Received, at(0), "Task received by client"));
    state.push_event(TaskEvent::new(EventKind::TaskSetup, at(0), "Building Task Directory"));
    state.push_event(TaskEvent::new(EventKind::Started, at(1), "Task started by client"));
    let ended = TaskEvent::new(EventKind::Terminated, at(45), "Exit Code: 1")
        .detail("exit_code", 1)
        .detail("signal", 0)
        .detail("oom_killed", false);
    state.push_event(ended);
    let again = TaskEvent::new(EventKind::Restarting, at(45), "Task restarting in 15.2s")
        .detail("restart_reason", "Restart within policy")
        .detail("start_delay", 15_200_000_000_u64);
    state.push_event(again);
    state.push_event(TaskEvent::new(EventKind::Started, at(61), "Task started by client"));
    state
}

fn local(number: u64, id: AllocId, task: &TaskName) -> LocalRecord {
    let pid = 1_000 + u32::try_from(number % 30_000).unwrap_or(0);
    let cgroup = PathBuf::from(format!("/sys/fs/cgroup/ostler.slice/{id}.{task}.scope"));
    let boot = "7d9ab7a8-9c0f-4f3b-8d7e-2f6a0c51e9b4".to_owned();
    let handle = DriverHandle { plugin: "exec".to_owned(), version: 1, data: vec![7; 48] };
    let run = LocalRun {
        id: RunId::new(id, task, pid),
        identities: vec![(pid, 81_234_567 + number, boot, Some(cgroup))],
        started: Some((handle, Workload::Process(format!("{id}/{task}")))),
    };
    LocalRecord { run: Some(run), tracker: (1, Timestamp::from_nanos(THEN)), run_complete: false }
}
