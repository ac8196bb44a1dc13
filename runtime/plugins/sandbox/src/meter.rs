//! Measures the processor time of guests, and makes them yield at each tick.
//!
//! ```text
//!  poll begins ─► polling + 1 ─► wake the ticker if it sleeps
//!  guest runs ... epoch tick (every 10 ms) ... guest yields
//!  poll ends ──► polling − 1, thread time added to the meter
//!  no guest polled for a second ─► the ticker sleeps: an idle agent has no timer running
//! ```

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::Engine;

use super::error::{CallError, SandboxError};
use super::running::TaskScheduler;
use ostler_model::clock::Stopwatch;
use ostler_model::limits;

/// Processor time one guest has used so far; a clone reads the same meter.
#[derive(Debug, Clone)]
pub struct CpuMeter(Arc<Times>);

/// All times are in nanoseconds; `began` and `entered` count from `zero`. Only the thread that
/// polls the guest writes them.
#[derive(Debug)]
struct Times {
    zero: Stopwatch,
    /// Processor time of all polls together.
    used: AtomicU64,
    /// The part of `used` that was spent inside host functions. It is measured as wall time, and is
    /// at most the whole of each poll.
    host: AtomicU64,
    /// The value of `host` when the poll began.
    host_before: AtomicU64,
    /// When the poll began.
    began: AtomicU64,
    /// When the host function was entered, plus one; zero outside of host functions.
    entered: AtomicU64,
}

impl Default for CpuMeter {
    fn default() -> Self {
        let zero = AtomicU64::default;
        let (used, host, host_before, began, entered) = (zero(), zero(), zero(), zero(), zero());
        let zero = Stopwatch::start();
        Self(Arc::new(Times { zero, used, host, host_before, began, entered }))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl CpuMeter {
    /// Processor time of all polls so far, host functions included.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.0.used.load(Ordering::Relaxed))
    }

    /// The guest's own part of [`CpuMeter::total`], without the time inside host functions. It is
    /// never too high. It is too low by at most a tick for each time that a host function lost its
    /// core to others.
    #[must_use]
    pub fn guest_time(&self) -> Duration {
        self.total().saturating_sub(Duration::from_nanos(self.0.host.load(Ordering::Relaxed)))
    }

    /// The guest called a host function.
    pub(super) fn enter_host(&self) {
        self.0.entered.store(self.now().saturating_add(1), Ordering::Relaxed);
    }

    /// The host function returned.
    pub(super) fn leave_host(&self) {
        self.count_host(0);
    }

    fn now(&self) -> u64 {
        nanos(self.0.zero.elapsed())
    }

    /// Add the time since the host function was entered, or since the poll began if that is later.
    fn count_host(&self, entered_now: u64) {
        let entered = self.0.entered.swap(entered_now, Ordering::Relaxed);
        if entered > 0 {
            let since = (entered - 1).max(self.0.began.load(Ordering::Relaxed));
            self.0.host.fetch_add(self.now().saturating_sub(since), Ordering::Relaxed);
        }
    }

    fn begin_poll(&self) {
        self.0.began.store(self.now(), Ordering::Relaxed);
        self.0.host_before.store(self.0.host.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn end_poll(&self, used: Duration) {
        self.0.used.fetch_add(nanos(used), Ordering::Relaxed);
        // A host function that waits continues in a later poll.
        let entered = self.0.entered.load(Ordering::Relaxed);
        self.count_host(entered);
        // A host function that waited for a disk or a core took no processor time.
        let most = self.0.host_before.load(Ordering::Relaxed).saturating_add(nanos(used));
        self.0.host.fetch_min(most, Ordering::Relaxed);
    }
}

/// A guest's future whose processor time is measured. It keeps the ticker awake while it is polled.
pub(super) struct MeteredGuest<F> {
    guest: Pin<Box<F>>,
    meter: CpuMeter,
    pulse: Arc<Pulse>,
    cpu_max: Option<Duration>,
    last: Duration,
}

impl<F> MeteredGuest<F> {
    /// `cpu_max` is the most that [`CpuMeter::guest`] may become. It is checked between polls, so a
    /// spinning guest exceeds it by a tick at most.
    pub(super) fn new(
        guest: F,
        meter: CpuMeter,
        pulse: Arc<Pulse>,
        cpu_max: Option<Duration>,
    ) -> Self {
        Self { guest: Box::pin(guest), meter, pulse, cpu_max, last: Duration::ZERO }
    }

    /// Processor time of the last poll.
    pub(super) const fn last_poll(&self) -> Duration {
        self.last
    }
}

impl<T, F: Future<Output = Result<T, CallError>>> Future for MeteredGuest<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let polling = PollGuard::start(&this.pulse, &this.meter, &mut this.last);
        let polled = this.guest.as_mut().poll(context);
        drop(polling);
        match (polled, this.cpu_max) {
            (Poll::Pending, Some(limit)) if this.meter.guest_time() > limit => {
                Poll::Ready(Err(CallError::CpuExceeded { limit }))
            }
            (polled, _) => polled,
        }
    }
}

/// Measures one poll. Its destructor ends the measurement, so that a host function that panics is
/// counted as well.
struct PollGuard<'a> {
    pulse: &'a Pulse,
    meter: &'a CpuMeter,
    last: &'a mut Duration,
    began: Duration,
}

impl<'a> PollGuard<'a> {
    fn start(pulse: &'a Pulse, meter: &'a CpuMeter, last: &'a mut Duration) -> Self {
        pulse.enter();
        meter.begin_poll();
        Self { pulse, meter, last, began: thread_time() }
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        let used = thread_time().saturating_sub(self.began);
        *self.last = used;
        self.meter.end_poll(used);
        self.pulse.polling.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Processor time of this thread. Wall time would be wrong: guest threads are niced, so a guest may
/// wait for a core in the middle of a poll.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// State that guests and ticker share: how many guests are being polled, and whether
/// the ticker sleeps.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    polling: AtomicUsize,
    asleep: AtomicBool,
    stop: AtomicBool,
    ticker: std::sync::OnceLock<Thread>,
}

impl Pulse {
    fn enter(&self) {
        self.polling.fetch_add(1, Ordering::SeqCst);
        // The ticker sets `asleep` before it reads `polling` a last time, so one of the two sees
        // the other.
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.ticker.get() {
            thread.unpark();
        }
    }

    /// Is the sandbox gone, and every guest with it? Each guest's future holds a clone of this. A
    /// guest that still spins needs ticks to notice that its runtime shuts down.
    fn is_over(self: &Arc<Self>) -> bool {
        self.stop.load(Ordering::SeqCst) && Arc::strong_count(self) == 1
    }

    fn sleep_until_needed(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        while self.polling.load(Ordering::SeqCst) == 0 && !self.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// The thread that advances the epoch of both engines, and takes places from tasks that do not
/// yield. After this is dropped, the thread ends with the last guest.
pub(super) struct Ticker {
    pulse: Arc<Pulse>,
}

impl Ticker {
    pub(super) fn start(
        engines: &[&Engine],
        scheduler: Weak<TaskScheduler>,
    ) -> Result<Self, SandboxError> {
        let pulse = Arc::new(Pulse::default());
        // Weak references, so that the thread never keeps a pool of guest memory alive.
        let engines: Vec<_> = engines.iter().map(|engine| engine.weak()).collect();
        let shared = Arc::clone(&pulse);
        let thread = std::thread::Builder::new()
            .name("ostler-epoch".to_owned())
            .spawn(move || {
                let mut idle = 0u32;
                while !shared.is_over() {
                    std::thread::park_timeout(limits::EPOCH_TICK);
                    for engine in engines.iter().filter_map(wasmtime::EngineWeak::upgrade) {
                        engine.increment_epoch();
                    }
                    if let Some(scheduler) = scheduler.upgrade() {
                        scheduler.tick();
                    }
                    let busy = shared.polling.load(Ordering::SeqCst) > 0;
                    idle = if busy { 0 } else { idle.saturating_add(1) };
                    if idle >= limits::EPOCH_IDLE_TICKS {
                        shared.sleep_until_needed();
                        idle = 0;
                    }
                }
            })
            .map_err(|source| SandboxError::Thread { what: "epoch ticker", source })?;
        // Before any guest can be polled, so that none finds the ticker asleep and nameless.
        let _ = pulse.ticker.set(thread.thread().clone());
        Ok(Self { pulse })
    }

    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.pulse.asleep.load(Ordering::SeqCst)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.pulse.stop.store(true, Ordering::SeqCst);
        self.pulse.wake();
    }
}
