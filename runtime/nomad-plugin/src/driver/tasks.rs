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
use super::record::{Records, RunKept, Spawned, VERSION};
use super::task::{EventSender, Task, TaskEnd};
use super::{refused, said};
use crate::proto::driver as wire;
use ostler_agent::alone::LivePlugin;
use ostler_model::clock::{self, Clock};
use ostler_model::limits::{
    DRIVER_CALL_WALL_MAX, KILL_GRACE, PLUGIN_CALL_SLACK, POLL_INTERVAL_MIN, START_WALL_MAX,
};
use ostler_model::ports::{
    BoxFuture, Driver, Inspected, PluginCallError, Started, TaskContext, Workloads,
};
use ostler_model::redact::Secrets;
use ostler_model::session::{ExecSession, TerminalSize};
use ostler_model::task::{ExitResult, RawExit, Workload};
use ostler_plugin::driver::DriverPlugin;
use ostler_plugin::drivers::proxy::DriverProxy;
use ostler_plugin::schema::one_line;

/// Signal number shown for a polled task that its driver killed.
const KILLED: u32 = 9;

/// See the module.
pub(crate) struct Tasks {
    pub(super) driver: Arc<dyn Driver>,
    schema: String,
    /// Keeps the data directory and the services.
    pub(super) live: LivePlugin,
    pub(super) records: Records,
    fingerprints: Fingerprints,
    pub(super) events: EventSender,
    clock: Clock,
    table: Mutex<Table>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) tasks: HashMap<String, Arc<Task>>,
    /// Being started or recovered.
    coming: HashSet<String>,
}

/// A task that is being started or recovered, by nobody else meanwhile.
pub(super) struct Turn<'a> {
    tasks: &'a Tasks,
    id: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.tasks.table().coming.remove(self.id);
    }
}

impl Tasks {
    /// None yet. The driver is asked for fingerprints from here on.
    pub(crate) fn new(
        plugin: DriverPlugin,
        live: LivePlugin,
        data_dir: &Path,
    ) -> std::io::Result<Self> {
        let records = Records::open(data_dir.join("tasks"))?;
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

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the driver finds on this node, always the newest.
    pub(crate) fn fingerprints(&self) -> watch::Receiver<Option<wire::FingerprintResponse>> {
        self.fingerprints.newest()
    }

    /// What drivers say of tasks from here on.
    pub(crate) fn events(&self) -> broadcast::Receiver<wire::DriverTaskEvent> {
        self.events.hear()
    }

    /// What runs for tasks.
    pub(crate) fn workloads(&self) -> &Arc<dyn Workloads> {
        &self.live.workloads
    }

    /// A task by Nomad's id.
    pub(crate) fn task(&self, id: &str) -> Result<Arc<Task>, Status> {
        self.table().tasks.get(id).cloned().ok_or_else(refused::unknown_task)
    }

    pub(super) fn turn<'a>(&'a self, id: &'a str) -> Result<Turn<'a>, Status> {
        if !self.table().coming.insert(id.to_owned()) {
            return Err(refused::start("the task is being started already".to_owned(), true));
        }
        Ok(Turn { tasks: self, id })
    }

    /// Start a task, or, where it was started before, say what it is.
    pub(crate) async fn start(
        self: &Arc<Self>,
        task: wire::TaskConfig,
    ) -> Result<wire::TaskHandle, Status> {
        let id = task.id.clone();
        let _turn = self.turn(&id)?;
        if let Ok(known) = self.task(&id) {
            return Ok(handle(task, &known.kept));
        }
        let broken = |error: said::SaidError| refused::start(error.to_string(), false);
        let spawned = Arc::new(Spawned::default());
        let context = said::context(&task, &spawned, &self.events).map_err(broken)?;
        let (records, run) = (self.records.clone(), context.run_id.clone());
        if let Ok(Some(kept)) = tokio::task::spawn_blocking(move || records.of(&run)).await {
            let names = (id.clone(), task.name.clone());
            // What ended unseen has its exit; what never ran, or is lost, is started.
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
        let broken = |error: said::SaidError| refused::start(error.to_string(), false);
        let spawned = Arc::new(Spawned::default());
        let context = Arc::new(said::context(&task, &spawned, &self.events).map_err(broken)?);
        self.end_others(&task, &context).await?;
        let fs = self.driver.capabilities().fs_isolation;
        let config = said::config(&task, &context, (&self.schema, fs)).map_err(broken)?;
        let wrong = self.driver.validate(&config.config);
        if !wrong.is_empty() {
            let text = format!("invalid configuration: {}", one_line(&wrong));
            return Err(refused::start(text, false));
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
            Ok(started) => self.let_go(&context, &spawned, started).await,
            Err(error) => Err(refused::start_call(&error)),
        };
        match begun {
            Ok(kept) => {
                let names = (task.id.clone(), task.name.clone());
                self.watch(Task::new(names, context, kept.clone(), spawned));
                Ok(handle(task, &kept))
            }
            Err(status) => {
                spawned.give_up();
                self.forget(&context.run_id).await;
                Err(status)
            }
        }
    }

    /// Until here what was started is held. It is let go when it can be found again.
    async fn let_go(
        &self,
        context: &TaskContext,
        spawned: &Arc<Spawned>,
        started: Started,
    ) -> Result<RunKept, Status> {
        let kept = RunKept {
            run: context.run_id.clone(),
            identities: Vec::new(),
            handle: started.handle,
            workload: started.workload,
            started_at: self.clock.now(),
        };
        let (records, spawned) = (self.records.clone(), Arc::clone(spawned));
        let kept = tokio::task::spawn_blocking(move || spawned.keep(&records, kept)).await;
        let kept = kept.map_err(|_| Status::unavailable("the plugin leaves"))?;
        let kept = kept.map_err(|error| {
            refused::start(format!("the run cannot be recorded: {error}"), true)
        })?;
        let released = self.live.workloads.release(&kept.run).await;
        released.map_err(|error| refused::start(error, true))?;
        Ok(kept)
    }

    /// Follow a task that runs to its end.
    pub(super) fn watch(self: &Arc<Self>, task: Task) {
        let task = Arc::new(task);
        self.table().tasks.insert(task.id.clone(), Arc::clone(&task));
        let (this, watched) = (Arc::clone(self), task);
        tokio::spawn(async move {
            let exit = match &watched.kept.workload {
                Workload::Poll(millis) => this.poll(&watched, *millis).await,
                workload => this.live.workloads.wait(&watched.kept.run, workload).await,
            };
            this.exited(&watched, exit).await;
        });
    }

    async fn poll(&self, task: &Task, millis: u64) -> RawExit {
        let interval = Duration::from_millis(millis).max(POLL_INTERVAL_MIN);
        loop {
            tokio::select! {
                () = clock::sleep(interval) => {}
                // Killed meanwhile.
                _end = task.ended() => return RawExit::default(),
            }
            let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
            match self.bounded(self.driver.inspect(context, handle)).await {
                Ok(Inspected::Exited(exit)) => return exit,
                Ok(Inspected::Running | Inspected::Unknown) => {}
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

    /// What the driver makes of an exit; the host's own reading where it cannot say.
    async fn exited(&self, task: &Task, raw: RawExit) {
        let raw = raw.said();
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let read = self.bounded(self.driver.exited(context, handle, raw.clone())).await;
        let result = match read {
            Ok(result) => result.coded(&raw),
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

    /// A call of the driver, which has a deadline of its own.
    pub(super) async fn bounded<T>(
        &self,
        call: BoxFuture<'_, Result<T, PluginCallError>>,
    ) -> Result<T, PluginCallError> {
        let own = self.driver.call_wall().saturating_mul(2).saturating_add(PLUGIN_CALL_SLACK);
        let bound = DRIVER_CALL_WALL_MAX.max(own);
        let late = || PluginCallError::Recoverable(format!("no answer within {bound:?}"));
        clock::timeout(bound, call).await.unwrap_or_else(|| Err(late()))
    }

    /// End a task: asked first, then killed, by its driver and at last by the host.
    pub(crate) async fn stop(
        &self,
        id: &str,
        timeout: Duration,
        signal: Option<String>,
    ) -> Result<(), Status> {
        let task = self.task(id)?;
        if task.end_seen().is_some() {
            return Ok(());
        }
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let asked = self.driver.stop(context, handle, signal, timeout);
        match self.bounded(asked).await {
            Ok(()) if clock::timeout(timeout, task.ended()).await.is_some() => return Ok(()),
            Ok(()) | Err(PluginCallError::NotFound(_)) => {}
            Err(error) => tracing::warn!(task = id, %error, "stop failed; the task is killed"),
        }
        self.kill(&task).await
    }

    async fn kill(&self, task: &Task) -> Result<(), Status> {
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let polled = matches!(task.kept.workload, Workload::Poll(_));
        match self.bounded(self.driver.kill(context, handle)).await {
            Ok(()) | Err(PluginCallError::NotFound(_)) if polled => {
                let result = ExitResult { signal: KILLED, ..ExitResult::default() };
                let result = result.coded(&RawExit { signal: Some(KILLED), ..RawExit::default() });
                task.end(TaskEnd { result, at: self.clock.now() });
                return Ok(());
            }
            Err(error) if polled => return Err(refused::call(&error)),
            Ok(()) => {}
            Err(error) => tracing::warn!(task = task.id, %error, "the driver cannot kill a task"),
        }
        if clock::timeout(KILL_GRACE, task.ended()).await.is_some() {
            return Ok(());
        }
        self.live.workloads.kill_run(&task.kept.run);
        match clock::timeout(KILL_GRACE, task.ended()).await {
            Some(_) => Ok(()),
            None => {
                let left = self.live.workloads.left(&task.kept.run, &task.kept.identities);
                let left = left.join(", ");
                Err(Status::deadline_exceeded(format!("the task does not end: {left}")))
            }
        }
    }

    /// Forget a task.
    pub(crate) async fn destroy(&self, id: &str, force: bool) -> Result<(), Status> {
        let task = self.task(id)?;
        if task.end_seen().is_none() {
            if !force {
                return Err(Status::failed_precondition("cannot destroy a task that runs"));
            }
            self.kill(&task).await?;
        }
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        if let Err(error) = self.bounded(self.driver.destroy(context, handle, force)).await
            && !matches!(error, PluginCallError::NotFound(_))
        {
            tracing::warn!(task = id, %error, "the driver does not forget a task");
        }
        self.table().tasks.remove(id);
        self.forget(&task.kept.run).await;
        Ok(())
    }

    /// Send a signal by name.
    pub(crate) async fn signal(&self, id: &str, signal: String) -> Result<(), Status> {
        let task = self.task(id)?;
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let sent = self.bounded(self.driver.signal(context, handle, signal)).await;
        sent.map_err(|error| refused::call(&error))
    }

    /// Run a command inside a task. Nomad has checked who may.
    pub(crate) async fn exec(
        &self,
        id: &str,
        argv: Vec<String>,
        terminal: Option<TerminalSize>,
    ) -> Result<ExecSession, Status> {
        let task = self.task(id)?;
        if task.end_seen().is_some() {
            return Err(Status::failed_precondition("the task has ended"));
        }
        if !self.driver.capabilities().exec {
            return Err(Status::unimplemented("this driver runs no commands inside its tasks"));
        }
        let (context, handle) = (Arc::clone(&task.context), task.kept.handle.clone());
        let plan = self.driver.exec(context, handle, argv, terminal.is_some());
        let plan = self.bounded(plan).await.map_err(|error| refused::call(&error))?;
        let (run, workload) = (&task.kept.run, &task.kept.workload);
        let session = self.live.workloads.exec(run, workload, plan, terminal);
        session.await.map_err(Status::failed_precondition)
    }

    /// Nothing of a run is known any more.
    pub(super) async fn forget(&self, run: &ostler_model::ids::RunId) {
        self.live.workloads.kill_run(run);
        self.live.workloads.forget_run(run);
        let (records, run) = (self.records.clone(), run.clone());
        let _gone = tokio::task::spawn_blocking(move || records.forget(&run)).await;
    }
}

/// What Nomad keeps of a task.
fn handle(task: wire::TaskConfig, kept: &RunKept) -> wire::TaskHandle {
    wire::TaskHandle {
        version: VERSION,
        config: Some(task),
        state: wire::TaskState::Running.into(),
        driver_state: kept.encoded(),
    }
}
