//! What the node takes, and how it is emptied.

use super::*;
use crate::node_drain::{DrainAsk, NodeAsk, NodeAskError};
use crate::reconcile::reason;
use crate::views::JobOptions;
use ostler_model::job::JobKind;
use ostler_model::scheduling::NodeEventKind;

pub(super) fn drain(deadline: Option<Duration>, ignore_system: bool) -> NodeAsk {
    NodeAsk::Drain(DrainAsk { deadline, ignore_system })
}

impl Play {
    pub(super) fn schedule(&mut self, asked: NodeAsk) -> Result<u64, NodeAskError> {
        let request = self.ask(ControlRequest::Schedule(asked));
        match self.answers.remove(&request) {
            Some(ControlAnswer::Scheduled(result)) => result,
            other => panic!("no answer: {other:?}"),
        }
    }

    fn stopping(&self) -> usize {
        let stopped = |o: &&FakeOwner| o.newest.desired == DesiredStatus::Stop && !o.ended;
        self.owners.values().filter(stopped).count()
    }

    fn events(&self) -> Vec<NodeEventKind> {
        self.machine.tables().scheduling().events.iter().map(|event| event.kind).collect()
    }

    pub(super) fn draining(&self) -> bool {
        self.machine.tables().scheduling().drain.is_some()
    }
}

#[test]
fn nothing_new_is_placed_on_a_node_that_is_not_eligible_until_it_is_and_a_restart_changes_nothing()
{
    let mut play = Play::new();
    play.register(&job("old", 1));
    play.schedule(NodeAsk::Eligible(false)).unwrap();
    let request = play.register(&job("web", 2));
    let change = play.changed(request).unwrap();
    let why = change.blocked[0].refusal.problems();
    assert!(why.contains("not eligible") && why.contains("eligibility --enable"), "{why}");
    assert_eq!((play.blocked("web"), play.live().len()), (2, 1), "what runs goes on");
    play.restart();
    assert_eq!((play.blocked("web"), play.live().len()), (2, 1));
    play.schedule(NodeAsk::Eligible(true)).unwrap();
    play.pass(SECOND);
    assert_eq!((play.blocked("web"), play.live().len()), (0, 3));
    assert_eq!(play.events(), [NodeEventKind::Ineligible, NodeEventKind::Eligible]);
}

#[test]
fn an_update_that_needs_a_new_allocation_waits_and_the_old_one_runs_on() {
    let mut play = Play::new();
    let web = job("web", 1);
    play.register(&web);
    play.schedule(NodeAsk::Eligible(false)).unwrap();
    let before = play.live();
    play.register(&changed(&web, "new"));
    assert_eq!(play.live(), before);
    let plan = play.machine.tables().plan(
        &World {
            now: play.now(),
            uptime: play.uptime,
            node: &play.view,
            rng: &play.rng,
            port_in_use: &|_| false,
        },
        &changed(&web, "newer"),
        JobOptions::default(),
    );
    assert!(plan.waiting[0].refusal.is_closed());
}

#[test]
fn a_drain_stops_one_of_each_group_after_the_other_and_leaves_the_node_ineligible() {
    let mut play = Play::new();
    play.register(&job("web", 3));
    play.register(&job("db", 1));
    play.schedule(drain(None, false)).unwrap();
    assert_eq!(play.stopping(), 2, "one of each");
    play.end_stopped();
    play.pass(SECOND);
    assert_eq!((play.stopping(), play.draining()), (1, true));
    play.end_stopped();
    play.pass(SECOND);
    play.end_stopped();
    play.pass(SECOND);
    assert_eq!((play.live().len(), play.draining()), (0, false));
    assert_eq!(play.events(), [NodeEventKind::DrainSet, NodeEventKind::DrainComplete]);
    assert!(play.machine.tables().scheduling().ineligible);
    assert_eq!((play.blocked("web"), play.blocked("db")), (3, 1), "they wait");
    let reasons = play.owners.values().map(|owner| &*owner.newest.desired_description);
    assert!(reasons.into_iter().all(|why| why == reason::MIGRATED));
    play.schedule(NodeAsk::Eligible(true)).unwrap();
    play.pass(SECOND);
    assert_eq!(play.live().len(), 4);
}

#[test]
fn at_its_deadline_a_drain_stops_the_rest_also_after_a_restart() {
    let mut play = Play::new();
    let batch = Job { kind: JobKind::Batch, ..job("sum", 2) };
    play.register(&batch);
    play.schedule(drain(Some(60 * SECOND), false)).unwrap();
    assert_eq!(play.stopping(), 0, "batch jobs may end by themselves");
    play.restart();
    assert!(play.draining());
    play.pass(70 * SECOND);
    assert_eq!(play.stopping(), 2);
    play.end_stopped();
    play.pass(SECOND);
    assert!(!play.draining());
}

#[test]
fn system_jobs_go_last_or_not_at_all() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.register(&Job { kind: JobKind::System, ..job("log", 1) });
    play.schedule(drain(None, true)).unwrap();
    play.end_stopped();
    play.pass(SECOND);
    assert_eq!((play.live().len(), play.draining()), (1, false), "left alone");
    play.schedule(drain(Some(Duration::ZERO), false)).unwrap();
    assert_eq!(play.stopping(), 1);
    play.end_stopped();
    play.pass(SECOND);
    assert_eq!((play.live().len(), play.draining()), (0, false));
}

#[test]
fn a_drain_that_is_ended_leaves_what_runs_and_places_again_if_that_is_wanted() {
    let mut play = Play::new();
    play.register(&job("web", 3));
    play.schedule(drain(None, false)).unwrap();
    let refused = play.schedule(NodeAsk::Eligible(true)).unwrap_err();
    assert!(matches!(refused, NodeAskError::Draining));
    play.schedule(NodeAsk::EndDrain { eligible: false }).unwrap();
    play.end_stopped();
    play.pass(SECOND);
    assert_eq!((play.live().len(), play.blocked("web")), (2, 1));
    play.schedule(NodeAsk::EndDrain { eligible: true }).unwrap();
    play.pass(SECOND);
    assert_eq!((play.live().len(), play.blocked("web")), (3, 0));
    let events = [NodeEventKind::DrainSet, NodeEventKind::DrainDisabled, NodeEventKind::Eligible];
    assert_eq!(play.events(), events);
}

#[test]
fn a_drain_that_cannot_be_written_stops_nothing() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.disk = Disk::Fails;
    let refused = play.schedule(drain(Some(Duration::ZERO), false)).unwrap_err();
    assert!(matches!(refused, NodeAskError::State(_)));
    assert_eq!((play.stopping(), play.draining()), (0, false));
    assert!(!play.machine.tables().scheduling().ineligible);
    let far = play.schedule(drain(Some(Duration::from_secs(u64::MAX)), false)).unwrap_err();
    assert!(far.to_string().contains("366 days"), "{far}");
}

#[test]
fn what_failed_for_good_gets_a_successor_when_that_is_asked() {
    let mut play = Play::new();
    let mut web = job("web", 1);
    web.groups[0].reschedule = ostler_model::rollout::ReschedulePolicy::NEVER;
    play.register(&web);
    let first = play.live()[0];
    play.report(first, ClientStatus::Failed, true);
    play.pass(SECOND);
    assert_eq!(play.live(), []);
    let request = play.change("web", JobAction::Fill);
    play.changed(request).unwrap();
    assert_eq!(play.live(), [], "nothing is left to do");
    let request = play.change("web", JobAction::Reschedule);
    assert_eq!(play.changed(request).unwrap().placed.len(), 1);
    let next = play.live()[0];
    let of = &play.owners[&next].newest;
    assert_eq!((of.previous, of.reschedules.len()), (Some(first), 1));
}
