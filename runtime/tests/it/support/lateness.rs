//! How late timers are, beside what the machine's load does to a thread that has nothing to do with
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostler_model::clock::{Stopwatch, sleep};

const NAP: Duration = Duration::from_millis(10);
/// How much later nearly all timers may be than twice what the thread saw. The bench `containment`
/// holds the real bar.
const LATE: Duration = Duration::from_millis(250);

/// Sets timers, one after the other, until it is asked.
pub struct Lateness {
    stop: Arc<AtomicBool>,
    timers: tokio::task::JoinHandle<Duration>,
    machine: std::thread::JoinHandle<Duration>,
}

/// How late nearly all were. Not the worst one: on a loaded machine the kernel itself is late now and
/// then.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Timers of the runtime.
    pub timers: Duration,
    /// Naps of a plain thread: the machine's part.
    pub machine: Duration,
}

impl Late {
    /// Later than the machine explains.
    pub fn too_much(&self) -> bool {
        self.timers > LATE + 2 * self.machine
    }
}

impl Lateness {
    /// From now on.
    pub fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let timers = tokio::spawn(async move {
            let mut late = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let watch = Stopwatch::start();
                sleep(NAP).await;
                late.push(watch.elapsed().saturating_sub(NAP));
            }
            nearly_all(late)
        });
        let stopped = Arc::clone(&stop);
        let machine = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let watch = Stopwatch::start();
                std::thread::sleep(NAP);
                late.push(watch.elapsed().saturating_sub(NAP));
            }
            nearly_all(late)
        });
        Self { stop, timers, machine }
    }

    /// Until now.
    pub async fn end(self) -> Late {
        self.stop.store(true, Ordering::SeqCst);
        let timers = self.timers.await.unwrap();
        Late { timers, machine: self.machine.join().unwrap() }
    }
}

fn nearly_all(mut late: Vec<Duration>) -> Duration {
    late.sort();
    late.get(late.len() * 19 / 20).copied().unwrap_or_default()
}
