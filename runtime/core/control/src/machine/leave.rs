//! How the node is drained, and left, at the end of its agent.
//!
//! ```text
//! Drain ─► every allocation told to stop ─► over ─► answered
//!            └─ deadline ─► killed ─► over, or not in time ─► answered
//! Leave ─► nothing new is taken ─► changes under way end, or not in time ─► answered
//! ```
//! A drained allocation is stopped for good; its job is not. So the next start puts a new one in
//! its place, with the old one's data where the group says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::change::LINGER;
use super::types::{ControlAnswer, ControlEffect, RequestId, World, Write, WriteWait};
use super::{AfterWrite, Machine, answer};
use crate::gc::choice::GcPolicy;
use crate::proposal::stopped_copy;
use crate::tables::{Ownership, PlacedBy};
use crate::views::AgentStage;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::AllocId;

/// How long the parts of an agent may take to end: they only write down what they know.
pub const LEAVE_WALL_MAX: Duration = Duration::from_secs(20);
/// How long allocations may take to end after their tasks were killed.
const DRAIN_KILLED_WALL_MAX: Duration = Duration::from_secs(10);

/// The drain under way and the requests to leave.
#[derive(Debug, Default)]
pub(super) struct LeaveState {
    drain: Option<Drain>,
    leave: Vec<RequestId>,
}

#[derive(Debug)]
struct Drain {
    request: RequestId,
    left: BTreeSet<AllocId>,
    killed: bool,
}

impl Machine {
    pub(super) fn become_ready(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        policy: Option<GcPolicy>,
        out: &mut Vec<ControlEffect>,
    ) {
        if self.tables.stage != AgentStage::Leaving {
            self.tables.stage = AgentStage::Ready;
            if let Some(policy) = policy {
                self.start_collector(world, policy, out);
            }
            self.node_drain_soon(world);
        }
        answer(request, ControlAnswer::Done, out);
    }

    fn close(&mut self, out: &mut Vec<ControlEffect>) {
        self.tables.stage = AgentStage::Leaving;
        self.refuse_waiting(out);
        self.refuse_collects(out);
    }

    /// Stop every allocation, in order, and kill what is left at the deadline.
    pub(super) fn drain(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        deadline: Duration,
        out: &mut Vec<ControlEffect>,
    ) {
        self.close(out);
        let index = self.tables.next_index();
        let reason = "alloc is stopped because the agent drains";
        let (mut left, mut newest, mut writes) = (BTreeSet::new(), Vec::new(), Vec::new());
        for entry in self.tables.unended_allocs() {
            let alloc = &entry.allocation;
            // An allocation without an owner cannot be stopped, so it is not waited for.
            if entry.owner != Ownership::Withheld {
                left.insert(alloc.id);
            }
            // A terminal allocation whose tasks have not all ended yet keeps its status.
            let runs = alloc.desired == DesiredStatus::Run && !entry.client_status().is_terminal();
            newest.push(if runs { stopped_copy(alloc, reason, index) } else { Arc::clone(alloc) });
        }
        for copy in newest.into_iter().filter(|copy| copy.desired == DesiredStatus::Stop) {
            if copy.modify_index == index {
                self.tables.put_alloc(Arc::clone(&copy), PlacedBy::Job, world.now);
                writes.push(Write::Alloc(Arc::clone(&copy)));
            }
            // The owner may not have been told yet of a stop by the change under way.
            self.tell(&copy, false, out);
        }
        self.write(
            AfterWrite::Nothing,
            writes,
            Vec::new(),
            WriteWait::Commit { linger: LINGER },
            out,
        );
        self.leaving.drain = Some(Drain { request, left, killed: false });
        self.alarms.set(Alarm::Drained, world.uptime.saturating_add(deadline));
        self.answer_drain(out);
    }

    /// An allocation is over, or was removed.
    pub(super) fn note_drained(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        if let Some(drain) = &mut self.leaving.drain {
            drain.left.remove(&id);
            self.answer_drain(out);
        }
    }

    fn answer_drain(&mut self, out: &mut Vec<ControlEffect>) {
        if let Some(drain) = self.leaving.drain.take_if(|drain| drain.left.is_empty()) {
            self.alarms.clear(&Alarm::Drained);
            answer(drain.request, ControlAnswer::Done, out);
        }
    }

    /// The deadline of the drain has passed.
    pub(super) fn pass_drain_deadline(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(drain) = &mut self.leaving.drain else { return };
        if drain.killed {
            tracing::error!("allocations did not end although they were killed");
            drain.left.clear();
            return self.answer_drain(out);
        }
        tracing::warn!("allocations did not end within the deadline and are killed");
        drain.killed = true;
        out.push(ControlEffect::KillTasks);
        // The second order to stop skips delays and poststop tasks.
        let reason = "the agent's deadline to drain has passed";
        out.extend(drain.left.iter().map(|alloc| ControlEffect::Hurry { alloc: *alloc, reason }));
        out.push(ControlEffect::KillTasks);
        self.alarms.set(Alarm::Drained, world.uptime.saturating_add(DRAIN_KILLED_WALL_MAX));
    }

    /// Accept no more changes, and end those under way.
    pub(super) fn leave(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        out: &mut Vec<ControlEffect>,
    ) {
        self.close(out);
        self.leaving.leave.push(request);
        if self.turns.is_empty() {
            self.answer_leave(out);
        } else {
            self.alarms.set(Alarm::Left, world.uptime.saturating_add(LEAVE_WALL_MAX));
        }
    }

    /// Answer the requests to leave: changes under way have ended, or their time is over.
    pub(super) fn answer_leave(&mut self, out: &mut Vec<ControlEffect>) {
        if !self.turns.is_empty() {
            tracing::warn!("changes of jobs did not end in time");
        }
        self.alarms.clear(&Alarm::Left);
        for request in std::mem::take(&mut self.leaving.leave) {
            answer(request, ControlAnswer::Done, out);
        }
    }

    /// The turn of a job has ended.
    pub(super) fn leave_if_idle(&mut self, out: &mut Vec<ControlEffect>) {
        if self.turns.is_empty() && !self.leaving.leave.is_empty() {
            self.answer_leave(out);
        }
    }
}
