//! What happens on the node is noted, beside what makes it happen: nobody waits for it.
//!
//! ```text
//! changes of jobs, allocations, deployments ─┐ at most once a pace
//! the node's view: drivers, devices ─────────┼─► look ─► what is new since the last look (noting, pure) ─► NodeEvents
//! quarantines ───────────────────────────────┘                                         each period, if new ─► file
//! ```
//! What an earlier agent noted is not noted again: of what is seen for the first time only what is newer than
//! the newest event counts.

mod allocs;
mod noting;

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{AgentHandle, AgentMode, Inner};
use noting::Seen;
use ostler_control::ChangeOf;
use ostler_events::{EventTopic, EventsSeen, EventsWanted, NodeEvents, Noted};
use ostler_model::clock;
use ostler_model::limits::{
    EVENTS_ANSWERED_MAX, EVENTS_CHANGES_AT_ONCE, EVENTS_PACE, EVENTS_WRITE_PERIOD,
};
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

/// What happened, and that something about a quarantine did.
#[derive(Debug, Default)]
pub(super) struct EventFeed {
    kept: NodeEvents,
    quarantines: Arc<Notify>,
}

impl EventFeed {
    /// A quarantine began or ended: to be noted.
    pub(super) fn quarantines_changed(&self) {
        self.quarantines.notify_one();
    }
}

impl AgentHandle {
    /// What happened on the node, as far as it is kept.
    #[must_use]
    pub fn events(&self, wanted: &EventsWanted) -> EventsSeen {
        self.0.events.kept.seen(wanted, EVENTS_ANSWERED_MAX)
    }

    /// Grows with each event that is noted.
    #[must_use]
    pub fn events_grown(&self) -> watch::Receiver<u64> {
        self.0.events.kept.grown()
    }

    /// Note what happens until the agent ends, or nobody has it any more.
    pub(super) fn follow_events(&self) {
        if !self.0.mode.serves() {
            return;
        }
        let position = self.0.control.change_position(0);
        let (changes, views) = (self.0.control.changes(), self.0.node.subscribe());
        let (ended, grown) = (self.0.ended.clone(), self.0.events.kept.grown());
        let quarantines = Arc::clone(&self.0.events.quarantines);
        let weak = Arc::downgrade(&self.0);
        self.beside(async move {
            let durable = |inner: &Arc<Inner>| inner.mode == AgentMode::Durable;
            if let Some(inner) = weak.upgrade().filter(durable) {
                let kept = move || inner.events.kept.keep_in(&inner.data_dir);
                // An error means that the runtime ends.
                let _taken = tokio::task::spawn_blocking(kept).await;
            }
            let (wakes, noted) =
                (Wakes { changes, views, quarantines, ended }, CancellationToken::new());
            let noting = async {
                note(&weak, wakes, position).await;
                noted.cancel();
            };
            // What is noted while the agent leaves is written, too.
            tokio::join!(noting, write(&weak, grown, &noted));
        });
    }

    /// Note what changed since a position; where to go on, and whether there is more.
    fn note_changes(&self, seen: &mut Seen, position: u64) -> (u64, bool) {
        let found = self.0.control.changes_from(position, EVENTS_CHANGES_AT_ONCE);
        let now = self.0.clock.now();
        let mut noted: Vec<(Timestamp, Noted)> = Vec::new();
        if found.missed > 0 {
            let message = format!("{} changes came faster than they could be noted", found.missed);
            noted.push((now, of_node("missed", message)));
        }
        let (mut jobs, mut allocs, mut deployments) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for change in &found.changes {
            match &change.of {
                ChangeOf::Job(id, _) => drop(jobs.insert(id.clone())),
                ChangeOf::Alloc(id) => drop(allocs.insert(*id)),
                ChangeOf::Deployment(_, id) => drop(deployments.insert(id.clone())),
                ChangeOf::Node(kind) => {
                    noted.push((now, of_node(kind.subsystem(), kind.message().to_owned())));
                }
            }
        }
        for id in jobs {
            noted.extend(seen.job(&id, self.0.control.job(&id).as_ref(), now));
        }
        for id in allocs {
            match self.0.control.alloc(id) {
                Some(view) => seen.alloc(&view.allocation, &view.state, now, &mut noted),
                None => seen.alloc_gone(id),
            }
        }
        if !deployments.is_empty() {
            let all = self.0.control.deployments();
            let of = all.iter().filter(|(_, one)| deployments.contains(&one.id));
            of.for_each(|(job, one)| noted.extend(seen.deployment(&job.id, one, now)));
        }
        noted.sort_by_key(|(at, _)| *at);
        self.0.events.kept.note(noted);
        (found.position, found.changes.len() >= EVENTS_CHANGES_AT_ONCE)
    }

    fn note_view(&self, seen: &mut Seen) {
        let now = self.0.clock.now();
        let mut noted = seen.view(&self.0.node.current(), now);
        let quarantines: Vec<_> = self
            .meters()
            .iter()
            .map(|((_, name), meter)| (name.clone(), meter.quarantine()))
            .collect();
        noted.extend(seen.quarantines(quarantines, now));
        self.0.events.kept.note(noted);
    }
}

/// What there may be something to note after.
struct Wakes {
    changes: watch::Receiver<u64>,
    views: watch::Receiver<Arc<NodeView>>,
    quarantines: Arc<Notify>,
    ended: CancellationToken,
}

impl Wakes {
    /// Wait for one; false when the agent ends. The node is to be looked at where it, or a quarantine, woke.
    async fn next(&mut self, look: &mut bool) -> bool {
        let Self { changes, views, quarantines, ended } = self;
        // What comes meanwhile is looked at together.
        if ended.run_until_cancelled(clock::sleep(EVENTS_PACE)).await.is_none() {
            return false;
        }
        let woken = async {
            tokio::select! {
                changed = changes.changed() => changed.is_ok(),
                changed = views.changed() => {
                    *look = true;
                    changed.is_ok()
                }
                () = quarantines.notified() => {
                    *look = true;
                    true
                }
            }
        };
        ended.run_until_cancelled(woken).await.unwrap_or(false)
    }
}

/// Note what happens until the agent ends.
async fn note(agent: &Weak<Inner>, mut wakes: Wakes, mut position: u64) {
    let mut seen: Option<Seen> = None;
    let mut look = true;
    loop {
        wakes.changes.mark_unchanged();
        let Some(agent) = agent.upgrade().map(AgentHandle) else { return };
        let (events, now) = (&agent.0.events.kept, agent.0.clock.now());
        let seen = seen.get_or_insert_with(|| {
            let newest = events.newest_at().unwrap_or_default();
            let message = format!("the agent started, version {}", env!("CARGO_PKG_VERSION"));
            events.note([(now, of_node("started", message))]);
            Seen::new(newest, now)
        });
        let more;
        (position, more) = agent.note_changes(seen, position);
        if std::mem::take(&mut look) {
            agent.note_view(seen);
        }
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        drop(agent);
        if !wakes.next(&mut look).await {
            break;
        }
    }
    let Some(agent) = agent.upgrade().map(AgentHandle) else { return };
    if let Some(seen) = &mut seen {
        agent.note_changes(seen, position);
    }
    let leaves = of_node("leaves", "the agent leaves".to_owned());
    agent.0.events.kept.note([(agent.0.clock.now(), leaves)]);
}

/// Write events each period in which something was noted, and at the end.
async fn write(agent: &Weak<Inner>, mut grown: watch::Receiver<u64>, noted: &CancellationToken) {
    loop {
        let woken = noted.run_until_cancelled(grown.changed()).await;
        let more = matches!(woken, Some(Ok(())))
            && noted.run_until_cancelled(clock::sleep(EVENTS_WRITE_PERIOD)).await.is_some();
        grown.mark_unchanged();
        let Some(inner) = agent.upgrade() else { return };
        let written = tokio::task::spawn_blocking(move || inner.events.kept.write()).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "events are not written; tried again"),
            Err(error) => tracing::debug!(%error, "events are not written"),
        }
        if !more {
            return;
        }
    }
}

/// Something about the agent or the node.
fn of_node(kind: &str, message: String) -> Noted {
    Noted { topic: EventTopic::Node, kind: kind.to_owned(), message, ..Noted::default() }
}
