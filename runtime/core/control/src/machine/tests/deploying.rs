//! A new version takes over step by step.

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::deployments::{DeploymentAsk, DeploymentError, description};
use ostler_model::job::HealthPolicy;
use ostler_model::rollout::{Deployment, DeploymentPhase, UpdatePolicy};

pub(super) fn service(name: &str, count: u32, update: UpdatePolicy) -> Job {
    let mut job = job(name, count);
    job.groups[0].health = Some(HealthPolicy::default());
    job.groups[0].update = Some(update);
    job
}

pub(super) fn parallel(max_parallel: u32) -> UpdatePolicy {
    UpdatePolicy { max_parallel, ..UpdatePolicy::default() }
}

pub(super) fn canaries(canary: u32) -> UpdatePolicy {
    UpdatePolicy { canary, ..parallel(2) }
}

impl Play {
    pub(super) fn newest(&self, job: &str) -> Arc<Deployment> {
        let job = JobId::new(job).unwrap();
        let entry = self.machine.tables().job(&job).unwrap();
        Arc::clone(entry.history.deployments.last().unwrap())
    }

    pub(super) fn phase(&self, job: &str) -> DeploymentPhase {
        self.newest(job).phase
    }

    pub(super) fn record(&self, job: &str) -> Arc<JobRecord> {
        Arc::clone(&self.machine.tables().job(&JobId::new(job).unwrap()).unwrap().record)
    }

    /// Live allocations of this version.
    pub(super) fn of_version(&self, version: u64) -> Vec<AllocId> {
        let of = |id: &AllocId| self.alloc(*id).job_version == version;
        self.live().into_iter().filter(of).collect()
    }

    pub(super) fn alloc(&self, id: AllocId) -> Arc<Allocation> {
        Arc::clone(&self.machine.tables().alloc(id).unwrap().allocation)
    }

    /// Every live allocation without a verdict is healthy.
    pub(super) fn all_healthy(&mut self) {
        for id in self.live() {
            if self.machine.tables().alloc(id).unwrap().verdict().is_none() {
                self.judge(id, true);
            }
        }
        self.pass(Duration::from_millis(1));
    }

    /// What is told to stop ends, what is new is healthy, until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..50 {
            self.end_stopped();
            self.all_healthy();
            self.pass(6 * SECOND);
        }
    }

    pub(super) fn ask_of(
        &mut self,
        job: &str,
        ask: DeploymentAsk,
    ) -> Result<DecidedChange, SubmitError> {
        let id = self.newest(job).id.clone();
        let request = self.change(job, JobAction::Deployment(id, ask));
        let result = self.changed(request);
        self.pass(Duration::from_millis(1));
        result
    }
}

/// A service of three whose first version is stable.
pub(super) fn three(update: UpdatePolicy) -> (Play, Job) {
    let mut play = Play::new();
    let first = service("a", 3, update);
    play.register(&first);
    assert_eq!(play.live().len(), 3, "the first version comes at once");
    assert_eq!(play.phase("a"), DeploymentPhase::Running);
    play.all_healthy();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    assert!(play.record("a").stable);
    (play, first)
}

#[test]
fn one_after_the_other_is_replaced_as_the_new_ones_become_healthy() {
    let (mut play, first) = three(parallel(1));
    play.register(&changed(&first, "1"));
    for step in 1..=3_usize {
        assert_eq!(play.of_version(0).len(), 3 - step, "one is told to stop");
        assert_eq!(play.of_version(1).len(), step);
        play.end_stopped();
        play.pass(10 * SECOND);
        assert_eq!(play.of_version(0).len(), 3 - step, "the new one is not healthy yet");
        assert_eq!(play.phase("a"), DeploymentPhase::Running);
        play.all_healthy();
    }
    let done = play.newest("a");
    let group = done.groups.values().next().unwrap();
    assert_eq!((group.desired_total, group.placed, group.healthy), (3, 3, 3));
    assert_eq!(
        (done.phase, &*done.description),
        (DeploymentPhase::Successful, description::SUCCESSFUL)
    );
    assert!(play.record("a").stable);
    assert_eq!(play.record("a").version, 1);
    let writes = play.writes;
    play.pass(1_000 * SECOND);
    assert_eq!(play.writes, writes, "nothing is left to do");
}

#[test]
fn without_a_number_all_are_replaced_at_once_and_nobody_judges() {
    let mut play = Play::new();
    let first = service("a", 3, parallel(0));
    play.register(&first);
    play.register(&changed(&first, "1"));
    assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (0, 3));
    let job = JobId::new("a").unwrap();
    assert!(play.machine.tables().job(&job).unwrap().history.deployments.is_empty());
}

#[test]
fn what_is_changed_in_place_is_judged_again() {
    let (mut play, first) = three(parallel(1));
    let mut rules = first;
    rules.groups[0].tasks[0].kill_timeout = 9 * SECOND;
    play.register(&rules);
    assert_eq!(play.of_version(1).len(), 3, "at once: nothing is replaced");
    assert_eq!(play.phase("a"), DeploymentPhase::Running);
    play.all_healthy();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    assert_eq!(play.newest("a").groups.values().next().unwrap().healthy, 3);
}

#[test]
fn nothing_healthy_in_time_fails_and_the_stable_version_comes_back() {
    for reverts in [false, true] {
        let (mut play, first) = three(UpdatePolicy { auto_revert: reverts, ..parallel(1) });
        play.register(&changed(&first, "1"));
        play.end_stopped();
        let new = play.of_version(1);
        play.judge(new[0], false);
        play.pass(500 * SECOND);
        assert_eq!(play.phase("a"), DeploymentPhase::Running, "until its deadline");
        assert_eq!(play.of_version(0).len(), 2, "nothing else is replaced meanwhile");
        play.pass(200 * SECOND);
        let job = JobId::new("a").unwrap();
        let all = play.machine.tables().job(&job).unwrap().history.deployments.clone();
        let failed = all.iter().find(|one| one.version == 1).unwrap();
        assert_eq!(failed.phase, DeploymentPhase::Failed);
        assert!(failed.description.starts_with(description::DEADLINE), "{}", failed.description);
        if !reverts {
            assert_eq!((play.of_version(0).len(), play.of_version(1)), (2, new));
            continue;
        }
        assert!(failed.description.ends_with("rolling back to job version 0"));
        let back = play.record("a");
        assert_eq!((back.version, &*back.job, back.stable), (2, &first, false));
        play.settle();
        assert_eq!(play.of_version(2).len(), 3);
        assert_eq!(play.phase("a"), DeploymentPhase::Successful);
        assert!(play.record("a").stable);
    }
}

#[test]
fn without_a_progress_deadline_what_is_unhealthy_fails_at_once() {
    let now = UpdatePolicy { progress_deadline: Duration::ZERO, ..parallel(1) };
    let (mut play, first) = three(now);
    play.register(&changed(&first, "1"));
    play.end_stopped();
    let new = play.of_version(1);
    play.judge(new[0], false);
    play.pass(SECOND);
    assert_eq!(play.phase("a"), DeploymentPhase::Failed);
    assert_eq!(play.newest("a").description, description::UNHEALTHY);
    play.pass(100 * SECOND);
    assert_eq!(play.of_version(0).len(), 2);
}

#[test]
fn canaries_run_beside_the_old_ones_until_they_are_accepted() {
    let (mut play, first) = three(canaries(1));
    play.register(&changed(&first, "1"));
    assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (3, 1));
    let canary = play.of_version(1)[0];
    assert!(play.alloc(canary).deployment.as_ref().unwrap().canary);
    assert_eq!(play.alloc(canary).previous, None, "it waits for nobody");
    assert!(play.machine.tables().earlier_allocs(&play.alloc(canary)).is_empty());
    assert_eq!(play.newest("a").description, description::NEEDS_PROMOTION);
    play.pass(10 * SECOND);
    let early = play.ask_of("a", DeploymentAsk::Promote(None)).unwrap_err();
    assert!(
        matches!(
            early,
            SubmitError::Deployment(DeploymentError::Unhealthy { healthy: 0, wanted: 1, .. })
        ),
        "{early}"
    );
    play.all_healthy();
    play.pass(2_000 * SECOND);
    assert_eq!(play.phase("a"), DeploymentPhase::Running, "it waits for somebody, however long");
    assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (3, 1));
    play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
    // The old one of the canary's place goes, and as many more as may.
    assert_eq!(play.of_version(0).len(), 0);
    assert_eq!(play.of_version(1).len(), 3);
    play.settle();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    assert_eq!(play.of_version(1).len(), 3);
    assert!(play.live().contains(&canary));
    assert!(!play.alloc(canary).deployment.as_ref().unwrap().canary, "it is one of many now");
    assert!(!play.owners[&canary].newest.deployment.as_ref().unwrap().canary, "and was told so");
    let again = play.ask_of("a", DeploymentAsk::Promote(None)).unwrap_err();
    assert!(matches!(again, SubmitError::Deployment(DeploymentError::Over(_))), "{again}");
}

#[test]
fn canaries_of_a_deployment_that_is_given_up_go_and_the_old_ones_stay() {
    for given_up in ["by somebody", "newer version", "deadline"] {
        let (mut play, first) = three(canaries(2));
        let old = play.live();
        play.register(&changed(&first, "1"));
        assert_eq!(play.of_version(1).len(), 2);
        match given_up {
            "by somebody" => drop(play.ask_of("a", DeploymentAsk::Fail).unwrap()),
            "deadline" => play.pass(700 * SECOND),
            _ => {
                play.register(&changed(&first, "2"));
                let job = JobId::new("a").unwrap();
                let all = play.machine.tables().job(&job).unwrap().history.deployments.clone();
                let cancelled = all.iter().find(|one| one.version == 1).unwrap();
                assert_eq!(cancelled.phase, DeploymentPhase::Cancelled);
                assert_eq!(cancelled.description, description::NEWER_JOB);
                assert_eq!(play.of_version(2).len(), 2, "its own canaries");
            }
        }
        assert_eq!(play.of_version(1), [], "{given_up}");
        assert_eq!(play.of_version(0), old, "{given_up}");
    }
}

#[test]
fn canaries_are_accepted_by_themselves_where_that_was_asked() {
    let (mut play, first) = three(UpdatePolicy { auto_promote: true, ..canaries(1) });
    play.register(&changed(&first, "1"));
    assert_eq!(play.newest("a").description, description::AUTO_PROMOTION);
    play.all_healthy();
    assert!(play.newest("a").groups.values().all(|group| group.promoted));
    play.settle();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
}

#[test]
fn what_fails_of_the_old_version_is_placed_again_as_it_was_while_canaries_wait() {
    let mut update = canaries(1);
    update.max_parallel = 1;
    let (mut play, mut first) = three(update);
    first.groups[0].reschedule = ostler_model::rollout::ReschedulePolicy {
        delay: Duration::from_secs(5),
        unlimited: true,
        ..ostler_model::rollout::ReschedulePolicy::NEVER
    };
    play.register(&first);
    play.settle();
    play.register(&changed(&first, "1"));
    let old = play.of_version(1);
    assert_eq!((old.len(), play.of_version(2).len()), (3, 1));
    play.report(old[0], ClientStatus::Failed, true);
    play.change("a", JobAction::StopAlloc { alloc: old[1], reason: "asked".into() });
    play.end_stopped();
    play.pass(6 * SECOND);
    let now = play.of_version(1);
    assert_eq!(now.len(), 3, "successors of their own version");
    assert!(!now.contains(&old[0]) && !now.contains(&old[1]));
    for id in now {
        assert!(
            play.machine.tables().earlier_allocs(&play.alloc(id)).is_empty(),
            "no canary is waited for"
        );
    }
    assert_eq!(play.of_version(2).len(), 1);
}

#[test]
fn a_deployment_can_be_halted_and_goes_on_with_its_time_anew() {
    let (mut play, first) = three(parallel(1));
    play.register(&changed(&first, "1"));
    play.ask_of("a", DeploymentAsk::Pause).unwrap();
    play.end_stopped();
    play.all_healthy();
    play.pass(5_000 * SECOND);
    assert_eq!((play.phase("a"), play.of_version(0).len()), (DeploymentPhase::Paused, 2));
    play.ask_of("a", DeploymentAsk::Resume).unwrap();
    assert_eq!((play.phase("a"), play.of_version(0).len()), (DeploymentPhase::Running, 1));
    play.settle();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
}

#[test]
fn a_job_that_is_stopped_cancels_what_is_on_its_way() {
    let (mut play, first) = three(canaries(1));
    play.register(&changed(&first, "1"));
    play.stop("a", false);
    assert_eq!(play.live(), []);
    assert_eq!(
        (play.phase("a"), &*play.newest("a").description),
        (DeploymentPhase::Cancelled, description::STOPPED_JOB)
    );
    play.stop("a", true);
    play.end_stopped();
    assert!(play.deployments.is_empty() && play.versions.is_empty());
}

#[test]
fn an_earlier_version_comes_back_when_somebody_asks() {
    let (mut play, first) = three(parallel(3));
    play.register(&changed(&first, "1"));
    play.settle();
    let revert = |version, enforce| JobAction::Revert { version, enforce, origin: JobOrigin::Api };
    for (version, enforce) in [(1, None), (7, None), (0, Some(0))] {
        let request = play.change("a", revert(version, enforce));
        let refused = play.changed(request).unwrap_err();
        assert!(
            matches!(
                refused,
                SubmitError::SameVersion { .. }
                    | SubmitError::Version { .. }
                    | SubmitError::OtherVersion { .. }
            ),
            "{refused}"
        );
    }
    let request = play.change("a", revert(0, Some(1)));
    play.changed(request).unwrap();
    assert_eq!((play.record("a").version, &*play.record("a").job), (2, &first));
    play.settle();
    let request = play.change("a", JobAction::Stable { version: 1, stable: false });
    play.changed(request).unwrap();
    let job = JobId::new("a").unwrap();
    let versions = play.machine.tables().job(&job).unwrap().history.versions.clone();
    let known: Vec<_> = versions.iter().map(|record| (record.version, record.stable)).collect();
    assert_eq!(known, [(0, true), (1, false)]);
}

#[test]
fn so_many_versions_are_kept_and_the_stable_one_among_them() {
    let (mut play, first) = three(canaries(1));
    for n in 0..20 {
        play.register(&changed(&first, &n.to_string()));
    }
    let job = JobId::new("a").unwrap();
    let history = play.machine.tables().job(&job).unwrap().history.clone();
    let known: Vec<_> = history.versions.iter().map(|record| record.version).collect();
    assert_eq!(known, [0, 16, 17, 18, 19], "and the present one");
    assert_eq!(history.deployments.len(), 6);
    assert_eq!(play.versions[&job].all.len(), 5);
}

#[test]
fn a_change_that_cannot_be_written_leaves_the_deployment_as_it_was() {
    let (mut play, first) = three(parallel(1));
    let job = JobId::new("a").unwrap();
    let before = play.machine.tables().job(&job).unwrap().history.clone();
    play.disk = Disk::Fails;
    let request = play.register(&changed(&first, "1"));
    play.pass(60 * SECOND);
    assert!(play.changed(request).is_err());
    assert_eq!(play.machine.tables().job(&job).unwrap().history, before);
    assert_eq!((play.record("a").version, play.of_version(0).len()), (0, 3));
}

#[test]
fn a_file_that_repeats_the_version_that_failed_does_not_bring_it_back() {
    let mut play = Play::new();
    let origin = JobOrigin::File("/jobs/a.hcl".into());
    let options = RegisterOptions { origin, ..RegisterOptions::default() };
    let update = UpdatePolicy { auto_revert: true, ..parallel(3) };
    let first = service("a", 3, update);
    let by_file = |job: &Job| JobAction::Version(Arc::new(job.clone()), options.clone());
    play.change("a", by_file(&first));
    play.settle();
    let bad = changed(&first, "bad");
    play.change("a", by_file(&bad));
    play.ask_of("a", DeploymentAsk::Fail).unwrap();
    play.settle();
    assert_eq!((play.record("a").version, &*play.record("a").job), (2, &first));
    play.change("a", by_file(&bad));
    assert_eq!(play.record("a").version, 2, "the file says nothing new");
    play.change("a", by_file(&changed(&first, "good")));
    assert_eq!(play.record("a").version, 3);
}

#[test]
fn a_system_job_replaces_one_group_after_the_other() {
    let mut play = Play::new();
    let mut first = job("s", 1);
    first.kind = ostler_model::job::JobKind::System;
    let group = |name: &str| TaskGroup {
        update: Some(UpdatePolicy { stagger: 20 * SECOND, ..parallel(1) }),
        ..fixtures::group(name, vec![task("t")]).unwrap()
    };
    first.groups = vec![group("g"), group("h"), group("i")];
    play.register(&first);
    assert_eq!(play.live().len(), 3);
    play.pass(60 * SECOND);
    let mut second = first.clone();
    second.groups.iter_mut().for_each(|g| drop(g.tasks[0].env.insert("A".into(), "1".into())));
    play.register(&second);
    for step in 1..=3 {
        assert_eq!(play.of_version(1).len(), step);
        play.pass(18 * SECOND);
        assert_eq!(play.of_version(1).len(), step, "not before its time");
        play.pass(3 * SECOND);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Version(u8),
    Healthy(prop::sample::Index),
    Unhealthy(prop::sample::Index),
    Fail(prop::sample::Index),
    EndStopped,
    Promote,
    GiveUp,
    Pause,
    Resume,
    StopAlloc(prop::sample::Index),
    Restart,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        3 => (0..4_u8).prop_map(Step::Version),
        8 => index().prop_map(Step::Healthy),
        1 => index().prop_map(Step::Unhealthy),
        1 => index().prop_map(Step::Fail),
        6 => proptest::strategy::Just(Step::EndStopped),
        3 => proptest::strategy::Just(Step::Promote),
        1 => proptest::strategy::Just(Step::GiveUp),
        1 => proptest::strategy::Just(Step::Pause),
        1 => proptest::strategy::Just(Step::Resume),
        1 => index().prop_map(Step::StopAlloc),
        2 => proptest::strategy::Just(Step::Restart),
        3 => (1..400_u16).prop_map(Step::Pass),
    ]
}

/// Places of the job that have nothing in them that was there before its present version, nor what is or was
/// healthy: what a user misses for that version.
fn missing(play: &Play, count: u32, once: &BTreeSet<AllocId>) -> u32 {
    let tables = play.machine.tables();
    let there = |index: u32| {
        tables.allocs().any(|entry| {
            let alloc = &entry.allocation;
            // Also one that runs on with the present version: nothing was stopped for that.
            let old = alloc.create_index < play.record("a").job_modify_index;
            // One that runs on with a new version is judged anew.
            let healthy = once.contains(&alloc.id);
            alloc.index == index
                && alloc.desired == DesiredStatus::Run
                && !entry.client_status().is_terminal()
                && (healthy || old)
        })
    };
    (0..count).filter(|index| !there(*index)).count().try_into().unwrap()
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(200))]

    #[test]
    fn never_are_more_missing_than_may_be_and_no_place_is_there_twice(
        steps in prop::collection::vec(step(), 1..60),
        max_parallel in 1..3_u32,
        canary in 0..3_u32,
        auto_revert in any::<bool>(),
        auto_promote in any::<bool>(),
    ) {
        let auto_promote = auto_promote && canary > 0;
        let update =
            UpdatePolicy { max_parallel, canary, auto_revert, auto_promote, ..UpdatePolicy::default() };
        let mut play = Play::new();
        let base = service("a", 4, update);
        play.register(&base);
        play.settle();
        let settled = play.live();
        // What failed or was stopped by somebody is missing for other reasons.
        let (mut excused, mut once) = (0, BTreeSet::from_iter(settled));
        for step in steps {
            let live = play.live();
            match step {
                Step::Version(n) => drop(play.register(&changed(&base, &n.to_string()))),
                Step::Healthy(at) if !live.is_empty() => play.judge(*at.get(&live), true),
                Step::Unhealthy(at) if !live.is_empty() => {
                    let id = *at.get(&live);
                    if play.machine.tables().alloc(id).unwrap().verdict().is_none() {
                        play.judge(id, false);
                        excused += 1;
                    }
                }
                Step::Fail(at) if !live.is_empty() => {
                    play.report(*at.get(&live), ClientStatus::Failed, true);
                    excused += 1;
                }
                Step::EndStopped => play.end_stopped(),
                Step::Promote => drop(play.ask_of("a", DeploymentAsk::Promote(None))),
                Step::GiveUp => drop(play.ask_of("a", DeploymentAsk::Fail)),
                Step::Pause => drop(play.ask_of("a", DeploymentAsk::Pause)),
                Step::Resume => drop(play.ask_of("a", DeploymentAsk::Resume)),
                Step::StopAlloc(at) if !live.is_empty() => {
                    let alloc = *at.get(&live);
                    play.change("a", JobAction::StopAlloc { alloc, reason: "x".into() });
                    excused += 1;
                }
                Step::Restart => play.restart(),
                Step::Pass(secs) => play.pass(SECOND * u32::from(secs)),
                _ => {}
            }
            play.pass(Duration::from_millis(1));
            let all = play.machine.tables().allocs();
            let healthy = all.filter(|entry| entry.verdict().is_some_and(|found| found.healthy));
            once.extend(healthy.map(|entry| entry.allocation.id));
            let missing = missing(&play, 4, &once);
            prop_assert!(missing <= max_parallel + excused, "{missing} are missing after {step:?}");
            let tables = play.machine.tables();
            let mut places = BTreeSet::new();
            for id in play.live() {
                let alloc = play.alloc(id);
                if !tables.is_canary(&alloc) {
                    prop_assert!(places.insert(alloc.index), "{} twice", alloc.name);
                }
                prop_assert!(alloc.index < 4 || tables.is_canary(&alloc), "{}", alloc.name);
            }
            let active = tables.job(&JobId::new("a").unwrap()).unwrap();
            let active = active.history.deployments.iter().filter(|one| one.phase.is_active());
            prop_assert!(active.count() <= 1);
        }
        // Left alone, a version that is healthy takes over.
        play.register(&changed(&base, "last"));
        if canary > 0 && !auto_promote {
            play.settle();
            drop(play.ask_of("a", DeploymentAsk::Promote(None)));
        }
        play.settle();
        prop_assert_eq!(play.phase("a"), DeploymentPhase::Successful);
        prop_assert_eq!(play.of_version(play.record("a").version).len(), 4);
        prop_assert_eq!(play.live().len(), 4);
    }
}
