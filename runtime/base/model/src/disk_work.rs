//! Short work on files, in order, on few threads.
//!
//! ```text
//! run_disk_work ─► queue of the calling thread ─► a thread that works until the queue is empty
//!        ▲             │ the oldest waits, and no work ended: something hangs
//!        │             └─────────────────────────► one more thread, up to DISK_THREADS_MAX
//!        └── results of several works together ◄── after DISK_TELL_AFTER, or when nothing waits
//! ```
//! A thread of its own for each piece of work would be woken for each, and would wake the asker for
//! each. Many pieces at once share one thread here, which nobody has to wake while it works, and which
//! wakes the asker once for several. Work that takes long, or may, belongs to
//! [`run_blocking`](crate::clock::run_blocking).

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock::{self, Stopwatch};
use crate::limits::{DISK_LOOK_AFTER, DISK_TELL_AFTER, DISK_THREADS_MAX};

/// The work was not done to its end: it panicked, or the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error: work on files panicked, or the agent ends")]
pub struct DiskWorkLost;

/// Does the work, and gives what tells its result.
type Work = Box<dyn FnOnce() -> Answer + Send>;

/// Tells the asker the result of its work.
type Answer = Box<dyn FnOnce() + Send>;

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
    /// Somebody looks whether the work goes on. Always so while work waits.
    watched: bool,
    /// Results that nobody was told yet. There are none where nothing is watched.
    results: Vec<Answer>,
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
    let work = move || -> Answer {
        let result = catch_unwind(AssertUnwindSafe(work));
        Box::new(move || {
            if let Ok(result) = result {
                // Nobody may be waiting any more.
                let _unheard = done.send(result);
            }
        })
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
            let mut told = Stopwatch::start();
            let mut next = queue.take(None);
            while let Some(work) = next {
                let answer = work();
                next = queue.take(Some((answer, &mut told)));
            }
        }));
    }

    /// Keep the result of the last work, and take the next. `None`: there is none, and the thread
    /// leaves the queue. Results are told once nothing waits, or some time after they were last told.
    fn take(&self, last: Option<(Answer, &mut Stopwatch)>) -> Option<Work> {
        let mut state = self.lock();
        let work = state.waiting.pop_front();
        match work {
            Some(_) => state.begun = state.begun.wrapping_add(1),
            None => state.threads = state.threads.saturating_sub(1),
        }
        if let Some((answer, told)) = last {
            state.results.push(answer);
            if work.is_none() || told.elapsed() >= DISK_TELL_AFTER {
                *told = Stopwatch::start();
                tell_results(state);
            }
        }
        work
    }

    /// Add threads as long as work waits and none of it begins, and tell the results that the work
    /// which hangs holds up.
    async fn watch(self: Arc<Self>) {
        let mut before = self.lock().begun;
        loop {
            clock::sleep(DISK_LOOK_AFTER).await;
            tell_results(self.lock());
            let mut state = self.lock();
            if state.waiting.is_empty() && state.results.is_empty() {
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

/// Tell all results that were kept, without the lock: a result that nobody waits for is dropped here.
fn tell_results(mut state: MutexGuard<'_, DiskQueueState>) {
    let results = std::mem::take(&mut state.results);
    drop(state);
    results.into_iter().for_each(|answer| answer());
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
    async fn what_ended_before_work_that_hangs_is_told() {
        let (begin, begun) = mpsc::channel::<()>();
        let (go, went) = mpsc::channel::<()>();
        // Its result is kept, because the next work waits when it ends.
        let first = tokio::spawn(run_disk_work(move || begun.recv().is_ok()));
        tokio::task::yield_now().await;
        let hangs = tokio::spawn(run_disk_work(move || went.recv()));
        tokio::task::yield_now().await;
        begin.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(true));
        go.send(()).unwrap();
        hangs.await.unwrap().unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn results_of_quick_work_are_told_together() {
        clock::simulate();
        let queue = DiskQueue::default();
        let told: Arc<Mutex<u32>> = Arc::default();
        let count = Arc::clone(&told);
        let work = move || -> Answer {
            let count = Arc::clone(&count);
            Box::new(move || *count.lock().unwrap() += 1)
        };
        let add = |many: usize| {
            let works = std::iter::repeat_with(|| Box::new(work.clone()) as Work);
            queue.lock().waiting.extend(works.take(many));
        };
        let mut since = Stopwatch::start();
        let mut step = |next: Option<Work>| queue.take(next.map(|work| (work(), &mut since)));
        add(4);
        let first = step(None);
        let second = step(first);
        let third = step(second);
        assert_eq!(*told.lock().unwrap(), 0, "more of it waits");
        clock::sleep(DISK_TELL_AFTER).await;
        let fourth = step(third);
        assert_eq!(*told.lock().unwrap(), 3, "those before waited long enough");
        let none = step(fourth);
        assert!(none.is_none());
        assert_eq!(*told.lock().unwrap(), 4, "nothing waits any more");
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_next_is_done() {
        let broken = run_disk_work(|| panic!("on purpose")).await;
        assert_eq!(broken, Err::<(), _>(DiskWorkLost));
        assert_eq!(run_disk_work(|| 1).await, Ok(1));
    }
}
