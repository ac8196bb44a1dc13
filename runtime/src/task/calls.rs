//! The acts of a task runner that take time: each is a future of its own, bounded, that ends in
//! a typed answer. None touches the machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::TaskScope;
use super::handle::{LocalRecord, RunRecord, StartedRecord};
use super::hooks::{self, Preparation};
use crate::clock;
use crate::driver::api::{
    BoxFuture, Driver, IdentityRecorder, Inspected, PluginCallError, ProcessIdentity, Started,
    TaskConfig, TaskContext,
};
use crate::limits::{DRIVER_CALL_WALL_MAX, KILL_GRACE, MIB, POLL_INTERVAL_MIN, START_WALL_MAX};
use crate::model::ids::RunId;
use crate::model::task::{DriverHandle, ExitResult, RawExit, Workload};

/// One start of a task, shared by the calls made for it.
pub struct Run {
    /// Its id.
    pub id: RunId,
    driver: Arc<dyn Driver>,
    context: Arc<TaskContext>,
    config: Mutex<Option<TaskConfig>>,
    started: Mutex<Option<Started>>,
    exit: Mutex<Option<RawExit>>,
    /// Set when the start was given up: nothing may be spawned any more.
    abandoned: Arc<AtomicBool>,
    /// Cancelled when the start call has ended, whatever way.
    start_over: CancellationToken,
}

/// What a driver says about a task on the way to its owner.
pub type DriverNote = (String, Vec<(String, String)>);

/// Why a start failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// For the event.
    pub error: String,
    /// May it go better next time?
    pub recoverable: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    /// A new run with a new id. `None` when the preparation is not complete.
    pub fn new(
        scope: &TaskScope,
        record: &LocalRecord,
        notes: mpsc::Sender<DriverNote>,
        preparation: Preparation,
    ) -> Option<Self> {
        let Preparation { driver, task_dir, alloc_dir, logs, reservation, env, config, user } =
            preparation;
        let (driver, task_dir, logs, env) = (driver?, task_dir?, logs?, env?);
        let (allocation, task) = (&scope.allocation, &scope.task);
        let random = u32::try_from(scope.rng.below(1 << 32)).unwrap_or(0);
        let id = RunId::new(allocation.id, &task.name, random);
        let abandoned = Arc::new(AtomicBool::new(false));
        let memory_max = task.resources.memory_max_mb.map(|mb| u64::from(mb) * MIB);
        let context = TaskContext {
            run_id: id.clone(),
            alloc_id: allocation.id,
            task: task.name.clone(),
            stdout: Arc::clone(&logs.stdout) as _,
            stderr: Arc::clone(&logs.stderr) as _,
            record_identity: recorder(record.clone(), id.clone(), Arc::clone(&abandoned)),
            events: Arc::new(move |message, details| {
                // A driver that says more than is read loses it: events must not slow a task down.
                let _full = notes.try_send((message, details));
            }),
            cpu_mhz: task.resources.cpu_mhz,
            memory_bytes_max: task.resources.memory_limit_bytes(),
            ports: allocation.ports.clone(),
            task_dir: task_dir.path.clone(),
            alloc_dir: alloc_dir.clone(),
            mounts: reservation.mounts.clone(),
        };
        let config = TaskConfig {
            run_id: id.clone(),
            alloc_id: allocation.id,
            job_id: allocation.job.id.clone(),
            group: allocation.group.clone(),
            task: task.name.clone(),
            config,
            env: env.pairs(),
            cpu_mhz: task.resources.cpu_mhz,
            memory_bytes: u64::from(task.resources.memory_mb) * MIB,
            memory_max_bytes: memory_max,
            ports: allocation.ports.clone(),
            mounts: reservation.mounts,
            device_nodes: reservation.device_nodes,
            task_dir: task_dir.path,
            alloc_dir,
            user,
        };
        Some(Self {
            id,
            driver,
            context: Arc::new(context),
            config: Mutex::new(Some(config)),
            started: Mutex::new(None),
            exit: Mutex::new(None),
            abandoned,
            start_over: CancellationToken::new(),
        })
    }

    /// Nothing of this run may be spawned any more.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// To be held by the start call; tells [`end`] that the call is over, also when it is dropped.
    pub fn start_guard(&self) -> DropGuard {
        self.start_over.clone().drop_guard()
    }

    fn handle(&self) -> Option<DriverHandle> {
        lock(&self.started).as_ref().map(|s| s.handle.clone())
    }
}

fn recorder(record: LocalRecord, run: RunId, abandoned: Arc<AtomicBool>) -> IdentityRecorder {
    Arc::new(move |identity: ProcessIdentity| {
        let (record, run, abandoned) = (record.clone(), run.clone(), Arc::clone(&abandoned));
        let write = async move {
            let given_up = || format!("the start of {run} was given up");
            if abandoned.load(Ordering::SeqCst) {
                return Err(given_up());
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
            if known && !abandoned.load(Ordering::SeqCst) { Ok(()) } else { Err(given_up()) }
        };
        Box::pin(write) as BoxFuture<'static, _>
    })
}

/// A driver call with the runner's own bound around it.
async fn bounded<T>(
    scope: &TaskScope,
    call: &'static str,
    bound: Duration,
    future: BoxFuture<'_, Result<T, PluginCallError>>,
) -> Result<T, PluginCallError> {
    clock::timeout(bound, future).await.unwrap_or_else(|| {
        Err(PluginCallError::CallFailed {
            plugin: scope.task.driver.to_string(),
            call,
            reason: format!("no answer within {bound:?}"),
        })
    })
}

/// Write the intent, start, write what identifies the run. After an error nothing of it is left.
///
/// # Errors
/// When the intent cannot be written or the driver fails.
pub async fn start(scope: &TaskScope, record: &LocalRecord, run: &Run) -> Result<(), StartError> {
    let intent = RunRecord { id: run.id.clone(), identities: Vec::new(), started: None };
    record
        .update(|local| local.run = Some(intent))
        .await
        .map_err(|e| StartError { error: e.text(), recoverable: true })?;
    let Some(config) = lock(&run.config).take() else {
        let error = format!("{} was started before", run.id);
        return Err(StartError { error, recoverable: false });
    };
    let call = run.driver.start(Arc::clone(&run.context), config);
    match bounded(scope, "start", START_WALL_MAX, call).await {
        Ok(started) => {
            *lock(&run.started) = Some(started.clone());
            let written = record.update(|local| {
                if let Some(now) = local.run.as_mut() {
                    now.started = Some(StartedRecord::from(started));
                }
            });
            if let Err(error) = written.await {
                // The run is known by its intent and its processes; only its handle is not.
                tracing::error!(run = %run.id, error = %error.text(), "handle not recorded");
            }
            // Until here its processes were held: not one instruction of the task has run.
            let released = scope.workloads.release(&run.id).await;
            if released.is_err() {
                undo(scope, record, run).await;
            }
            released.map_err(|error| StartError { error, recoverable: true })
        }
        Err(error) => {
            undo(scope, record, run).await;
            Err(StartError { recoverable: error.recoverable(), error: error.to_string() })
        }
    }
}

/// Leave nothing of a start that failed.
async fn undo(scope: &TaskScope, record: &LocalRecord, run: &Run) {
    run.abandon();
    *lock(&run.started) = None;
    scope.workloads.kill_run(&run.id);
    scope.workloads.forget_run(&run.id);
    forget(record, &run.id).await;
}

async fn forget(record: &LocalRecord, run: &RunId) {
    if let Err(error) = record.update(|local| local.run = None).await {
        tracing::error!(%run, error = %error.text(), "end of run not recorded");
    }
}

/// Wait until the workload is gone; its exit stays in the run. Not bounded: the machine's timers
/// are the second way out.
pub async fn watch(scope: &TaskScope, run: &Run) {
    let Some(started) = lock(&run.started).clone() else {
        return;
    };
    let exit = match &started.workload {
        Workload::Poll(millis) => poll(scope, run, &started.handle, *millis).await,
        workload => scope.workloads.wait(&run.id, workload).await,
    };
    *lock(&run.exit) = Some(exit);
}

async fn poll(scope: &TaskScope, run: &Run, handle: &DriverHandle, millis: u64) -> RawExit {
    let interval = Duration::from_millis(millis).max(POLL_INTERVAL_MIN);
    loop {
        clock::sleep(interval).await;
        let call = run.driver.inspect(Arc::clone(&run.context), handle.clone());
        match bounded(scope, "inspect", DRIVER_CALL_WALL_MAX, call).await {
            Ok(Inspected::Exited(exit)) => return exit,
            Ok(Inspected::Running | Inspected::Unknown) => {}
            Err(PluginCallError::NotFound(what)) => {
                return RawExit {
                    error: Some(format!("the driver no longer knows the task: {what}")),
                    finished_at: scope.clock.now(),
                    ..RawExit::default()
                };
            }
            Err(error) => tracing::warn!(run = %run.id, %error, "inspect failed, asking again"),
        }
    }
}

/// Ask the driver to stop the task. A task that is not found is stopped.
///
/// # Errors
/// The text for the event.
pub async fn stop(scope: &TaskScope, run: &Run, timeout: Duration) -> Result<(), String> {
    let Some(handle) = run.handle() else {
        return Err("no handle to stop by".to_owned());
    };
    let signal = scope.task.kill_signal.clone();
    let call = run.driver.stop(Arc::clone(&run.context), handle, signal, timeout);
    gone_is_fine(bounded(scope, "stop", DRIVER_CALL_WALL_MAX, call).await)
}

/// Ask the driver to kill the task.
///
/// # Errors
/// The text for the event.
pub async fn kill(scope: &TaskScope, run: &Run) -> Result<(), String> {
    let Some(handle) = run.handle() else {
        return Err("no handle to kill by".to_owned());
    };
    let call = run.driver.kill(Arc::clone(&run.context), handle);
    gone_is_fine(bounded(scope, "kill", DRIVER_CALL_WALL_MAX, call).await)
}

fn gone_is_fine(result: Result<(), PluginCallError>) -> Result<(), String> {
    match result {
        Ok(()) | Err(PluginCallError::NotFound(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Send a signal.
///
/// # Errors
/// The driver's.
pub async fn signal(scope: &TaskScope, run: &Run, signal: String) -> Result<(), PluginCallError> {
    let handle = run.handle().ok_or_else(|| PluginCallError::NotFound(run.id.to_string()))?;
    let call = run.driver.signal(Arc::clone(&run.context), handle, signal);
    bounded(scope, "signal", DRIVER_CALL_WALL_MAX, call).await
}

/// Read the exit, run the exited hooks, make driver and host forget the run.
pub async fn settle(
    scope: &TaskScope,
    record: &LocalRecord,
    run: &Run,
    gave_up: bool,
) -> (ExitResult, Option<String>) {
    let (exit, trouble) = if gave_up {
        let error = "the workload did not end after it was killed".to_owned();
        (ExitResult { error: Some(error), ..ExitResult::default() }, None)
    } else {
        read_exit(scope, run).await
    };
    hooks::exited(scope).await;
    if let Some(handle) = run.handle() {
        let call = run.driver.destroy(Arc::clone(&run.context), handle, true);
        let done = bounded(scope, "destroy", DRIVER_CALL_WALL_MAX, call).await;
        if let Err(error) = gone_is_fine(done) {
            tracing::warn!(run = %run.id, %error, "driver did not forget the run");
        }
    }
    scope.workloads.forget_run(&run.id);
    if gave_up {
        // Its processes may live on: the record of them is what a later agent reaps them by.
        return (exit, trouble);
    }
    forget(record, &run.id).await;
    (exit, trouble)
}

async fn read_exit(scope: &TaskScope, run: &Run) -> (ExitResult, Option<String>) {
    let raw = lock(&run.exit).clone().unwrap_or_else(|| RawExit {
        error: Some("the exit of the workload was lost".to_owned()),
        ..RawExit::default()
    });
    let Some(handle) = run.handle() else {
        return (plain(raw), None);
    };
    let call = run.driver.exited(Arc::clone(&run.context), handle, raw.clone());
    match bounded(scope, "exited", DRIVER_CALL_WALL_MAX, call).await {
        Ok(exit) => (exit, None),
        Err(error) => (plain(raw), Some(format!("exit taken as the host saw it: {error}"))),
    }
}

/// An exit as the host saw it, when the driver cannot read it.
fn plain(raw: RawExit) -> ExitResult {
    let silent = raw.exit_code.is_none() && raw.signal.is_none();
    ExitResult {
        exit_code: raw.exit_code.unwrap_or(if silent { 1 } else { 0 }),
        signal: raw.signal.unwrap_or(0),
        oom_killed: raw.oom_killed,
        error: raw.error,
    }
}

/// Stop hooks, and what an abandoned start may have left. Then the record says complete, unless
/// something could not be ended.
pub async fn end(scope: &TaskScope, record: &LocalRecord, run: Option<&Run>, gave_up: bool) {
    if let Some(run) = run {
        // A start that was dropped is first waited for: what it spawns last must be killed too.
        if clock::timeout(KILL_GRACE, run.start_over.cancelled()).await.is_none() {
            tracing::error!(run = %run.id, "the start call did not end after it was dropped");
        }
        scope.workloads.kill_run(&run.id);
        scope.workloads.forget_run(&run.id);
    }
    hooks::stop(scope).await;
    let written = record.update(|local| {
        if !gave_up {
            local.run = None;
        }
        local.run_complete = true;
    });
    if let Err(error) = written.await {
        tracing::error!(task = %scope.task.name, error = %error.text(), "end of task not recorded");
    }
}
