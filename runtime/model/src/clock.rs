//! The only source of time.
//!
//! Code that needs the time takes a [`Clock`] (or a [`Timestamp`] argument when it is pure). The
//! real clock reads the system; tests run on tokio's paused time or on a [`Clock::fixed`] one.
//! Waiting goes through [`sleep`] and [`timeout`], which follow tokio's (virtual) time.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use crate::time::Timestamp;
use crate::wanted::Awaited;

/// A source of the time of day and of monotonic time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    System,
    Fixed(Arc<AtomicU64>),
    Given(Arc<dyn Fn() -> Timestamp + Send + Sync>),
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
        Self(Source::Fixed(Arc::new(AtomicU64::new(at.nanos()))))
    }

    /// A clock that says what `now` says: that of a simulation.
    #[must_use]
    pub fn given(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(now)))
    }

    /// The time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Given(now) => now(),
            Source::System => system_now(),
            Source::Fixed(at) => Timestamp::from_nanos(at.load(Ordering::SeqCst)),
        }
    }

    /// Move a fixed clock forward; no effect on the system clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Fixed(at) = &self.0 {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            at.fetch_add(nanos, Ordering::SeqCst);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the time of day")]
fn system_now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
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
    #[expect(clippy::disallowed_methods, reason = "the one place that reads monotonic time")]
    pub fn start() -> Self {
        Self(match SIMULATED.get() {
            true => Since::Virtual(tokio::time::Instant::now()),
            false => Since::Real(std::time::Instant::now()),
        })
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
