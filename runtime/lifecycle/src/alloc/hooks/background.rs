//! What hooks leave running: ends with the allocation's owner, whatever way that ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::task::AbortHandle;

#[derive(Default)]
struct Inner {
    /// With the number of each.
    running: BTreeMap<&'static str, (u64, AbortHandle)>,
    next: u64,
    closed: bool,
}

/// Tasks of hooks, one per name. Clones share them.
#[derive(Clone, Default)]
pub struct Background(Arc<Mutex<Inner>>);

impl Background {
    /// Run something beside the owner, in place of what runs under this name. Nothing is run once
    /// the owner has ended. Needs a tokio runtime.
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
            // A handle that is kept keeps the memory of its future.
            if let Some(all) = all.upgrade() {
                Self(all).ended(name, number);
            }
        });
        let handle = tokio::spawn(running).abort_handle();
        if let Some((_, before)) = inner.running.insert(name, (number, handle)) {
            before.abort();
        }
    }

    fn ended(&self, name: &'static str, number: u64) {
        let mut inner = self.lock();
        if inner.running.get(name).is_some_and(|(of, _)| *of == number) {
            inner.running.remove(name);
        }
    }

    /// End what runs under this name.
    pub fn stop(&self, name: &'static str) {
        if let Some((_, running)) = self.lock().running.remove(name) {
            running.abort();
        }
    }

    /// End everything, and run nothing more.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for (_, running) in std::mem::take(&mut inner.running).into_values() {
            running.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the background when it is dropped: held by the owner.
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
