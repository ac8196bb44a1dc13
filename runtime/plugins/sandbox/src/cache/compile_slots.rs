//! Lets loads wait for their turn to be compiled, in the order of `queue`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::queue::{CompileQueue, QueueFull, Ticket};
use ostler_model::clock::{Stopwatch, sleep};
use ostler_model::limits::COMPILE_TRY;
use ostler_model::words::count_noun;

/// Called with the progress of a load that takes long, in words that follow the name of the guest.
pub(super) type ProgressListener<'a> = Option<&'a (dyn Fn(&str) + Send + Sync)>;

/// The queue of all loads that compile or wait for it.
pub(super) struct CompileSlots {
    queue: Mutex<CompileQueue>,
    changed: watch::Sender<()>,
}

/// A place in the queue. Dropping it leaves the queue.
pub(super) struct CompileSlot<'a> {
    slots: &'a CompileSlots,
    ticket: Ticket,
    /// Since when this load compiles.
    granted: Option<Stopwatch>,
    say: ProgressListener<'a>,
}

impl CompileSlots {
    /// An empty queue in which `places` loads may compile at once.
    pub(super) fn new(places: usize) -> Self {
        Self { queue: Mutex::new(CompileQueue::new(places)), changed: watch::Sender::new(()) }
    }

    /// Add a load to the queue.
    pub(super) fn join<'a>(
        &'a self,
        owner: &str,
        say: ProgressListener<'a>,
    ) -> Result<CompileSlot<'a>, QueueFull> {
        let ticket = self.change(|queue| queue.join(owner))?;
        Ok(CompileSlot { slots: self, ticket, granted: None, say })
    }

    /// Change the queue, give free places away, and wake those that wait.
    fn change<T>(&self, change: impl FnOnce(&mut CompileQueue) -> T) -> T {
        let mut queue = self.lock();
        let result = change(&mut queue);
        queue.grant();
        drop(queue);
        self.changed.send_replace(());
        result
    }

    fn lock(&self) -> MutexGuard<'_, CompileQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompileSlot<'_> {
    /// Wait until this load may be compiled.
    pub(super) async fn wait_turn(&mut self) {
        let mut changed = self.slots.changed.subscribe();
        let mut told = false;
        loop {
            let (compiles, others) = {
                let queue = self.slots.lock();
                (queue.compiles(self.ticket), queue.others())
            };
            if compiles {
                break;
            }
            if !told {
                told = true;
                let others = count_noun(others, "other");
                self.say(&format!("waits for its turn to be compiled, with {others}"));
            }
            // The sender lives as long as this place, so this is no error.
            let _closed = changed.changed().await;
        }
        if told {
            self.say("is being compiled");
        }
        self.granted = Some(Stopwatch::start());
    }

    /// Wait until this load has to make room for one that had no try yet. What was compiled so far
    /// is then lost.
    pub(super) async fn wait_set_back(&mut self) {
        sleep(COMPILE_TRY).await;
        self.say(&format!("is still being compiled after {COMPILE_TRY:?}"));
        let mut changed = self.slots.changed.subscribe();
        loop {
            let used = self.granted.map(|since| since.elapsed()).unwrap_or_default();
            let back = {
                let mut queue = self.slots.lock();
                let back = queue.set_back(self.ticket, used);
                if back {
                    queue.grant();
                }
                back
            };
            if back {
                break;
            }
            let _closed = changed.changed().await;
        }
        self.granted = None;
        self.slots.changed.send_replace(());
        self.say("takes long to compile and is tried again after others have had their turn");
    }

    fn say(&self, text: &str) {
        if let Some(say) = self.say {
            say(text);
        }
    }
}

impl Drop for CompileSlot<'_> {
    fn drop(&mut self) {
        let used = self.granted.map(|since| since.elapsed()).unwrap_or_default();
        self.slots.change(|queue| queue.leave(self.ticket, used));
    }
}
