//! What hooks leave running: ends with the allocation's owner, whatever way that ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

#[derive(Default)]
struct Inner {
    running: BTreeMap<&'static str, AbortHandle>,
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
        let handle = tokio::spawn(future).abort_handle();
        if let Some(before) = inner.running.insert(name, handle) {
            before.abort();
        }
    }

    /// End what runs under this name.
    pub fn stop(&self, name: &'static str) {
        if let Some(running) = self.lock().running.remove(name) {
            running.abort();
        }
    }

    /// End everything, and run nothing more.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for running in std::mem::take(&mut inner.running).into_values() {
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
        while Arc::strong_count(&alive) > 3 {
            tokio::task::yield_now().await;
        }
        drop(CloseOnDrop(background.clone()));
        background.run("three", hold(&alive));
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
