//! One start of a task: what the calls made for it share.
//!
//! ```text
//! new ─► start: driver asked, its processes held, their identities collected here
//!     ─► identities and handle kept ─► released: the task's own code runs
//! restored ─► handle and identities from the record; context and driver when they are at hand
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::queue;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::TaskScope;
use super::handle::{LocalRecord, RunIntent, RunRecord, StartedRecord};
use super::hooks::Preparation;
use super::notes::{self, DriverNote};
use super::templates::Templates;
use ostler_model::ids::RunId;
use ostler_model::limits::MIB;
use ostler_model::ports::{
    BoxFuture, ByteSink, IdentityRecorder, ProcessIdentity, StartedTask, TaskConfig, TaskContext,
    TaskDriver,
};
use ostler_model::redact::Secrets;
use ostler_model::task::{DriverHandle, RawExit, Workload};

/// One start of a task, shared by the calls that are made for it.
pub struct TaskRun {
    /// The id of the run.
    pub id: RunId,
    driver: OnceLock<Arc<dyn TaskDriver>>,
    /// Cancelled when the driver is at hand.
    driver_set: CancellationToken,
    context: OnceLock<Arc<TaskContext>>,
    templates: OnceLock<Arc<Templates>>,
    /// Configuration and intent are boxed, because only the start needs them.
    config: Mutex<Option<Box<TaskConfig>>>,
    intent: Mutex<Option<Box<RunIntent>>>,
    started: Mutex<Option<StartedTask>>,
    exit: Mutex<Option<RawExit>>,
    spawned: Arc<SpawnedProcesses>,
    /// Cancelled when the start call has ended, in whatever way.
    start_over: CancellationToken,
    /// An earlier agent began the run.
    restored: bool,
}

/// The processes of a run.
#[derive(Default)]
struct SpawnedProcesses {
    /// Set when the start was given up: nothing may be spawned any more.
    abandoned: AtomicBool,
    /// Set when the record has the identities: each process that is spawned later is
    /// recorded by itself.
    released: AtomicBool,
    identities: Mutex<Vec<ProcessIdentity>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Discards the output of a task whose log files could not be opened again.
struct DiscardOutput;

impl ByteSink for DiscardOutput {
    fn write(&self, _bytes: &[u8]) {}
}

impl TaskRun {
    /// A new run, with the id of its intent or a new id. `None` when the preparation
    /// is not complete.
    pub fn new(
        scope: &TaskScope,
        record: &LocalRecord,
        notes: queue::QueueSender<DriverNote>,
        mut preparation: Preparation,
    ) -> Option<Self> {
        let intent = preparation.intent.take();
        let id = intent.as_ref().map_or_else(|| new_id(scope), |intent| intent.run.clone());
        let secrets = secrets_of(&preparation);
        let config = config(scope, &id, &mut preparation)?;
        let driver = preparation.driver.take()?;
        preparation.logs.as_ref()?;
        let run = Self::with_id(id);
        *lock(&run.intent) = intent.map(Box::new);
        *lock(&run.config) = Some(Box::new(config));
        run.set_driver(driver);
        run.set_context(scope, record, notes, preparation, secrets);
        Some(run)
    }

    /// A run of an earlier agent.
    #[must_use]
    pub fn from_record(record: RunRecord) -> Self {
        let RunRecord { id, identities, started } = record;
        let run = Self { restored: true, ..Self::with_id(id) };
        run.spawned.released.store(true, Ordering::SeqCst);
        *lock(&run.spawned.identities) = identities;
        *lock(&run.started) = started.map(|StartedRecord { handle, workload, network }| {
            StartedTask { handle, workload, network }
        });
        // The start call of an earlier agent is over in any case.
        run.start_over.cancel();
        run
    }

    fn with_id(id: RunId) -> Self {
        Self {
            id,
            driver: OnceLock::new(),
            driver_set: CancellationToken::new(),
            context: OnceLock::new(),
            templates: OnceLock::new(),
            config: Mutex::default(),
            intent: Mutex::default(),
            started: Mutex::default(),
            exit: Mutex::default(),
            spawned: Arc::default(),
            start_over: CancellationToken::new(),
            restored: false,
        }
    }

    /// Did an earlier agent begin the run?
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// Make the context that drivers get for this run; the first context stays.
    /// `secrets`: see [`secrets_of`].
    pub fn set_context(
        &self,
        scope: &TaskScope,
        record: &LocalRecord,
        notes: queue::QueueSender<DriverNote>,
        preparation: Preparation,
        secrets: Secrets,
    ) {
        let alloc_user = preparation.alloc_user.own_id();
        let Preparation { task_dir, alloc_dir, logs, reservation, templates, .. } = preparation;
        if let Some(templates) = templates {
            let _first_stays = self.templates.set(templates);
        }
        let (allocation, task) = (&scope.allocation, &scope.task);
        let sink =
            |stream: Option<Arc<dyn ByteSink>>| stream.unwrap_or_else(|| Arc::new(DiscardOutput));
        let context = TaskContext {
            run_id: self.id.clone(),
            alloc_id: allocation.id,
            job_id: allocation.job.id.clone(),
            group: allocation.group.clone(),
            task: task.name.clone(),
            stdout: sink(logs.as_ref().map(|logs| Arc::clone(&logs.stdout) as _)),
            stderr: sink(logs.as_ref().map(|logs| Arc::clone(&logs.stderr) as _)),
            record_identity: recorder(record.clone(), self.id.clone(), Arc::clone(&self.spawned)),
            events: notes::sink(notes),
            cpu_mhz: allocation.cpu_mhz(task),
            cores: allocation.cores_of(&task.name),
            memory_bytes_max: task.resources.memory_limit_bytes(),
            disk_bytes_max: allocation
                .task_group()
                .map_or(u64::MAX, |group| u64::from(group.ephemeral_disk.size_mb) * MIB),
            ports: allocation.ports.clone(),
            task_dir: task_dir.map(|dir| dir.path).unwrap_or_default(),
            alloc_dir,
            dirs: scope.dirs.maker(),
            mounts: reservation.mounts,
            device_nodes: Vec::new(),
            user: None,
            alloc_user,
            named: Arc::default(),
            env: Arc::default(),
            network: scope.context.network.get(),
            secrets: Arc::new(secrets),
        };
        let _first_stays = self.context.set(Arc::new(context));
    }

    /// Let nothing of this run be spawned any more.
    pub fn abandon(&self) {
        self.spawned.abandoned.store(true, Ordering::SeqCst);
    }

    /// A guard that the start call holds. When it is dropped, [`TaskRun::wait_start_call`] returns,
    /// also when the call was dropped half-way.
    #[must_use]
    pub fn start_guard(&self) -> DropGuard {
        self.start_over.clone().drop_guard()
    }

    /// Wait for the end of the start call.
    pub async fn wait_start_call(&self) {
        self.start_over.cancelled().await;
    }

    /// The driver's handle, once there is one.
    #[must_use]
    pub fn handle(&self) -> Option<DriverHandle> {
        lock(&self.started).as_ref().map(|s| s.handle.clone())
    }

    /// The workload of the run, once it is started.
    #[must_use]
    pub fn workload(&self) -> Option<Workload> {
        lock(&self.started).as_ref().map(|s| s.workload.clone())
    }

    /// The driver's answer to the start, once there is one.
    pub fn driver_answer(&self) -> Option<StartedTask> {
        lock(&self.started).clone()
    }

    /// Keep the driver's answer. Returns whether it differs from the one before.
    pub fn set_driver_answer(&self, started: StartedTask) -> bool {
        let mut known = lock(&self.started);
        let news = known.as_ref() != Some(&started);
        *known = Some(started);
        news
    }

    /// Forget the driver's answer, because the start failed after all.
    pub fn clear_driver_answer(&self) {
        *lock(&self.started) = None;
    }

    /// The driver, once it is known.
    #[must_use]
    pub fn driver(&self) -> Option<&Arc<dyn TaskDriver>> {
        self.driver.get()
    }

    /// Set the driver; the first one stays.
    pub fn set_driver(&self, driver: Arc<dyn TaskDriver>) {
        let _first_stays = self.driver.set(driver);
        self.driver_set.cancel();
    }

    /// Wait until the driver is known.
    pub async fn wait_driver(&self) {
        self.driver_set.cancelled().await;
    }

    /// The context that drivers get, once it is made.
    #[must_use]
    pub fn context(&self) -> Option<Arc<TaskContext>> {
        self.context.get().cloned()
    }

    /// The task's templates, where it has templates and they are known.
    #[must_use]
    pub fn templates(&self) -> Option<&Arc<Templates>> {
        self.templates.get()
    }

    /// Is the context made?
    #[must_use]
    pub fn has_context(&self) -> bool {
        self.context.get().is_some()
    }

    /// Take the configuration; later calls return `None`.
    pub fn take_config(&self) -> Option<TaskConfig> {
        lock(&self.config).take().map(|config| *config)
    }

    /// Take the intent, where one is on its way to the disk; later calls return `None`.
    pub fn take_intent(&self) -> Option<RunIntent> {
        lock(&self.intent).take().map(|intent| *intent)
    }

    /// The processes of the run that are known so far.
    #[must_use]
    pub fn identities(&self) -> Vec<ProcessIdentity> {
        lock(&self.spawned.identities).clone()
    }

    /// Mark that the record has the identities: from now on each new one is written by itself.
    /// Returns the identities that are known so far.
    #[must_use]
    pub fn release(&self) -> Vec<ProcessIdentity> {
        // Under the lock, so that an identity is either among these or sees the mark.
        let identities = lock(&self.spawned.identities);
        self.spawned.released.store(true, Ordering::SeqCst);
        identities.clone()
    }

    /// How the run ended, as the host saw it; `None` while it has not ended.
    pub fn exit(&self) -> Option<RawExit> {
        lock(&self.exit).clone()
    }

    /// Set how the run ended; the first exit stays.
    pub fn set_exit(&self, exit: RawExit) {
        lock(&self.exit).get_or_insert(exit);
    }
}

/// An id for the next run of a task.
#[must_use]
pub fn new_id(scope: &TaskScope) -> RunId {
    let random = u32::try_from(scope.node.rng.number_below(1 << 32)).unwrap_or(0);
    RunId::new(scope.allocation.id, &scope.task.name, random)
}

/// The secrets of a run's environment and configuration. Call it before the preparation is used up.
#[must_use]
pub fn secrets_of(preparation: &Preparation) -> Secrets {
    let mut secrets = Secrets::for_task();
    // Variables from device plugins are paths and ids, which the operator may see.
    let of_devices = &preparation.reservation.env;
    let variables = preparation.env.iter().flat_map(|env| &env.vars);
    variables
        .filter(|(name, value)| !of_devices.iter().any(|(of, its)| of == *name && its == *value))
        .for_each(|(name, value)| secrets.learn_variable(name, value));
    match &preparation.driver {
        Some(driver) => driver.learn_secrets(&preparation.config, &mut secrets),
        None => secrets.learn_config(preparation.config.text(), None),
    }
    secrets
}

fn config(scope: &TaskScope, id: &RunId, preparation: &mut Preparation) -> Option<TaskConfig> {
    let (allocation, task) = (&scope.allocation, &scope.task);
    Some(TaskConfig {
        run_id: id.clone(),
        alloc_id: allocation.id,
        job_id: allocation.job.id.clone(),
        group: allocation.group.clone(),
        task: task.name.clone(),
        config: std::mem::take(&mut preparation.config),
        env: preparation.env.take()?.pairs(),
        cpu_mhz: allocation.cpu_mhz(task),
        memory_bytes: u64::from(task.resources.memory_mb) * MIB,
        memory_max_bytes: task.resources.memory_max_mb.map(|mb| u64::from(mb) * MIB),
        ports: allocation.ports.clone(),
        mounts: preparation.reservation.mounts.clone(),
        device_nodes: std::mem::take(&mut preparation.reservation.device_nodes),
        task_dir: preparation.task_dir.as_ref()?.path.clone(),
        alloc_dir: preparation.alloc_dir.clone(),
        user: preparation.user.take(),
    })
}

fn recorder(record: LocalRecord, run: RunId, spawned: Arc<SpawnedProcesses>) -> IdentityRecorder {
    Arc::new(move |identity: ProcessIdentity| {
        let (record, run, spawned) = (record.clone(), run.clone(), Arc::clone(&spawned));
        let write = async move {
            let abandoned = || spawned.abandoned.load(Ordering::SeqCst);
            let given_up = || Err(format!("the start of {run} was given up"));
            if abandoned() {
                return given_up();
            }
            let released = {
                let mut identities = lock(&spawned.identities);
                identities.push(identity.clone());
                spawned.released.load(Ordering::SeqCst)
            };
            if !released {
                // Held until the handle is recorded too, with this identity.
                return Ok(());
            }
            let mut known = false;
            record
                .update(|local| {
                    if let Some(now) = local.run.as_mut().filter(|r| r.id == run) {
                        now.identities.push(identity);
                        known = true;
                    }
                })
                .await
                .map_err(|e| e.text())?;
            if known && !abandoned() { Ok(()) } else { given_up() }
        };
        Box::pin(write) as BoxFuture<'static, _>
    })
}
