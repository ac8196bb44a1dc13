//! The only source of time.
//!
//! Code that needs the time takes a [`Clock`] (or a [`Timestamp`] argument when it is pure). The
//! real clock reads the system; tests run on tokio's paused time or on a [`Clock::fixed`] one. What it says
//! has two readings, so that whoever sets the clock of the machine changes no wait: see [`Timestamp`].
//! Waiting goes through [`sleep`] and [`timeout`], which follow tokio's (virtual) time.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::planted::planted;
pub use crate::time::Timestamp;
use crate::wanted::Awaited;

/// A source of the time of day and of monotonic time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    System,
    Fixed(Arc<Fixed>),
    Given(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

/// What a clock says that only its tests move.
struct Fixed {
    of_day: AtomicU64,
    steady: AtomicU64,
}

impl std::fmt::Debug for Source {
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
        Self(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    #[must_use]
    pub fn fixed(at: Timestamp) -> Self {
        let read = || AtomicU64::new(at.nanos());
        Self(Source::Fixed(Arc::new(Fixed { of_day: read(), steady: read() })))
    }

    /// A clock that says what `now` says: that of a simulation.
    #[must_use]
    pub fn given(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(now)))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Given(now) if planted("clock-with-one-reading") => {
                Timestamp::from_nanos(now().nanos())
            }
            Source::Given(now) => now(),
            Source::System => system_now(),
            Source::Fixed(at) => {
                let read = |of: &AtomicU64| of.load(Ordering::SeqCst);
                Timestamp::read(read(&at.of_day), read(&at.steady))
            }
        }
    }

    /// Move a fixed clock forward; no effect on the system clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Fixed(at) = &self.0 {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            at.of_day.fetch_add(nanos, Ordering::SeqCst);
            at.steady.fetch_add(nanos, Ordering::SeqCst);
        }
    }

    /// Set the time of day of a fixed clock, as somebody sets that of a machine: no time passes. No effect
    /// on the system clock.
    pub fn set(&self, of_day: Timestamp) {
        if let Source::Fixed(at) = &self.0 {
            at.of_day.store(of_day.nanos(), Ordering::SeqCst);
        }
    }
}

/// The two readings with which this process began.
struct Start {
    of_day: u64,
    since: Stopwatch,
}

static START: OnceLock<Start> = OnceLock::new();

fn system_now() -> Timestamp {
    let of_day = time_of_day();
    let start = START.get_or_init(|| Start { of_day, since: Stopwatch::real() });
    let passed = u64::try_from(start.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Timestamp::read(of_day, start.of_day.saturating_add(passed))
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

/// Steps of the clock of the real program, for its tests alone: a feature that the shipped program is built
/// without.
#[cfg(feature = "clock-steps")]
mod steps {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    /// Names a file with how far the time of day is off, in seconds.
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
pub struct Stopwatch(Since);

#[derive(Clone, Copy, Debug)]
enum Since {
    Real(std::time::Instant),
    Virtual(tokio::time::Instant),
}

impl Stopwatch {
    /// Start measuring.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "one of the places that read monotonic time")]
    pub fn start() -> Self {
        match SIMULATED.get() {
            true => Self(Since::Virtual(tokio::time::Instant::now())),
            false => Self::real(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "one of the places that read monotonic time")]
    fn real() -> Self {
        Self(Since::Real(std::time::Instant::now()))
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match self.0 {
            Since::Real(since) => since.elapsed(),
            Since::Virtual(since) => since.elapsed(),
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

/// This thread plays a simulation: what blocks runs at once and time is that of its runtime, so that
/// the same seed plays the same.
pub fn simulate() {
    SIMULATED.set(true);
}

/// Run `work` that blocks beside the caller, who does not wait for it: at once in a simulation, and where
/// there is no runtime.
pub fn blocking_beside(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !SIMULATED.get() => drop(runtime.spawn_blocking(work)),
        _ => work(),
    }
}

/// As [`blocking`], of work that computes for strangers: it is told when nobody waits for it any more.
///
/// # Errors
/// As [`blocking`].
pub async fn blocking_while_wanted<T: Send + 'static>(
    work: impl FnOnce(&Awaited) -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    let (_waiter, wanted) = Awaited::while_held();
    blocking(move || work(&wanted)).await
}

/// Run `work` that blocks on a thread for it; at once in a simulation.
///
/// # Errors
/// When the work panicked, or the runtime ends.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    if SIMULATED.get() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
