//! Computing for requests, apart from the threads that answer them.
//!
//! ```text
//! run ─► a queue for each caller, bounded ─► callers in turns ─► few threads, behind all others ─► the answer
//!  └─ dropped, or too late: the work is told that nobody waits, and looks
//! ```
//! Reading a job, checking it, comparing versions, and writing and packing answers that hold whole jobs, long lists or
//! directories take as long as whoever wrote them wants, within bounds.
//! So nothing of that is done where requests are read and answered: however much is asked for, others are
//! answered, the agent's user over the socket has a thread of its own, and the agent can end: nobody waits for these
//! threads.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use axum::response::Response;
use tokio::sync::oneshot;

use super::error::Failure;
use super::shares::Caller;
use ostler_model::clock;
use ostler_model::limits::{
    API_COMPUTING_OF_ONE_MAX, API_COMPUTING_OTHERS_MAX, API_COMPUTING_THREADS,
    API_COMPUTING_WAITING_MAX, API_COMPUTING_WALL_MAX, API_CONNECTIONS_MAX,
    API_TCP_CONNECTIONS_MAX,
};
use ostler_model::wanted::Awaited;
use ostler_sandbox::threads::go_behind;

/// Who computes.
pub(super) struct Computing(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    turns: Turns<Work>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    ended: bool,
}

struct Work {
    wanted: Awaited,
    run: Box<dyn FnOnce(&Awaited) + Send>,
}

impl Computing {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// What `work` makes. It looks at [`Awaited`] where it may take long.
    ///
    /// # Errors
    /// When the caller has too much waiting, or it takes too long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        caller: Caller,
        work: impl FnOnce(&Awaited) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.run_among(API_COMPUTING_WAITING_MAX, caller, work).await
    }

    /// Write an answer that may be long: whole jobs, lists. Many clients may wait for a change of one job: as many
    /// answers wait as there are connections.
    ///
    /// # Errors
    /// As `write`'s; when it takes too long.
    pub(super) async fn answer(
        &self,
        caller: Caller,
        write: impl FnOnce() -> Result<Response, Failure> + Send + 'static,
    ) -> Result<Response, Failure> {
        self.run_among(API_CONNECTIONS_MAX + API_TCP_CONNECTIONS_MAX, caller, |_| write()).await?
    }

    /// What `work` makes, where one can do without: nothing when the caller has more than a few waiting, or it takes
    /// too long. It leaves most places for what the caller asks for.
    pub(super) async fn spare<T: Send + 'static>(
        &self,
        caller: Caller,
        work: impl FnOnce(&Awaited) -> T + Send + 'static,
    ) -> Option<T> {
        self.run_among(API_COMPUTING_WAITING_MAX / 4, caller, work).await.ok()
    }

    async fn run_among<T: Send + 'static>(
        &self,
        most: usize,
        caller: Caller,
        work: impl FnOnce(&Awaited) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (_waiter, wanted) = Awaited::while_held();
        let (answer, answered) = oneshot::channel();
        let run = Box::new(move |wanted: &Awaited| {
            // An error means that nobody waits any more.
            let _gone = answer.send(work(wanted));
        });
        self.add(caller, Work { wanted, run }, most)?;
        match clock::timeout(API_COMPUTING_WALL_MAX, answered).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(_)) => Err(Failure::Internal("what was computed failed".to_owned())),
            None => Err(Failure::TooMuch),
        }
    }

    fn add(&self, caller: Caller, work: Work, most: usize) -> Result<(), Failure> {
        let mut state = self.0.state();
        state.turns.forget(caller, |work| work.wanted.is_given_up());
        if !state.turns.add(caller, work, most) {
            let what = "requests that are computed";
            return Err(match caller {
                Caller::Operator => Failure::NoneFree { what },
                _ => Failure::TooManyOfOne { what, own: API_COMPUTING_WAITING_MAX },
            });
        }
        if state.turns.waiting() > state.idle && state.threads < API_COMPUTING_THREADS {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("ostler-computing".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(_detached) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.turns.forget(caller, |_| true);
                    return Err(Failure::Internal(format!("no thread to compute on: {error}")));
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.0.more.notify_one();
        Ok(())
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.more.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn work(&self) {
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
            if !work.wanted.is_given_up() {
                // Its answer is dropped then, which whoever waits for it hears.
                let _panicked = catch_unwind(AssertUnwindSafe(|| (work.run)(&work.wanted)));
            }
            state = self.state();
            state.turns.done(caller);
        }
        state.threads -= 1;
    }
}

/// Whose turn it is. Pure.
struct Turns<T> {
    waiting: BTreeMap<Caller, VecDeque<T>>,
    running: BTreeMap<Caller, usize>,
    last: Option<Caller>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), running: BTreeMap::new(), last: None }
    }
}

impl<T> Turns<T> {
    /// `false`: this caller has as much waiting as it may.
    fn add(&mut self, caller: Caller, item: T, most: usize) -> bool {
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

    /// Leave out what a caller does not wait for.
    fn forget(&mut self, caller: Caller, which: impl Fn(&T) -> bool) {
        if let Some(queue) = self.waiting.get_mut(&caller) {
            queue.retain(|item| !which(item));
        }
    }

    /// The next one of the caller whose turn it is.
    fn take(&mut self) -> Option<(Caller, T)> {
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

    fn may_run(&self, caller: Caller) -> bool {
        let waits = self.waiting.get(&caller).is_some_and(|queue| !queue.is_empty());
        let of = |caller: &Caller| self.running.get(caller).copied().unwrap_or(0);
        let others: usize = self.running.values().sum::<usize>() - of(&Caller::Operator);
        waits
            && (caller == Caller::Operator
                || others < API_COMPUTING_OTHERS_MAX && of(&caller) < API_COMPUTING_OF_ONE_MAX)
    }

    fn done(&mut self, caller: Caller) {
        match self.running.get_mut(&caller) {
            Some(running) if *running > 1 => *running -= 1,
            _ => drop(self.running.remove(&caller)),
        }
    }
}

#[cfg(test)]
#[path = "computing_tests.rs"]
mod tests;
