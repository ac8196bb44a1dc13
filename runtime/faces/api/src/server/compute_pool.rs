//! Computes for requests, apart from the threads that answer them.
//!
//! ```text
//! run ─► a queue for each caller, bounded ─► callers in turns ─► few threads in the background ─► the answer
//!  └─ dropped, or too late: the work sees that nobody waits any more
//! ```
//! Reading a job, checking it, comparing versions, and writing and packing long answers can take
//! long, within bounds, if a client wants it so. None of this runs on the threads that read and
//! answer requests. However much one client asks for, others are answered, the agent's user has a
//! thread of its own over the socket, and the agent can end without waiting for these threads.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use axum::response::Response;
use tokio::sync::oneshot;

use super::access::RequestCaller;
use super::error::RequestFailure;
use ostler_model::cancellation::CancelFlag;
use ostler_model::clock;
use ostler_model::limits::{
    API_COMPUTING_OF_ONE_MAX, API_COMPUTING_OTHERS_MAX, API_COMPUTING_THREADS,
    API_COMPUTING_WAITING_MAX, API_COMPUTING_WALL_MAX, API_CONNECTIONS_MAX,
    API_TCP_CONNECTIONS_MAX,
};
use ostler_sandbox::threads::go_behind;

/// The pool of threads that compute for requests.
pub(super) struct ComputePool(Arc<ComputePoolInner>);

#[derive(Default)]
struct ComputePoolInner {
    state: Mutex<ComputePoolState>,
    more: Condvar,
}

#[derive(Default)]
struct ComputePoolState {
    turns: Turns<ComputeWork>,
    threads: usize,
    /// The number of threads that wait for work.
    idle: usize,
    ended: bool,
}

struct ComputeWork {
    wanted: CancelFlag,
    run: Box<dyn FnOnce(&CancelFlag) + Send>,
}

impl ComputePool {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Run `work` and return its result. Long work must look at its [`CancelFlag`] to see whether it
    /// is still wanted.
    ///
    /// # Errors
    /// When the caller has too much work waiting, or the work takes too long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        caller: RequestCaller,
        work: impl FnOnce(&CancelFlag) -> T + Send + 'static,
    ) -> Result<T, RequestFailure> {
        self.run_among(API_COMPUTING_WAITING_MAX, caller, work).await
    }

    /// Write an answer that may be long, such as whole jobs or lists. Because many clients may wait
    /// for a change of one job, as many answers may wait as there are connections.
    ///
    /// # Errors
    /// The errors of `write`, and when it takes too long.
    pub(super) async fn answer(
        &self,
        caller: RequestCaller,
        write: impl FnOnce() -> Result<Response, RequestFailure> + Send + 'static,
    ) -> Result<Response, RequestFailure> {
        self.run_among(API_CONNECTIONS_MAX + API_TCP_CONNECTIONS_MAX, caller, |_| write()).await?
    }

    /// Run `work` that the answer can do without. Returns none when the caller has more than a few
    /// pieces of work waiting, or the work takes too long. Most places stay free for necessary work.
    pub(super) async fn run_if_spare<T: Send + 'static>(
        &self,
        caller: RequestCaller,
        work: impl FnOnce(&CancelFlag) -> T + Send + 'static,
    ) -> Option<T> {
        self.run_among(API_COMPUTING_WAITING_MAX / 4, caller, work).await.ok()
    }

    async fn run_among<T: Send + 'static>(
        &self,
        most: usize,
        caller: RequestCaller,
        work: impl FnOnce(&CancelFlag) -> T + Send + 'static,
    ) -> Result<T, RequestFailure> {
        let (_waiter, wanted) = CancelFlag::new_pair();
        let (answer, answered) = oneshot::channel();
        let run = Box::new(move |wanted: &CancelFlag| {
            // An error means that nobody waits any more.
            let _gone = answer.send(work(wanted));
        });
        self.add(caller, ComputeWork { wanted, run }, most)?;
        match clock::timeout(API_COMPUTING_WALL_MAX, answered).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(_)) => Err(RequestFailure::Internal("the computation failed".to_owned())),
            None => Err(RequestFailure::TooMuch),
        }
    }

    fn add(
        &self,
        caller: RequestCaller,
        work: ComputeWork,
        most: usize,
    ) -> Result<(), RequestFailure> {
        let mut state = self.0.state();
        state.turns.forget(caller, |work| work.wanted.is_cancelled());
        if !state.turns.add(caller, work, most) {
            let what = "requests being computed";
            return Err(match caller {
                RequestCaller::Operator => RequestFailure::NoneFree { what },
                _ => RequestFailure::TooManyOfOne { what, own: API_COMPUTING_WAITING_MAX },
            });
        }
        if state.turns.waiting() > state.idle && state.threads < API_COMPUTING_THREADS {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("ostler-computing".to_owned());
            match thread.spawn(move || shared.run_thread()) {
                Ok(_detached) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.turns.forget(caller, |_| true);
                    return Err(RequestFailure::Internal(format!(
                        "no thread to compute on: {error}"
                    )));
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.0.more.notify_one();
        Ok(())
    }
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.more.notify_all();
    }
}

impl ComputePoolInner {
    fn state(&self) -> MutexGuard<'_, ComputePoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Run the loop of one thread.
    fn run_thread(&self) {
        go_behind(true);
        let mut state = self.state();
        while !state.ended {
            let Some((caller, work)) = state.turns.take() else {
                state.idle += 1;
                state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            if !work.wanted.is_cancelled() {
                // After a panic the answer is dropped, and whoever waits for it gets an error.
                let _panicked = catch_unwind(AssertUnwindSafe(|| (work.run)(&work.wanted)));
            }
            state = self.state();
            state.turns.finish_one(caller);
        }
        state.threads -= 1;
    }
}

/// The queues of work, and whose turn is next. Pure.
struct Turns<T> {
    waiting: BTreeMap<RequestCaller, VecDeque<T>>,
    running: BTreeMap<RequestCaller, usize>,
    last: Option<RequestCaller>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), running: BTreeMap::new(), last: None }
    }
}

impl<T> Turns<T> {
    /// Add an item. Returns `false` if the caller has as many waiting as it may.
    fn add(&mut self, caller: RequestCaller, item: T, most: usize) -> bool {
        let queue = self.waiting.entry(caller).or_default();
        let free = queue.len() < most;
        if free {
            queue.push_back(item);
        }
        free
    }

    fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// Drop the waiting items of a caller for which `which` holds.
    fn forget(&mut self, caller: RequestCaller, which: impl Fn(&T) -> bool) {
        if let Some(queue) = self.waiting.get_mut(&caller) {
            queue.retain(|item| !which(item));
        }
    }

    /// Take the next item of the caller whose turn it is.
    fn take(&mut self) -> Option<(RequestCaller, T)> {
        let after = self.waiting.keys().filter(|caller| Some(**caller) > self.last);
        let before = self.waiting.keys().filter(|caller| Some(**caller) <= self.last);
        let caller = *after.chain(before).find(|caller| self.may_run(**caller))?;
        let queue = self.waiting.get_mut(&caller)?;
        let item = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&caller);
        }
        self.last = Some(caller);
        let item = item?;
        *self.running.entry(caller).or_default() += 1;
        Some((caller, item))
    }

    fn may_run(&self, caller: RequestCaller) -> bool {
        let waits = self.waiting.get(&caller).is_some_and(|queue| !queue.is_empty());
        let of = |caller: &RequestCaller| self.running.get(caller).copied().unwrap_or(0);
        let others: usize = self.running.values().sum::<usize>() - of(&RequestCaller::Operator);
        waits
            && (caller == RequestCaller::Operator
                || others < API_COMPUTING_OTHERS_MAX && of(&caller) < API_COMPUTING_OF_ONE_MAX)
    }

    fn finish_one(&mut self, caller: RequestCaller) {
        match self.running.get_mut(&caller) {
            Some(running) if *running > 1 => *running -= 1,
            _ => drop(self.running.remove(&caller)),
        }
    }
}

#[cfg(test)]
#[path = "compute_pool_tests.rs"]
mod tests;
