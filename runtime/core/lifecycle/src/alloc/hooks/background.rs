//! What hooks leave running. It ends with the allocation's owner, in whatever way the owner ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::task::AbortHandle;

#[derive(Default)]
struct BackgroundInner {
    /// Name, number and handle of each future that runs. There are few, mostly none.
    running: Vec<(&'static str, u64, AbortHandle)>,
    next: u64,
    closed: bool,
}

impl BackgroundInner {
    fn take(
        &mut self,
        such: impl Fn(&(&'static str, u64, AbortHandle)) -> bool,
    ) -> Option<AbortHandle> {
        let at = self.running.iter().position(such)?;
        let (.., taken) = self.running.remove(at);
        if self.running.is_empty() {
            self.running = Vec::new();
        }
        Some(taken)
    }
}

/// The futures that hooks leave running, one per name. Clones share them.
#[derive(Clone, Default)]
pub struct Background(Arc<Mutex<BackgroundInner>>);

impl Background {
    /// Run a future beside the owner, in place of the one that runs under this name. Nothing is run
    /// once the owner has ended. Needs a tokio runtime.
    pub fn run(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        let number = inner.next;
        inner.next = number.wrapping_add(1);
        let all = Arc::downgrade(&self.0);
        // Not an async block around it, which would have room for the future twice.
        let running = future.map(move |()| {
            // A stored handle would keep the memory of its future.
            if let Some(all) = all.upgrade() {
                Self(all).remove_ended(name, number);
            }
        });
        let handle = tokio::spawn(running).abort_handle();
        if let Some(before) = inner.take(|(of, ..)| *of == name) {
            before.abort();
        }
        inner.running.reserve_exact(1);
        inner.running.push((name, number, handle));
    }

    fn remove_ended(&self, name: &'static str, number: u64) {
        let _ended = self.lock().take(|(of, its, _)| (*of, *its) == (name, number));
    }

    /// Does a future run under this name?
    #[must_use]
    pub fn is_running(&self, name: &'static str) -> bool {
        self.lock().running.iter().any(|(of, ..)| *of == name)
    }

    /// End the future that runs under this name.
    pub fn stop(&self, name: &'static str) {
        if let Some(running) = self.lock().take(|(of, ..)| *of == name) {
            running.abort();
        }
    }

    /// End everything, and run nothing more.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for (_, _, running) in std::mem::take(&mut inner.running) {
            running.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the background when it is dropped. The owner holds it.
pub(in crate::alloc) struct CloseOnDrop(pub(in crate::alloc) Background);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All other tasks have had their turn: the tests have one thread.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_the_last_of_a_name_runs_and_none_after_the_end() {
        let background = Background::default();
        let alive = Arc::new(());
        let hold = |alive: &Arc<()>| {
            let alive = Arc::clone(alive);
            async move {
                std::future::pending::<()>().await;
                drop(alive);
            }
        };
        background.run("one", hold(&alive));
        background.run("one", hold(&alive));
        background.run("two", hold(&alive));
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 3, "the second of one, and two");
        drop(CloseOnDrop(background.clone()));
        background.run("three", hold(&alive));
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 1, "none");
    }
}
