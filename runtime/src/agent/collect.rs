//! What the garbage collection does to this agent's allocations.
//!
//! ```text
//!   registry ─ over, and nobody waits for it ─► candidates ─► gc ─► AllocHandle::destroy ─► forgotten
//! ```
//! What is over of a job that is gone needs no collector: it is removed when it ends.
//!
//! An embedded agent collects nothing by itself: whoever runs one job wants to see what became of it.

use std::sync::{Arc, Weak};

use futures_util::stream::{self, StreamExt as _};
use tokio::task::JoinSet;

use super::gc::choice::{Candidate, GcPolicy};
use super::gc::{CollectError, FsGauge, Garbage};
use super::registry::Registry;
use super::views::Collected;
use super::{AgentHandle, AllocError, Inner, gc};
use ostler_lifecycle::alloc::AllocPhase;
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::config::GcConfig;
use ostler_model::ids::AllocId;
use ostler_model::limits::{GC_ENDING_WALL_MAX, PURGE_PARALLEL};
use ostler_model::ports::BoxFuture;

/// What became of a request. Of one allocation there is nothing to tell but that it is gone.
fn done(
    asked: Option<AllocId>,
    allocs: Vec<AllocId>,
    mut failed: Vec<(AllocId, String)>,
) -> Result<Collected, AllocError> {
    match failed.pop() {
        Some((alloc, why)) if asked.is_some() => Err(AllocError::Stays { alloc, why }),
        last => {
            failed.extend(last);
            Ok(Collected { allocs, failed })
        }
    }
}

/// Start the collector of an agent.
pub(super) fn spawn(agent: &AgentHandle, config: GcConfig) {
    let garbage = Arc::new(Allocs(Arc::downgrade(&agent.0)));
    let gauge = Arc::new(FsGauge { root: agent.0.data_dir.clone() });
    let (handle, task) = gc::spawn(policy(config), garbage, gauge, agent.0.ended.clone());
    agent.beside(async move { drop(task.await) });
    handle.poke();
    let _first = agent.0.gc.set(handle);
}

fn policy(config: GcConfig) -> GcPolicy {
    let default = GcPolicy::default();
    GcPolicy {
        interval: config.interval.unwrap_or(default.interval),
        disk_usage_percent: config.disk_usage_percent.unwrap_or(default.disk_usage_percent),
        inode_usage_percent: config.inode_usage_percent.unwrap_or(default.inode_usage_percent),
        max_allocs: config.max_allocs.unwrap_or(default.max_allocs),
        parallel: config.parallel.unwrap_or(default.parallel),
    }
}

/// The allocations of an agent, which it does not keep.
struct Allocs(Weak<Inner>);

impl Garbage for Allocs {
    fn candidates(&self) -> Vec<Candidate> {
        let Some(agent) = self.0.upgrade().map(AgentHandle) else { return Vec::new() };
        agent.registry().garbage()
    }

    fn live(&self) -> usize {
        let Some(agent) = self.0.upgrade().map(AgentHandle) else { return 0 };
        let registry = agent.registry();
        registry.count().saturating_sub(registry.garbage().len())
    }

    fn destroy(&self, id: AllocId) -> BoxFuture<'static, Result<(), String>> {
        let agent = self.0.upgrade().map(AgentHandle);
        Box::pin(async move {
            let Some(agent) = agent else { return Err("the agent is gone".to_owned()) };
            agent.collect_alloc(id).await
        })
    }
}

impl AgentHandle {
    /// Remove directory and records of one allocation that is over, or of all of them.
    ///
    /// # Errors
    /// When there is no such allocation, it is not over, another one waits for its data, or the one
    /// that was named could not be removed. Of all of them those that stay are in
    /// [`Collected::failed`].
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<Collected, AllocError> {
        let view = match alloc {
            Some(id) => Some(self.entered(id).await.ok_or(AllocError::Unknown { alloc: id })?),
            None => None,
        };
        self.until_over(alloc).await;
        if let Some(gc) = self.0.gc.get() {
            return match gc.collect(alloc).await {
                Ok(removed) => done(alloc, removed.allocs, removed.failed),
                Err(CollectError::Stopping) => Err(AllocError::Leaving),
                Err(CollectError::NotGarbage { alloc }) => {
                    let status = view.map(|view| view.state.client_status).unwrap_or_default();
                    Err(AllocError::NotOver { alloc, status })
                }
            };
        }
        let mut garbage = self.registry().garbage();
        if let Some(view) = view {
            let (alloc, status) = (view.allocation.id, view.state.client_status);
            garbage.retain(|candidate| candidate.id == alloc);
            if garbage.is_empty() {
                return Err(AllocError::NotOver { alloc, status });
            }
        }
        let mut removals = JoinSet::new();
        for Candidate { id, .. } in garbage {
            let agent = self.clone();
            removals.spawn(async move { (id, agent.collect_alloc(id).await) });
        }
        let (mut allocs, mut failed) = (Vec::new(), Vec::new());
        while let Some(removed) = removals.join_next().await {
            match removed {
                Ok((id, Ok(()))) => allocs.push(id),
                Ok((id, Err(why))) => failed.push((id, why)),
                Err(error) => tracing::error!(%error, "the removal of an allocation panicked"),
            }
        }
        allocs.sort_unstable();
        done(alloc, allocs, failed)
    }

    /// Remove an allocation that is over, and see that it is gone.
    ///
    /// The error says why it is not, for people.
    async fn collect_alloc(&self, id: AllocId) -> Result<(), String> {
        if !self.destroy_alloc(id).await {
            return Err("its owner left before it was done".to_owned());
        }
        // Its owner tells nobody of a directory that it could not remove: tried again, it tells why.
        let root = self.0.data_dir.join("allocs");
        let removed = tokio::task::spawn_blocking(move || {
            match root.join(id.to_string()).symlink_metadata() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                _ => AllocDir::destroy(&root, id),
            }
        });
        match removed.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!(
                "its directory stays: {}; the next start of the agent tries again",
                causes::chain(&error)
            )),
            Err(_) => Err("its removal ended unexpectedly".to_owned()),
        }
    }

    /// Wait for what is about to be over, if that is soon: whoever stops something and collects sees it
    /// go.
    async fn until_over(&self, alloc: Option<AllocId>) {
        let mut changes = self.changes();
        let over = async {
            loop {
                changes.borrow_and_update();
                if !self.registry().is_ending(alloc) || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _in_time = clock::timeout(GC_ENDING_WALL_MAX, over).await;
    }

    /// Remove those of some allocations that are over and whose jobs are gone.
    pub(super) fn collect_purged(&self, among: impl FnOnce(&Registry) -> Vec<AllocId>) {
        let purged = {
            let mut registry = self.registry();
            let among = among(&registry);
            registry.take_purged(&among)
        };
        if purged.is_empty() {
            return;
        }
        let agent = self.clone();
        self.beside(async move {
            let (agent, ended) = (&agent, &agent.0.ended);
            let removals =
                stream::iter(purged).for_each_concurrent(PURGE_PARALLEL, |id| async move {
                    // The next start goes on.
                    if !ended.is_cancelled() {
                        agent.destroy_alloc(id).await;
                    }
                });
            removals.await;
        });
    }

    /// Remove an allocation that is over. Whether it is gone.
    pub(super) async fn destroy_alloc(&self, id: AllocId) -> bool {
        let handle = self.registry().alloc(id).map(|entry| entry.handle.clone());
        // Somebody else removed it.
        let Some(handle) = handle else { return true };
        let Some(handle) = handle else { return false };
        if !self.remember_place(id).await {
            return false;
        }
        let gone = handle.destroy().await == AllocPhase::Destroyed;
        if gone {
            self.registry().remove_alloc(id);
        }
        gone
    }
}
