//! The only source of time.
//!
//! Code that needs the time takes a [`Clock`] (or a [`Timestamp`] argument when it is pure). The
//! real clock reads the system; tests run on tokio's paused time or on a [`Clock::fixed`] one. A
//! timestamp has two readings, so that setting the clock of the machine changes no wait: see
//! [`Timestamp`]. Waiting goes through [`sleep`] and [`timeout`], which follow tokio's (virtual)
//! time.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::cancellation::CancelFlag;
use crate::planted::planted;
pub use crate::time::Timestamp;

/// A source of the time of day and of monotonic time.
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Default)]
enum ClockSource {
    #[default]
    System,
    Fixed(Arc<FixedClock>),
    Given(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

/// The two readings of a clock that only its tests move.
struct FixedClock {
    of_day: AtomicU64,
    steady: AtomicU64,
}

impl std::fmt::Debug for ClockSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Fixed(_) => "Fixed",
            Self::Given(_) => "Given",
        })
    }
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(ClockSource::System)
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    #[must_use]
    pub fn fixed(at: Timestamp) -> Self {
        let read = || AtomicU64::new(at.nanos());
        Self(ClockSource::Fixed(Arc::new(FixedClock { of_day: read(), steady: read() })))
    }

    /// A clock that reads its time from `now`, as a simulation needs it.
    #[must_use]
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(ClockSource::Given(Arc::new(now)))
    }

    /// The present time of this clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::Given(now) if planted("clock-with-one-reading") => {
                Timestamp::from_nanos(now().nanos())
            }
            ClockSource::Given(now) => now(),
            ClockSource::System => system_now(),
            ClockSource::Fixed(at) => {
                let read = |of: &AtomicU64| of.load(Ordering::SeqCst);
                Timestamp::from_readings(read(&at.of_day), read(&at.steady))
            }
        }
    }

    /// Move a fixed clock forward. This has no effect on other clocks.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Fixed(at) = &self.0 {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            at.of_day.fetch_add(nanos, Ordering::SeqCst);
            at.steady.fetch_add(nanos, Ordering::SeqCst);
        }
    }

    /// Set the time of day of a fixed clock, as a person sets that of a machine: no time passes.
    /// This has no effect on other clocks.
    pub fn set(&self, of_day: Timestamp) {
        if let ClockSource::Fixed(at) = &self.0 {
            at.of_day.store(of_day.nanos(), Ordering::SeqCst);
        }
    }
}

/// The two readings with which this process began.
struct ClockStart {
    of_day: u64,
    since: Stopwatch,
}

static START: OnceLock<ClockStart> = OnceLock::new();

fn system_now() -> Timestamp {
    let of_day = time_of_day();
    let start = START.get_or_init(|| ClockStart { of_day, since: Stopwatch::real() });
    let passed = u64::try_from(start.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Timestamp::from_readings(of_day, start.of_day.saturating_add(passed))
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the time of day")]
fn time_of_day() -> u64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    #[cfg(feature = "clock-steps")]
    let nanos = nanos.saturating_add_signed(steps::offset());
    nanos
}

/// Steps of the real program's clock, for tests only. The shipped program is built without
/// this feature.
#[cfg(feature = "clock-steps")]
mod steps {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    /// Variable that names a file, whose text says by how many seconds the time of day is off.
    const FILE: &str = "OSTLER_TEST_CLOCK";

    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();

    pub(super) fn offset() -> i64 {
        let path = PATH.get_or_init(|| std::env::var_os(FILE).map(PathBuf::from)).as_ref();
        let text = path.and_then(|path| std::fs::read_to_string(path).ok());
        let seconds = text.and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000)
    }
}

/// A point of monotonic time, for measuring how long something took. Virtual time in a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(StopwatchStart);

#[derive(Clone, Copy, Debug)]
enum StopwatchStart {
    Real(std::time::Instant),
    Virtual(tokio::time::Instant),
}

impl Stopwatch {
    /// Start measuring.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "one of the places that read monotonic time")]
    pub fn start() -> Self {
        if SIMULATED.get() {
            Self(StopwatchStart::Virtual(tokio::time::Instant::now()))
        } else {
            Self::real()
        }
    }

    #[expect(clippy::disallowed_methods, reason = "one of the places that read monotonic time")]
    fn real() -> Self {
        Self(StopwatchStart::Real(std::time::Instant::now()))
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match self.0 {
            StopwatchStart::Real(since) => since.elapsed(),
            StopwatchStart::Virtual(since) => since.elapsed(),
        }
    }
}

/// Microseconds of the kernel's monotonic clock, as a service manager compares them.
#[must_use]
pub fn monotonic_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
}

/// Wait for `duration`.
#[expect(clippy::disallowed_methods, reason = "the one door to timers")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Wait for `future` at most `duration`; `None` when the time is over first.
#[expect(clippy::disallowed_methods, reason = "the one door to timers")]
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(duration, future).await.ok()
}

thread_local! {
    static SIMULATED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Make this thread a simulation: work that blocks runs at once and time is that of its runtime, so
/// that the same seed gives the same run.
pub fn simulate() {
    SIMULATED.set(true);
}

/// Is this thread a simulation?
pub(crate) fn is_simulated() -> bool {
    SIMULATED.get()
}

/// Run `work`, which may block, on a thread for such work, without waiting for it. In a simulation,
/// and where there is no runtime, it runs at once.
pub fn spawn_blocking_work(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !SIMULATED.get() => drop(runtime.spawn_blocking(work)),
        _ => work(),
    }
}

/// As [`run_blocking`], for work on behalf of untrusted clients: it can see when nobody waits for it
/// any more.
///
/// # Errors
/// As [`run_blocking`].
pub async fn run_blocking_cancellable<T: Send + 'static>(
    work: impl FnOnce(&CancelFlag) -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    let (_waiter, wanted) = CancelFlag::new_pair();
    run_blocking(move || work(&wanted)).await
}

/// Run `work`, which may block, on a thread for such work. In a simulation it runs at once.
///
/// # Errors
/// When the work panicked, or the runtime ends.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    if SIMULATED.get() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
