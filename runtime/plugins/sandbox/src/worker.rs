//! The guest threads, and the ways to run a guest on them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use wasmtime::Engine;

use super::cache::{CodeCache, LoadedCode};
use super::compile::Compiler;
use super::descriptors::{AllDescriptors, Descriptors};
use super::error::{CallError, SandboxError};
use super::inline::{CallPace, InlineGate, poll_once};
use super::meter::{CpuMeter, MeteredGuest, Ticker};
use super::places::{GuestPlace, GuestPlaces};
use super::pooling::{
    PoolReport, PoolUse, dense_engine, max_map_count, pooled_engine, share_slots,
};
use super::running::{
    AbortRequest, AnswerTo, EndFunction, GuestAbort, GuestState, GuestTask, HostBlocking,
    RunningGuest, TaskScheduler, ThreadClass,
};
use ostler_engine::EngineKind;
use ostler_model::{clock, limits};

/// What a [`Sandbox`] is built from.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Directory of compiled code. It is created with mode 0700, and nobody else may
    /// write there. `None`: nothing is compiled, and code comes from a process that has
    /// a cache ([`CodeCache::map`]).
    pub cache_dir: Option<PathBuf>,
    /// The program that compiles when its first argument is `__compile`: this one, except in tests.
    pub compiler: PathBuf,
    /// Code that came with this program (`ostler_engine::ahead`). It is used instead of compiling.
    pub ahead: Vec<&'static [u8]>,
    /// Most plugin instances alive at once. A process that calls no plugins has 0,
    /// and reserves nothing.
    pub plugin_instances: u32,
    /// Most WASM tasks alive at once. A process that runs none has 0, and reserves nothing.
    pub task_instances: u32,
    /// Whether WASM tasks are held without kernel mappings of their own. Then many more fit, and
    /// each computes more slowly.
    pub dense: bool,
    /// How many threads run busy guests; `None` for one per core,
    /// at least [`limits::GUEST_THREADS_MIN`].
    pub guest_threads: Option<usize>,
}

impl SandboxConfig {
    /// The defaults of [`limits`], with this program as compiler.
    ///
    /// # Errors
    /// [`SandboxError::NoCompiler`] when the path of this program cannot be found.
    pub fn new(cache_dir: PathBuf) -> Result<Self, SandboxError> {
        let compiler =
            std::env::current_exe().map_err(|source| SandboxError::NoCompiler { source })?;
        Ok(Self {
            cache_dir: Some(cache_dir),
            compiler,
            ahead: Vec::new(),
            plugin_instances: limits::PLUGIN_INSTANCES_MAX,
            task_instances: limits::TASK_INSTANCES_MAX,
            dense: false,
            guest_threads: None,
        })
    }
}

/// Engines, guest threads, epoch ticker and compiled code of one agent.
///
/// Guest code must run inside [`Sandbox::spawn`], the other `spawn` functions or
/// [`Sandbox::run_with_deadline`], and nowhere else. Only there does the epoch ticker run, without
/// which a spinning guest keeps its thread for ever.
///
/// A failed call is a [`CallError`](crate::CallError) (made by [`classify`](crate::classify)). Its
/// store is dead and is dropped. A failure to load bytes is a [`LoadError`](crate::LoadError); a
/// failure of the machine is a [`SandboxError`](crate::SandboxError).
///
/// Dropping the sandbox stops the guest threads in the background and aborts what still runs there.
/// It may be dropped inside asynchronous code.
pub struct Sandbox {
    plugin: (Engine, PoolReport),
    task: (Engine, PoolReport),
    code: CodeCache,
    ticker: Ticker,
    guest_threads: usize,
    /// The runtimes of calls and of busy guests. `None` only while the sandbox is being dropped.
    runtimes: Option<[Runtime; 2]>,
    calls: tokio::runtime::Handle,
    busy: tokio::runtime::Handle,
    scheduler: Arc<TaskScheduler>,
    near: InlineGate,
    descriptors: Arc<AllDescriptors>,
    places: GuestPlaces,
}

impl Sandbox {
    /// Reserve the pools, start the threads and open the code cache. Takes some 20 ms.
    ///
    /// # Errors
    /// [`SandboxError`] when there is no engine, thread or cache directory. A pool that is only
    /// smaller than wanted is no error: see [`Sandbox::pool`].
    pub fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        let map_count = max_map_count();
        // Tasks of the dense profile take no mappings.
        let pooled_tasks = if config.dense { 0 } else { config.task_instances };
        let (plugins, tasks) = share_slots(map_count, config.plugin_instances, pooled_tasks);
        let plugin =
            pooled_engine(EngineKind::Plugin, config.plugin_instances, plugins, map_count)?;
        let task_code = if config.dense { EngineKind::Dense } else { EngineKind::Task };
        let task = match config.task_instances {
            many if many > 0 && config.dense => dense_engine(many)?,
            // Without tasks, the engine only says for which engine code of other processes is
            // compiled.
            many => pooled_engine(task_code, many, tasks, map_count)?,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let guest_threads = config.guest_threads.unwrap_or(cores).max(limits::GUEST_THREADS_MIN);
        let compiler = Compiler::new(config.compiler);
        let code = CodeCache::open(
            config.cache_dir,
            compiler,
            &config.ahead,
            plugin.0.clone(),
            (task_code, task.0.clone()),
        )?;
        let scheduler = TaskScheduler::new(guest_threads);
        let ticker = Ticker::start(&[&plugin.0, &task.0], Arc::downgrade(&scheduler))?;
        let failed = |source| SandboxError::Thread { what: "guest threads", source };
        let call_threads = (cores * limits::CALL_THREADS_PER_CORE).max(limits::CALL_THREADS_MIN);
        let calling = guest_runtime("ostler-call", call_threads, false).map_err(failed)?;
        // A task that holds its thread for long gives its place to another: see `TaskScheduler`.
        let busy_threads = guest_threads * limits::GUEST_THREADS_PER_PLACE;
        let computing = guest_runtime("ostler-guest", busy_threads, true);
        let computing = computing.map_err(failed)?;
        let (calls, busy) = (calling.handle().clone(), computing.handle().clone());
        let runtimes = Some([calling, computing]);
        let (near, descriptors) = (InlineGate::default(), Arc::default());
        let places = GuestPlaces::new(&task.1);
        Ok(Self {
            plugin,
            task,
            code,
            ticker,
            guest_threads,
            runtimes,
            calls,
            busy,
            scheduler,
            near,
            descriptors,
            places,
        })
    }

    /// The engine for guests of `kind`.
    #[must_use]
    pub fn engine(&self, kind: EngineKind) -> &Engine {
        match kind {
            EngineKind::Plugin => &self.plugin.0,
            EngineKind::Task | EngineKind::Dense => &self.task.0,
        }
    }

    /// How many guests of `kind` there is room for. The operator should be told when
    /// it was lowered.
    #[must_use]
    pub fn pool(&self, kind: EngineKind) -> &PoolReport {
        match kind {
            EngineKind::Plugin => &self.plugin.1,
            EngineKind::Task | EngineKind::Dense => &self.task.1,
        }
    }

    /// How much of their pool guests of `kind` hold now.
    #[must_use]
    pub fn pool_use(&self, kind: EngineKind) -> PoolUse {
        PoolUse::from_engine(self.engine(kind))
    }

    /// Take a place for a WASM task of this code. The place must be held until the task's store is
    /// gone. The wait has no bound and is in the order of asking; dropping the future ends it.
    /// `say` is called once with the reason if there is a wait, in words that follow the task's
    /// name. This must not be awaited inside a call of a plugin, whose own place it would hold.
    ///
    /// # Errors
    /// [`CallError::PoolExhausted`] when the task would never get a place.
    pub fn task_place(
        &self,
        code: &LoadedCode,
        say: impl FnOnce(String) + Send + 'static,
    ) -> impl Future<Output = Result<GuestPlace, CallError>> + Send + 'static {
        self.places.take(code.slots(), say)
    }

    /// How many places of WASM tasks are taken now.
    #[must_use]
    pub fn count_placed_tasks(&self) -> u32 {
        self.places.count_taken()
    }

    /// The share of a new task or plugin of what guests may have open: at most `max` files,
    /// directories and sockets, and no more than its part of what there is for all guests.
    #[must_use]
    pub fn descriptors(&self, max: u32) -> Arc<Descriptors> {
        Arc::new(Descriptors::new(max.into(), Arc::clone(&self.descriptors)))
    }

    /// How many places for busy guests there are, which is how many WASM tasks compute at once.
    #[must_use]
    pub const fn guest_threads(&self) -> usize {
        self.guest_threads
    }

    /// The cache of compiled code.
    #[must_use]
    pub const fn code(&self) -> &CodeCache {
        &self.code
    }

    /// Start a call of a guest. Everything that runs guest code belongs inside `guest`: making the
    /// store, instantiating, calling.
    ///
    /// The guest runs until it ends or the returned handle is aborted or dropped.
    pub fn spawn<T, F>(&self, guest: F) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_metered(guest, CpuMeter::default(), None, HostBlocking::Never)
    }

    /// As [`Sandbox::spawn`], for a call that may compute for `cpu_max`.
    /// Host functions do not count where the store tells `meter` about
    /// them (see [`meter_host_calls`](super::meter_host_calls)).
    pub fn spawn_bounded<T, F>(
        &self,
        guest: F,
        meter: CpuMeter,
        cpu_max: Duration,
        blocks: HostBlocking,
    ) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_metered(guest, meter, Some(cpu_max), blocks)
    }

    fn spawn_metered<T, F>(
        &self,
        guest: F,
        cpu: CpuMeter,
        cpu_max: Option<Duration>,
        blocks: HostBlocking,
    ) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let metered = MeteredGuest::new(guest, cpu.clone(), self.ticker.pulse(), cpu_max);
        self.start(metered, cpu, ThreadClass::Call(self.busy.clone()), blocks)
    }

    /// As [`Sandbox::spawn_bounded`], but on the busy threads from the beginning.
    pub fn spawn_slow<T, F>(
        &self,
        guest: F,
        cpu: CpuMeter,
        cpu_max: Duration,
        blocks: HostBlocking,
    ) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let metered = MeteredGuest::new(guest, cpu.clone(), self.ticker.pulse(), Some(cpu_max));
        self.start(metered, cpu, ThreadClass::Busy, blocks)
    }

    /// As [`Sandbox::spawn_bounded`], but where guests of this `pace` were quick, `guest`
    /// begins (and nearly always ends) on the caller's thread. It keeps that thread until
    /// the next epoch tick at the latest. Host functions that may block have to [leave
    /// the thread](crate::leave_caller) first.
    pub fn spawn_near<T, F>(
        &self,
        pace: &CallPace,
        guest: F,
        cpu: CpuMeter,
        cpu_max: Duration,
        blocks: HostBlocking,
    ) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let Some(permit) = self.near.take(pace) else {
            return self.spawn_bounded(guest, cpu, cpu_max, blocks);
        };
        let pulse = self.ticker.pulse();
        let mut metered = MeteredGuest::new(guest, cpu.clone(), pulse, Some(cpu_max));
        // What host functions start or wait for belongs to the guest runtime, as on a guest thread.
        let inside = self.calls.enter();
        let ended = poll_once(&mut metered);
        drop(inside);
        permit.finish(metered.last_poll());
        match ended {
            Some(result) => GuestTask { at: GuestState::End(Some(result)), cpu },
            None if metered.last_poll() >= limits::CALL_BUSY => {
                self.start(metered, cpu, ThreadClass::Busy, blocks)
            }
            None => self.start(metered, cpu, ThreadClass::Call(self.busy.clone()), blocks),
        }
    }

    /// Start a WASM task. Tasks that compute at the same time get processor time by their weight,
    /// which is the MHz that the task reserved. `then` gets the result on the thread of the guest,
    /// when the guest is gone.
    pub fn spawn_task_then<T, F>(
        &self,
        guest: F,
        weight: u32,
        then: impl FnOnce(Result<T, CallError>) + Send + 'static,
    ) -> (GuestAbort, CpuMeter)
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let (cpu, end) = (CpuMeter::default(), Arc::new(AbortRequest::default()));
        let metered = MeteredGuest::new(guest, cpu.clone(), self.ticker.pulse(), None);
        let place = ThreadClass::Task(self.scheduler.join(weight));
        let answer = AnswerTo::Function(EndFunction::new(then));
        let (asked, blocks) = (Arc::clone(&end), HostBlocking::Never);
        self.busy.spawn(RunningGuest::new(metered, answer, asked, place, blocks));
        (GuestAbort(end), cpu)
    }

    /// As [`Sandbox::spawn_task_then`], for a test that waits for the result.
    #[cfg(test)]
    pub(super) fn spawn_task<T, F>(&self, guest: F, weight: u32) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let (answers, answer) = oneshot::channel();
        let then = move |result| drop(answers.send(result));
        let (GuestAbort(end), cpu) = self.spawn_task_then(guest, weight, then);
        GuestTask { at: GuestState::Thread { answer, end }, cpu }
    }

    fn start<T, F>(
        &self,
        guest: MeteredGuest<F>,
        cpu: CpuMeter,
        place: ThreadClass,
        blocks: HostBlocking,
    ) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let (answers, answer) = oneshot::channel();
        let end = Arc::new(AbortRequest::default());
        let runtime = if matches!(place, ThreadClass::Call(_)) { &self.calls } else { &self.busy };
        let answers = AnswerTo::Waiter(answers);
        runtime.spawn(RunningGuest::new(guest, answers, Arc::clone(&end), place, blocks));
        GuestTask { at: GuestState::Thread { answer, end }, cpu }
    }

    /// Run one call of a guest to its end, its deadline or its cancellation, whichever is first.
    ///
    /// The deadline is a timer of the *calling* runtime, so that no number of busy guests delays
    /// it. After a deadline or a cancellation the store is dropped on a guest thread, at the latest
    /// when the guest yields next; the caller does not wait for that.
    pub async fn run_with_deadline<T, F>(
        &self,
        deadline: Duration,
        cancel: &CancellationToken,
        guest: F,
    ) -> GuestRun<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let mut task = self.spawn(guest);
        let answer = clock::timeout(deadline, async {
            tokio::select! {
                biased;
                result = task.join() => result,
                () = cancel.cancelled() => Err(CallError::Cancelled),
            }
        });
        let result = answer.await.unwrap_or(Err(CallError::DeadlineExceeded { limit: deadline }));
        GuestRun { result, cpu: task.cpu().total() }
    }

    /// How many guests are on the call threads.
    #[cfg(test)]
    pub(super) fn calls_alive(&self) -> usize {
        self.calls.metrics().num_alive_tasks()
    }

    #[cfg(test)]
    pub(super) fn ticker_asleep(&self) -> bool {
        self.ticker.is_asleep()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for runtime in self.runtimes.take().into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox")
            .field("plugin", &self.plugin.1)
            .field("task", &self.task.1)
            .field("guest_threads", &self.guest_threads)
            .finish_non_exhaustive()
    }
}

/// How one call ended and what it cost.
#[derive(Debug)]
pub struct GuestRun<T> {
    /// The answer, or why there is none.
    pub result: Result<T, CallError>,
    /// Processor time used up to now.
    pub cpu: Duration,
}

fn guest_runtime(name: &str, threads: usize, busy: bool) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        // Timers and sockets are looked at after every poll. By default it is after 61 polls; with
        // polls of one tick (10 ms) that would be every half second.
        .event_interval(1)
        // New guests wait in the shared queue. Every second poll starts there; otherwise a busy
        // thread would only look there after 61 polls of the same guests.
        .global_queue_interval(2)
        .on_thread_start(move || {
            crate::threads::go_behind(busy);
        })
        .enable_all()
        .build()
}
