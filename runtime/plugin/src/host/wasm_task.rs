//! WASM tasks: components of `wasi:cli/command` and core modules of WASI preview 1.
//!
//! ```text
//! spawn ─► read file ─► code cache (compile child when new) ─► store with limits ─► guest runtime
//!                                                                                     │ exit, trap,
//! wait ◄──────────────── registry: run, id → exit ◄───── watcher on the control runtime ◄ kill
//! ```
//! A task sees the directories it was given and nothing else of the node; sockets only as asked
//! and only on the allocation's ports. It lives in the agent's process and ends with it; the
//! interface is narrow (files, bytes, exits) so that tasks can move to a process of their own.

mod dirs;
mod disk_p1;
mod exit;
mod input;
mod io_p1;
mod launch;
mod registry;

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub use input::TaskStdin;
use registry::{Entry, NotTaken, Registry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use ostler_model::clock::Clock;
use ostler_model::ids::RunId;
use ostler_model::limits::{CompileLimits, TASK_FILE_BYTES_MAX, TaskLimits, WORKLOADS_PER_RUN_MAX};
use ostler_model::ports::{BoxFuture, TaskContext};
use ostler_model::rng::Rng;
use ostler_model::task::{RawExit, Usage};
use ostler_sandbox::{
    CallError, CodeAsk, CpuMeter, EngineKind, Format, LoadError, LoadedCode, Sandbox,
    detect_format, missing_entry,
};

/// A directory or file a task sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreopenedDir {
    /// Inside the task's or the shared directory, or a reserved mount.
    pub host_path: PathBuf,
    /// Where the task sees it.
    pub guest_path: String,
    /// No writes.
    pub read_only: bool,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct WasmTaskSpec {
    /// The file.
    pub path: PathBuf,
    /// Arguments, the program's name first.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// What it sees of the node's files.
    pub dirs: Vec<PreopenedDir>,
    /// What it may use; of memory at most [`TASK_MEMORY_BYTES_CEILING`](ostler_model::limits::TASK_MEMORY_BYTES_CEILING).
    pub limits: TaskLimits,
    /// May listen on the allocation's ports.
    pub listen: bool,
    /// `address:port` pairs it may connect to.
    pub connect: Vec<String>,
    /// What it reads from its standard input.
    pub input: TaskStdin,
}

/// Why a task did not start, or is not known.
#[derive(Debug, thiserror::Error)]
pub enum WasmTaskError {
    /// The file is not there.
    #[error("{} is not there; give an absolute path, one relative to the task directory, or ${{job.dir}}/…", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// It is there and cannot be used.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Not WASM, refused, or not compiled.
    #[error("{}: {source}", path.display())]
    Code {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: LoadError,
    },
    /// WASM of another kind.
    #[error("{}: neither a wasi:cli/command component nor a WASI preview 1 module: {reason}", path.display())]
    OtherWorld {
        /// The path.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A directory that is not the task's.
    #[error("{} is not inside the task's directories and not assigned to it", path.display())]
    OutsideTask {
        /// The path.
        path: PathBuf,
    },
    /// A file for standard input that cannot be read.
    #[error("cannot read standard input from {}: {reason}", path.display())]
    Input {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A directory that cannot be opened.
    #[error("cannot show {} to the task: {reason}", path.display())]
    Dir {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A `connect` entry that is no address.
    #[error("{given:?} is not an address:port; write for example \"127.0.0.1:6379\"")]
    Address {
        /// The text.
        given: String,
    },
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The run was given up while the task was being started.
    #[error("the start was given up")]
    RunEnded,
    /// A driver that starts more and more.
    #[error("the driver has {WORKLOADS_PER_RUN_MAX} WASM tasks in this run already")]
    TooMany,
    /// Not a task of this run.
    #[error("no such WASM task in this run")]
    UnknownTask,
}

struct Inner {
    sandbox: Arc<Sandbox>,
    launcher: launch::Launcher,
    control: tokio::runtime::Handle,
    clock: Clock,
    rng: Rng,
    tasks: Mutex<Registry>,
}

/// All WASM tasks of the agent.
#[derive(Clone)]
pub struct WasmTaskHost {
    inner: Arc<Inner>,
}

impl WasmTaskHost {
    /// A host without tasks. `control` drives the watchers.
    ///
    /// # Errors
    /// When WASI cannot be linked: a mistake in this agent.
    pub fn new(
        sandbox: Arc<Sandbox>,
        control: tokio::runtime::Handle,
        clock: Clock,
        rng: Rng,
    ) -> Result<Self, CallError> {
        let launcher = launch::Launcher::new(&sandbox)?;
        let tasks = Mutex::new(Registry::default());
        Ok(Self { inner: Arc::new(Inner { sandbox, launcher, control, clock, rng, tasks }) })
    }

    /// Compile where needed and start.
    ///
    /// # Errors
    /// See [`WasmTaskError`]; nothing runs then.
    pub async fn spawn(
        &self,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> Result<String, WasmTaskError> {
        let inner = &self.inner;
        let bytes = read_file(&spec.path)?;
        let coded = |source| WasmTaskError::Code { path: spec.path.clone(), source };
        let format = detect_format(&bytes).map_err(|e| coded(LoadError::Compile(e)))?;
        if let Some(name) = missing_entry(&bytes, format) {
            let reason = format!("it does not export {name}");
            return Err(WasmTaskError::OtherWorld { path: spec.path, reason });
        }
        // Not on the stack of the guest that asks, which has little room for host functions.
        let (host, about, path) = (Arc::clone(inner), Arc::clone(&context), spec.path.clone());
        let loading =
            inner.control.spawn(async move { load(&host, &about, &path, bytes, format).await });
        let code = AbortOnDropHandle::new(loading).await.unwrap_or(Err(LoadError::Interrupted));
        let code = code.map_err(coded)?;
        let guest = inner.launcher.prepare(&inner.sandbox, &context, &spec, &code)?;
        // Its run is known before it has a place: it can be ended while it waits for one.
        let (events, name) = (Arc::clone(&context.events), spec.path.clone());
        let say = move |text: String| events(format!("{} {text}", name.display()), Vec::new());
        let place = inner.sandbox.task_place(&code, say);

        let id = format!("wasm-{:016x}", inner.rng.next_u64());
        let (exit_tx, exit) = watch::channel(None);
        let kill = CancellationToken::new();
        let run = context.run_id.clone();
        let cpu = Arc::new(OnceLock::new());
        let entry = Entry {
            run: run.clone(),
            exit,
            kill: kill.clone(),
            memory: guest.memory,
            cpu: Arc::clone(&cpu),
        };
        inner.lock().add(id.clone(), entry).map_err(|refused| match refused {
            NotTaken::RunEnded => WasmTaskError::RunEnded,
            NotTaken::TooMany => WasmTaskError::TooMany,
        })?;

        let tail = guest.tail;
        let placed = async move {
            let _until_its_store_is_gone = place.await?;
            guest.run.await
        };
        let mut task = inner.sandbox.spawn_task(placed, context.cpu_mhz);
        let _first = cpu.set(task.cpu());
        let clock = inner.clock.clone();
        let (missed, sees) = (guest.missed, exit::seen(&spec.dirs));
        inner.control.spawn(async move {
            let mut killed = false;
            let result = tokio::select! {
                result = task.join() => result,
                () = kill.cancelled() => {
                    killed = true;
                    task.abort();
                    task.join().await
                }
            };
            tracing::debug!(run = %run, cpu = ?task.cpu().total(), "WASM task ended");
            let exit = exit::raw(result, &tail.said(), killed, clock.now());
            let exit = exit::told(exit, missed.load(Ordering::Relaxed), &sees);
            exit_tx.send_replace(Some(exit));
        });
        Ok(id)
    }

    fn with<T>(
        &self,
        run: &RunId,
        id: &str,
        use_entry: impl FnOnce(&Entry) -> T,
    ) -> Result<T, WasmTaskError> {
        let tasks = self.inner.lock();
        tasks.get(run, id).map(use_entry).ok_or(WasmTaskError::UnknownTask)
    }

    /// End a task at its next epoch.
    ///
    /// # Errors
    /// [`WasmTaskError::UnknownTask`].
    pub fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError> {
        self.with(run, id, |entry| entry.kill.cancel())
    }

    /// Does it still run?
    ///
    /// # Errors
    /// [`WasmTaskError::UnknownTask`].
    pub fn running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError> {
        self.with(run, id, |entry| entry.exit.borrow().is_none())
    }

    /// What a task uses now; `None` when it is not known or has ended. Memory is the linear memory it
    /// holds; processor time is that of the guest threads, host functions included.
    #[must_use]
    pub fn usage(&self, run: &RunId, id: &str) -> Option<Usage> {
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

    /// Wait for the end; answers at once after it, until the run is forgotten.
    #[must_use]
    pub fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit> {
        let exit = self.with(run, id, |entry| entry.exit.clone());
        let clock = self.inner.clock.clone();
        Box::pin(async move {
            let lost = |text: &str| RawExit {
                error: Some(text.to_owned()),
                finished_at: clock.now(),
                ..RawExit::default()
            };
            let Ok(mut exit) = exit else { return lost("the WASM task is not known") };
            match exit.wait_for(Option::is_some).await {
                Ok(value) => value.clone().unwrap_or_default(),
                Err(_) => lost("the watcher of the WASM task is gone"),
            }
        })
    }

    /// Kill everything of a run, and whatever it would still start.
    pub fn kill_run(&self, run: &RunId) {
        self.inner.lock().kill(run);
    }

    /// Kill everything of a run and drop what is remembered.
    pub fn forget_run(&self, run: &RunId) {
        self.inner.lock().forget(run);
    }

    /// Kill every task: the agent ends.
    pub fn kill_all(&self) {
        self.inner.lock().kill_all();
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The code of a task's file, compiled when its job's turn comes; what takes long is told in its events.
async fn load(
    inner: &Inner,
    context: &TaskContext,
    path: &Path,
    bytes: Arc<[u8]>,
    format: Format,
) -> Result<Arc<LoadedCode>, LoadError> {
    let within = CompileLimits::of_file(TASK_FILE_BYTES_MAX);
    let say = |text: &str| (context.events)(format!("{} {text}", path.display()), Vec::new());
    let (kind, owner) = (EngineKind::Task, context.job_id.as_str());
    let ask = CodeAsk { kind, format, within, owner, say: Some(&say) };
    inner.sandbox.code().load_for(bytes, &ask).await
}

/// Read a regular file of bounded size. A pipe or device is refused instead of waited for.
fn read_file(path: &Path) -> Result<Arc<[u8]>, WasmTaskError> {
    let refused = |reason: String| WasmTaskError::File { path: path.to_owned(), reason };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => WasmTaskError::NotFound { path: path.to_owned() },
            _ => refused(error.to_string()),
        })?;
    let meta = file.metadata().map_err(|e| refused(e.to_string()))?;
    if !meta.is_file() {
        let what =
            if meta.file_type().is_fifo() { "it is a pipe" } else { "it is no regular file" };
        return Err(refused(what.to_owned()));
    }
    if meta.len() > TASK_FILE_BYTES_MAX {
        return Err(refused(format!(
            "it has {} bytes; a WASM task has at most {TASK_FILE_BYTES_MAX}",
            meta.len()
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.take(TASK_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| refused(e.to_string()))?;
    Ok(bytes.into())
}
