//! What fails gets successors, as its policy says.

use super::*;
use ostler_model::rollout::{DelayFunction, ReschedulePolicy};

/// A job whose failed allocations get successors by this policy.
fn followed(name: &str, count: u32, policy: ReschedulePolicy) -> Job {
    let mut job = job(name, count);
    job.groups[0].reschedule = policy;
    job
}

fn endless(delay: u64) -> ReschedulePolicy {
    ReschedulePolicy {
        delay: Duration::from_secs(delay),
        delay_function: DelayFunction::Exponential,
        max_delay: Duration::from_secs(100),
        unlimited: true,
        ..ReschedulePolicy::NEVER
    }
}

fn only(play: &Play) -> AllocId {
    let live = play.live();
    assert_eq!(live.len(), 1, "{live:?}");
    live[0]
}

impl Play {
    fn fail(&mut self, alloc: AllocId) {
        self.report(alloc, ClientStatus::Failed, true);
        self.pass(Duration::from_millis(1));
    }

    fn entry(&self, alloc: AllocId) -> &crate::AllocEntry {
        self.machine.tables().alloc(alloc).unwrap()
    }

    fn later(&self, job: &str) -> Vec<AllocId> {
        let job = JobId::new(job).unwrap();
        self.machine.tables().job(&job).unwrap().later.keys().copied().collect()
    }
}

#[test]
fn what_failed_gets_a_successor_after_its_delay_and_the_next_one_later() {
    let mut play = Play::new();
    play.register(&followed("a", 1, endless(10)));
    let first = only(&play);
    play.fail(first);
    assert_eq!((play.live(), play.later("a")), (vec![], vec![first]));
    assert_eq!(play.status("a"), Some(JobStatus::Pending));
    play.pass(9 * SECOND);
    assert_eq!(play.live(), []);
    play.pass(2 * SECOND);
    let second = only(&play);
    let (old, new) = (play.entry(first).allocation.clone(), play.entry(second).allocation.clone());
    assert_eq!((new.previous, new.index), (Some(first), old.index));
    assert_eq!(old.desired, DesiredStatus::Stop, "its place is another one's");
    assert_eq!(old.desired_description, crate::reconcile::reason::RESCHEDULED);
    assert_eq!(new.reschedules.len(), 1);
    assert_eq!(new.reschedules[0].previous, first);
    assert_eq!(new.reschedules[0].delay, 10 * SECOND);
    assert_eq!(play.later("a"), []);
    play.fail(second);
    play.pass(19 * SECOND);
    assert_eq!(play.live(), []);
    play.pass(2 * SECOND);
    let third = only(&play);
    let delays: Vec<_> =
        play.entry(third).allocation.reschedules.iter().map(|event| event.delay).collect();
    assert_eq!(delays, [10 * SECOND, 20 * SECOND]);
}

#[test]
fn a_limited_number_of_successors_is_not_exceeded_and_what_ended_well_gets_none() {
    let mut play = Play::new();
    let twice = ReschedulePolicy {
        attempts: 1,
        interval: Duration::from_secs(3_600),
        unlimited: false,
        ..endless(5)
    };
    play.register(&followed("a", 1, twice));
    play.fail(only(&play));
    play.pass(6 * SECOND);
    play.fail(only(&play));
    play.pass(4_000 * SECOND);
    assert_eq!(play.live(), []);
    assert_eq!(play.status("a"), Some(JobStatus::Dead));
    play.register(&followed("b", 1, endless(5)));
    play.end(only(&play));
    play.pass(100 * SECOND);
    assert_eq!(play.live(), []);
}

#[test]
fn what_is_stopped_is_replaced_at_once_and_of_a_stopped_job_nothing_is_placed() {
    let mut play = Play::new();
    play.register(&followed("a", 1, endless(10)));
    let first = only(&play);
    play.change("a", JobAction::StopAlloc { alloc: first, reason: "asked".into() });
    play.report(first, ClientStatus::Failed, true);
    let second = only(&play);
    assert!(play.entry(second).allocation.reschedules.is_empty(), "it is no attempt");
    play.fail(second);
    play.stop("a", false);
    play.pass(100 * SECOND);
    assert_eq!((play.live(), play.later("a")), (vec![], vec![]));
    let mut run = followed("r", 1, endless(5));
    run.id = JobId::new("r").unwrap();
    let options = RegisterOptions {
        origin: JobOrigin::Run,
        all_or_nothing: true,
        ..RegisterOptions::default()
    };
    play.change("r", JobAction::Version(Arc::new(run), options));
    play.fail(only(&play));
    play.pass(100 * SECOND);
    assert_eq!(play.live(), [], "a run ends with what it ran");
}

#[test]
fn the_time_of_a_successor_is_the_same_after_a_restart() {
    let mut play = Play::new();
    play.register(&followed("a", 1, endless(30)));
    let first = only(&play);
    play.fail(first);
    play.pass(10 * SECOND);
    play.restart();
    assert_eq!((play.live(), play.later("a")), (vec![], vec![first]));
    play.pass(18 * SECOND);
    assert_eq!(play.live(), []);
    play.pass(2 * SECOND);
    let second = only(&play);
    play.restart();
    assert_eq!(only(&play), second, "once");
    assert_eq!(play.entry(second).allocation.reschedules[0].delay, 30 * SECOND);
    // While no agent runs its time comes.
    play.fail(second);
    play.uptime += 100 * SECOND;
    play.restart();
    assert_ne!(only(&play), second);
}

#[test]
fn one_that_waits_for_its_successor_is_not_collected_and_its_place_is_not_over() {
    let mut play = Play::new();
    play.register(&followed("a", 1, endless(10)));
    let first = only(&play);
    play.fail(first);
    play.ask(ControlRequest::Collect(None));
    assert!(play.machine.tables().alloc(first).is_some());
    play.pass(11 * SECOND);
    let second = only(&play);
    // Its successor waits for its data until it runs.
    play.report(second, ClientStatus::Running, false);
    play.ask(ControlRequest::Collect(None));
    assert!(play.machine.tables().alloc(first).is_none());
    assert_eq!(only(&play), second);
    play.fail(second);
    play.pass(30 * SECOND);
    assert_ne!(only(&play), second);
}

#[test]
fn a_successor_that_does_not_fit_waits_with_the_reason() {
    let mut play = Play::new();
    play.register(&followed("a", 1, endless(10)));
    let first = only(&play);
    play.fail(first);
    play.register(&job("b", 10));
    play.pass(11 * SECOND);
    assert_eq!((play.live().len(), play.blocked("a")), (10, 1));
    assert_eq!(play.entry(first).allocation.desired, DesiredStatus::Run, "it keeps its place");
    play.stop("b", false);
    play.end_stopped();
    play.pass(6 * SECOND);
    let second = only(&play);
    assert_eq!(play.entry(second).allocation.previous, Some(first));
    assert_eq!(play.entry(second).allocation.reschedules.len(), 1);
}
