//! The tasks of one driver, from Nomad's start to Nomad's destroy.
//!
//! ```text
//! start ─► driver.start ─► held ─► record ─► release ─► watched ─► exited ─► end
//!   ├ the same run again: what became of it, by its record
//!   └ another run of the same task is there: Nomad died before it had its handle, and it is ended first
//! recover ─► adopt ─ runs ─► driver.recover ─► watched
//!              └ lost, or the driver does not know it ─► whatever is left of it is ended: Nomad starts anew
//! ```

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tonic::Status;

use super::fingerprint::Fingerprints;
use super::record::{NomadRunRecord, RunIdentities, RunRecordDir, VERSION};
use super::task::{EventSender, NomadTask, TaskEnd};
use super::{errors, translation};
use crate::proto::driver as wire;
use ostler_agent::alone::LivePlugin;
use ostler_model::clock::{self, Clock};
use ostler_model::limits::{
    DRIVER_CALL_WALL_MAX, KILL_GRACE, PLUGIN_CALL_SLACK, POLL_INTERVAL_MIN, START_WALL_MAX,
};
use ostler_model::ports::{
    BoxFuture, InspectResult, PluginCallError, StartedTask, TaskContext, TaskDriver, Workloads,
};
use ostler_model::redact::Secrets;
use ostler_model::session::{ExecSession, TerminalSize};
use ostler_model::task::{ExitResult, RawExit, Workload};
use ostler_plugin::driver::LoadedDriver;
use ostler_plugin::drivers::proxy::DriverProxy;
use ostler_plugin::schema::one_line;

/// Signal number shown for a polled task that its driver killed.
const KILLED: u32 = 9;

/// All tasks of the driver, and what is needed to start and to follow them.
pub(crate) struct DriverTasks {
    pub(super) driver: Arc<dyn TaskDriver>,
    schema: String,
    /// Keeps the data directory claimed and the services running.
    pub(crate) live: LivePlugin,
    pub(super) records: RunRecordDir,
    fingerprints: Fingerprints,
    pub(super) events: EventSender,
    clock: Clock,
    table: Mutex<TaskTable>,
}

#[derive(Default)]
pub(super) struct TaskTable {
    pub(super) tasks: HashMap<String, Arc<NomadTask>>,
    /// Ids of the tasks that are being started or recovered.
    coming: HashSet<String>,
}

/// The claim to start or recover a task, which only one call has at a time. Dropping it
/// gives it back.
pub(super) struct TaskClaim<'a> {
    tasks: &'a DriverTasks,
    id: &'a str,
}

impl Drop for TaskClaim<'_> {
    fn drop(&mut self) {
        self.tasks.table().coming.remove(self.id);
    }
}

impl DriverTasks {
    /// No tasks yet. The driver is asked for fingerprints from here on.
    pub(crate) fn new(
        plugin: LoadedDriver,
        live: LivePlugin,
        data_dir: &Path,
    ) -> std::io::Result<Self> {
        let records = RunRecordDir::open(data_dir.join("tasks"))?;
        let plugin = Arc::new(plugin);
        let fingerprints = Fingerprints::follow(Arc::clone(&plugin));
        let schema = plugin.task_schema.text().to_owned();
        let driver = Arc::new(DriverProxy::new(plugin, Arc::clone(&live.workloads)));
        Ok(Self {
            driver,
            schema,
            live,
            records,
            fingerprints,
            events: EventSender::new(),
            clock: Clock::system(),
            table: Mutex::default(),
        })
    }

    pub(super) fn table(&self) -> MutexGuard<'_, TaskTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fingerprints of the driver, always the newest.
    pub(crate) fn fingerprints(&self) -> watch::Receiver<Option<wire::FingerprintResponse>> {
        self.fingerprints.newest()
    }

    /// The events of all tasks from here on.
    pub(crate) fn events(&self) -> broadcast::Receiver<wire::DriverTaskEvent> {
        self.events.subscribe()
    }

    /// The processes and WASM tasks that run for tasks.
    pub(crate) fn workloads(&self) -> &Arc<dyn Workloads> {
        &self.live.workloads
    }

    /// A task by Nomad's id.
    pub(crate) fn task(&self, id: &str) -> Result<Arc<NomadTask>, Status> {
        self.table().tasks.get(id).cloned().ok_or_else(errors::unknown_task)
    }

    pub(super) fn claim_start<'a>(&'a self, id: &'a str) -> Result<TaskClaim<'a>, Status> {
        if !self.table().coming.insert(id.to_owned()) {
            return Err(errors::start_status("the task is being started already".to_owned(), true));
        }
        Ok(TaskClaim { tasks: self, id })
    }

    /// Start a task. Where the task was started before, its handle is returned.
    pub(crate) async fn start(
        self: &Arc<Self>,
        task: wire::TaskConfig,
    ) -> Result<wire::TaskHandle, Status> {
        let id = task.id.clone();
        let _turn = self.claim_start(&id)?;
        if let Ok(known) = self.task(&id) {
            return Ok(handle(task, &known.kept));
        }
        let broken =
            |error: translation::TranslationError| errors::start_status(error.to_string(), false);
        let spawned = Arc::new(RunIdentities::default());
        let context = translation::task_context(&task, &spawned, &self.events).map_err(broken)?;
        let (records, run) = (self.records.clone(), context.run_id.clone());
        if let Ok(Some(kept)) = tokio::task::spawn_blocking(move || records.load(&run)).await {
            let names = (id.clone(), task.name.clone());
            // A run that ended unseen has its exit. A task whose run never ran, or is lost, is
            // started.
            if self.own(names, Arc::new(context), kept.clone(), spawned).await.is_ok() {
                return Ok(handle(task, &kept));
            }
            return Box::pin(self.start_new(task)).await;
        }
        self.start_new(task).await
    }

    async fn start_new(
        self: &Arc<Self>,
        task: wire::TaskConfig,
    ) -> Result<wire::TaskHandle, Status> {
        let broken =
            |error: translation::TranslationError| errors::start_status(error.to_string(), false);
        let spawned = Arc::new(RunIdentities::default());
        let context =
            Arc::new(translation::task_context(&task, &spawned, &self.events).map_err(broken)?);
        self.end_others(&task, &context).await?;
        let fs = self.driver.capabilities().fs_isolation;
        let config =
            translation::task_config(&task, &context, (&self.schema, fs)).map_err(broken)?;
        let wrong = self.driver.validate(&config.config);
        if !wrong.is_empty() {
            let text = format!("invalid configuration: {}", one_line(&wrong));
            return Err(errors::start_status(text, false));
        }
        let mut secrets = Secrets::clone(&context.secrets);
        self.driver.learn_secrets(&config.config, &mut secrets);
        let secrets = Arc::new(secrets);
        let context = Arc::new(TaskContext { secrets, ..(*context).clone() });
        let call = self.driver.start(Arc::clone(&context), config);
        let started = match clock::timeout(START_WALL_MAX, call).await {
            Some(started) => started,
            None => {
                Err(PluginCallError::Recoverable(format!("no answer within {START_WALL_MAX:?}")))
            }
        };
        let begun = match started {
            Ok(started) => self.release_run(&context, &spawned, started).await,
            Err(error) => Err(errors::start_call_status(&error)),
        };
        match begun {
            Ok(kept) => {
                let names = (task.id.clone(), task.name.clone());
                self.watch(NomadTask::new(names, context, kept.clone(), spawned));
                Ok(handle(task, &kept))
            }
            Err(status) => {
                spawned.give_up();
                self.forget(&context.run_id).await;
                Err(status)
            }
        }
    }

    /// Write the record of a started run, then release it. Until here the run is held, so that it
    /// never runs without a record.
    async fn release_run(
        &self,
        context: &TaskContext,
        spawned: &Arc<RunIdentities>,
        started: StartedTask,
    ) -> Result<NomadRunRecord, Status> {
        let kept = NomadRunRecord {
            run: context.run_id.clone(),
            identities: Vec::new(),
            handle: started.handle,
            workload: started.workload,
            started_at: self.clock.now(),
        };
        let (records, spawned) = (self.records.clone(), Arc::clone(spawned));
        let kept = tokio::task::spawn_blocking(move || spawned.keep(&records, kept)).await;
        let kept = kept.map_err(|_| Status::unavailable("the plugin is shutting down"))?;
        let kept = kept.map_err(|error| {
            errors::start_status(format!("the run cannot be recorded: {error}"), true)
        })?;
        let released = self.live.workloads.release(&kept.run).await.map_err(|error| error.text);
        released.map_err(|error| errors::start_status(error, true))?;
        Ok(kept)
    }

    /// Follow a task that runs to its end.
    pub(super) fn watch(self: &Arc<Self>, task: NomadTask) {
        let task = Arc::new(task);
        self.table().tasks.insert(task.id.clone(), Arc::clone(&task));
        let (this, watched) = (Arc::clone(self), task);
        tokio::spawn(async move {
            let exit = match &watched.kept.workload {
                Workload::Poll(millis) => this.poll(&watched, *millis).await,
                workload => this.live.workloads.wait(&watched.kept.run, workload).await,
            };
            this.handle_exit(&watched, exit).await;
        });
    }

    async fn poll(&self, task: &NomadTask, millis: u64) -> RawExit {
        let interval = Duration::from_millis(millis).max(POLL_INTERVAL_MIN);
        loop {
            tokio::select! {
                () = clock::sleep(interval) => {}
                // The task was killed meanwhile.
                _end = task.wait_end() => return RawExit::default(),
            }
            let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
            match self.with_deadline(self.driver.inspect(context, handle)).await {
                Ok(InspectResult::Exited(exit)) => return exit,
                Ok(InspectResult::Running | InspectResult::Unknown) => {}
                Err(PluginCallError::NotFound(what)) => {
                    let error = Some(format!("the driver no longer knows the task: {what}"));
                    let finished_at = self.clock.now();
                    return RawExit { error, finished_at, ..RawExit::default() };
                }
                Err(error) => {
                    tracing::warn!(task = task.id, %error, "inspect failed, asking again")
                }
            }
        }
    }

    /// Record the end of a task as the driver reads its exit. Where the driver cannot say, the
    /// host's own reading is recorded.
    async fn handle_exit(&self, task: &NomadTask, raw: RawExit) {
        let raw = raw.fill_missing_error();
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let read =
            self.with_deadline(self.driver.interpret_exit(context, handle, raw.clone())).await;
        let result = match read {
            Ok(result) => result.with_failure_code(&raw),
            Err(error) => {
                tracing::warn!(task = task.id, %error, "the driver does not say what an exit means");
                ExitResult::from(raw.clone())
            }
        };
        // Nomad's reader of a pipe that nothing was written to would hold up the task's next start.
        let sinks = [&task.context.stdout, &task.context.stderr].map(|sink| sink.files());
        let ended = tokio::task::spawn_blocking(move || {
            sinks.iter().flatten().for_each(ostler_logs::end_pipe);
        });
        let _told = ended.await;
        task.end(TaskEnd { result, at: raw.finished_at });
    }

    /// Wait for a call of the driver, for a bounded time that is longer than the
    /// call's own deadline.
    pub(super) async fn with_deadline<T>(
        &self,
        call: BoxFuture<'_, Result<T, PluginCallError>>,
    ) -> Result<T, PluginCallError> {
        let own = self.driver.call_wall().saturating_mul(2).saturating_add(PLUGIN_CALL_SLACK);
        let bound = DRIVER_CALL_WALL_MAX.max(own);
        let late = || PluginCallError::Recoverable(format!("no answer within {bound:?}"));
        clock::timeout(bound, call).await.unwrap_or_else(|| Err(late()))
    }

    /// End a task. The driver first asks it to stop, then kills it; at last the host kills it.
    pub(crate) async fn stop(
        &self,
        id: &str,
        timeout: Duration,
        signal: Option<String>,
    ) -> Result<(), Status> {
        let task = self.task(id)?;
        if task.known_end().is_some() {
            return Ok(());
        }
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let asked = self.driver.stop(context, handle, signal, timeout);
        match self.with_deadline(asked).await {
            Ok(()) if clock::timeout(timeout, task.wait_end()).await.is_some() => return Ok(()),
            Ok(()) | Err(PluginCallError::NotFound(_)) => {}
            Err(error) => tracing::warn!(task = id, %error, "stop failed; the task is killed"),
        }
        self.kill(&task).await
    }

    async fn kill(&self, task: &NomadTask) -> Result<(), Status> {
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let polled = matches!(task.kept.workload, Workload::Poll(_));
        match self.with_deadline(self.driver.kill(context, handle)).await {
            Ok(()) | Err(PluginCallError::NotFound(_)) if polled => {
                let result = ExitResult { signal: KILLED, ..ExitResult::default() };
                let result = result
                    .with_failure_code(&RawExit { signal: Some(KILLED), ..RawExit::default() });
                task.end(TaskEnd { result, at: self.clock.now() });
                return Ok(());
            }
            Err(error) if polled => return Err(errors::call_status(&error)),
            Ok(()) => {}
            Err(error) => tracing::warn!(task = task.id, %error, "the driver cannot kill a task"),
        }
        if clock::timeout(KILL_GRACE, task.wait_end()).await.is_some() {
            return Ok(());
        }
        self.live.workloads.kill_run(&task.kept.run);
        match clock::timeout(KILL_GRACE, task.wait_end()).await {
            Some(_) => Ok(()),
            None => {
                let left =
                    self.live.workloads.list_leftovers(&task.kept.run, &task.kept.identities);
                let left = left.join(", ");
                Err(Status::deadline_exceeded(format!("the task does not end: {left}")))
            }
        }
    }

    /// Forget a task. One that runs is killed first if `force` is set, and refused otherwise.
    pub(crate) async fn destroy(&self, id: &str, force: bool) -> Result<(), Status> {
        let task = self.task(id)?;
        if task.known_end().is_none() {
            if !force {
                return Err(Status::failed_precondition("cannot destroy a task that runs"));
            }
            self.kill(&task).await?;
        }
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        if let Err(error) = self.with_deadline(self.driver.destroy(context, handle, force)).await
            && !matches!(error, PluginCallError::NotFound(_))
        {
            tracing::warn!(task = id, %error, "the driver does not forget a task");
        }
        self.table().tasks.remove(id);
        self.forget(&task.kept.run).await;
        Ok(())
    }

    /// Send a task a signal by name.
    pub(crate) async fn signal(&self, id: &str, signal: String) -> Result<(), Status> {
        let task = self.task(id)?;
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let sent = self.with_deadline(self.driver.signal(context, handle, signal)).await;
        sent.map_err(|error| errors::call_status(&error))
    }

    /// Run a command inside a task. Nomad has checked whether the caller may.
    pub(crate) async fn exec(
        &self,
        id: &str,
        argv: Vec<String>,
        terminal: Option<TerminalSize>,
    ) -> Result<ExecSession, Status> {
        let task = self.task(id)?;
        if task.known_end().is_some() {
            return Err(Status::failed_precondition("the task has ended"));
        }
        if !self.driver.capabilities().exec {
            return Err(Status::unimplemented("this driver cannot run commands inside its tasks"));
        }
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let plan = self.driver.exec(context, handle, argv, terminal.is_some());
        let plan = self.with_deadline(plan).await.map_err(|error| errors::call_status(&error))?;
        let (run, workload) = (&task.kept.run, &task.kept.workload);
        let session = self.live.workloads.exec(run, workload, plan, terminal);
        session.await.map_err(Status::failed_precondition)
    }

    /// Kill what is left of a run, and forget the run and its record.
    pub(super) async fn forget(&self, run: &ostler_model::ids::RunId) {
        self.live.workloads.kill_run(run);
        self.live.workloads.forget_run(run);
        let (records, run) = (self.records.clone(), run.clone());
        let _gone = tokio::task::spawn_blocking(move || records.forget(&run)).await;
    }
}

/// The handle of a task, which Nomad keeps in its state.
fn handle(task: wire::TaskConfig, kept: &NomadRunRecord) -> wire::TaskHandle {
    wire::TaskHandle {
        version: VERSION,
        config: Some(task),
        state: wire::TaskState::Running.into(),
        driver_state: kept.encode(),
    }
}
