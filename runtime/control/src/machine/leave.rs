//! How the node comes to its end.
//!
//! ```text
//!   Drain ─► every allocation told to stop ─► over ─► answered
//!              └─ deadline ─► killed ─► over, or not in time ─► answered
//!   Leave ─► nothing new is taken ─► changes under way end, or not in time ─► answered
//! ```
//! A drained allocation is stopped for good; its job is not. So the next start puts a new one in
//! its place, with the old one's data where the group says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::change::LINGER;
use super::types::{Answer, ControlEffect, RequestId, Wait, World, Write};
use super::{AfterWrite, Machine, answer};
use crate::gc::choice::GcPolicy;
use crate::proposal::stopped_copy;
use crate::tables::{Ownership, PlacedBy};
use crate::views::Stage;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::AllocId;

/// How long whatever ends with the agent may take to do so: it only writes down what it knows.
pub const LEAVE_WALL_MAX: Duration = Duration::from_secs(20);
/// How long allocations may take to end once their tasks were killed.
const DRAIN_KILLED_WALL_MAX: Duration = Duration::from_secs(10);

/// What leaves.
#[derive(Debug, Default)]
pub(super) struct Leaving {
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
    pub(super) fn ready(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        policy: Option<GcPolicy>,
        out: &mut Vec<ControlEffect>,
    ) {
        if self.tables.stage != Stage::Leaving {
            self.tables.stage = Stage::Ready;
            if let Some(policy) = policy {
                self.collect_by(world, policy, out);
            }
            self.node_drain_soon(world);
        }
        answer(request, Answer::Done, out);
    }

    fn close(&mut self, out: &mut Vec<ControlEffect>) {
        self.tables.stage = Stage::Leaving;
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
        for entry in self.tables.not_ended() {
            let alloc = &entry.allocation;
            // An allocation without an owner cannot be stopped, and is not waited for.
            if entry.owner != Ownership::Withheld {
                left.insert(alloc.id);
            }
            // A terminal one whose tasks are still on their way out keeps its status.
            let runs = alloc.desired == DesiredStatus::Run && !entry.client_status().terminal();
            newest.push(if runs { stopped_copy(alloc, reason, index) } else { Arc::clone(alloc) });
        }
        for copy in newest.into_iter().filter(|copy| copy.desired == DesiredStatus::Stop) {
            if copy.modify_index == index {
                self.tables.put_alloc(Arc::clone(&copy), PlacedBy::Job, world.now);
                writes.push(Write::Alloc(Arc::clone(&copy)));
            }
            // What a change under way stops may not have been told yet.
            self.tell(&copy, false, out);
        }
        self.write(AfterWrite::Nothing, writes, Vec::new(), Wait::Commit { linger: LINGER }, out);
        self.leaving.drain = Some(Drain { request, left, killed: false });
        self.alarms.set(Alarm::Drained, world.uptime.saturating_add(deadline));
        self.drained(out);
    }

    /// An allocation is over, or gone.
    pub(super) fn drained_one(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        if let Some(drain) = &mut self.leaving.drain {
            drain.left.remove(&id);
            self.drained(out);
        }
    }

    fn drained(&mut self, out: &mut Vec<ControlEffect>) {
        if let Some(drain) = self.leaving.drain.take_if(|drain| drain.left.is_empty()) {
            self.alarms.clear(&Alarm::Drained);
            answer(drain.request, Answer::Done, out);
        }
    }

    /// The deadline has passed.
    pub(super) fn drain_ended(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(drain) = &mut self.leaving.drain else { return };
        if drain.killed {
            tracing::error!("allocations did not end although they were killed");
            drain.left.clear();
            return self.drained(out);
        }
        tracing::warn!("allocations did not end within the deadline and are killed");
        drain.killed = true;
        out.push(ControlEffect::KillTasks);
        // The second stop skips delays and poststop tasks.
        let reason = "the agent's deadline to drain has passed";
        out.extend(drain.left.iter().map(|alloc| ControlEffect::Hurry { alloc: *alloc, reason }));
        out.push(ControlEffect::KillTasks);
        self.alarms.set(Alarm::Drained, world.uptime.saturating_add(DRAIN_KILLED_WALL_MAX));
    }

    /// Take no more changes, and end those under way.
    pub(super) fn leave(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        out: &mut Vec<ControlEffect>,
    ) {
        self.close(out);
        self.leaving.leave.push(request);
        if self.turns.is_empty() {
            self.left(out);
        } else {
            self.alarms.set(Alarm::Left, world.uptime.saturating_add(LEAVE_WALL_MAX));
        }
    }

    /// Changes under way have ended, or have had their time.
    pub(super) fn left(&mut self, out: &mut Vec<ControlEffect>) {
        if !self.turns.is_empty() {
            tracing::warn!("changes of jobs did not end in time");
        }
        self.alarms.clear(&Alarm::Left);
        for request in std::mem::take(&mut self.leaving.leave) {
            answer(request, Answer::Done, out);
        }
    }

    /// The turn of a job is free.
    pub(super) fn turn_ended_while_leaving(&mut self, out: &mut Vec<ControlEffect>) {
        if self.turns.is_empty() && !self.leaving.leave.is_empty() {
            self.left(out);
        }
    }
}
