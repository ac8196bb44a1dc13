//! The traits the runners use, over the scripted node.

use std::sync::Arc;
use std::time::Duration;

use super::{FakeNode, reply};
use ostler_model::device::Reservation;
use ostler_model::ids::{AllocId, PluginName, RunId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::ports::{
    Adoption, BoxFuture, Capabilities, Devices, Diagnostic, Drivers, FsIsolation, InspectResult,
    PluginCallError, ProcessIdentity, ReleaseError, RunNote, StartedTask, TaskConfig, TaskContext,
    TaskDriver, Workloads,
};
use ostler_model::resources::AllocatedDevice;
use ostler_model::session::{ExecPlan, ExecSession, Resize, TerminalSize};
use ostler_model::task::{DriverHandle, ExitResult, RawExit, Workload};

impl Drivers for FakeNode {
    fn dispense(&self, name: &PluginName) -> Result<Arc<dyn TaskDriver>, PluginCallError> {
        if name.as_str() != "fake" || self.lock().missing {
            let (name, known) = (name.to_string(), "fake".to_owned());
            return Err(PluginCallError::UnknownPlugin { name, known });
        }
        match &self.lock().not_ready {
            Some(reason) => {
                Err(PluginCallError::NotReady { name: name.to_string(), reason: reason.clone() })
            }
            None => Ok(Arc::new(self.clone())),
        }
    }
}

impl TaskDriver for FakeNode {
    fn capabilities(&self) -> Capabilities {
        let fs_isolation = if self.lock().rooted { FsIsolation::Chroot } else { FsIsolation::None };
        Capabilities { send_signals: true, exec: true, fs_isolation }
    }

    fn call_wall(&self) -> Duration {
        self.lock().call_wall
    }

    fn report_hang(&self, call: &'static str, task: &TaskContext, _after: Duration) {
        self.note(&format!("given up: {call}"), task.task.as_str());
    }

    fn holds_starts(&self) -> bool {
        self.lock().starts_held
    }

    fn validate(&self, _config: &JsonObject) -> Vec<Diagnostic> {
        self.lock().problems.clone()
    }

    fn start(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> BoxFuture<'_, Result<StartedTask, PluginCallError>> {
        Box::pin(self.begin(context, config))
    }

    fn recover(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<StartedTask, PluginCallError>> {
        self.note("recover", context.task.as_str());
        let (known, script, how) = {
            let mut inner = self.lock();
            inner.contexts.push(Arc::clone(&context));
            let script = inner.runs.get(&context.run_id).map(|r| r.script.clone());
            (inner.live.contains(&context.run_id), script, inner.recover.clone())
        };
        Box::pin(async move {
            reply(&how).await?;
            if known {
                let workload = super::workload(&script.unwrap_or_default());
                Ok(StartedTask { handle, workload, network: None })
            } else {
                Err(PluginCallError::NotFound(context.run_id.to_string()))
            }
        })
    }

    fn interpret_exit(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
        exit: RawExit,
    ) -> BoxFuture<'_, Result<ExitResult, PluginCallError>> {
        Box::pin(async move {
            self.note("exited", context.task.as_str());
            let script = self.script_of(&context.run_id).unwrap_or_default();
            reply(&script.exited).await?;
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
        signal: Option<String>,
        _timeout: Duration,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            let signal = signal.map(|s| format!(" {s}")).unwrap_or_default();
            self.note("stop", &format!("{}{signal}", context.task));
            let how = self.script_of(&context.run_id).map(|s| s.on_stop);
            self.finish(context.run_id.clone(), how).await
        })
    }

    fn kill(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.note("kill", context.task.as_str());
            let how = self.script_of(&context.run_id).map(|s| s.on_kill);
            self.finish(context.run_id.clone(), how).await
        })
    }

    fn destroy(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
        _force: bool,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.note("destroy", context.task.as_str());
            let script = self.script_of(&context.run_id).unwrap_or_default();
            reply(&script.destroy).await
        })
    }

    fn inspect(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
    ) -> BoxFuture<'_, Result<InspectResult, PluginCallError>> {
        Box::pin(async move {
            let how = self.lock().inspect.clone();
            reply(&how).await?;
            let inner = self.lock();
            let known = inner.runs.get(&context.run_id);
            let run = known.ok_or_else(|| PluginCallError::NotFound(context.run_id.to_string()))?;
            let exit = run.exit.borrow().clone();
            Ok(exit.map_or(InspectResult::Running, InspectResult::Exited))
        })
    }

    fn signal(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
        signal: String,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        self.note("signal", &format!("{} {signal}", context.task));
        let answer = self.lock().signal.clone();
        Box::pin(async move { reply(&answer).await })
    }

    fn exec(
        &self,
        context: Arc<TaskContext>,
        _handle: DriverHandle,
        argv: Vec<String>,
        _terminal: bool,
    ) -> BoxFuture<'_, Result<ExecPlan, PluginCallError>> {
        self.note("exec", &format!("{} {}", context.task, argv.join(" ")));
        let how = self.lock().exec.clone();
        Box::pin(async move {
            reply(&how).await?;
            Ok(ExecPlan { argv, env: None, cwd: None, user: None })
        })
    }
}

impl Workloads for FakeNode {
    fn wait(&self, run: &RunId, _workload: &Workload) -> BoxFuture<'static, RawExit> {
        let known = self.owned_by_host(run);
        let exit = self.lock().runs.get(run).filter(|_| known).map(|r| r.exit.subscribe());
        let unknown = RawExit { error: Some(format!("{run} is not known")), ..RawExit::default() };
        Box::pin(async move {
            let Some(mut exit) = exit else { return unknown };
            match exit.wait_for(Option::is_some).await {
                Ok(exit) => exit.clone().unwrap_or(unknown),
                Err(_) => unknown,
            }
        })
    }

    /// What lives on this node is owned again; the same node is the next agent's too.
    fn adopt(&self, run: &RunId, _: &[ProcessIdentity], _: &Workload) -> Adoption {
        let mut inner = self.lock();
        inner.unowned.remove(run);
        if let Some(scripted) = inner.adoption.clone() {
            if matches!(scripted, Adoption::Unknown | Adoption::NotNow(_)) {
                inner.unowned.insert(run.clone());
            }
            return scripted;
        }
        if inner.never.contains(run) {
            return Adoption::NotRun;
        }
        let Some(known) = inner.runs.get(run) else { return Adoption::Unknown };
        known.exit.borrow().clone().map_or(Adoption::Running, Adoption::Ended)
    }

    /// As the driver's `stop`, noted apart.
    fn signal(&self, run: &RunId, workload: &Workload, signal: &str) -> Result<(), String> {
        let Workload::Process(_) = workload else {
            return Err("no process".to_owned());
        };
        self.note("host_signal", &format!("{} {signal}", self.task_of(run)));
        if signal == "SIGINT" {
            self.signalled_by_host(run);
        }
        Ok(())
    }

    /// The command ends at once, with 7.
    fn exec(
        &self,
        run: &RunId,
        _workload: &Workload,
        plan: ExecPlan,
        terminal: Option<TerminalSize>,
    ) -> BoxFuture<'static, Result<ExecSession, String>> {
        self.note("enter", &format!("{} {}", self.task_of(run), plan.argv.join(" ")));
        let session = ExecSession {
            stdin: Box::new(tokio::io::sink()),
            stdout: Box::new(tokio::io::empty()),
            stderr: None,
            resize: terminal.map(|_| -> Resize { Box::new(|_| ()) }),
            end: Box::pin(std::future::ready(Ok(7))),
        };
        Box::pin(std::future::ready(Ok(session)))
    }

    fn end_leftovers<'a>(
        &'a self,
        run: &'a RunId,
        identities: &'a [ProcessIdentity],
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if !identities.is_empty() {
                self.note("end_leftovers", &self.task_of(run));
                if self.script_of(run).is_some_and(|s| s.host_kill_works) {
                    self.end(run, RawExit { signal: Some(9), ..RawExit::default() });
                }
            }
            !self.lock().live.contains(run)
        })
    }

    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>> {
        self.let_go(run);
        Box::pin(std::future::ready(Ok(())))
    }

    fn note(&self, run: &RunId, about: RunNote) -> BoxFuture<'static, bool> {
        let kept = self.lock().notes.as_mut().map(|notes| notes.insert(run.clone(), about));
        Box::pin(std::future::ready(kept.is_some()))
    }

    fn kill_run(&self, run: &RunId) {
        self.note("kill_run", &self.task_of(run));
        if self.owned_by_host(run) && self.script_of(run).is_some_and(|s| s.host_kill_works) {
            self.end(run, RawExit { signal: Some(9), ..RawExit::default() });
        }
    }

    fn forget_run(&self, run: &RunId) {
        self.note("forget_run", &self.task_of(run));
        if self.owned_by_host(run) {
            if self.script_of(run).is_some_and(|s| s.host_kill_works) {
                self.end(run, RawExit { signal: Some(9), ..RawExit::default() });
            }
            let mut inner = self.lock();
            inner.runs.remove(run);
            if let Some(notes) = &mut inner.notes {
                notes.remove(run);
            }
        }
    }
}

impl Devices for FakeNode {
    fn fit(&self, _devices: &[AllocatedDevice]) -> Result<(), PluginCallError> {
        match &self.lock().unfit {
            Some(reason) => Err(PluginCallError::Recoverable(reason.clone())),
            None => Ok(()),
        }
    }

    fn reserve<'a>(
        &'a self,
        _alloc: AllocId,
        task: &'a TaskName,
        _devices: &'a [AllocatedDevice],
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        Box::pin(async move {
            self.note("reserve", task.as_str());
            let (how, reservation) = {
                let inner = self.lock();
                (inner.reserve.clone(), inner.reservation.clone())
            };
            reply(&how).await.map(|()| reservation)
        })
    }

    fn release<'a>(&'a self, _alloc: AllocId, task: &'a TaskName) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.note("release", task.as_str()) })
    }
}
