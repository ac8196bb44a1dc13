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
use super::handle::{Intent, LocalRecord, RunRecord, StartedRecord};
use super::hooks::Preparation;
use super::notes::{self, DriverNote};
use super::templates::Templates;
use ostler_model::ids::RunId;
use ostler_model::limits::MIB;
use ostler_model::ports::{
    BoxFuture, ByteSink, Driver, IdentityRecorder, ProcessIdentity, Started, TaskConfig,
    TaskContext,
};
use ostler_model::redact::Secrets;
use ostler_model::task::{DriverHandle, RawExit, Workload};

/// One start of a task, shared by the calls made for it.
pub struct Run {
    /// Its id.
    pub id: RunId,
    driver: OnceLock<Arc<dyn Driver>>,
    /// Cancelled when the driver is at hand.
    driver_set: CancellationToken,
    context: OnceLock<Arc<TaskContext>>,
    templates: OnceLock<Arc<Templates>>,
    /// Boxed, as the intent is: only the start needs them.
    config: Mutex<Option<Box<TaskConfig>>>,
    intent: Mutex<Option<Box<Intent>>>,
    started: Mutex<Option<Started>>,
    exit: Mutex<Option<RawExit>>,
    spawned: Arc<Spawned>,
    /// Cancelled when the start call has ended, whatever way.
    start_over: CancellationToken,
    /// Begun by an earlier agent.
    restored: bool,
}

/// The processes of a run.
#[derive(Default)]
struct Spawned {
    /// Set when the start was given up: nothing may be spawned any more.
    abandoned: AtomicBool,
    /// Set when the record has the identities: what is spawned later is recorded by itself.
    released: AtomicBool,
    identities: Mutex<Vec<ProcessIdentity>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Output of a task whose log files could not be opened again.
struct Nowhere;

impl ByteSink for Nowhere {
    fn write(&self, _bytes: &[u8]) {}
}

impl Run {
    /// A new run with a new id. `None` when the preparation is not complete.
    pub fn new(
        scope: &TaskScope,
        record: &LocalRecord,
        notes: queue::Sender<DriverNote>,
        mut preparation: Preparation,
    ) -> Option<Self> {
        let intent = preparation.intent.take();
        let id = intent.as_ref().map_or_else(|| new_id(scope), |intent| intent.run.clone());
        let secrets = secrets_of(&preparation);
        let config = config(scope, &id, &mut preparation)?;
        let driver = preparation.driver.take()?;
        preparation.logs.as_ref()?;
        let run = Self::bare(id);
        *lock(&run.intent) = intent.map(Box::new);
        *lock(&run.config) = Some(Box::new(config));
        run.set_driver(driver);
        run.set_context(scope, record, notes, preparation, secrets);
        Some(run)
    }

    /// A run of an earlier agent.
    #[must_use]
    pub fn restored(record: RunRecord) -> Self {
        let RunRecord { id, identities, started } = record;
        let run = Self { restored: true, ..Self::bare(id) };
        run.spawned.released.store(true, Ordering::SeqCst);
        *lock(&run.spawned.identities) = identities;
        *lock(&run.started) = started.map(|StartedRecord { handle, workload, network }| Started {
            handle,
            workload,
            network,
        });
        // Its start call is over, one way or another.
        run.start_over.cancel();
        run
    }

    fn bare(id: RunId) -> Self {
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

    /// Was it begun by an earlier agent?
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// Make what the host tells drivers of this run; the first one stays. `secrets`: see [`secrets_of`].
    pub fn set_context(
        &self,
        scope: &TaskScope,
        record: &LocalRecord,
        notes: queue::Sender<DriverNote>,
        preparation: Preparation,
        secrets: Secrets,
    ) {
        let alloc_user = preparation.alloc_user.own();
        let Preparation { task_dir, alloc_dir, logs, reservation, templates, .. } = preparation;
        if let Some(templates) = templates {
            let _first_stays = self.templates.set(templates);
        }
        let (allocation, task) = (&scope.allocation, &scope.task);
        let sink = |stream: Option<Arc<dyn ByteSink>>| stream.unwrap_or_else(|| Arc::new(Nowhere));
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
            mounts: reservation.mounts,
            device_nodes: Vec::new(),
            user: None,
            alloc_user,
            named: Arc::default(),
            env: Arc::default(),
            network: scope.network.get(),
            secrets: Arc::new(secrets),
        };
        let _first_stays = self.context.set(Arc::new(context));
    }

    /// Nothing of this run may be spawned any more.
    pub fn abandon(&self) {
        self.spawned.abandoned.store(true, Ordering::SeqCst);
    }

    /// To be held by the start call; tells the end of the task that the call is over, also when it
    /// is dropped.
    #[must_use]
    pub fn start_guard(&self) -> DropGuard {
        self.start_over.clone().drop_guard()
    }

    /// Wait for the end of the start call.
    pub async fn start_over(&self) {
        self.start_over.cancelled().await;
    }

    /// The driver's handle, once there is one.
    #[must_use]
    pub fn handle(&self) -> Option<DriverHandle> {
        lock(&self.started).as_ref().map(|s| s.handle.clone())
    }

    /// Who runs it, once it is started.
    #[must_use]
    pub fn workload(&self) -> Option<Workload> {
        lock(&self.started).as_ref().map(|s| s.workload.clone())
    }

    /// What the driver answered.
    pub fn started(&self) -> Option<Started> {
        lock(&self.started).clone()
    }

    /// Keep what the driver answered; whether that is news.
    pub fn set_started(&self, started: Started) -> bool {
        let mut known = lock(&self.started);
        let news = known.as_ref() != Some(&started);
        *known = Some(started);
        news
    }

    /// The start failed after all.
    pub fn clear_started(&self) {
        *lock(&self.started) = None;
    }

    /// The driver, once it is at hand.
    #[must_use]
    pub fn driver(&self) -> Option<&Arc<dyn Driver>> {
        self.driver.get()
    }

    /// The driver is at hand; the first one stays.
    pub fn set_driver(&self, driver: Arc<dyn Driver>) {
        let _first_stays = self.driver.set(driver);
        self.driver_set.cancel();
    }

    /// Wait until the driver is at hand.
    pub async fn has_driver(&self) {
        self.driver_set.cancelled().await;
    }

    /// What the host tells drivers, once it is made.
    #[must_use]
    pub fn context(&self) -> Option<Arc<TaskContext>> {
        self.context.get().cloned()
    }

    /// The task's templates, where it has some and they are known.
    #[must_use]
    pub fn templates(&self) -> Option<&Arc<Templates>> {
        self.templates.get()
    }

    /// Is the context made?
    #[must_use]
    pub fn has_context(&self) -> bool {
        self.context.get().is_some()
    }

    /// The configuration, once.
    pub fn take_config(&self) -> Option<TaskConfig> {
        lock(&self.config).take().map(|config| *config)
    }

    /// Its intent, once, where that is on its way already.
    pub fn take_intent(&self) -> Option<Intent> {
        lock(&self.intent).take().map(|intent| *intent)
    }

    /// The processes known so far.
    #[must_use]
    pub fn identities(&self) -> Vec<ProcessIdentity> {
        lock(&self.spawned.identities).clone()
    }

    /// The record has the identities: from here on each new one is written by itself. Those known
    /// until then.
    #[must_use]
    pub fn release(&self) -> Vec<ProcessIdentity> {
        // Under the lock: an identity is either among these or sees the mark.
        let identities = lock(&self.spawned.identities);
        self.spawned.released.store(true, Ordering::SeqCst);
        identities.clone()
    }

    /// How it ended, as the host saw it.
    pub fn exit(&self) -> Option<RawExit> {
        lock(&self.exit).clone()
    }

    /// It ended; the first exit stays.
    pub fn set_exit(&self, exit: RawExit) {
        lock(&self.exit).get_or_insert(exit);
    }
}

/// An id for the next run of a task.
#[must_use]
pub fn new_id(scope: &TaskScope) -> RunId {
    let random = u32::try_from(scope.rng.below(1 << 32)).unwrap_or(0);
    RunId::new(scope.allocation.id, &scope.task.name, random)
}

/// What of a run's environment and configuration is secret, before they are given away.
#[must_use]
pub fn secrets_of(preparation: &Preparation) -> Secrets {
    let mut secrets = Secrets::of_task();
    // What device plugins say of the devices is their operator's to see: paths and ids.
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

fn recorder(record: LocalRecord, run: RunId, spawned: Arc<Spawned>) -> IdentityRecorder {
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
