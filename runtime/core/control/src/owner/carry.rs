//! Carries the effects of the machine out.

use std::io;
use std::sync::Arc;

use super::lane::RecordBatch;
use super::{FutureOutcome, NodeOwner};
use crate::machine::{ControlEffect, ControlEvent, NotRemoved, RemovalLeft};
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_lifecycle::alloc::{AllocHandle, AllocPhase, AllocRunner, AllocStart, PreviousAlloc};
use ostler_lifecycle::context::AllocContext;
use ostler_lifecycle::task::NetworkSlot;
use ostler_lifecycle::task::env::NodeFacts;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::disk_work::run_disk_work;
use ostler_model::ids::AllocId;
use ostler_model::limits::{GC_DESTROY_WALL_MAX, GC_MEASURE_WALL_MAX};
use ostler_model::planted::planted;
use ostler_node::NodeView;
use ostler_state::KeyPrefix;
use ostler_trace::{AllocTrace, TracedAlloc};

impl NodeOwner {
    pub(super) fn carry_out(&mut self, effect: ControlEffect) {
        match effect {
            ControlEffect::Answer { request, answer } => {
                if let Some(reply) = self.replies.remove(&request) {
                    // An error means that the requester has left; the change is made all the same.
                    let _gone = reply.send(*answer);
                }
            }
            ControlEffect::Write { batch, writes, own, wait } => {
                self.write(RecordBatch { batch, writes, own, wait });
            }
            ControlEffect::Tell { alloc, skip_shutdown_delay } => {
                self.tell(alloc, skip_shutdown_delay)
            }
            ControlEffect::Hurry { alloc, reason } => {
                if let Some(owner) = self.owner_of(alloc) {
                    self.running.push(Box::pin(async move {
                        owner.stop(reason).await;
                        FutureOutcome::Nothing
                    }));
                }
            }
            ControlEffect::ReleaseDevices(alloc) => {
                let owing = self.shared.options.devices.end_alloc(alloc);
                self.events.push_back(ControlEvent::DevicesOwed { alloc, owing });
            }
            ControlEffect::RestoreClaim(holder, devices) => {
                self.shared.options.devices.restore_claim(holder, &devices);
            }
            ControlEffect::Remove(alloc) => self.remove(alloc),
            ControlEffect::Measure { sync } => self.measure(sync),
            ControlEffect::KillTasks => (self.shared.options.kill_tasks)(),
        }
    }

    fn owner_of(&self, alloc: AllocId) -> Option<AllocHandle> {
        self.shared.lock_node().owners.get(&alloc).cloned()
    }

    /// Tell the owner of a newer copy, without waiting.
    fn tell(&self, alloc: Arc<Allocation>, skip_shutdown_delay: bool) {
        let Some(owner) = self.owner_of(alloc.id) else { return };
        if alloc.desired == DesiredStatus::Run {
            return owner.update(alloc);
        }
        self.running.push(Box::pin(async move {
            owner.stop_as(alloc, skip_shutdown_delay).await;
            FutureOutcome::Nothing
        }));
    }

    fn measure(&self, sync: bool) {
        let gauge = Arc::clone(&self.shared.options.gauge);
        self.running.push(Box::pin(async move {
            let measuring = clock::run_blocking(move || gauge.measure(sync));
            let measured = match clock::timeout(GC_MEASURE_WALL_MAX, measuring).await {
                Some(Ok(Ok(measured))) => Some(measured),
                Some(Ok(Err(error))) => {
                    tracing::warn!(%error, "cannot tell how full the disk is");
                    None
                }
                Some(Err(_)) => {
                    tracing::warn!("measuring the disk ended unexpectedly");
                    None
                }
                None => {
                    tracing::warn!(
                        "the disk does not answer within {} s; allocations are collected by number \
                         only",
                        GC_MEASURE_WALL_MAX.as_secs()
                    );
                    None
                }
            };
            FutureOutcome::ControlEvent(ControlEvent::Measured(measured))
        }));
    }

    fn remove(&self, alloc: AllocId) {
        let owner = self.owner_of(alloc);
        let node = Arc::clone(&self.shared.options.node);
        self.running.push(Box::pin(async move {
            let mut removed = Box::pin(async move {
                let stays = |why: &str, left| NotRemoved { why: why.to_owned(), left };
                let Some(owner) = owner else {
                    return Err(stays("it has no owner yet", RemovalLeft::Everything));
                };
                if owner.destroy().await != AllocPhase::Destroyed {
                    return Err(stays(
                        "its owner left before it was done",
                        RemovalLeft::Everything,
                    ));
                }
                if !owner.dir_is_removed() {
                    // The owner does not say why. A second try gives the reason.
                    let at = Arc::clone(&node);
                    let removed = move || remove_rest(&at.alloc_root, alloc);
                    let removed = run_disk_work(removed).await;
                    let removed = removed
                        .unwrap_or_else(|_| Err("its removal ended unexpectedly".to_owned()));
                    removed.map_err(|why| NotRemoved { why, left: RemovalLeft::Directory })?;
                }
                // The owner does not report records that could not be removed either.
                match node.state.scan(&KeyPrefix::Alloc(alloc)) {
                    Ok(records) if records.is_empty() => Ok(()),
                    Ok(_) => {
                        Err(stays("its records stay on disk; tried again", RemovalLeft::Records))
                    }
                    Err(error) => Err(stays(&error.to_string(), RemovalLeft::Records)),
                }
            });
            let ended = move |result| ControlEvent::Removed { alloc, result };
            match clock::timeout(GC_DESTROY_WALL_MAX, &mut removed).await {
                Some(result) => FutureOutcome::ControlEvent(ended(result)),
                None => {
                    let why = format!("not done within {} s", GC_DESTROY_WALL_MAX.as_secs());
                    let slow = Err(NotRemoved { why, left: RemovalLeft::Unknown });
                    let rest = async move { FutureOutcome::ControlEvent(ended(removed.await)) };
                    FutureOutcome::Slow(ended(slow), Box::pin(rest))
                }
            }
        }));
    }

    /// Start the owner of an allocation, and follow it. An error gives the reason, for people.
    pub(super) fn make_owner(&mut self, alloc: Arc<Allocation>) -> Result<(), String> {
        let restored = self.restored.remove(&alloc.id);
        let trace = if restored.is_none() { self.trace_of(&alloc) } else { None };
        let context = AllocContext {
            facts: self.node_facts(),
            host_ip: self.shared.options.publisher.current().host_ip.to_string().into(),
            previous: self.previous_of(&alloc),
            network: NetworkSlot::default(),
            trace,
        };
        let node = Arc::clone(&self.shared.options.node);
        let start = AllocStart { node, context, allocation: alloc };
        let spawned = match restored {
            Some(restored) => AllocRunner::restore(start, restored),
            None => AllocRunner::spawn(start),
        };
        let handle = spawned.map_err(|error| error.to_string())?;
        self.shared.lock_node().owners.insert(handle.id(), handle.clone());
        self.follow(&handle);
        Ok(())
    }

    /// The trace of a new allocation, below the registration of its job. An allocation of an
    /// earlier agent has none.
    fn trace_of(&self, alloc: &Allocation) -> TracedAlloc {
        let now = self.shared.options.node.clock.now();
        let above = self.traces.trace_of_job(&alloc.job.id, now)?;
        let id = alloc.id.to_string();
        let (job, group) = (&alloc.job, alloc.group.as_str());
        Some(AllocTrace::start_trace(above, &id, job.id.as_str(), job.namespace(), group))
    }

    /// The owners of the earlier allocations of its place that are not over.
    fn previous_of(&self, allocation: &Allocation) -> Vec<PreviousAlloc> {
        let now = self.shared.lock_node();
        let before = now.machine.tables().earlier_allocs(allocation);
        let most = if planted("first-before-alone") { 1 } else { before.len() };
        let owners = before.iter().filter_map(|id| now.owners.get(id)).take(most);
        owners.map(PreviousAlloc::from_handle).collect()
    }

    /// The node as tasks see it. All allocations share one copy, as long as the node
    /// stays the same.
    fn node_facts(&mut self) -> Arc<NodeFacts> {
        let view = self.shared.options.publisher.current();
        let facts = match &self.facts {
            Some((of, facts)) if Arc::ptr_eq(of, &view) => return Arc::clone(facts),
            known => {
                let new = node_facts(&view);
                let same = known.as_ref().map(|(_, facts)| facts).filter(|facts| ***facts == new);
                same.map_or_else(|| Arc::new(new), Arc::clone)
            }
        };
        self.facts = Some((view, Arc::clone(&facts)));
        facts
    }
}

/// Remove what is left of the directory of an allocation.
fn remove_rest(root: &std::path::Path, alloc: AllocId) -> Result<(), String> {
    let removed = match root.join(alloc.to_string()).symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => AllocDir::destroy(root, alloc),
    };
    removed.map_err(|error| {
        format!(
            "its directory stays: {}; the next start of the agent tries again",
            causes::chain(&error)
        )
    })
}

fn node_facts(view: &NodeView) -> NodeFacts {
    NodeFacts {
        id: view.id.to_string(),
        name: view.name.clone(),
        datacenter: view.datacenter.clone(),
        class: String::new(),
        region: "global".to_owned(),
        pool: "default".to_owned(),
        attributes: view.attribute_texts(),
        meta: view.meta.clone(),
        host_volumes: view.host_volumes.clone(),
    }
}
