//! Short work on files, in order, on few threads.
//!
//! ```text
//! run_disk_work ─► queue of the calling thread ─► a thread that works until the queue is empty
//!                      │ the oldest waits, and no work ended: something hangs
//!                      └─────────────────────────► one more thread, up to DISK_THREADS_MAX
//! ```
//! A thread of its own for each piece of work would be woken for each, and would wake the asker for
//! each. Many pieces at once share one thread here, which nobody has to wake while it works. Work
//! that takes long, or may, belongs to [`run_blocking`](crate::clock::run_blocking).

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock;
use crate::limits::{DISK_LOOK_AFTER, DISK_THREADS_MAX};

/// The work was not done to its end: it panicked, or the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error: work on files panicked, or the agent ends")]
pub struct DiskWorkLost;

type Work = Box<dyn FnOnce() + Send>;

/// The work that one thread has asked for.
#[derive(Default)]
struct DiskQueue(Mutex<DiskQueueState>);

#[derive(Default)]
struct DiskQueueState {
    waiting: VecDeque<Work>,
    /// How many threads work on the queue.
    threads: usize,
    /// How much work was begun so far.
    begun: u64,
    /// Somebody looks whether the work goes on.
    watched: bool,
}

thread_local! {
    static QUEUE: OnceCell<Arc<DiskQueue>> = const { OnceCell::new() };
}

/// Do short work that may block, on a thread for such work. Work of one thread begins in the order
/// of the calls. In a simulation, and where there is no runtime, it is done at once. Work goes on
/// when nobody waits for it any more.
///
/// # Errors
/// When the work panicked, or the runtime ends.
pub async fn run_disk_work<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DiskWorkLost> {
    let runtime = Handle::try_current();
    let (Ok(runtime), false) = (runtime, clock::is_simulated()) else { return Ok(work()) };
    let (done, result) = oneshot::channel();
    let queue = QUEUE.with(|queue| Arc::clone(queue.get_or_init(Arc::default)));
    let work = move || {
        if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
            // Nobody may be waiting any more.
            let _unheard = done.send(result);
        }
    };
    queue.add(&runtime, Box::new(work));
    result.await.map_err(|_dropped| DiskWorkLost)
}

impl DiskQueue {
    fn lock(&self) -> MutexGuard<'_, DiskQueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, runtime: &Handle, work: Work) {
        let mut state = self.lock();
        state.waiting.push_back(work);
        if state.threads == 0 {
            state.threads = 1;
            drop(state);
            self.start_thread(runtime);
        } else if !std::mem::replace(&mut state.watched, true) {
            drop(state);
            let queue = Arc::clone(self);
            runtime.spawn(async move { queue.watch().await });
        }
    }

    fn start_thread(self: &Arc<Self>, runtime: &Handle) {
        let queue = Arc::clone(self);
        drop(runtime.spawn_blocking(move || {
            while let Some(work) = queue.take() {
                work();
            }
        }));
    }

    /// The next work. `None`: there is none, and the thread leaves the queue.
    fn take(&self) -> Option<Work> {
        let mut state = self.lock();
        let work = state.waiting.pop_front();
        match work {
            Some(_) => state.begun = state.begun.wrapping_add(1),
            None => state.threads = state.threads.saturating_sub(1),
        }
        work
    }

    /// Add threads as long as work waits and none of it begins.
    async fn watch(self: Arc<Self>) {
        let mut before = self.lock().begun;
        loop {
            clock::sleep(DISK_LOOK_AFTER).await;
            let mut state = self.lock();
            if state.waiting.is_empty() {
                state.watched = false;
                return;
            }
            let stands = std::mem::replace(&mut before, state.begun) == state.begun;
            if stands && state.threads < DISK_THREADS_MAX {
                state.threads += 1;
                drop(state);
                self.start_thread(&Handle::current());
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn work_is_done_in_order_on_one_thread_as_long_as_it_goes_on() {
        let seen: Arc<Mutex<Vec<(u32, thread::ThreadId)>>> = Arc::default();
        let all: Vec<_> = (0..100)
            .map(|number| {
                let seen = Arc::clone(&seen);
                let note = move || seen.lock().unwrap().push((number, thread::current().id()));
                tokio::spawn(run_disk_work(note))
            })
            .collect();
        for one in all {
            one.await.unwrap().unwrap();
        }
        let seen = seen.lock().unwrap();
        assert!(seen.iter().map(|one| one.0).eq(0..100), "{seen:?}");
        let others = seen.iter().filter(|one| one.1 != seen.first().unwrap().1).count();
        assert_eq!(others, 0);
    }

    #[tokio::test]
    async fn work_that_hangs_holds_up_only_itself() {
        let (go, went) = mpsc::channel::<()>();
        let hangs = tokio::spawn(run_disk_work(move || went.recv()));
        tokio::task::yield_now().await;
        for number in 0..3 {
            assert_eq!(run_disk_work(move || number).await, Ok(number));
        }
        assert!(!hangs.is_finished());
        go.send(()).unwrap();
        hangs.await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_next_is_done() {
        let broken = run_disk_work(|| panic!("on purpose")).await;
        assert_eq!(broken, Err::<(), _>(DiskWorkLost));
        assert_eq!(run_disk_work(|| 1).await, Ok(1));
    }
}
