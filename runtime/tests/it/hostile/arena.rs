//! Where attacks take place: one plugin runtime with real host services, a neighbour that must not
//! notice, and the counts of what must not be left.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostler_guests::fixtures::HOSTILE_DEVICE;
use ostler_health::policy::FailurePolicy;
use ostler_model::clock::sleep;
use ostler_model::config::AnswerGrants;
use ostler_model::cores::CoreSet;
use ostler_model::grants::Grants;
use ostler_model::ids::{AllocId, GroupName, JobId, RunId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::ports::{ByteSink, TaskConfig, TaskContext};
use ostler_plugin::device::LoadedDevice;
use ostler_plugin::host::HostServices;
use ostler_plugin::{Plugin, PluginError, PluginRuntime, PluginSpec};
use ostler_sandbox::{EngineKind, PoolUse};
use serde_json::Value;

use super::soon;
use crate::support::DataDir;
use crate::support::census::Census;
use crate::support::lateness::{Late, Lateness};
use crate::support::plugins::host_services;

/// How an attack went.
#[derive(Default)]
pub struct Outcome {
    /// Every error text and output.
    pub said: String,
    /// How long it lasted beyond its deadline, where it had to be ended.
    pub past: Option<Duration>,
    /// What it got that it must not have.
    pub escaped: Option<String>,
}

impl Outcome {
    pub fn of(said: impl ToString) -> Self {
        Self { said: said.to_string(), ..Self::default() }
    }
}

pub struct Arena {
    pub plugins: PluginRuntime,
    pub services: HostServices,
    neighbour: Arc<LoadedDevice>,
    dir: DataDir,
}

/// What a task may add to its directories, bytes.
pub const DISK: u64 = 10 << 20;

/// A secret outside of everything that is granted or assigned.
pub const SECRET: &str = "secret of the node";

impl Arena {
    pub async fn new() -> Self {
        let dir = DataDir::new();
        let services = host_services(&dir);
        let plugins = PluginRuntime::new(services.clone()).unwrap();
        let limits = PluginLimits { call_cpu_max: Duration::from_secs(60), ..Default::default() };
        let config = serde_json::json!({"mode": "cards"});
        let groups = Some(vec!["bench/gpu/*".to_owned()]);
        let answers = AnswerGrants { groups, ..AnswerGrants::default() };
        let spec = spec("neighbour", config, Grants { answers, ..Grants::default() }, limits);
        let neighbour = match load(&plugins, spec, HOSTILE_DEVICE).await {
            Ok(Plugin::Device(plugin)) => Arc::new(plugin),
            _ => panic!("the neighbour loads"),
        };
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("outside/x"), SECRET).unwrap();
        Self { plugins, services, neighbour, dir }
    }

    /// A directory of this name in the data directory, empty.
    pub fn empty(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let _absent = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// The directory that nobody may reach; `x` in it is the secret.
    pub fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// What became of the secret.
    pub fn secret_harmed(&self) -> Option<String> {
        let names: Vec<_> =
            std::fs::read_dir(self.outside()).unwrap().map(|e| e.unwrap().file_name()).collect();
        let whole = std::fs::read_to_string(self.outside().join("x")).is_ok_and(|x| x == SECRET);
        (!whole || names.len() != 1).then(|| format!("the secret: {names:?}"))
    }

    /// What the host knows of a new run of a task, and where it prints.
    pub fn context(&self, dir: &Path) -> (Arc<TaskContext>, Arc<Printed>) {
        let printed = Arc::new(Printed::default());
        let alloc = AllocId::new(self.services.rng.uuid());
        let task = TaskName::new("t").unwrap();
        for name in ["local", "secrets", "tmp", "alloc/data", "alloc/logs", "alloc/tmp"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        let context = TaskContext {
            run_id: RunId::new(alloc, &task, 1),
            alloc_id: alloc,
            job_id: JobId::new("j").unwrap(),
            group: GroupName::new("g").unwrap(),
            task,
            stdout: Arc::clone(&printed) as _,
            stderr: Arc::new(Complaints(Arc::clone(&printed))),
            record_identity: Arc::new(|_| Box::pin(std::future::ready(Ok(())))),
            events: Arc::new(|_, _| {}),
            cpu_mhz: 100,
            cores: CoreSet::new(),
            memory_bytes_max: 32 << 20,
            disk_bytes_max: DISK,
            ports: vec![],
            task_dir: dir.to_owned(),
            alloc_dir: dir.join("alloc"),
            dirs: ostler_model::ports::dirs_are_made(),
            mounts: vec![],
            device_nodes: vec![],
            user: None,
            alloc_user: None,
            named: Arc::from([]),
            env: Arc::from([]),
            network: None,
            secrets: Arc::default(),
        };
        (Arc::new(context), printed)
    }

    /// The neighbour and the timers from now on.
    pub fn watch(&self) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, neighbour) = (Arc::clone(&stop), Arc::clone(&self.neighbour));
        let neighbour = tokio::spawn(async move {
            let (mut calls, mut wrong) = (0, None);
            while calls == 0 || !stopped.load(Ordering::SeqCst) {
                match neighbour.fingerprint().await {
                    Ok(found) if found.groups.len() == 8 => calls += 1,
                    Ok(found) => wrong = Some(format!("{} groups", found.groups.len())),
                    Err(error) => wrong = Some(error.to_string()),
                }
                if wrong.is_some() {
                    break;
                }
                sleep(Duration::from_millis(2)).await;
            }
            (calls, wrong)
        });
        Watch { stop, neighbour, lateness: Lateness::watch() }
    }

    /// The counts when nothing moves any more.
    pub async fn settled(&self) -> Count {
        soon("no guest is left", || self.guests() == [PoolUse::default(); 2]).await;
        let mut last = Count::now(self);
        loop {
            sleep(Duration::from_millis(300)).await;
            let now = Count::now(self);
            if now.census == last.census {
                return now;
            }
            last = now;
        }
    }

    /// As many files, threads, children and tasks as before, no guest, and not much more memory.
    pub async fn leaves_nothing(&self, before: &Count, growth_max: u64) {
        let mut now = Count::now(self);
        soon(&format!("as before: {before:?}"), || {
            now = Count::now(self);
            now.within(before, growth_max)
        })
        .await;
    }

    fn guests(&self) -> [PoolUse; 2] {
        [EngineKind::Plugin, EngineKind::Task].map(|kind| self.services.sandbox.pool_use(kind))
    }
}

pub fn spec(name: &str, config: Value, grants: Grants, limits: PluginLimits) -> PluginSpec {
    let Value::Object(config) = config else { panic!("an object") };
    let (config, failure) = (JsonObject::from(config), FailurePolicy::default());
    PluginSpec { name: name.to_owned(), config, grants, limits, failure }
}

pub async fn load(
    plugins: &PluginRuntime,
    spec: PluginSpec,
    file: &str,
) -> Result<Plugin, PluginError> {
    load_bytes(plugins, spec, std::fs::read(file).unwrap()).await
}

pub async fn load_bytes(
    plugins: &PluginRuntime,
    spec: PluginSpec,
    bytes: Vec<u8>,
) -> Result<Plugin, PluginError> {
    plugins.load(spec, ostler_plugin::manifest::read(&bytes)?, bytes.into()).await
}

/// What a driver is told of a task with this configuration.
pub fn task_config(context: &TaskContext, config: Value) -> TaskConfig {
    let Value::Object(config) = config else { panic!("an object") };
    TaskConfig {
        run_id: context.run_id.clone(),
        alloc_id: context.alloc_id,
        job_id: JobId::new("j").unwrap(),
        group: GroupName::new("g").unwrap(),
        task: context.task.clone(),
        config: JsonObject::from(config),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cpu_mhz: 100,
        memory_bytes: 32 << 20,
        memory_max_bytes: None,
        ports: vec![],
        mounts: vec![],
        device_nodes: vec![],
        task_dir: context.task_dir.clone(),
        alloc_dir: context.alloc_dir.clone(),
        user: None,
    }
}

/// What a task prints: the beginning kept, all of it counted.
#[derive(Default)]
pub struct Printed(Mutex<(Vec<u8>, u64)>);

impl Printed {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap().0).into_owned()
    }

    pub fn bytes(&self) -> u64 {
        self.0.lock().unwrap().1
    }
}

impl ByteSink for Printed {
    fn write(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap();
        // Of a flood the beginning is enough, and errors come last.
        let room = 16_384_usize.saturating_sub(kept.0.len());
        kept.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        kept.1 += bytes.len() as u64;
    }
}

/// Standard error: always kept, after what there is.
struct Complaints(Arc<Printed>);

impl ByteSink for Complaints {
    fn write(&self, bytes: &[u8]) {
        let mut kept = self.0.0.lock().unwrap();
        if kept.0.len() < 1 << 16 {
            kept.0.extend_from_slice(bytes);
        }
    }
}

/// How long timers are set for.
pub struct Watch {
    stop: Arc<AtomicBool>,
    neighbour: tokio::task::JoinHandle<(u32, Option<String>)>,
    lateness: Lateness,
}

/// What others noticed of an attack.
pub struct Seen {
    pub calls: u32,
    pub neighbour_wrong: Option<String>,
    pub late: Late,
}

impl Watch {
    pub async fn end(self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        let (calls, neighbour_wrong) = self.neighbour.await.unwrap();
        Seen { calls, neighbour_wrong, late: self.lateness.end().await }
    }
}

/// What may leak.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    census: Census,
    resident: u64,
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

impl Count {
    pub fn now(arena: &Arena) -> Self {
        Self { census: Census::now(&arena.services.control), resident: resident() }
    }

    fn within(&self, before: &Self, growth_max: u64) -> bool {
        self.census.within(&before.census) && self.resident <= before.resident + growth_max
    }
}
