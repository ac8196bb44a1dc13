//! What is planned is what happens then.

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Just;

use super::deploying::{parallel, service};
use super::*;
use crate::deployments::DeploymentAsk;
use crate::views::{GroupPlan, JobOptions, JobPlan};
use ostler_model::job::JobKind;
use ostler_model::rollout::{DeploymentPhase, ReschedulePolicy, UpdatePolicy};

impl Play {
    fn plan(&self, job: &Job) -> JobPlan {
        let world = World {
            now: self.now(),
            uptime: self.uptime,
            node: &self.view,
            rng: &self.rng,
            port_in_use: &|_| false,
        };
        // Planned with a copy, as the node does.
        self.machine.tables().copy_for_job(&job.id).plan(&world, job, JobOptions::default())
    }

    /// The place of each allocation that failed and is to run.
    fn failed(&self) -> Vec<(u32, AllocId)> {
        let all = self.machine.tables().allocs().filter(|entry| {
            let alloc = &entry.allocation;
            alloc.desired == DesiredStatus::Run && entry.client_status() == ClientStatus::Failed
        });
        let canaries = self.canaries();
        let all = all.filter(|entry| !canaries.contains(&entry.allocation.id));
        all.map(|entry| (entry.allocation.index, entry.allocation.id)).collect()
    }
}

impl Play {
    /// Those that nobody has accepted. One that was told to stop before was not accepted with the
    /// others.
    fn canaries(&self) -> BTreeSet<AllocId> {
        let tables = self.machine.tables();
        let waits = |alloc: &Allocation| {
            let history = tables.history(&alloc.job.id);
            let of = alloc.deployment.as_ref().filter(|of| of.canary);
            let stops = alloc.desired == DesiredStatus::Stop;
            of.is_some_and(|of| stops || history.awaits_promotion(&of.id, &alloc.group))
        };
        let all = tables.allocs().map(|entry| &entry.allocation);
        all.filter(|alloc| waits(alloc)).map(|alloc| alloc.id).collect()
    }
}

fn only_group(plan: &JobPlan) -> GroupPlan {
    assert_eq!(plan.groups.len(), 1);
    plan.groups.values().next().unwrap().clone()
}

/// A version of the job: its count, how it takes over, and a value whose change replaces what runs.
#[derive(Clone, Copy, Debug)]
struct Shape {
    count: u32,
    max_parallel: u32,
    canary: u32,
    value: u8,
    /// Too large for the node beside others.
    large: bool,
}

impl Shape {
    fn job(self) -> Job {
        let Self { count, max_parallel, canary, value, large } = self;
        let update = UpdatePolicy { canary, ..parallel(max_parallel) };
        let mut job = changed(&service("a", count, update), &value.to_string());
        job.groups[0].reschedule = ReschedulePolicy {
            delay: Duration::from_secs(5),
            unlimited: true,
            ..ReschedulePolicy::NEVER
        };
        job.groups[0].tasks[0].resources.memory_mb = if large { 300 } else { 100 };
        job
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    (1..5_u32, 0..3_u32, 0..3_u32, 0..3_u8, prop::bool::weighted(0.1)).prop_map(
        |(count, max_parallel, canary, value, large)| {
            let canary = if max_parallel == 0 { 0 } else { canary };
            Shape { count, max_parallel, canary, value, large }
        },
    )
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Version(Shape),
    Healthy(prop::sample::Index),
    Unhealthy(prop::sample::Index),
    Fail(prop::sample::Index),
    StopAlloc(prop::sample::Index),
    EndStopped,
    Promote,
    Pause,
    GiveUp,
    StopJob,
    Restart,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        6 => shape().prop_map(Step::Version),
        6 => index().prop_map(Step::Healthy),
        1 => index().prop_map(Step::Unhealthy),
        2 => index().prop_map(Step::Fail),
        1 => index().prop_map(Step::StopAlloc),
        4 => Just(Step::EndStopped),
        2 => Just(Step::Promote),
        1 => Just(Step::Pause),
        1 => Just(Step::GiveUp),
        1 => Just(Step::StopJob),
        1 => Just(Step::Restart),
        2 => (1..400_u16).prop_map(Step::Pass),
    ]
}

/// Register it, and compare with what was planned. Those that live on, and the plan.
fn registered_as_planned(play: &mut Play, job: &Job) -> (Vec<AllocId>, GroupPlan) {
    let (plan, live, failed, canaries) =
        (play.plan(job), play.live(), play.failed(), play.canaries());
    let counts = only_group(&plan);
    let request = play.register(job);
    let change = play.changed(request).unwrap();
    let number = |count: usize| u32::try_from(count).unwrap();
    let soon = change.blocked.iter().filter(|place| place.soon).count();
    let waiting = change.blocked.len() - soon;
    assert_eq!(counts.waiting, number(waiting), "{counts:?} {:?}", change.blocked);
    let placed = counts.place + counts.canary + counts.destructive;
    assert_eq!(placed, number(change.placed.len() + soon), "{counts:?}");
    assert_eq!(counts.in_place, number(change.updated_allocs().len()), "{counts:?}");
    let stopped: Vec<_> =
        change.stopped_allocs().into_iter().filter(|alloc| live.contains(alloc)).collect();
    assert_eq!(counts.stop + counts.destructive, number(stopped.len()), "{counts:?}");
    let gone = |id: &AllocId| stopped.contains(id) || change.updated_allocs().contains(id);
    let left: Vec<AllocId> = live.into_iter().filter(|id| !gone(id)).collect();
    // A failure that nothing is placed for stays as it is; canaries have no place that could be empty.
    let is_place = |alloc: &Allocation| !alloc.deployment.as_ref().is_some_and(|of| of.canary);
    let filled = change.placed.iter().filter(|alloc| is_place(alloc));
    let placed: BTreeSet<u32> = filled.map(|alloc| alloc.index).collect();
    let tables = play.machine.tables();
    let newest = |index: u32, id: AllocId| {
        let here = tables.allocs().map(|entry| &entry.allocation);
        let here = here.filter(|alloc| alloc.index == index && !canaries.contains(&alloc.id));
        let here = here.filter(|alloc| !change.placed.iter().any(|placed| placed.id == alloc.id));
        // Of a later version before one of an earlier one that was placed after it.
        let newest = here.max_by_key(|alloc| (alloc.job_version, alloc.create_index, alloc.id));
        newest.is_some_and(|alloc| alloc.id == id)
    };
    let stays = failed.iter().filter(|(index, id)| {
        let stopped = change.stopped_allocs().contains(id);
        !stopped && !placed.contains(index) && newest(*index, *id)
    });
    let soon: BTreeSet<u32> = change
        .blocked
        .iter()
        .filter(|place| place.soon && !place.canary)
        .map(|place| place.index)
        .collect();
    let stays = stays.filter(|(index, _)| !soon.contains(index)).count();
    assert_eq!(counts.ignore + counts.later, number(left.len() + stays), "{counts:?}");
    (left, counts)
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(300))]

    #[test]
    fn a_plan_counts_what_the_registration_then_does(
        steps in prop::collection::vec(step(), 0..25),
        last in shape(),
    ) {
        let mut play = Play::new();
        for step in steps {
            let live = play.live();
            match step {
                Step::Version(shape) => drop(registered_as_planned(&mut play, &shape.job())),
                Step::Healthy(at) if !live.is_empty() => play.judge(*at.get(&live), true),
                Step::Unhealthy(at) if !live.is_empty() => {
                    let id = *at.get(&live);
                    if play.machine.tables().alloc(id).unwrap().verdict().is_none() {
                        play.judge(id, false);
                    }
                }
                Step::Fail(at) if !live.is_empty() => {
                    play.report(*at.get(&live), ClientStatus::Failed, true);
                }
                Step::StopAlloc(at) if !live.is_empty() => {
                    let alloc = *at.get(&live);
                    play.change("a", JobAction::StopAlloc { alloc, reason: "x".into() });
                }
                Step::EndStopped => play.end_stopped(),
                Step::Promote => play.ask_newest(DeploymentAsk::Promote(None)),
                Step::Pause => play.ask_newest(DeploymentAsk::Pause),
                Step::GiveUp => play.ask_newest(DeploymentAsk::Fail),
                Step::StopJob => drop(play.stop("a", false)),
                Step::Restart => play.restart(),
                Step::Pass(secs) => play.pass(SECOND * u32::from(secs)),
                _ => {}
            }
            play.pass(Duration::from_millis(1));
        }
        play.end_stopped();
        let last = Shape { large: false, ..last };
        let (left, counts) = registered_as_planned(&mut play, &last.job());
        play.ask_newest(DeploymentAsk::Resume);
        play.settle();
        play.ask_newest(DeploymentAsk::Promote(None));
        play.settle();
        // What is not healthy ends the deployment when nothing became healthy for this long.
        play.pass(UpdatePolicy::default().progress_deadline);
        let phase = play.newest_phase();
        if counts.waiting == 0 && phase != Some(DeploymentPhase::Failed) {
            prop_assert!(phase.is_none_or(|phase| !phase.is_active()), "{phase:?}");
            let live = play.live();
            let gone = left.iter().filter(|id| !live.contains(id)).count();
            prop_assert_eq!(u32::try_from(gone).unwrap(), counts.later, "{:?}", counts);
            prop_assert!(live.len() == usize::try_from(last.count).unwrap());
        }
    }
}

impl Play {
    fn newest_phase(&self) -> Option<DeploymentPhase> {
        let entry = self.machine.tables().job(&JobId::new("a").unwrap())?;
        entry.history.deployments.last().map(|newest| newest.phase)
    }

    /// Ask it of the newest deployment, which may refuse it.
    fn ask_newest(&mut self, ask: DeploymentAsk) {
        if self.newest_phase().is_some() {
            drop(self.ask_of("a", ask));
        }
    }
}

#[test]
fn a_rolling_update_with_a_higher_count_tells_what_is_replaced_later() {
    let mut play = Play::new();
    let first = service("a", 4, parallel(1));
    play.register(&first);
    play.settle();
    let mut second = changed(&first, "1");
    second.groups[0].count = 5;
    let counts = only_group(&play.plan(&second));
    let expected = GroupPlan { place: 1, later: 4, ..GroupPlan::default() };
    assert_eq!(counts, expected);
}

#[test]
fn canaries_are_counted_and_what_they_may_replace_comes_later() {
    let mut play = Play::new();
    let first = service("a", 4, UpdatePolicy { canary: 2, ..parallel(1) });
    play.register(&first);
    play.settle();
    let counts = only_group(&play.plan(&changed(&first, "1")));
    assert_eq!(counts, GroupPlan { canary: 2, later: 4, ..GroupPlan::default() });
}

#[test]
fn a_canary_beyond_the_last_place_is_said_to_be_stopped_later() {
    let mut play = Play::new();
    let first = service("a", 1, UpdatePolicy { canary: 2, ..parallel(1) });
    play.register(&first);
    play.settle();
    let second = changed(&first, "1");
    play.register(&second);
    let canaries = play.of_version(1);
    let counts = only_group(&play.plan(&second));
    assert_eq!(counts, GroupPlan { later: 2, ignore: 1, ..GroupPlan::default() });
    play.settle();
    play.ask_newest(DeploymentAsk::Promote(None));
    play.settle();
    let live = play.live();
    assert_eq!(live.len(), 1);
    assert!(canaries.contains(&live[0]) && play.alloc(live[0]).index == 0);
}

#[test]
fn a_failure_counts_as_left_also_where_a_canary_ran_that_was_stopped_when_others_were_accepted() {
    let mut play = Play::new();
    let shape = Shape { count: 2, max_parallel: 0, canary: 0, value: 0, large: false };
    registered_as_planned(&mut play, &shape.job());
    let failed = play.live().into_iter().find(|id| play.alloc(*id).index == 1).unwrap();
    play.report(failed, ClientStatus::Failed, true);
    // The second canary runs beside the one that failed, in a place that goes.
    let shape = Shape { count: 1, max_parallel: 1, canary: 2, value: 1, large: false };
    registered_as_planned(&mut play, &shape.job());
    play.all_healthy();
    play.ask_newest(DeploymentAsk::Promote(None));
    assert_eq!((play.live().len(), play.of_version(1).len()), (1, 1));
    let shape = Shape { max_parallel: 0, canary: 0, ..shape };
    let (_, counts) = registered_as_planned(&mut play, &shape.job());
    assert_eq!(counts, GroupPlan { in_place: 1, ignore: 1, ..GroupPlan::default() });
}

#[test]
fn what_would_be_replaced_by_what_does_not_fit_is_not_said_to_be_replaced() {
    let mut play = Play::new();
    let first = service("a", 2, parallel(1));
    play.register(&first);
    play.settle();
    let mut large = first.clone();
    large.groups[0].tasks[0].resources.memory_mb = 5_000;
    let counts = only_group(&play.plan(&large));
    assert_eq!(counts, GroupPlan { later: 2, waiting: 1, ..GroupPlan::default() });
}

#[test]
fn a_batch_job_that_is_complete_is_run_again_only_when_that_is_asked() {
    let mut play = Play::new();
    let mut batch = job("b", 2);
    batch.kind = JobKind::Batch;
    play.register(&batch);
    for id in play.live() {
        play.end(id);
    }
    assert_eq!(only_group(&play.plan(&batch)), GroupPlan { ignore: 2, ..GroupPlan::default() });
    let again = play.register(&batch);
    let change = play.changed(again).unwrap();
    assert!(change.is_empty(), "nothing of it changed");
    let options = RegisterOptions { rerun: true, ..RegisterOptions::default() };
    let again = play.change("b", JobAction::Version(Arc::new(batch.clone()), options));
    let change = play.changed(again).unwrap();
    assert_eq!((change.placed.len(), change.stopped_allocs().len()), (2, 0));
    assert_eq!(change.record.unwrap().version, 1);
    // One is over, one runs: only the first is placed again.
    let live = play.live();
    play.end(live[0]);
    let options = RegisterOptions { rerun: true, ..RegisterOptions::default() };
    let again = play.change("b", JobAction::Version(Arc::new(batch), options));
    let change = play.changed(again).unwrap();
    assert_eq!(
        (change.placed.len(), change.updated_allocs().len(), change.stopped_allocs().len()),
        (1, 1, 0)
    );
    assert!(play.live().contains(&live[1]));
}
