//! The WASM tasks of an agent, in its workers.
//!
//! ```text
//! spawn ─► code (compiled, sealed) ─► the worker for it ── none: started, with back-off
//!                                         │ hold
//!                                         ▼
//!              table: run ─► worker, tasks ◄── exited, said, lost
//! ```

#[path = "tasks_heard.rs"]
mod heard;
#[path = "tasks_start.rs"]
mod start;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::{AdoptionFailure, NewWorker, Worker, WorkerListener};
use super::discovery::{self, FoundWorker, WorkerSurvey};
use super::protocol::{ListedTask, ToWorker};
use super::runs::{FoundTasks, LivingTask, RunTable, WorkerRun};
use super::setup::Setup;
use super::{look, notes, order, process};
use ostler_model::clock::{self, Clock};
use ostler_model::config::{WasmWorkerConfig, WorkerScope};
use ostler_model::ids::RunId;
use ostler_model::limits::{MIB, WORKER_TASK_CPU_MHZ};
use ostler_model::ports::{Adoption, BoxFuture, ReleaseError, RunNote, TaskContext};
use ostler_model::rng::Rng;
use ostler_model::task::{RawExit, Usage};
use ostler_process::ProcessHost;
use ostler_sandbox::Sandbox;
use ostler_wasm_task::code::TaskCode;
use ostler_wasm_task::{WasmTaskError, WasmTaskSpec, WasmTasks, wait_for_exit};

/// What is needed to start and to use workers.
pub struct WorkerOptions {
    /// A program that calls [`main`](crate::main) when its first
    /// argument is [`ARGUMENT`](crate::ARGUMENT).
    pub program: PathBuf,
    /// The data directory of the agent.
    pub data_dir: PathBuf,
    /// Whether allocations lie in the data directory. Otherwise the allocations lie where that of
    /// the task does: each is a directory beside the others, with the shared directory in it.
    pub own_allocations: bool,
    /// Which tasks share a worker, and how much a worker may use.
    pub config: WasmWorkerConfig,
    /// Most WASM tasks alive at once in one worker.
    pub task_instances: u32,
    /// Whether workers hold their tasks in the dense profile.
    pub dense: bool,
    /// The sandbox of the agent, which compiles the code of tasks.
    pub sandbox: Arc<Sandbox>,
    /// Makes the cgroups of workers.
    pub processes: ProcessHost,
    /// Runtime that drives the connections to workers.
    pub control: tokio::runtime::Handle,
    /// Clock of the agent, for exits and for the pause between starts.
    pub clock: Clock,
    /// Random numbers, for the names of workers' directories.
    pub rng: Rng,
}

/// The agent's WASM tasks in its workers. Cheap to clone.
#[derive(Clone)]
pub struct WorkerTasks {
    inner: Arc<WorkerTasksInner>,
}

struct WorkerTasksInner {
    options: WorkerOptions,
    code: TaskCode,
    table: Mutex<RunTable>,
    /// The worker for new tasks, by the key that says which tasks a worker takes.
    places: tokio::sync::Mutex<HashMap<String, Arc<tokio::sync::Mutex<WorkerSlot>>>>,
    workers: Mutex<Vec<Arc<Worker>>>,
    /// Directories of workers that are gone, each with the runs that its notes name.
    noted: Mutex<Vec<(PathBuf, BTreeSet<String>)>>,
}

/// The worker for new tasks of a kind.
#[derive(Default)]
struct WorkerSlot {
    worker: Option<Arc<Worker>>,
}

/// Directories that a worker uses besides those of allocations, each with whether it only reads
/// there; and the network namespace that the worker is in.
type OutsideAccess = (Vec<(PathBuf, bool)>, Option<PathBuf>);

impl WorkerTasks {
    /// Find the workers of earlier agents and own their tasks again.
    ///
    /// # Errors
    /// When the directory of the workers or `/proc` cannot be read.
    pub async fn open(options: WorkerOptions) -> io::Result<OpenedWorkerTasks> {
        let code = TaskCode::new(
            Arc::clone(&options.sandbox),
            options.control.clone(),
            options.clock.clone(),
        );
        let inner = Arc::new(WorkerTasksInner {
            options,
            code,
            table: Mutex::default(),
            places: tokio::sync::Mutex::default(),
            workers: Mutex::default(),
            noted: Mutex::default(),
        });
        let dir = inner.dir();
        let survey = tokio::task::spawn_blocking(move || discovery::survey(&dir)).await;
        let WorkerSurvey { living, left, elsewhere, notes } =
            survey.map_err(io::Error::other)??;
        inner.keep_noted(left);
        let (mut notices, mut found) =
            (Vec::new(), FoundTasks { elsewhere, notes, ..FoundTasks::default() });
        for worker in living {
            let pid = worker.pid;
            match inner.adopt(worker).await {
                Ok(tasks) => found.tasks.extend(tasks),
                Err(AdoptionFailure { error, left: None }) => notices.push(format!(
                    "a worker of WASM tasks (pid {pid}) could not be used and was ended, with its \
                     tasks: {error}"
                )),
                Err(AdoptionFailure { error, left: Some(left) }) => {
                    found.unasked.push(left);
                    notices.push(format!(
                        "a worker of WASM tasks (pid {pid}) could not be used and does not end: {error}"
                    ));
                }
            }
        }
        Ok(OpenedWorkerTasks { tasks: Self { inner }, found, notices })
    }
}

/// What [`WorkerTasks::open`] finds.
pub struct OpenedWorkerTasks {
    /// The agent's WASM tasks, those of earlier agents among them.
    pub tasks: WorkerTasks,
    /// Tasks of earlier agents that live.
    pub found: FoundTasks,
    /// Texts that the operator should see.
    pub notices: Vec<String>,
}

impl WasmTasks for WorkerTasks {
    fn spawn(
        &self,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> BoxFuture<'static, Result<String, WasmTaskError>> {
        if let Some(started) = self.inner.spawn_at_once(&context, &spec) {
            return Box::pin(std::future::ready(started));
        }
        let inner = Arc::clone(&self.inner);
        // On the control runtime, because connections belong to it.
        let started =
            self.inner.options.control.spawn(async move { inner.spawn(context, spec).await });
        let started = tokio_util::task::AbortOnDropHandle::new(started);
        Box::pin(async move { started.await.unwrap_or(Err(WasmTaskError::RunEnded)) })
    }

    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>> {
        let starts = {
            let mut table = self.inner.table();
            let Some(of_run) = table.runs.get_mut(run) else {
                return Box::pin(std::future::ready(Ok(())));
            };
            of_run.released = true;
            let starts = !of_run.starts.is_empty();
            // A start that meets the end of its worker needs the note again.
            let note = if starts { of_run.note.clone() } else { of_run.note.take() };
            of_run.worker.tell(&ToWorker::Release { run: run.to_string(), note });
            starts
        };
        if !starts {
            // The exits of its tasks tell what became of the run.
            return Box::pin(std::future::ready(Ok(())));
        }
        let (inner, run) = (Arc::clone(&self.inner), run.clone());
        Box::pin(async move {
            inner.confirm_starts(&run).await.map_err(|error| ReleaseError {
                recoverable: !error.is_final(),
                text: error.to_string(),
            })?;
            if let Some(of_run) = inner.table().runs.get_mut(&run) {
                of_run.note = None;
            }
            Ok(())
        })
    }

    fn note(&self, run: &RunId, about: &RunNote) -> bool {
        let mut table = self.inner.table();
        let Some(of_run) = table.runs.get_mut(run).filter(|of_run| !of_run.released) else {
            return false;
        };
        of_run.note = notes::note_text(about);
        of_run.note.is_some()
    }

    fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError> {
        self.inner.with_task(run, id, |of_run, _| {
            of_run.worker.tell(&ToWorker::Kill { run: run.to_string(), id: id.to_owned() });
            of_run.worker.check_answers();
        })
    }

    fn is_running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError> {
        self.inner.with_task(run, id, |_, exit| exit.borrow().is_none())
    }

    fn usage(&self, run: &RunId, id: &str) -> BoxFuture<'static, Option<Usage>> {
        let runs = self.inner.with_task(run, id, |of_run, exit| {
            exit.borrow().is_none().then(|| Arc::clone(&of_run.worker))
        });
        let (run, id) = (run.to_string(), id.to_owned());
        Box::pin(async move { runs.ok().flatten()?.usage(run, id).await })
    }

    fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit> {
        let exit = self.inner.with_task(run, id, |_, exit| exit.subscribe());
        let clock = self.inner.options.clock.clone();
        wait_for_exit(exit.ok(), clock, "the run of the WASM task was forgotten")
    }

    fn adopt(&self, run: &RunId, id: &str) -> Adoption {
        let known =
            self.inner.with_task(run, id, |of_run, exit| (of_run.released, exit.borrow().clone()));
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
            of_run.worker.check_answers();
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
        self.inner.retire_if_unused(&of_run.worker);
        if of_run.worker.is_lost() && of_run.worker.is_unused() {
            of_run.worker.remove_dir();
        }
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
        self.inner.remove_noted(known);
        unknown.len()
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        let mut ends = JoinSet::new();
        for worker in &*self.inner.workers() {
            if worker.is_unused() {
                let worker = Arc::clone(worker);
                let end = async move { worker.end_unused().await };
                ends.spawn_on(end, &self.inner.options.control);
            } else {
                worker.leave();
            }
        }
        Box::pin(async move { while ends.join_next().await.is_some() {} })
    }
}

impl WorkerTasksInner {
    fn dir(&self) -> PathBuf {
        self.options.data_dir.join(discovery::WORKERS)
    }

    fn table(&self) -> MutexGuard<'_, RunTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_task<T>(
        &self,
        run: &RunId,
        id: &str,
        used: impl FnOnce(&WorkerRun, &watch::Sender<Option<RawExit>>) -> T,
    ) -> Result<T, WasmTaskError> {
        let table = self.table();
        let known = table.runs.get(run).and_then(|of_run| Some((of_run, of_run.task(id)?)));
        known.map(|(of_run, exit)| used(of_run, exit)).ok_or(WasmTaskError::UnknownTask)
    }

    /// Adopt a worker and its tasks. Returns the tasks that live.
    async fn adopt(
        self: &Arc<Self>,
        found: FoundWorker,
    ) -> Result<Vec<LivingTask>, AdoptionFailure> {
        let hears = Arc::clone(self) as Arc<dyn WorkerListener>;
        let adopted = Worker::adopt(found, &self.options.processes, hears);
        let Some(worker) = adopted.await? else { return Ok(Vec::new()) };
        // The worker is known before its list is, so that the end of a worker meanwhile is told.
        self.workers().push(Arc::clone(&worker));
        let listed = match worker.list().await {
            Ok(listed) => listed,
            Err(error) => {
                let ended = worker.end().await;
                return Err(AdoptionFailure { error, left: (!ended).then(|| worker.identity()) });
            }
        };
        let living =
            listed.iter().filter_map(|task| look::living_task(worker.pid(), task)).collect();
        self.own_tasks(&worker, listed);
        if worker.current {
            let slot = WorkerSlot { worker: Some(Arc::clone(&worker)) };
            let slot = Arc::new(tokio::sync::Mutex::new(slot));
            self.places.lock().await.insert(worker.key.clone(), slot);
        } else {
            worker.retire();
        }
        Ok(living)
    }

    /// Enter the tasks of an adopted worker into this agent's table.
    fn own_tasks(&self, worker: &Arc<Worker>, listed: Vec<ListedTask>) {
        let mut table = self.table();
        for task in listed.into_iter().filter(|task| order::is_id(&task.id)) {
            let Ok(run) = order::parse_run(&task.run) else { continue };
            let of_run = table.runs.entry(run).or_insert_with(|| {
                worker.runs.fetch_add(1, Ordering::Relaxed);
                let cpu_mhz = task.cpu_mhz.unwrap_or(WORKER_TASK_CPU_MHZ);
                WorkerRun::new(worker, task.released, cpu_mhz, None)
            });
            if Arc::ptr_eq(&of_run.worker, worker) {
                of_run.add_task(task.id, task.exit.map(order::decode_exit));
            }
        }
    }

    /// The key of the worker for this task, and the directories that the worker uses besides
    /// those of allocations.
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

    /// Keep the directories of workers that are gone, until it is known which of their runs are on
    /// record.
    fn keep_noted(&self, left: Vec<(PathBuf, BTreeSet<String>)>) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
    }

    /// Remove the directories of workers that are gone, unless a run in `known` has its note there.
    /// The next agent removes those.
    fn remove_noted(&self, known: &BTreeSet<RunId>) {
        let noted = std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner));
        for (dir, runs) in noted {
            if !known.iter().any(|run| runs.contains(run.as_str())) {
                process::remove_worker_dir(&dir);
            }
        }
    }

    /// The worker for new tasks of this key. It is started when there is none.
    async fn worker(
        self: &Arc<Self>,
        key: &str,
        outside: OutsideAccess,
        say: impl Fn(String),
    ) -> Result<Arc<Worker>, WasmTaskError> {
        // Said before the slot is locked: whoever waits for the same worker waits for the slot.
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
                self.record_end(key, std::time::Duration::ZERO);
                Err(WasmTaskError::Worker { reason: error.to_string() })
            }
        }
    }

    async fn start(
        self: &Arc<Self>,
        key: &str,
        (outside, network): OutsideAccess,
    ) -> io::Result<Arc<Worker>> {
        let WorkerOptions {
            program, data_dir, config, task_instances, dense, processes, rng, ..
        } = &self.options;
        let name = format!("{:08x}", rng.number_below(1 << 32));
        let memory = config.memory_max_mb.map(|mb| mb.saturating_mul(MIB));
        let cgroup = processes.create_worker_cgroup(&name, memory, config.threads_max)?;
        let mut setup = Setup {
            dir: self.dir().join(&name),
            key: key.to_owned(),
            write: vec![data_dir.join("allocs")],
            read: Vec::new(),
            task_instances: *task_instances,
            dense: *dense,
            network,
        };
        // The worker's confinement can only name directories that exist.
        std::fs::create_dir_all(data_dir.join("allocs"))?;
        for (path, read_only) in outside {
            if read_only { &mut setup.read } else { &mut setup.write }.push(path);
        }
        let new = NewWorker { program: program.clone(), dir: setup.dir.clone(), cgroup, setup };
        Worker::start(new, Arc::clone(self) as Arc<dyn WorkerListener>).await
    }

    /// How many workers of this key ended soon, one after the other, and how long to wait before
    /// the next. `None`: it may be started now.
    fn back_off(&self, key: &str) -> Option<(u32, std::time::Duration)> {
        let now = self.options.clock.now();
        let known = self.table().backoff.get(key).copied()?;
        Some((known.short_lives(), known.wait(now))).filter(|(_, pause)| !pause.is_zero())
    }

    fn record_end(&self, key: &str, lived: std::time::Duration) {
        let now = self.options.clock.now();
        let mut table = self.table();
        // Without this there would be an entry for each job that ever ran.
        table.backoff.retain(|_, known| !known.is_past(now));
        let known = table.backoff.entry(key.to_owned()).or_default();
        *known = known.with_end(lived, now);
    }

    /// Retire a worker after its last run was forgotten, unless it takes all tasks or somebody is
    /// about to use it.
    fn retire_if_unused(self: &Arc<Self>, worker: &Arc<Worker>) {
        let last = worker.runs.fetch_sub(1, Ordering::Relaxed) == 1;
        if !last || is_for_all(&worker.key) || !worker.current {
            return;
        }
        let (this, worker) = (Arc::clone(self), Arc::clone(worker));
        self.options.control.spawn(async move {
            let mut places = this.places.lock().await;
            // Whoever is about to use the worker holds the slot, or a copy of it.
            let free = places.get(&worker.key).is_some_and(|slot| Arc::strong_count(slot) == 1);
            if worker.is_unused() && free {
                places.remove(&worker.key);
                worker.retire();
            }
        });
    }
}

/// Does a worker of this key take all tasks but those with directories or a network of their own?
/// Such a worker is of use again soon.
fn is_for_all(key: &str) -> bool {
    let (all, more) = key.split_once(", ").unwrap_or((key, ""));
    let everywhere = more.starts_with("allocations in ") && !more.contains(", network ");
    all == "node" && (more.is_empty() || everywhere)
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
