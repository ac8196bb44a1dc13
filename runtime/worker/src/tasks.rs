//! The WASM tasks of an agent, in its workers.
//!
//! ```text
//! spawn ─► code (compiled, sealed) ─► the worker for it ── none: started, with back-off
//!                                         │ hold
//!                                         ▼
//!              table: run ─► worker, tasks ◄── exited, said, lost
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::client::{Hears, NewWorker, Worker};
use super::order;
use super::protocol::{FromWorker, ListedTask, ToWorker};
use super::runs::{OfRun, Table};
use super::setup::Setup;
use ostler_model::clock::{self, Clock};
use ostler_model::config::{WasmWorkerConfig, WorkerScope};
use ostler_model::ids::RunId;
use ostler_model::limits::{MIB, WORKER_NOTICES_MAX, WORKER_TASK_CPU_MHZ};
use ostler_model::ports::{Adoption, BoxFuture, TaskContext};
use ostler_model::rng::Rng;
use ostler_model::task::{RawExit, Usage};
use ostler_plugin::host::wasm_task::code::TaskCode;
use ostler_plugin::host::wasm_task::{WasmTaskError, WasmTaskSpec, WasmTasks, waited};
use ostler_process::ProcessHost;
use ostler_sandbox::{CodeFile, Sandbox};

/// What workers need.
pub struct WorkerOptions {
    /// A program that calls [`main`](crate::main) when its first argument is
    /// [`ARGUMENT`](crate::ARGUMENT).
    pub program: PathBuf,
    /// The data directory of the agent.
    pub data_dir: PathBuf,
    /// Allocations lie in it. Otherwise those of a task lie where its own does: each is a directory
    /// beside the others, with the shared one in it.
    pub own_allocations: bool,
    /// Who shares one, and what one may use.
    pub config: WasmWorkerConfig,
    /// WASM tasks alive at once in one.
    pub task_instances: u32,
    /// Hold them in the dense profile.
    pub dense: bool,
    /// Compiles.
    pub sandbox: Arc<Sandbox>,
    /// For cgroups.
    pub processes: ProcessHost,
    /// Drives connections. The time; randomness.
    pub control: tokio::runtime::Handle,
    /// The time.
    pub clock: Clock,
    /// Names of directories.
    pub rng: Rng,
}

/// WASM tasks in workers. Cheap to clone.
#[derive(Clone)]
pub struct WorkerTasks {
    inner: Arc<Inner>,
}

struct Inner {
    options: WorkerOptions,
    code: TaskCode,
    table: Mutex<Table>,
    /// Where new tasks go, by what they are for.
    places: tokio::sync::Mutex<HashMap<String, Arc<tokio::sync::Mutex<Slot>>>>,
    workers: Mutex<Vec<Arc<Worker>>>,
}

/// The worker for new tasks of a kind.
#[derive(Default)]
struct Slot {
    worker: Option<Arc<Worker>>,
}

/// Directories that a worker uses outside the allocations', each with whether it only reads there; and the
/// network that it is in.
type Outside = (Vec<(PathBuf, bool)>, Option<PathBuf>);

impl WorkerTasks {
    /// Find the workers of earlier agents and own their tasks again. What the operator should hear.
    ///
    /// # Errors
    /// When the directory of the workers cannot be read.
    pub async fn open(options: WorkerOptions) -> io::Result<(Self, Vec<String>)> {
        let code = TaskCode::new(
            Arc::clone(&options.sandbox),
            options.control.clone(),
            options.clock.clone(),
        );
        let inner = Arc::new(Inner {
            options,
            code,
            table: Mutex::default(),
            places: tokio::sync::Mutex::default(),
            workers: Mutex::default(),
        });
        let mut notices = Vec::new();
        for dir in dirs_of(&inner.dir())? {
            let shown = dir.display().to_string();
            if let Err(error) = inner.adopt(dir).await {
                notices.push(format!(
                    "a worker of WASM tasks ({shown}) could not be used and was ended, with its \
                     tasks: {error}"
                ));
            }
        }
        Ok((Self { inner }, notices))
    }
}

impl WasmTasks for WorkerTasks {
    fn spawn(
        &self,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> BoxFuture<'static, Result<String, WasmTaskError>> {
        let inner = Arc::clone(&self.inner);
        // On the control runtime: connections belong to it.
        let started =
            self.inner.options.control.spawn(async move { inner.spawn(context, spec).await });
        let started = tokio_util::task::AbortOnDropHandle::new(started);
        Box::pin(async move { started.await.unwrap_or(Err(WasmTaskError::RunEnded)) })
    }

    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), String>> {
        let mut table = self.inner.table();
        if let Some(of_run) = table.runs.get_mut(run) {
            of_run.released = true;
            of_run.worker.tell(&ToWorker::Release { run: run.to_string() });
        }
        // What becomes of it is told by its exit.
        Box::pin(std::future::ready(Ok(())))
    }

    fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError> {
        self.inner.with(run, id, |of_run, _| {
            of_run.worker.tell(&ToWorker::Kill { run: run.to_string(), id: id.to_owned() });
        })
    }

    fn running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError> {
        self.inner.with(run, id, |_, exit| exit.borrow().is_none())
    }

    fn usage(&self, run: &RunId, id: &str) -> BoxFuture<'static, Option<Usage>> {
        let runs = self.inner.with(run, id, |of_run, exit| {
            exit.borrow().is_none().then(|| Arc::clone(&of_run.worker))
        });
        let (run, id) = (run.to_string(), id.to_owned());
        Box::pin(async move { runs.ok().flatten()?.usage(run, id).await })
    }

    fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit> {
        let exit = self.inner.with(run, id, |_, exit| exit.subscribe());
        let clock = self.inner.options.clock.clone();
        waited(exit.ok(), clock, "the run of the WASM task was forgotten")
    }

    fn adopt(&self, run: &RunId, id: &str) -> Adoption {
        let known =
            self.inner.with(run, id, |of_run, exit| (of_run.released, exit.borrow().clone()));
        match known {
            Err(_) => Adoption::Unknown,
            Ok((false, _)) => Adoption::NotRun,
            Ok((true, None)) => Adoption::Running,
            Ok((true, Some(exit))) => Adoption::Ended(exit),
        }
    }

    fn kill_run(&self, run: &RunId) {
        let mut table = self.inner.table();
        table.ended.add(run);
        if let Some(of_run) = table.runs.get(run) {
            of_run.worker.tell(&ToWorker::KillRun { run: run.to_string() });
        }
    }

    fn forget_run(&self, run: &RunId) {
        let of_run = {
            let mut table = self.inner.table();
            table.ended.add(run);
            table.runs.remove(run)
        };
        let Some(of_run) = of_run else { return };
        of_run.worker.tell(&ToWorker::ForgetRun { run: run.to_string() });
        self.inner.left(&of_run.worker);
    }

    fn kill_all(&self) {
        let runs: Vec<RunId> = self.inner.table().runs.keys().cloned().collect();
        for run in runs {
            self.kill_run(&run);
        }
    }

    fn sweep(&self, known: &BTreeSet<RunId>) -> usize {
        let unknown: Vec<RunId> = {
            let table = self.inner.table();
            table.runs.keys().filter(|run| !known.contains(run)).cloned().collect()
        };
        for run in &unknown {
            self.forget_run(run);
        }
        unknown.len()
    }

    fn leave(&self) {
        for worker in &*self.inner.workers() {
            worker.leave();
        }
    }
}

impl Inner {
    fn dir(&self) -> PathBuf {
        self.options.data_dir.join("workers")
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        run: &RunId,
        id: &str,
        used: impl FnOnce(&OfRun, &watch::Sender<Option<RawExit>>) -> T,
    ) -> Result<T, WasmTaskError> {
        let table = self.table();
        let known = table.runs.get(run).and_then(|of_run| Some((of_run, of_run.task(id)?)));
        known.map(|(of_run, exit)| used(of_run, exit)).ok_or(WasmTaskError::UnknownTask)
    }

    /// Own the worker of a directory and its tasks.
    async fn adopt(self: &Arc<Self>, dir: PathBuf) -> io::Result<()> {
        let hears = Arc::clone(self) as Arc<dyn Hears>;
        let adopted = Worker::adopt(dir, &self.options.processes, hears);
        let Some(worker) = adopted.await? else { return Ok(()) };
        // Known before the list is: what ends meanwhile is then told.
        self.workers().push(Arc::clone(&worker));
        let listed = match worker.list().await {
            Ok(listed) => listed,
            Err(error) => {
                worker.end().await;
                return Err(error);
            }
        };
        self.own(&worker, listed);
        if worker.current {
            let slot = Slot { worker: Some(Arc::clone(&worker)) };
            let slot = Arc::new(tokio::sync::Mutex::new(slot));
            self.places.lock().await.insert(worker.key.clone(), slot);
        } else {
            worker.retire();
        }
        Ok(())
    }

    /// The tasks of an adopted worker are this agent's.
    fn own(&self, worker: &Arc<Worker>, listed: Vec<ListedTask>) {
        let mut table = self.table();
        for task in listed.into_iter().filter(|task| order::is_id(&task.id)) {
            let Ok(run) = order::run(&task.run) else { continue };
            let of_run = table.runs.entry(run).or_insert_with(|| {
                worker.runs.fetch_add(1, Ordering::Relaxed);
                let cpu_mhz = task.cpu_mhz.unwrap_or(WORKER_TASK_CPU_MHZ);
                OfRun::new(worker, task.released, cpu_mhz, None)
            });
            if Arc::ptr_eq(&of_run.worker, worker) {
                of_run.has(task.id, task.exit.map(order::exit_heard));
            }
        }
    }

    async fn spawn(
        self: Arc<Self>,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> Result<String, WasmTaskError> {
        let code: CodeFile = self.code.of(&context, &spec.path).await?;
        let run = context.run_id.clone();
        let (key, outside) = self.key(&context);
        let network = context.network.as_ref().map(|network| network.namespace.clone());
        let made = self
            .worker(&key, (outside, network), |text| (context.events)(text, Vec::new()))
            .await?;
        // All of a run are in one worker: it is told of runs.
        let worker = {
            let mut table = self.table();
            if table.ended.has(&run) {
                return Err(WasmTaskError::RunEnded);
            }
            let said = Some(Arc::clone(&context.events));
            let of_run = table.runs.entry(run.clone()).or_insert_with(|| {
                made.runs.fetch_add(1, Ordering::Relaxed);
                OfRun::new(&made, false, context.cpu_mhz, said)
            });
            Arc::clone(&of_run.worker)
        };
        let sent = order::of(&context, spec, &code)?;
        let id = worker.hold(sent.order, sent.fds).await?;
        let mut table = self.table();
        let ended = table.ended.has(&run);
        match table.runs.get_mut(&run).filter(|_| !ended) {
            Some(of_run) => {
                // One of a run that was let go before may have ended already.
                of_run.has(id.clone(), None);
                if worker.is_lost() {
                    of_run.lose("it ended", self.options.clock.now());
                }
                Ok(id)
            }
            None => Err(WasmTaskError::RunEnded),
        }
    }

    /// What a worker for this task is for, and the directories outside the allocations' that it uses.
    fn key(&self, context: &TaskContext) -> (String, Vec<(PathBuf, bool)>) {
        let mut key = match self.options.config.per {
            WorkerScope::Node => "node".to_owned(),
            WorkerScope::Namespace => format!("namespace {}", context.job_id.namespace()),
            WorkerScope::Job => {
                let id = &context.job_id;
                format!("job {id} of namespace {}", id.namespace())
            }
        };
        let mut outside: Vec<_> = context
            .mounts
            .iter()
            .map(|mount| (PathBuf::from(&mount.host_path), mount.read_only))
            .collect();
        outside.sort();
        for (path, read_only) in &outside {
            let how = if *read_only { "reading" } else { "writing" };
            key = format!("{key}, {how} {}", path.display());
        }
        let all = context.alloc_dir.parent().and_then(Path::parent);
        if let Some(all) = all.filter(|_| !self.options.own_allocations) {
            key = format!("{key}, allocations in {}", all.display());
            outside.push((all.to_owned(), false));
        }
        if let Some(network) = &context.network {
            // All sockets of a process are in one network.
            key = format!("{key}, network {}", network.namespace.display());
        }
        (key, outside)
    }

    /// The worker for new tasks of a kind, started when there is none.
    async fn worker(
        self: &Arc<Self>,
        key: &str,
        outside: Outside,
        say: impl Fn(String),
    ) -> Result<Arc<Worker>, WasmTaskError> {
        // Before the slot: whoever waits for the same worker waits for the slot.
        if let Some((ends, pause)) = self.back_off(key) {
            say(format!(
                "waits for a worker process: {ends} in a row ended soon after they were started; the \
                 next is started in {:.1} s",
                pause.as_secs_f64()
            ));
        }
        let slot = Arc::clone(self.places.lock().await.entry(key.to_owned()).or_default());
        let mut slot = slot.lock().await;
        if let Some(worker) = slot.worker.as_ref().filter(|worker| !worker.is_lost()) {
            return Ok(Arc::clone(worker));
        }
        let pause = self.back_off(key).map(|(_, pause)| pause);
        clock::sleep(pause.unwrap_or_default()).await;
        match self.start(key, outside).await {
            Ok(worker) => {
                tracing::info!(pid = worker.pid(), key, "started a worker of WASM tasks");
                self.workers().push(Arc::clone(&worker));
                slot.worker = Some(Arc::clone(&worker));
                Ok(worker)
            }
            Err(error) => {
                self.ended_after(key, std::time::Duration::ZERO);
                Err(WasmTaskError::Worker { reason: error.to_string() })
            }
        }
    }

    async fn start(
        self: &Arc<Self>,
        key: &str,
        (outside, network): Outside,
    ) -> io::Result<Arc<Worker>> {
        let WorkerOptions {
            program, data_dir, config, task_instances, dense, processes, rng, ..
        } = &self.options;
        let name = format!("{:08x}", rng.below(1 << 32));
        let memory = config.memory_max_mb.map(|mb| mb.saturating_mul(MIB));
        let cgroup = processes.worker_cgroup(&name, memory, config.threads_max)?;
        let mut setup = Setup {
            dir: self.dir().join(&name),
            key: key.to_owned(),
            write: vec![data_dir.join("allocs")],
            read: Vec::new(),
            task_instances: *task_instances,
            dense: *dense,
            network,
        };
        // Rules are made of what is there.
        std::fs::create_dir_all(data_dir.join("allocs"))?;
        for (path, read_only) in outside {
            if read_only { &mut setup.read } else { &mut setup.write }.push(path);
        }
        let new = NewWorker { program: program.clone(), dir: setup.dir.clone(), cgroup, setup };
        Worker::start(new, Arc::clone(self) as Arc<dyn Hears>).await
    }

    /// How many workers of a kind ended soon, one after the other, and how long to wait before the next;
    /// `None`: it may be started now.
    fn back_off(&self, key: &str) -> Option<(u32, std::time::Duration)> {
        let now = self.options.clock.now();
        let known = self.table().backoff.get(key).copied()?;
        Some((known.short(), known.wait(now))).filter(|(_, pause)| !pause.is_zero())
    }

    fn ended_after(&self, key: &str, lived: std::time::Duration) {
        let now = self.options.clock.now();
        let mut table = self.table();
        // There may be one for each job there ever was.
        table.backoff.retain(|_, known| !known.is_past(now));
        let known = table.backoff.entry(key.to_owned()).or_default();
        *known = known.ended(lived, now);
    }

    /// A run of a worker was forgotten. One that is for few tasks ends with the last of them.
    fn left(self: &Arc<Self>, worker: &Arc<Worker>) {
        let last = worker.runs.fetch_sub(1, Ordering::Relaxed) == 1;
        if !last || is_for_all(&worker.key) || !worker.current {
            return;
        }
        let (this, worker) = (Arc::clone(self), Arc::clone(worker));
        self.options.control.spawn(async move {
            let mut places = this.places.lock().await;
            let unused = worker.runs.load(Ordering::Relaxed) == 0;
            // Nobody is about to use it: whoever is holds the slot, or a copy of it.
            let free = places.get(&worker.key).is_some_and(|slot| Arc::strong_count(slot) == 1);
            if unused && free {
                places.remove(&worker.key);
                worker.retire();
            }
        });
    }
}

/// Is a worker of this key one for all tasks but those with directories of their own? It is of use again
/// soon.
fn is_for_all(key: &str) -> bool {
    let (all, more) = key.split_once(", ").unwrap_or((key, ""));
    let everywhere = more.starts_with("allocations in ") && !more.contains(", network ");
    all == "node" && (more.is_empty() || everywhere)
}

impl Hears for Inner {
    /// Of runs in other workers it has nothing to say: one that a guest broke out of says anything.
    fn heard(&self, worker: &Arc<Worker>, message: FromWorker) {
        let of_worker = |of_run: &OfRun| Arc::ptr_eq(&of_run.worker, worker);
        match message {
            FromWorker::Exited { run, id, exit } => {
                let Ok(run) = order::run(&run) else { return };
                // Of a run that was forgotten there is nobody to tell.
                let mut table = self.table();
                let of_run = table.runs.get_mut(&run).filter(|of_run| of_worker(of_run));
                if let Some(of_run) = of_run.filter(|_| order::is_id(&id)) {
                    of_run.exited(id, order::exit_heard(exit));
                }
            }
            FromWorker::Said { run, text } => {
                let Ok(run) = order::run(&run) else { return };
                let table = self.table();
                let of_run = table.runs.get(&run).filter(|of_run| of_worker(of_run));
                let said = of_run.and_then(|of_run| of_run.said.clone());
                drop(table);
                if let Some(said) = said {
                    said(order::text_heard(text), Vec::new());
                }
            }
            FromWorker::Welcome { notices, .. } => {
                for notice in notices.into_iter().take(WORKER_NOTICES_MAX) {
                    tracing::warn!("{}", order::text_heard(notice));
                }
            }
            FromWorker::Held { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Listed { .. }
            | FromWorker::Used { .. }
            | FromWorker::Unknown => {}
        }
    }

    fn lost(&self, worker: &Arc<Worker>, how: String) {
        let now = self.options.clock.now();
        let mut tasks = 0_usize;
        {
            let mut table = self.table();
            let of_worker = table.runs.values_mut().filter(|of| Arc::ptr_eq(&of.worker, worker));
            for of_run in of_worker {
                tasks = tasks.saturating_add(of_run.len());
                of_run.lose(&how, now);
            }
        }
        self.workers().retain(|other| !Arc::ptr_eq(other, worker));
        let (pid, key) = (worker.pid(), &worker.key);
        if worker.is_retired() && tasks == 0 {
            tracing::info!(pid, key, "a worker of WASM tasks ended after its last task");
            return;
        }
        if tasks > 0 || worker.current {
            tracing::warn!(
                pid,
                key,
                how,
                tasks,
                "a worker of WASM tasks ended, and its tasks with it"
            );
        }
        // Of one that did not come up whoever starts it tells.
        if worker.came_up() {
            self.ended_after(&worker.key, worker.age());
        }
    }
}

/// Directories below one; none where it is not there.
fn dirs_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::is_for_all;

    #[test]
    fn the_worker_of_all_tasks_is_kept_and_those_of_few_are_not() {
        for (key, kept) in [
            ("node", true),
            ("node, allocations in /nomad/alloc", true),
            ("node, reading /data", false),
            ("node, reading /data, allocations in /nomad/alloc", false),
            ("node, network /data/netns/1", false),
            ("node, allocations in /nomad/alloc, network /data/netns/1", false),
            ("job web", false),
            ("job web, allocations in /nomad/alloc", false),
        ] {
            assert_eq!(is_for_all(key), kept, "{key}");
        }
    }
}
