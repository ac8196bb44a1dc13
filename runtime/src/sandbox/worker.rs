//! The guest threads, and the two ways of running a guest on them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wasmtime::Engine;

use super::cache::CodeCache;
use super::compile::Compiler;
use super::engine::EngineKind;
use super::error::{CallError, SandboxError, cut};
use super::inline::{Pace, Turns, poll_once};
use super::meter::{CpuMeter, Metered, Ticker};
use super::pooling::{PoolReport, max_map_count, pooled_engine, share_slots};
use crate::{clock, limits};

/// What a [`Sandbox`] is built from.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Where compiled code is kept. Created with mode 0700; nobody else may write there.
    pub cache_dir: PathBuf,
    /// The program that answers `__compile`: this one, except in tests.
    pub compiler: PathBuf,
    /// Plugin instances alive at once.
    pub plugin_instances: u32,
    /// WASM tasks alive at once.
    pub task_instances: u32,
    /// Threads that run guests; `None` for one per core, at least
    /// [`limits::GUEST_THREADS_MIN`].
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
            cache_dir,
            compiler,
            plugin_instances: limits::PLUGIN_INSTANCES_MAX,
            task_instances: limits::TASK_INSTANCES_MAX,
            guest_threads: None,
        })
    }
}

/// Engines, guest threads, epoch ticker and compiled code of one agent.
///
/// Dropping it stops the guest threads in the background and aborts what still runs there; that is
/// allowed inside asynchronous code.
pub struct Sandbox {
    plugin: (Engine, PoolReport),
    task: (Engine, PoolReport),
    code: CodeCache,
    ticker: Ticker,
    turns: Turns,
    guest_threads: usize,
    /// `None` only while being dropped.
    runtime: Option<Runtime>,
    guests: tokio::runtime::Handle,
}

impl Sandbox {
    /// Reserve the pools, start the threads and open the code cache. Takes some 20 ms.
    ///
    /// # Errors
    /// [`SandboxError`] when an engine, a thread or the cache directory cannot be had. A pool that
    /// is merely smaller than wanted is no error: see [`Sandbox::pool`].
    pub fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        let map_count = max_map_count();
        let (plugins, tasks) =
            share_slots(map_count, config.plugin_instances, config.task_instances);
        let plugin =
            pooled_engine(EngineKind::Plugin, config.plugin_instances, plugins, map_count)?;
        let task = pooled_engine(EngineKind::Task, config.task_instances, tasks, map_count)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let guest_threads = config.guest_threads.unwrap_or(cores).max(limits::GUEST_THREADS_MIN);
        let compiler = Compiler::new(config.compiler);
        let code = CodeCache::open(config.cache_dir, compiler, plugin.0.clone(), task.0.clone())?;
        let ticker = Ticker::start(&[&plugin.0, &task.0])?;
        let runtime = guest_runtime(guest_threads)
            .map_err(|source| SandboxError::Thread { what: "guest threads", source })?;
        let guests = runtime.handle().clone();
        let (turns, runtime) = (Turns::default(), Some(runtime));
        Ok(Self { plugin, task, code, ticker, turns, guest_threads, runtime, guests })
    }

    /// The engine for guests of `kind`.
    #[must_use]
    pub fn engine(&self, kind: EngineKind) -> &Engine {
        match kind {
            EngineKind::Plugin => &self.plugin.0,
            EngineKind::Task => &self.task.0,
        }
    }

    /// How many guests of `kind` there is room for. To be said aloud when it was lowered.
    #[must_use]
    pub fn pool(&self, kind: EngineKind) -> &PoolReport {
        match kind {
            EngineKind::Plugin => &self.plugin.1,
            EngineKind::Task => &self.task.1,
        }
    }

    /// Threads that run guests.
    #[must_use]
    pub const fn guest_threads(&self) -> usize {
        self.guest_threads
    }

    /// The compiled code.
    #[must_use]
    pub const fn code(&self) -> &CodeCache {
        &self.code
    }

    /// Start a guest on the guest threads. Everything that runs guest code belongs inside `guest`:
    /// making the store, instantiating, calling.
    ///
    /// The guest runs until it ends or the returned handle is aborted or dropped.
    pub fn spawn<T, F>(&self, guest: F) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let cpu = CpuMeter::default();
        let metered = Metered::new(guest, cpu.clone(), self.ticker.pulse());
        GuestTask { at: At::Thread(self.guests.spawn(metered)), cpu }
    }

    /// As [`Sandbox::spawn`], but where guests of this `pace` were quick, `guest` begins (and nearly
    /// always ends) on the caller's thread, which it keeps until the next epoch tick at the latest.
    /// Only for guests whose host functions do not block.
    pub fn spawn_near<T, F>(&self, pace: &Pace, guest: F) -> GuestTask<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: Send + 'static,
    {
        let Some(turn) = self.turns.take(pace) else { return self.spawn(guest) };
        let cpu = CpuMeter::default();
        let mut metered = Metered::new(guest, cpu.clone(), self.ticker.pulse());
        // What host functions start or wait for belongs to the guest runtime, here as there.
        let inside = self.guests.enter();
        let ended = poll_once(&mut metered);
        drop(inside);
        drop(turn);
        let at = match ended {
            Some(result) => At::End(Some(result)),
            None => At::Thread(self.guests.spawn(metered)),
        };
        GuestTask { at, cpu }
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

    #[cfg(test)]
    pub(super) fn ticker_asleep(&self) -> bool {
        self.ticker.asleep()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
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

/// A running guest. Dropping it aborts the guest.
#[derive(Debug)]
pub struct GuestTask<T> {
    at: At<T>,
    cpu: CpuMeter,
}

/// Where a guest is.
#[derive(Debug)]
enum At<T> {
    Thread(JoinHandle<Result<T, CallError>>),
    /// At its end; what it gave, until that is taken.
    End(Option<Result<T, CallError>>),
}

impl<T> GuestTask<T> {
    /// The guest's processor time; the meter may be kept after the guest is gone.
    #[must_use]
    pub fn cpu(&self) -> CpuMeter {
        self.cpu.clone()
    }

    /// Stop the guest at its next yield and drop its store. [`GuestTask::join`] tells when it is
    /// gone.
    pub fn abort(&self) {
        if let At::Thread(task) = &self.at {
            task.abort();
        }
    }

    /// What it gave, when it ended on the thread of its caller: no wait and no timer is needed. As
    /// with [`GuestTask::join`], once.
    pub const fn ended_near(&mut self) -> Option<Result<T, CallError>> {
        match &mut self.at {
            At::End(result) => result.take(),
            At::Thread(_) => None,
        }
    }

    /// Wait for the end. May be cancelled and called again, but not after it has answered.
    ///
    /// # Errors
    /// What the guest failed with; [`CallError::Cancelled`] after an abort;
    /// [`CallError::HostPanic`] when a host function panicked.
    pub async fn join(&mut self) -> Result<T, CallError> {
        let task = match &mut self.at {
            At::End(result) => return result.take().unwrap_or(Err(CallError::Cancelled)),
            At::Thread(task) => task,
        };
        match task.await {
            Ok(result) => result,
            Err(error) => Err(match error.try_into_panic() {
                Ok(panic) => CallError::HostPanic { message: panic_text(panic.as_ref()) },
                Err(_cancelled) => CallError::Cancelled,
            }),
        }
    }
}

impl<T> Drop for GuestTask<T> {
    fn drop(&mut self) {
        self.abort();
    }
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    cut(text.unwrap_or_else(|| "no message".to_owned()), limits::GUEST_ERROR_BYTES_MAX)
}

fn guest_runtime(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("ostler-guest")
        // Timers and sockets are looked at after every poll, not after 61 as by default: with
        // polls of one tick (10 ms) that would be every half second.
        .event_interval(1)
        // New guests wait in the shared queue: every second poll starts there, else a busy thread
        // would only look after the same 61 polls.
        .global_queue_interval(2)
        .on_thread_start(|| {
            // On Linux priority belongs to a thread. Lowering it cannot be refused; were it, guests
            // would merely be too important.
            let thread = rustix::thread::gettid();
            let _ = rustix::process::setpriority_process(Some(thread), limits::GUEST_NICE);
        })
        .enable_all()
        .build()
}
