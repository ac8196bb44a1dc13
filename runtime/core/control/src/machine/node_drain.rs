//! Whether the node takes new allocations, and its drain.
//!
//! ```text
//!   Schedule ─► entered ─► Write ─┬─ durable ─► Answer ─► eligible: places that wait are filled
//!                                 │                       draining: a step ─► StopAlloc … ─┐
//!                                 └─ failed ─► as before ─► Answer                         │
//!   an allocation is over, deadline, restart ─► the next step ◄────────────────────────────┘
//!                                                 └─ nothing left ─► the drain is complete, Write
//! ```

use std::time::Duration;

use super::types::{ControlAnswer, ControlEffect, JobAction, RequestId, World, Write, WriteWait};
use super::{AfterWrite, Machine, alarms::Alarm, answer, change::LINGER};
use crate::node_drain::{DrainAsk, LiveAlloc, NodeAsk, NodeAskError, next_drain_step};
use crate::reconcile::reason;
use crate::tables::AllocEntry;
use crate::views::AgentStage;
use ostler_model::alloc::DesiredStatus;
use ostler_model::limits::NODE_DRAIN_DEADLINE_MAX;
use ostler_model::scheduling::{DrainDeadline, NodeDrain, NodeEventKind, NodeScheduling};
use ostler_model::time::Timestamp;
use ostler_state::StateError;

/// How long a step may take before it is checked again.
const STEP_RETRY: Duration = Duration::from_secs(5);

/// A change of the node that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingNodeChange {
    request: RequestId,
    before: NodeScheduling,
    /// The index of this change.
    index: u64,
}

impl Machine {
    /// Take a request about the node: whether it takes new allocations, or is to be drained.
    pub(super) fn ask_node(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        asked: NodeAsk,
        out: &mut Vec<ControlEffect>,
    ) {
        let refused = match asked {
            _ if self.tables.stage == AgentStage::Leaving => Some(NodeAskError::Leaving),
            NodeAsk::Eligible(true) if self.tables.scheduling().drain.is_some() => {
                Some(NodeAskError::Draining)
            }
            NodeAsk::Drain(DrainAsk { deadline: Some(most), .. })
                if most > NODE_DRAIN_DEADLINE_MAX =>
            {
                Some(NodeAskError::Deadline { most: NODE_DRAIN_DEADLINE_MAX })
            }
            _ => None,
        };
        if let Some(error) = refused {
            return answer(request, ControlAnswer::Scheduled(Err(error)), out);
        }
        let before = self.tables.scheduling().clone();
        self.enter_ask(world, asked, &before);
        let index = self.tables.scheduling().modify_index;
        let then = AfterWrite::Scheduled(Box::new(PendingNodeChange { request, before, index }));
        // The state is written also when nothing changed, because an earlier write may have failed.
        let writes = vec![self.scheduling_write()];
        self.write(then, writes, Vec::new(), WriteWait::Commit { linger: LINGER }, out);
    }

    fn enter_ask(&mut self, world: &World<'_>, asked: NodeAsk, before: &NodeScheduling) {
        let now = world.now;
        match asked {
            NodeAsk::Eligible(eligible) => self.enter_eligible(eligible, now),
            NodeAsk::Drain(ask) => {
                let drain = drain_of(ask, now);
                let kind = match before.drain {
                    Some(_) => NodeEventKind::DrainUpdated,
                    None => NodeEventKind::DrainSet,
                };
                self.tables.schedule(kind, now, |node| {
                    node.ineligible = true;
                    node.drain = Some(drain);
                });
            }
            NodeAsk::EndDrain { eligible } => {
                if before.drain.is_some() {
                    self.tables.schedule(NodeEventKind::DrainDisabled, now, |node| {
                        node.drain = None;
                    });
                }
                if eligible {
                    self.enter_eligible(true, now);
                }
            }
        }
    }

    fn enter_eligible(&mut self, eligible: bool, now: Timestamp) {
        if self.tables.scheduling().ineligible == eligible {
            let kind = if eligible { NodeEventKind::Eligible } else { NodeEventKind::Ineligible };
            self.tables.schedule(kind, now, |node| node.ineligible = !eligible);
        }
    }

    fn scheduling_write(&self) -> Write {
        Write::Scheduling(Box::new(self.tables.scheduling().clone()))
    }

    /// A change of the node is durable, or could not be written.
    pub(super) fn finish_schedule(
        &mut self,
        world: &World<'_>,
        then: PendingNodeChange,
        result: Result<(), StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        let PendingNodeChange { request, before, index } = then;
        let result = match result {
            Ok(()) => Ok(index),
            Err(error) => {
                // A later change of the node has its own answer.
                if self.tables.scheduling().modify_index == index {
                    self.tables.restore_scheduling(before);
                    self.tables.next_index();
                }
                Err(NodeAskError::State(error))
            }
        };
        self.wake(world);
        self.node_drain(world, out);
        answer(request, ControlAnswer::Scheduled(result), out);
    }

    /// Take the next step of the drain soon, where there is a drain.
    pub(super) fn node_drain_soon(&mut self, world: &World<'_>) {
        if self.tables.scheduling().drain.is_some() {
            self.alarms.set_by(Alarm::NodeDrain, world.uptime);
        }
    }

    /// Take the next step of the drain.
    pub(super) fn node_drain(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        self.alarms.clear(&Alarm::NodeDrain);
        let Some(drain) = self.tables.scheduling().drain else { return };
        // Before all owners are made it is not known what is left.
        if self.tables.stage != AgentStage::Ready {
            return;
        }
        let forced = drain.is_forced(world.now);
        if let DrainDeadline::After { at, .. } = drain.deadline
            && !forced
        {
            let left: Duration = at.since(world.now);
            self.alarms.set(Alarm::NodeDrain, world.uptime.saturating_add(left));
        }
        let mut entries: Vec<&AllocEntry> = self
            .tables
            .unended_allocs()
            .filter(|entry| entry.is_registered() && !entry.client_status().is_terminal())
            .collect();
        entries.sort_by_key(|entry| entry.age());
        let live: Vec<LiveAlloc<'_>> = entries.into_iter().map(live_alloc).collect();
        let step = next_drain_step(&live, forced, drain.ignore_system);
        let stops = live.iter().filter(|alloc| step.stop.contains(&alloc.id));
        let stops: Vec<_> = stops.map(|alloc| (alloc.job.clone(), alloc.id)).collect();
        if !stops.is_empty() {
            // A stop that finds no room in the queue of changes is asked for again.
            self.alarms.set_by(Alarm::NodeDrain, world.uptime.saturating_add(STEP_RETRY));
        }
        for (job, alloc) in stops {
            let asked = JobAction::StopAlloc { alloc, reason: reason::MIGRATED.to_owned() };
            self.ask_change(world, job, asked, false, None, out);
        }
        if step.done {
            self.alarms.clear(&Alarm::NodeDrain);
            self.tables.schedule(NodeEventKind::DrainComplete, world.now, |node| {
                node.drain = None;
            });
            // Blocked places give the drain as their reason, so they are tried again.
            self.wake(world);
            let writes = vec![self.scheduling_write()];
            // If this write is lost, the next start finds a drain with nothing left.
            let wait = WriteWait::Commit { linger: LINGER };
            self.write(AfterWrite::Nothing, writes, Vec::new(), wait, out);
        }
    }
}

fn drain_of(ask: DrainAsk, now: Timestamp) -> NodeDrain {
    let deadline = match ask.deadline {
        None => DrainDeadline::Never,
        Some(length) if length.is_zero() => DrainDeadline::AtOnce,
        Some(length) => DrainDeadline::After { length, at: now.plus(length) },
    };
    NodeDrain { deadline, ignore_system: ask.ignore_system, started_at: now }
}

fn live_alloc(entry: &AllocEntry) -> LiveAlloc<'_> {
    let alloc = &entry.allocation;
    LiveAlloc {
        id: alloc.id,
        job: &alloc.job.id,
        kind: alloc.job.kind,
        group: &alloc.group,
        stopping: alloc.desired == DesiredStatus::Stop,
        parallel: alloc.task_group().map_or(1, |group| group.migrate_parallel),
    }
}
