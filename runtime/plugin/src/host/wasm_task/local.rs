//! WASM tasks in this process.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::code::TaskCode;
use super::launch::{Guest, Launcher};
use super::registry::{Entry, NotTaken, Registry};
use super::{WasmTaskError, WasmTaskSpec, WasmTasks, exit, waited};
use ostler_model::clock::Clock;
use ostler_model::ids::RunId;
use ostler_model::ports::{Adoption, BoxFuture, TaskContext};
use ostler_model::rng::Rng;
use ostler_model::task::{RawExit, Usage};
use ostler_sandbox::{CallError, CodeFile, CpuMeter, LoadedCode, Sandbox};

/// Hears of each exit, once: run and id of the task, and how it ended.
pub type TaskExited = Arc<dyn Fn(&RunId, &str, &RawExit) + Send + Sync>;

/// A task as who asks for all of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSeen {
    /// Its run.
    pub run: RunId,
    /// Its id.
    pub id: String,
    /// Was it let go?
    pub released: bool,
    /// How it ended.
    pub exit: Option<RawExit>,
    /// MHz reserved.
    pub cpu_mhz: u32,
}

/// A guest that was not let go.
struct HeldGuest {
    guest: Guest,
    cpu_mhz: u32,
    sees: String,
    exit: watch::Sender<Option<RawExit>>,
    kill: CancellationToken,
    cpu: Arc<OnceLock<CpuMeter>>,
}

struct Inner {
    sandbox: Arc<Sandbox>,
    launcher: Launcher,
    code: TaskCode,
    control: tokio::runtime::Handle,
    clock: Clock,
    rng: Rng,
    exited: Option<TaskExited>,
    tasks: Mutex<Registry<HeldGuest>>,
}

/// All WASM tasks of a process.
#[derive(Clone)]
pub struct WasmTaskHost {
    inner: Arc<Inner>,
}

impl WasmTaskHost {
    /// A host without tasks. `control` drives the watchers; `exited` hears of each exit.
    ///
    /// # Errors
    /// When WASI cannot be linked: a mistake in this agent.
    pub fn new(
        sandbox: Arc<Sandbox>,
        control: tokio::runtime::Handle,
        clock: Clock,
        rng: Rng,
        exited: Option<TaskExited>,
    ) -> Result<Self, CallError> {
        let launcher = Launcher::new(&sandbox)?;
        let code = TaskCode::new(Arc::clone(&sandbox), control.clone(), clock.clone());
        let tasks = Mutex::default();
        let inner = Inner { sandbox, launcher, code, control, clock, rng, exited, tasks };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Hold a task whose code another process found. Blocks when the code is not mapped yet.
    ///
    /// # Errors
    /// See [`WasmTaskError`]; nothing is held then.
    pub fn hold(
        &self,
        context: &TaskContext,
        spec: &WasmTaskSpec,
        file: &CodeFile,
    ) -> Result<String, WasmTaskError> {
        let code = self.inner.sandbox.code().map(file);
        let code =
            code.map_err(|source| WasmTaskError::Code { path: spec.path.clone(), source })?;
        self.inner.hold(context, spec, &code)
    }

    /// Every task that was not forgotten.
    #[must_use]
    pub fn seen(&self) -> Vec<TaskSeen> {
        let tasks = self.inner.lock();
        let seen = tasks.tasks().map(|(run, id, entry)| TaskSeen {
            run: run.clone(),
            id: id.to_owned(),
            released: tasks.released(run).unwrap_or_default(),
            exit: entry.exit.borrow().clone(),
            cpu_mhz: entry.cpu_mhz,
        });
        seen.collect()
    }

    /// Is no task left that was not forgotten?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.lock().tasks().next().is_none()
    }

    /// Has every task ended?
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.inner.lock().tasks().all(|(_, _, entry)| entry.exit.borrow().is_some())
    }

    /// What a task uses now; `None` when it is not known or has ended.
    #[must_use]
    pub fn used(&self, run: &RunId, id: &str) -> Option<Usage> {
        let taken_at = self.inner.clock.now();
        let used = self.with(run, id, |entry| {
            entry.exit.borrow().is_none().then(|| Usage {
                cpu_time: entry.cpu.get().map(CpuMeter::total),
                memory_bytes: Some(entry.memory.memory_bytes()),
                taken_at,
            })
        });
        used.ok().flatten()
    }

    /// End what was never let go: nobody is left to do it. It stays to be asked after.
    pub fn end_held(&self) {
        let runs = self.inner.lock().unreleased();
        for run in runs {
            self.kill_run(&run);
        }
    }

    fn with<T>(
        &self,
        run: &RunId,
        id: &str,
        use_entry: impl FnOnce(&Entry<HeldGuest>) -> T,
    ) -> Result<T, WasmTaskError> {
        let tasks = self.inner.lock();
        tasks.get(run, id).map(use_entry).ok_or(WasmTaskError::UnknownTask)
    }
}

impl WasmTasks for WasmTaskHost {
    fn spawn(
        &self,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> BoxFuture<'static, Result<String, WasmTaskError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            if context.network.is_some() {
                // Its sockets would be this process's.
                return Err(WasmTaskError::NoNetwork);
            }
            let code: Arc<LoadedCode> = inner.code.of(&context, &spec.path).await?;
            inner.hold(&context, &spec, &code)
        })
    }

    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), String>> {
        let held = self.inner.lock().release(run);
        for (id, held) in held {
            self.inner.go(run.clone(), id, held);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError> {
        self.with(run, id, |entry| entry.kill.cancel())
    }

    fn running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError> {
        self.with(run, id, |entry| entry.exit.borrow().is_none())
    }

    fn usage(&self, run: &RunId, id: &str) -> BoxFuture<'static, Option<Usage>> {
        Box::pin(std::future::ready(self.used(run, id)))
    }

    fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit> {
        let exit = self.with(run, id, |entry| entry.exit.clone());
        waited(exit.ok(), self.inner.clock.clone(), "the watcher of the WASM task is gone")
    }

    fn adopt(&self, run: &RunId, id: &str) -> Adoption {
        let released = self.inner.lock().released(run);
        match self.with(run, id, |entry| entry.exit.borrow().clone()) {
            Err(_) => Adoption::Unknown,
            Ok(_) if released == Some(false) => Adoption::NotRun,
            Ok(None) => Adoption::Running,
            Ok(Some(exit)) => Adoption::Ended(exit),
        }
    }

    fn kill_run(&self, run: &RunId) {
        let held = self.inner.lock().kill(run);
        self.inner.never_ran(run, held);
    }

    fn forget_run(&self, run: &RunId) {
        let held = self.inner.lock().forget(run);
        self.inner.never_ran(run, held);
    }

    fn kill_all(&self) {
        let runs = self.inner.lock().runs();
        for run in runs {
            self.kill_run(&run);
        }
    }

    fn sweep(&self, known: &BTreeSet<RunId>) -> usize {
        let mut unknown = self.inner.lock().runs();
        unknown.retain(|run| !known.contains(run));
        for run in &unknown {
            self.forget_run(run);
        }
        unknown.len()
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        self.kill_all();
        Box::pin(std::future::ready(()))
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Registry<HeldGuest>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(
        self: &Arc<Self>,
        context: &TaskContext,
        spec: &WasmTaskSpec,
        code: &LoadedCode,
    ) -> Result<String, WasmTaskError> {
        let mut guest = self.launcher.prepare(&self.sandbox, context, spec, code)?;
        // Its run is known before it has a place: it can be ended while it waits for one.
        let (events, name) = (Arc::clone(&context.events), spec.path.clone());
        let say = move |text: String| events(format!("{} {text}", name.display()), Vec::new());
        let place = self.sandbox.task_place(code, say);
        guest.run = Box::pin(async move {
            let _until_its_store_is_gone = place.await?;
            guest.run.await
        });
        let id = format!("wasm-{:016x}", self.rng.next_u64());
        let (exit, seen) = watch::channel(None);
        let (kill, cpu) = (CancellationToken::new(), Arc::new(OnceLock::new()));
        let memory = Arc::clone(&guest.memory);
        let held = HeldGuest {
            guest,
            cpu_mhz: context.cpu_mhz,
            sees: exit::seen(&spec.dirs),
            exit,
            kill: kill.clone(),
            cpu: Arc::clone(&cpu),
        };
        let cpu_mhz = context.cpu_mhz;
        let entry = Entry { exit: seen, kill, held: Some(held), memory, cpu, cpu_mhz };
        let added = self.lock().add(&context.run_id, id.clone(), entry);
        let goes = added.map_err(|refused| match refused {
            NotTaken::RunEnded => WasmTaskError::RunEnded,
            NotTaken::TooMany => WasmTaskError::TooMany,
        })?;
        if let Some(held) = goes {
            self.go(context.run_id.clone(), id.clone(), held);
        }
        Ok(id)
    }

    /// Its first instruction may run from here on.
    fn go(self: &Arc<Self>, run: RunId, id: String, held: HeldGuest) {
        let HeldGuest { guest, cpu_mhz, sees, exit, kill, cpu } = held;
        let Guest { run: body, missed, tail, .. } = guest;
        let mut task = self.sandbox.spawn_task(body, cpu_mhz);
        let _first = cpu.set(task.cpu());
        let this = Arc::clone(self);
        self.control.spawn(async move {
            let mut killed = false;
            let result = tokio::select! {
                result = task.join() => result,
                () = kill.cancelled() => {
                    killed = true;
                    task.abort();
                    task.join().await
                }
            };
            tracing::debug!(%run, cpu = ?task.cpu().total(), "WASM task ended");
            let raw = exit::raw(result, &tail.said(), killed, this.clock.now());
            this.exited(&run, &id, &exit, exit::told(raw, missed.load(Ordering::Relaxed), &sees));
        });
    }

    /// The end of tasks that were never let go.
    fn never_ran(&self, run: &RunId, held: Vec<(String, HeldGuest)>) {
        for (id, held) in held {
            let said = held.guest.tail.said();
            let how = exit::raw(Err(CallError::Cancelled), &said, true, self.clock.now());
            self.exited(run, &id, &held.exit, how);
        }
    }

    fn exited(&self, run: &RunId, id: &str, exit: &watch::Sender<Option<RawExit>>, how: RawExit) {
        exit.send_replace(Some(how.clone()));
        if let Some(exited) = &self.exited {
            exited(run, id, &how);
        }
    }
}
