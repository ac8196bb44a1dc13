//! Notes the events of the node beside the work that causes them, so that nothing waits for it.
//!
//! ```text
//! changes of jobs, allocations, deployments ─┐ at most once a pace
//! the node's view: drivers, devices ─────────┼─► look ─► what is new since the last look (noting, pure) ─► NodeEvents
//! quarantines ───────────────────────────────┘                                         each period, if new ─► file
//! ```
//! What an earlier agent noted is not noted again: of things that are seen for the first time, only
//! those newer than the newest event count.

mod allocs;
mod noting;

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::events::{EventNote, EventTopic, EventsFilter, EventsPage, NodeEvents};
use super::{AgentHandle, AgentInner, AgentMode};
use noting::NotedState;
use ostler_control::ChangeSubject;
use ostler_model::clock;
use ostler_model::limits::{
    EVENTS_ANSWERED_MAX, EVENTS_CHANGES_AT_ONCE, EVENTS_PACE, EVENTS_WRITE_PERIOD,
};
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

/// The events so far, and the signal that a quarantine began or ended.
#[derive(Debug, Default)]
pub(super) struct EventFeed {
    kept: NodeEvents,
    quarantines: Arc<Notify>,
}

impl EventFeed {
    /// Signal that a quarantine began or ended, so that it is noted.
    pub(super) fn notify_quarantine_change(&self) {
        self.quarantines.notify_one();
    }
}

impl AgentHandle {
    /// The events of the node, as far as they are kept.
    #[must_use]
    pub fn events(&self, wanted: &EventsFilter) -> EventsPage {
        self.0.events.kept.find_events(wanted, EVENTS_ANSWERED_MAX)
    }

    /// A counter that grows with each event that is noted.
    #[must_use]
    pub fn events_growth(&self) -> watch::Receiver<u64> {
        self.0.events.kept.subscribe_newest()
    }

    /// Note events until the agent ends, or nobody holds it any more.
    pub(super) fn follow_events(&self) {
        if !self.0.mode.serves() {
            return;
        }
        let position = self.0.control.change_position(0);
        let (changes, views) = (self.0.control.changes(), self.0.node.subscribe());
        let (ended, grown) = (self.0.ended.clone(), self.0.events.kept.subscribe_newest());
        let quarantines = Arc::clone(&self.0.events.quarantines);
        let weak = Arc::downgrade(&self.0);
        self.spawn_beside(async move {
            let durable = |inner: &Arc<AgentInner>| inner.mode == AgentMode::Durable;
            if let Some(inner) = weak.upgrade().filter(durable) {
                let kept = move || inner.events.kept.keep_in(&inner.data_dir);
                // An error means that the runtime ends.
                let _taken = tokio::task::spawn_blocking(kept).await;
            }
            let (wakes, noted) =
                (Wakes { changes, views, quarantines, ended }, CancellationToken::new());
            let noting = async {
                note_events(&weak, wakes, position).await;
                noted.cancel();
            };
            // Events that are noted while the agent leaves are written too.
            tokio::join!(noting, write_events(&weak, grown, &noted));
        });
    }

    /// Note the changes since a position. Returns the position to go on at, and whether there
    /// is more.
    fn note_changes(&self, seen: &mut NotedState, position: u64) -> (u64, bool) {
        let found = self.0.control.changes_from(position, EVENTS_CHANGES_AT_ONCE);
        let now = self.0.context.clock.now();
        let mut noted: Vec<(Timestamp, EventNote)> = Vec::new();
        if found.missed > 0 {
            let message =
                format!("{} changes came faster than they could be recorded", found.missed);
            noted.push((now, node_event("missed", message)));
        }
        let (mut jobs, mut allocs, mut deployments) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for change in &found.changes {
            match &change.of {
                ChangeSubject::Job(id, _) => drop(jobs.insert(id.clone())),
                ChangeSubject::Alloc(id) => drop(allocs.insert(*id)),
                ChangeSubject::Deployment(_, id) => drop(deployments.insert(id.clone())),
                ChangeSubject::Node(kind) => {
                    noted.push((now, node_event(kind.subsystem(), kind.message().to_owned())));
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

    fn note_view(&self, seen: &mut NotedState) {
        let now = self.0.context.clock.now();
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

/// The signals after which there may be something to note.
struct Wakes {
    changes: watch::Receiver<u64>,
    views: watch::Receiver<Arc<NodeView>>,
    quarantines: Arc<Notify>,
    ended: CancellationToken,
}

impl Wakes {
    /// Wait for a signal. Returns false when the agent ends. Sets `look` if the node's view or a
    /// quarantine changed.
    async fn next(&mut self, look: &mut bool) -> bool {
        let Self { changes, views, quarantines, ended } = self;
        // Signals that come within this pause are handled together.
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

/// Note events until the agent ends.
async fn note_events(agent: &Weak<AgentInner>, mut wakes: Wakes, mut position: u64) {
    let mut seen: Option<NotedState> = None;
    let mut look = true;
    loop {
        wakes.changes.mark_unchanged();
        let Some(agent) = agent.upgrade().map(AgentHandle) else { return };
        let (events, now) = (&agent.0.events.kept, agent.0.context.clock.now());
        let seen = seen.get_or_insert_with(|| {
            let newest = events.newest_time().unwrap_or_default();
            let message = format!("the agent started, version {}", env!("CARGO_PKG_VERSION"));
            events.note([(now, node_event("started", message))]);
            NotedState::new(newest, now)
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
    let leaves = node_event("leaves", "the agent is shutting down".to_owned());
    agent.0.events.kept.note([(agent.0.context.clock.now(), leaves)]);
}

/// Write events in each period in which something was noted, and at the end.
async fn write_events(
    agent: &Weak<AgentInner>,
    mut grown: watch::Receiver<u64>,
    noted: &CancellationToken,
) {
    loop {
        let woken = noted.run_until_cancelled(grown.changed()).await;
        let more = matches!(woken, Some(Ok(())))
            && noted.run_until_cancelled(clock::sleep(EVENTS_WRITE_PERIOD)).await.is_some();
        grown.mark_unchanged();
        let Some(inner) = agent.upgrade() else { return };
        let written = tokio::task::spawn_blocking(move || inner.events.kept.write()).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "events could not be written; trying again"),
            Err(error) => tracing::debug!(%error, "events are not written"),
        }
        if !more {
            return;
        }
    }
}

/// An event about the agent or the node.
fn node_event(kind: &str, message: String) -> EventNote {
    EventNote { topic: EventTopic::Node, kind: kind.to_owned(), message, ..EventNote::default() }
}
