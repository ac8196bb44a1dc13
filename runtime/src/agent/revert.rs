//! A change that could not be made durable is taken back.
//!
//! ```text
//!   records as they were (lock of the order) ─► what was placed ends, side by side ─► free again
//! ```

use std::sync::Arc;

use tokio::task::JoinSet;

use super::AgentHandle;
use super::change::Change;
use ostler_model::alloc::Allocation;
use ostler_model::ids::AllocId;
use ostler_state::{Key, StateError};

impl AgentHandle {
    /// Take back a change that could not be made durable, unless something newer came. The job's turn
    /// is held to the end; the lock of the order only while records are changed, because what was
    /// placed may take its time to end.
    pub(super) async fn revert(&self, change: &Change) {
        let state = &self.0.state;
        {
            let _order = self.0.order.lock().await;
            for (new, old) in &change.copies {
                if self.put_back(new, old) {
                    said(state.put_later(&Key::Alloc(old.id), &**old).await.map(drop));
                }
            }
            if let Some(job) = change.job.as_ref().filter(|_| change.of_job()) {
                let key = Key::Job(job.clone());
                match &change.before {
                    Some(before) => {
                        self.registry().put_job(Arc::clone(before));
                        said(state.put_later(&key, &**before).await.map(drop));
                    }
                    None => drop(self.registry().jobs.remove(job)),
                }
            }
        }
        // Durable, so outside of the lock; nobody changes the job meanwhile.
        if let (Some(job), None, true) = (&change.job, &change.before, change.of_job()) {
            said(state.delete(&Key::Job(job.clone())).await);
        }
        let mut ending = JoinSet::new();
        for alloc in &change.placed {
            let (agent, id) = (self.clone(), alloc.id);
            ending.spawn(async move { agent.unplace(id).await });
        }
        while ending.join_next().await.is_some() {}
        let _order = self.0.order.lock().await;
        said(self.put_ledger().await);
        // What it held is free.
        self.0.wake.notify_one();
    }

    /// Enter `old` again in the place of `new`. Whether `new` was the newest.
    fn put_back(&self, new: &Allocation, old: &Arc<Allocation>) -> bool {
        let mut registry = self.registry();
        let newest = registry.alloc(new.id).map(|entry| entry.allocation.modify_index);
        let ours = newest == Some(new.modify_index);
        if ours {
            registry.put_alloc(Arc::clone(old), true, self.0.clock.now());
        }
        ours
    }

    /// End an allocation that was placed by a change that is taken back; nothing is left of it.
    pub(super) async fn unplace(&self, id: AllocId) {
        let handle = self.registry().alloc(id).and_then(|entry| entry.handle.clone());
        if let Some(handle) = handle {
            handle.destroy().await;
        }
        self.registry().remove_alloc(id);
        let owing = self.0.devices.end_alloc(id);
        self.admission().end_alloc(id, &owing);
        said(self.0.state.destroy_alloc(id).await);
    }
}

fn said(written: Result<(), StateError>) {
    match written {
        Ok(()) | Err(StateError::Closed { .. }) => {}
        Err(error) => tracing::error!(%error, "a change that failed could not be taken back whole"),
    }
}
