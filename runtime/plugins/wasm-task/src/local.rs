//! Runs WASM tasks in this process.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::watch;

use super::code::TaskCode;
use super::launch::{Guest, Launcher};
use super::registry::{Registry, TaskEntry, TaskKill, TaskRefusal};
use super::{TaskStdin, WasmTaskError, WasmTaskSpec, WasmTasks, exit, wait_for_exit};
use ostler_model::clock::{self, Clock};
use ostler_model::ids::RunId;
use ostler_model::ports::{Adoption, BoxFuture, ReleaseError, TaskContext};
use ostler_model::rng::Rng;
use ostler_model::task::{RawExit, Usage};
use ostler_sandbox::{CallError, CodeFile, CpuMeter, LoadedCode, Sandbox, WasmFormat};

/// Called once for each exit, with the run and the id of the task, and how it ended.
pub type ExitListener = Arc<dyn Fn(&RunId, &str, &RawExit) + Send + Sync>;

/// A task in the list of all tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmTaskView {
    /// The run that the task belongs to.
    pub run: RunId,
    /// Id of the task in this process.
    pub id: String,
    /// Whether the task was released, so that it may run.
    pub released: bool,
    /// How the task ended; `None` while it lives.
    pub exit: Option<RawExit>,
    /// MHz reserved by the task.
    pub cpu_mhz: u32,
}

/// A guest that was not released yet.
struct HeldGuest {
    guest: Guest,
    cpu_mhz: u32,
    sees: String,
    exit: watch::Sender<Option<RawExit>>,
    kill: Arc<TaskKill>,
    cpu: Arc<OnceLock<CpuMeter>>,
}

struct WasmTaskHostInner {
    sandbox: Arc<Sandbox>,
    launcher: Launcher,
    code: TaskCode,
    clock: Clock,
    rng: Rng,
    exited: Option<ExitListener>,
    tasks: Mutex<Registry<HeldGuest>>,
}

/// All WASM tasks of a process.
#[derive(Clone)]
pub struct WasmTaskHost {
    inner: Arc<WasmTaskHostInner>,
}

impl WasmTaskHost {
    /// A host without tasks. `control` drives what loads code, and `exited` is called for each exit.
    ///
    /// # Errors
    /// When WASI cannot be linked, which is a mistake in this agent.
    pub fn new(
        sandbox: Arc<Sandbox>,
        control: tokio::runtime::Handle,
        clock: Clock,
        rng: Rng,
        exited: Option<ExitListener>,
    ) -> Result<Self, CallError> {
        let launcher = Launcher::new(&sandbox)?;
        let code = TaskCode::new(Arc::clone(&sandbox), control, clock.clone());
        let tasks = Mutex::default();
        let inner = WasmTaskHostInner { sandbox, launcher, code, clock, rng, exited, tasks };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Hold a task whose code file another process opened, under an id that this process chose.
    /// Blocks when the code is not mapped yet.
    ///
    /// # Errors
    /// See [`WasmTaskError`]; nothing is held then.
    pub fn hold(
        &self,
        context: &TaskContext,
        spec: &WasmTaskSpec,
        file: &CodeFile,
        id: Option<String>,
    ) -> Result<String, WasmTaskError> {
        let code = self.inner.sandbox.code().map(file);
        let code =
            code.map_err(|source| WasmTaskError::Code { path: spec.path.clone(), source })?;
        self.inner.hold(context, spec, &code, id)
    }

    /// Does holding this task open nothing? Its code is mapped, and it opens its directories late.
    #[must_use]
    pub fn holds_at_once(
        &self,
        context: &TaskContext,
        spec: &WasmTaskSpec,
        file: &CodeFile,
    ) -> bool {
        opens_dirs_late(context, spec, file.format == WasmFormat::Component)
            && self.inner.sandbox.code().is_mapped(file.digest, file.kind, file.format)
    }

    /// Every task that was not forgotten.
    #[must_use]
    pub fn list_tasks(&self) -> Vec<WasmTaskView> {
        let tasks = self.inner.lock();
        let seen = tasks.tasks().map(|(run, id, entry)| WasmTaskView {
            run: run.clone(),
            id: id.to_owned(),
            released: tasks.is_released(run).unwrap_or_default(),
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
    pub fn current_usage(&self, run: &RunId, id: &str) -> Option<Usage> {
        let taken_at = self.inner.clock.now();
        let used = self.with_task(run, id, |entry| {
            entry.exit.borrow().is_none().then(|| Usage {
                cpu_time: entry.cpu.get().map(CpuMeter::total),
                memory_bytes: Some(entry.memory.memory_bytes()),
                taken_at,
            })
        });
        used.ok().flatten()
    }

    /// End the tasks that were never released, because nobody is left to release them. Their
    /// exits stay known.
    pub fn end_held(&self) {
        let runs = self.inner.lock().unreleased_runs();
        for run in runs {
            self.kill_run(&run);
        }
    }

    fn with_task<T>(
        &self,
        run: &RunId,
        id: &str,
        use_entry: impl FnOnce(&TaskEntry<HeldGuest>) -> T,
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
                // The task's sockets would be in the network of this process.
                return Err(WasmTaskError::NoNetwork);
            }
            let code: Arc<LoadedCode> = inner.code.load_task(&context, &spec.path).await?;
            let late = opens_dirs_late(&context, &spec, code.component().is_some());
            if late && inner.launcher.has_linked(&code) {
                return inner.hold(&context, &spec, &code, None);
            }
            if !late {
                make_dirs(&context).await?;
            }
            // Directories are opened here, or the code is linked, which takes longer than all else.
            let held = clock::run_blocking(move || inner.hold(&context, &spec, &code, None));
            held.await.unwrap_or(Err(WasmTaskError::RunEnded))
        })
    }

    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>> {
        let held = self.inner.lock().release(run);
        for (id, held) in held {
            self.inner.start_guest(run.clone(), id, held);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError> {
        self.with_task(run, id, |entry| entry.kill.kill())
    }

    fn is_running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError> {
        self.with_task(run, id, |entry| entry.exit.borrow().is_none())
    }

    fn usage(&self, run: &RunId, id: &str) -> BoxFuture<'static, Option<Usage>> {
        Box::pin(std::future::ready(self.current_usage(run, id)))
    }

    fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit> {
        let exit = self.with_task(run, id, |entry| entry.exit.clone());
        wait_for_exit(exit.ok(), self.inner.clock.clone(), "the watcher of the WASM task is gone")
    }

    fn adopt(&self, run: &RunId, id: &str) -> Adoption {
        let released = self.inner.lock().is_released(run);
        match self.with_task(run, id, |entry| entry.exit.borrow().clone()) {
            Err(_) => Adoption::Unknown,
            Ok(_) if released == Some(false) => Adoption::NotRun,
            Ok(None) => Adoption::Running,
            Ok(Some(exit)) => Adoption::Ended(exit),
        }
    }

    fn kill_run(&self, run: &RunId) {
        let held = self.inner.lock().kill(run);
        self.inner.report_never_ran(run, held);
    }

    fn forget_run(&self, run: &RunId) {
        let held = self.inner.lock().forget(run);
        self.inner.report_never_ran(run, held);
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

/// A new id of a task.
#[must_use]
pub fn new_task_id(rng: &Rng) -> String {
    format!("wasm-{:016x}", rng.next_u64())
}

/// Does a task open its directories, and what is made late of them, only when it asks for them?
/// Holding it then opens nothing.
#[must_use]
pub fn opens_dirs_late(context: &TaskContext, spec: &WasmTaskSpec, component: bool) -> bool {
    component && context.mounts.is_empty() && !matches!(spec.input, TaskStdin::File(_))
}

/// Make the directories of a task that opens them before it runs.
///
/// # Errors
/// When they cannot be made.
pub async fn make_dirs(context: &TaskContext) -> Result<(), WasmTaskError> {
    (context.dirs)()
        .await
        .map_err(|reason| WasmTaskError::Dir { path: context.task_dir.clone(), reason })
}

impl WasmTaskHostInner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Registry<HeldGuest>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(
        self: &Arc<Self>,
        context: &TaskContext,
        spec: &WasmTaskSpec,
        code: &LoadedCode,
        id: Option<String>,
    ) -> Result<String, WasmTaskError> {
        let mut guest = self.launcher.prepare(&self.sandbox, context, spec, code)?;
        // The task is known before it has a place, so that it can be ended while it waits for one.
        let (events, name) = (Arc::clone(&context.events), spec.path.clone());
        let say = move |text: String| events(format!("{} {text}", name.display()), Vec::new());
        let place = self.sandbox.task_place(code, say);
        guest.run = Box::pin(async move {
            let _until_its_store_is_gone = place.await?;
            guest.run.await
        });
        let id = id.unwrap_or_else(|| new_task_id(&self.rng));
        let (exit, seen) = watch::channel(None);
        let (kill, cpu) = (Arc::<TaskKill>::default(), Arc::new(OnceLock::new()));
        let memory = Arc::clone(&guest.memory);
        let held = HeldGuest {
            guest,
            cpu_mhz: context.cpu_mhz,
            sees: exit::join_guest_paths(&spec.dirs),
            exit,
            kill: Arc::clone(&kill),
            cpu: Arc::clone(&cpu),
        };
        let cpu_mhz = context.cpu_mhz;
        let entry = TaskEntry { exit: seen, kill, held: Some(held), memory, cpu, cpu_mhz };
        let added = self.lock().add(&context.run_id, id.clone(), entry);
        let goes = added.map_err(|refused| match refused {
            TaskRefusal::RunEnded => WasmTaskError::RunEnded,
            TaskRefusal::TooMany => WasmTaskError::TooMany,
        })?;
        if let Some(held) = goes {
            self.start_guest(context.run_id.clone(), id.clone(), held);
        }
        Ok(id)
    }

    /// Start a guest: its first instruction may run from here on.
    fn start_guest(self: &Arc<Self>, run: RunId, id: String, held: HeldGuest) {
        let HeldGuest { guest, cpu_mhz, sees, exit, kill, cpu } = held;
        let Guest { run: body, missed, tail, .. } = guest;
        let (this, asked) = (Arc::clone(self), Arc::clone(&kill));
        let ended = move |result| {
            let now = this.clock.now();
            let raw = exit::raw_exit(result, &tail.last_words(), asked.is_asked(), now);
            tracing::debug!(%run, "WASM task ended");
            let raw = exit::explain_missing_file(raw, missed.load(Ordering::Relaxed), &sees);
            this.report_exit(&run, &id, &exit, raw);
        };
        let (guest, meter) = self.sandbox.spawn_task_then(body, cpu_mhz, ended);
        kill.set_guest(guest);
        let _first = cpu.set(meter);
    }

    /// Record the end of tasks that were never released.
    fn report_never_ran(&self, run: &RunId, held: Vec<(String, HeldGuest)>) {
        for (id, held) in held {
            let said = held.guest.tail.last_words();
            let how = exit::raw_exit(Err(CallError::Cancelled), &said, true, self.clock.now());
            self.report_exit(run, &id, &held.exit, how);
        }
    }

    fn report_exit(
        &self,
        run: &RunId,
        id: &str,
        exit: &watch::Sender<Option<RawExit>>,
        how: RawExit,
    ) {
        exit.send_replace(Some(how.clone()));
        if let Some(exited) = &self.exited {
            exited(run, id, &how);
        }
    }
}
