//! The one driver of the world, and its processes, as an agent sees them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::plan::{Ending, Mode, Start};
use crate::world::{Inner, PREPARES, Run, World};
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::alloc::Allocation;
use ostler_model::clock;
use ostler_model::ids::{PluginName, RunId};
use ostler_model::json::JsonObject;
use ostler_model::ports::{
    Adoption, BoxFuture, Capabilities, Diagnostic, Drivers, FsIsolation, InspectResult,
    PluginCallError, ProcessIdentity, ReleaseError, RunNote, StartedTask, SupervisorIdentity,
    TaskConfig, TaskContext, TaskDriver, Workloads,
};
use ostler_model::task::{DriverHandle, ExitResult, RawExit, Workload};
use ostler_state::records::{AllocKey, TaskLocalKey};

/// The name of the driver.
pub(crate) const DRIVER: &str = "sim";
/// In the environment of a task for which another one prepares.
pub(crate) const PREPARED: &str = "PREPARED";

impl Drivers for World {
    fn dispense(&self, name: &PluginName) -> Result<Arc<dyn TaskDriver>, PluginCallError> {
        if self.lock().driver == Mode::Lies {
            let (name, reason) = (name.to_string(), "it says that it is not".to_owned());
            return Err(PluginCallError::NotReady { name, reason });
        }
        Ok(Arc::new(self.clone()))
    }
}

impl World {
    async fn start_one(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> Result<StartedTask, PluginCallError> {
        let run = config.run_id.clone();
        self.pass(&format!("start {run} of {}.{}", context.alloc_id.short(), context.task)).await;
        self.fault(|inner| inner.driver).await?;
        let script = self.script(&config);
        if let Start::Late(after) = script.start {
            clock::sleep(after).await;
        }
        match &script.start {
            Start::Works | Start::Late(_) => {}
            Start::Fails => return Err(PluginCallError::Recoverable("flaky".to_owned())),
            Start::Broken => return Err(PluginCallError::Fatal("broken".to_owned())),
            Start::Hangs => std::future::pending().await,
        }
        let wasm = script.wasm;
        self.lock().spawn(&context, &config, script);
        if !wasm {
            let pid = u32::try_from(self.lock().runs.len()).unwrap_or(u32::MAX);
            let supervisor = Some(SupervisorIdentity { pid, start_ticks: 1 });
            let boot_id = self.lock().boot_id();
            let identity =
                ProcessIdentity { pid, start_ticks: 2, boot_id, cgroup: None, supervisor };
            (context.record_identity)(identity).await.map_err(PluginCallError::Recoverable)?;
        }
        let handle = DriverHandle {
            plugin: DRIVER.to_owned(),
            version: 1,
            data: run.as_str().as_bytes().to_vec(),
        };
        Ok(StartedTask { handle, workload: workload(wasm), network: None })
    }

    /// What this start does.
    fn script(&self, config: &TaskConfig) -> crate::plan::Script {
        let inner = self.lock();
        let script = if inner.settled {
            crate::plan::Script::steady()
        } else {
            crate::plan::Script::random(&inner.rng)
        };
        if config.task.as_str() == PREPARES { script.ending() } else { script }
    }
}

impl Inner {
    fn spawn(&mut self, context: &TaskContext, config: &TaskConfig, script: crate::plan::Script) {
        let id = &config.run_id;
        self.end_due();
        let place = format!("{}.{}.{}", context.job_id, context.group, context.task);
        let twin = self.runs.iter().find(|(_, run)| {
            run.lives() && run.alloc == context.alloc_id && run.task == context.task
        });
        if let Some((other, _)) = twin {
            let text = format!("run {id} of {place} is started while run {other} of it lives");
            self.break_with(text);
        }
        if self.runs.contains_key(id) {
            self.break_with(format!("run {id} is started twice"));
        }
        if self.over_budget(context.alloc_id, &context.task, crate::plan::ATTEMPTS) {
            let text = format!("run {id} of {place} is started, and its attempts are used up");
            self.break_with(text);
        }
        let given = config.env.iter().filter(|(name, _)| name.starts_with("SIM_"));
        let devices: Vec<String> = given.map(|(_, id)| id.clone()).collect();
        let shared = self.runs.iter().find(|(_, run)| {
            run.lives() && run.devices.iter().any(|device| devices.contains(device))
        });
        if let Some((other, _)) = shared {
            let text = format!("run {id} of {place} has a device of run {other}, which lives");
            self.break_with(text);
        }
        if config.env.iter().any(|(name, _)| name == PREPARED)
            && self.prepared.get(&context.alloc_id) != Some(&self.boot)
        {
            self.break_with(format!("run {id} of {place} is started, and nothing is prepared"));
        }
        let knows = |id| self.instances.get(id).is_some_and(|one| one.reserved_in == self.boot);
        if let Some(device) = devices.iter().find(|id| !knows(*id)) {
            let text =
                format!("run {id} of {place} has {device}, of which its plugin knows nothing");
            self.break_with(text);
        }
        let run = Run {
            alloc: context.alloc_id,
            task: context.task.clone(),
            place: None,
            devices,
            boot: self.boot,
            lost: false,
            held: true,
            ran: false,
            script,
            ends_at: None,
            asked: false,
            exit: None,
            changed: watch::Sender::new(0),
        };
        self.runs.insert(id.clone(), run);
    }
}

impl Inner {
    /// Is on disk, or kept beside it, what the next agent needs to own this run again?
    fn check_kept(&mut self, id: &RunId) {
        let Some((run, store)) = self.runs.get(id).zip(self.store.as_ref()) else { return };
        let alloc = store.get::<Allocation>(&AllocKey::of(run.alloc));
        let local = store.get::<LocalState>(&TaskLocalKey::of(run.alloc, run.task.clone()));
        let known = match &local {
            Ok(Some(local)) => local.run.as_ref().filter(|run| run.id == *id),
            _ => None,
        };
        let what = match known {
            _ if !matches!(alloc, Ok(Some(_))) => "its allocation is not durable",
            None => "its intent is not durable",
            Some(run) if run.started.is_none() && !self.notes.contains_key(id) => {
                "nothing is kept of how to reach it"
            }
            Some(_) => return,
        };
        self.break_with(format!("run {id} is let go and {what}: {local:?}"));
    }
}

fn workload(wasm: bool) -> Workload {
    if wasm { Workload::WasmTask("w".to_owned()) } else { Workload::Process("p".to_owned()) }
}

impl TaskDriver for World {
    fn capabilities(&self) -> Capabilities {
        Capabilities { send_signals: true, exec: false, fs_isolation: FsIsolation::None }
    }

    fn holds_starts(&self) -> bool {
        true
    }

    fn validate(&self, _config: &JsonObject) -> Vec<Diagnostic> {
        Vec::new()
    }

    fn start(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> BoxFuture<'_, Result<StartedTask, PluginCallError>> {
        Box::pin(async move {
            let run = config.run_id.clone();
            let started = self.start_one(context, config).await;
            if started.is_err() {
                // The host has killed whatever the call spawned.
                self.lock().end(&run, RawExit { signal: Some(9), ..RawExit::default() });
            }
            started
        })
    }

    fn recover(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<StartedTask, PluginCallError>> {
        Box::pin(async move {
            self.pass("recover").await;
            self.fault(|inner| inner.driver).await?;
            let inner = self.lock();
            let known = inner.runs.get(&context.run_id);
            let run = known.ok_or_else(|| PluginCallError::NotFound(context.run_id.to_string()))?;
            Ok(StartedTask { handle, workload: workload(run.script.wasm), network: None })
        })
    }

    fn interpret_exit(
        &self,
        _context: Arc<TaskContext>,
        _handle: DriverHandle,
        exit: RawExit,
    ) -> BoxFuture<'_, Result<ExitResult, PluginCallError>> {
        Box::pin(async move {
            self.pass("exited").await;
            self.fault(|inner| inner.driver).await?;
            Ok(ExitResult {
                exit_code: exit.exit_code.unwrap_or(0),
                signal: exit.signal.unwrap_or(0),
                oom_killed: exit.oom_killed,
                error: exit.error,
            })
        })
    }

    fn stop(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
        _signal: Option<String>,
        _timeout: Duration,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.pass(&format!("stop {}", context.run_id)).await;
            self.wanted(&context.run_id);
            self.fault(|inner| inner.driver).await?;
            self.finish(&context.run_id, |run| run.script.on_stop)
        })
    }

    fn kill(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.pass(&format!("kill {}", context.run_id)).await;
            self.fault(|inner| inner.driver).await?;
            self.finish(&context.run_id, |run| run.script.on_kill)
        })
    }

    fn destroy(
        &self,
        _context: Arc<TaskContext>,
        _handle: DriverHandle,
        _force: bool,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.pass("destroy").await;
            self.fault(|inner| inner.driver).await
        })
    }

    fn inspect(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
    ) -> BoxFuture<'_, Result<InspectResult, PluginCallError>> {
        Box::pin(async move {
            self.fault(|inner| inner.driver).await?;
            let mut inner = self.lock();
            inner.end_due();
            let run = inner.runs.get(&context.run_id);
            let run = run.ok_or_else(|| PluginCallError::NotFound(context.run_id.to_string()))?;
            Ok(run.exit.clone().map_or(InspectResult::Running, InspectResult::Exited))
        })
    }

    fn signal(
        &self,
        _context: Arc<TaskContext>,
        _handle: DriverHandle,
        _signal: String,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move { self.fault(|inner| inner.driver).await })
    }
}

impl World {
    /// The run is to end, whether its driver does it or not.
    fn wanted(&self, id: &RunId) {
        let mut inner = self.lock();
        inner.end_due();
        if let Some(run) = inner.runs.get_mut(id) {
            run.asked = true;
        }
    }

    fn finish(&self, id: &RunId, how: impl Fn(&Run) -> Ending) -> Result<(), PluginCallError> {
        let mut inner = self.lock();
        let run = inner.runs.get(id).ok_or_else(|| PluginCallError::NotFound(id.to_string()))?;
        let how = how(run);
        inner.ask_to_end(id, how);
        Ok(())
    }
}

impl Workloads for World {
    fn wait(&self, id: &RunId, _workload: &Workload) -> BoxFuture<'static, RawExit> {
        let (world, id) = (self.clone(), id.clone());
        Box::pin(async move {
            loop {
                let (mut changed, left) = {
                    let mut inner = world.lock();
                    inner.end_due();
                    let now = inner.time();
                    let Some(run) = inner.runs.get(&id) else {
                        let error = Some(format!("{id} is not known"));
                        return RawExit { error, ..RawExit::default() };
                    };
                    if let Some(exit) = &run.exit {
                        return exit.clone();
                    }
                    (run.changed.subscribe(), run.ends_at.map(|at| at.saturating_sub(now)))
                };
                let left = left.unwrap_or(Duration::from_secs(1 << 30));
                let _changed = clock::timeout(left, changed.changed()).await;
            }
        })
    }

    fn adopt(&self, id: &RunId, _: &[ProcessIdentity], _: &Workload) -> Adoption {
        let mut inner = self.lock();
        inner.end_due();
        let Some(run) = inner.runs.get(id) else { return Adoption::Unknown };
        match &run.exit {
            // Its worker is gone.
            Some(_) if run.lost && run.script.wasm => Adoption::Unknown,
            Some(_) if run.lost => Adoption::Rebooted,
            Some(_) if !run.ran => Adoption::NotRun,
            Some(exit) => Adoption::Ended(exit.clone()),
            None => Adoption::Running,
        }
    }

    fn signal(&self, id: &RunId, _workload: &Workload, _signal: &str) -> Result<(), String> {
        if self.door(&format!("host signals {id}")) {
            let mut inner = self.lock();
            if let Some(how) = inner.runs.get(id).map(|run| run.script.on_stop) {
                inner.ask_to_end(id, how);
            }
        }
        Ok(())
    }

    fn end_leftovers<'a>(
        &'a self,
        id: &'a RunId,
        identities: &'a [ProcessIdentity],
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            self.pass(&format!("end what is left of {id}")).await;
            let mut inner = self.lock();
            if !identities.is_empty() {
                inner.end(id, RawExit { signal: Some(9), ..RawExit::default() });
            }
            inner.runs.get(id).is_none_or(|run| !run.lives())
        })
    }

    fn release(&self, id: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>> {
        let (world, id) = (self.clone(), id.clone());
        Box::pin(async move {
            world.pass(&format!("let {id} go")).await;
            let mut inner = world.lock();
            let now = inner.time();
            inner.check_kept(&id);
            inner.check_place(&id);
            if let Some(run) = inner.runs.get_mut(&id).filter(|run| run.lives() && run.held) {
                (run.held, run.ran) = (false, true);
                run.ends_at = run.script.runs_for.map(|after| now.saturating_add(after));
                run.changed.send_modify(|n| *n = n.saturating_add(1));
            }
            Ok(())
        })
    }

    fn note(&self, id: &RunId, about: RunNote) -> BoxFuture<'static, bool> {
        let (world, id) = (self.clone(), id.clone());
        Box::pin(async move {
            world.pass(&format!("note of {id}")).await;
            let mut inner = world.lock();
            // A full directory, say.
            if inner.rng.number_below(8) == 0 {
                return false;
            }
            inner.notes.insert(id, about);
            true
        })
    }

    fn kill_run(&self, id: &RunId) {
        if self.door(&format!("host kills {id}")) {
            self.lock().end(id, RawExit { signal: Some(9), ..RawExit::default() });
        }
    }

    fn forget_run(&self, id: &RunId) {
        if self.door(&format!("forget {id}")) {
            let mut inner = self.lock();
            inner.end(id, RawExit { signal: Some(9), ..RawExit::default() });
            inner.runs.remove(id);
            inner.notes.remove(id);
        }
    }
}
