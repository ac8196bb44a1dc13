//! Waiting for one's turn to be compiled: `queue` with people in it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::queue::{Full, Queue, Ticket};
use ostler_model::clock::{Stopwatch, sleep};
use ostler_model::limits::COMPILE_TRY;
use ostler_model::words::counted;

/// Hears what becomes of a load that takes long, in words that follow its name.
pub(super) type Say<'a> = Option<&'a (dyn Fn(&str) + Send + Sync)>;

/// The queue of all that is compiled.
pub(super) struct CompileSlots {
    queue: Mutex<Queue>,
    changed: watch::Sender<()>,
}

/// A place in the queue; left when dropped.
pub(super) struct CompileSlot<'a> {
    slots: &'a CompileSlots,
    ticket: Ticket,
    /// Since when it compiles.
    granted: Option<Stopwatch>,
    say: Say<'a>,
}

impl CompileSlots {
    /// Nobody there, and so many may compile at once.
    pub(super) fn new(places: usize) -> Self {
        Self { queue: Mutex::new(Queue::new(places)), changed: watch::Sender::new(()) }
    }

    /// One more that is to be compiled.
    pub(super) fn join<'a>(&'a self, owner: &str, say: Say<'a>) -> Result<CompileSlot<'a>, Full> {
        let ticket = self.change(|queue| queue.join(owner))?;
        Ok(CompileSlot { slots: self, ticket, granted: None, say })
    }

    /// Change something, and tell those who get a place by it.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.lock();
        let result = change(&mut queue);
        queue.grant();
        drop(queue);
        self.changed.send_replace(());
        result
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompileSlot<'_> {
    /// Wait until it may be compiled.
    pub(super) async fn granted(&mut self) {
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
                let others = counted(others, "other");
                self.say(&format!("waits for its turn to be compiled, with {others}"));
            }
            // The sender lives as long as this place.
            let _closed = changed.changed().await;
        }
        if told {
            self.say("is being compiled");
        }
        self.granted = Some(Stopwatch::start());
    }

    /// Wait until it has to make room for one who had no try yet. What was compiled is lost then.
    pub(super) async fn set_back(&mut self) {
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
        self.say("takes long to compile and is begun again when others had their turn");
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
