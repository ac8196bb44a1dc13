#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use std::sync::Arc;

use ostler_model::rng::Rng;
use ostler_model::rollout::UpdatePolicy;
use ostler_model::saved::JobOrigin;
use ostler_testing::fixtures;

fn record(version: u64, stable: bool, env: &str) -> Arc<JobRecord> {
    let task = fixtures::task("t").unwrap();
    let alloc = fixtures::allocation(JobKind::Service, vec![task], &Rng::from_seed(1)).unwrap();
    let mut job = (*alloc.job).clone();
    job.groups[0].update = Some(UpdatePolicy::default());
    job.groups[0].tasks[0].env.insert("A".into(), env.into());
    Arc::new(JobRecord {
        job: Arc::new(job),
        version,
        submitted_at: Timestamp::default(),
        create_index: 5,
        modify_index: 5 + version,
        job_modify_index: 5 + version,
        stopped: false,
        origin: JobOrigin::Api,
        stable,
    })
}

fn running(record: &JobRecord) -> Deployment {
    let placed = GroupProgress { places: true, ..GroupProgress::default() };
    let group = record.job.groups[0].name.clone();
    begin_deployment("d", record, &BTreeMap::from([(group, placed)])).unwrap()
}

#[test]
fn a_version_that_changes_nothing_needs_no_deployment_and_a_count_of_zero_neither() {
    let record = record(1, false, "");
    let group = record.job.groups[0].name.clone();
    let with =
        |progress| begin_deployment("d", &record, &BTreeMap::from([(group.clone(), progress)]));
    assert_eq!(with(GroupProgress { done: true, known: true, ..GroupProgress::default() }), None);
    // Successors of what failed are no deployment.
    let more = GroupProgress { places: true, known: true, ..GroupProgress::default() };
    assert_eq!(with(more), None);
    assert!(with(GroupProgress { updates: true, ..more }).is_some());
    let stopped = JobRecord { stopped: true, ..(*record).clone() };
    assert_eq!(begin_deployment("d", &stopped, &BTreeMap::new()), None);
}

#[test]
fn what_became_healthy_moves_the_deadline_and_what_was_collected_still_counts() {
    let record = record(0, false, "");
    let group = record.job.groups[0].name.clone();
    let mut deployment = running(&record);
    let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
    let id = AllocId::new(uuid::Uuid::from_u128(1));
    let entrant = DeploymentEntrant { id, canary: false, follows: false };
    let entered = enter(&mut deployment, &group, entrant, at(100)).unwrap();
    assert_eq!((&*entered.id, entered.since, entered.canary), ("d", at(100), false));
    assert_eq!(deadline(&deployment, &[]), Some(at(700)));
    deployment.groups.get_mut(&group).unwrap().desired_total = 2;
    let healthy = AllocJudgement {
        id,
        group: group.clone(),
        canary: false,
        previous: None,
        standing: AllocStanding::Live,
        healthy: Some(true),
        judged_at: at(300),
    };
    assert_eq!(observe(&mut deployment, std::slice::from_ref(&healthy), at(301)), None);
    assert_eq!(deadline(&deployment, &[]), Some(at(900)));
    assert_eq!(observe(&mut deployment, &[], at(899)), None);
    assert_eq!(deployment.groups[&group].healthy, 1);
    assert_eq!(observe(&mut deployment, &[], at(900)), Some(false));
    assert_eq!(deployment.phase, DeploymentPhase::Failed);
    assert_eq!(observe(&mut deployment, &[healthy], at(901)), None, "once");
}

#[test]
fn the_newest_stable_version_comes_back_unless_it_is_the_same() {
    let mut history = History::default();
    let bad = record(3, false, "bad");
    assert_eq!(
        history.rollback(&bad, "x"),
        (None, "x - no stable job version to auto revert to".into())
    );
    history.supersede(record(0, true, "old"));
    history.supersede(record(1, true, "good"));
    history.supersede(record(2, false, "other"));
    let (back, text) = history.rollback(&bad, "x");
    assert_eq!(back.unwrap().version, 1);
    assert_eq!(text, "x - rolling back to job version 1");
    let same = record(4, false, "good");
    assert_eq!(history.rollback(&same, "x").0, None);
}

fn canary(
    n: u128,
    group: &GroupName,
    standing: AllocStanding,
    healthy: Option<bool>,
) -> AllocJudgement {
    AllocJudgement {
        id: AllocId::new(uuid::Uuid::from_u128(n)),
        group: group.clone(),
        canary: true,
        previous: None,
        standing,
        healthy,
        judged_at: Timestamp::default(),
    }
}

#[test]
fn canaries_that_are_not_there_any_more_are_not_accepted() {
    let record = record(0, false, "");
    let group = record.job.groups[0].name.clone();
    let mut deployment = running(&record);
    let deployed = deployment.groups.get_mut(&group).unwrap();
    (deployed.desired_canaries, deployed.auto_promote) = (2, true);
    let gone = canary(1, &group, AllocStanding::Stopped, Some(true));
    let healthy = canary(2, &group, AllocStanding::Live, Some(true));
    let pending = canary(3, &group, AllocStanding::Live, None);
    let mut all = vec![gone, healthy, pending];
    let now = Timestamp::from_nanos(1);
    observe(&mut deployment, &all, now);
    assert!(deployment.groups[&group].awaits_promotion());
    let refused = DeploymentAsk::Promote(None).apply(&mut deployment, &all, now).unwrap_err();
    assert!(matches!(refused, DeploymentError::Unhealthy { healthy: 1, wanted: 2, .. }));
    all[2].healthy = Some(true);
    observe(&mut deployment, &all, now);
    assert!(deployment.groups[&group].promoted);
}

#[test]
fn only_a_canary_that_follows_no_failure_has_the_whole_time() {
    let record = record(0, false, "");
    let group = record.job.groups[0].name.clone();
    let mut deployment = running(&record);
    deployment.groups.get_mut(&group).unwrap().desired_canaries = 1;
    let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
    let mut place = |n: u128, canary, follows, secs| {
        let id = AllocId::new(uuid::Uuid::from_u128(n));
        let entrant = DeploymentEntrant { id, canary, follows };
        enter(&mut deployment, &group, entrant, at(secs)).unwrap();
        deployment.groups[&group].require_progress_by
    };
    assert_eq!(place(1, true, false, 100), Some(at(700)));
    assert_eq!(place(2, true, true, 200), Some(at(700)), "the one before it failed");
    assert_eq!(place(3, true, false, 300), Some(at(900)));
    assert_eq!(place(4, false, false, 400), Some(at(900)), "no canary");
    deployment.groups.get_mut(&group).unwrap().promoted = true;
    let entrant = DeploymentEntrant {
        id: AllocId::new(uuid::Uuid::from_u128(5)),
        canary: true,
        follows: false,
    };
    enter(&mut deployment, &group, entrant, at(500)).unwrap();
    assert_eq!(deployment.groups[&group].require_progress_by, Some(at(900)));
}

#[test]
fn no_time_runs_for_a_canary_that_somebody_ended_until_its_replacement_is_placed() {
    let record = record(0, false, "");
    let group = record.job.groups[0].name.clone();
    let mut deployment = running(&record);
    let deployed = deployment.groups.get_mut(&group).unwrap();
    deployed.desired_canaries = 2;
    deployed.require_progress_by = Some(Timestamp::from_nanos(5));
    let by = deployed.require_progress_by;
    let healthy = || canary(1, &group, AllocStanding::Live, Some(true));
    let one = |standing| vec![healthy(), canary(2, &group, standing, None)];
    assert_eq!(deadline(&deployment, &[healthy()]), by, "the second was never placed");
    deployment.groups.get_mut(&group).unwrap().canaries =
        [1, 2].map(|n| AllocId::new(uuid::Uuid::from_u128(n))).to_vec();
    for (standing, expected) in [
        (AllocStanding::Live, by),
        (AllocStanding::Over, by),
        (AllocStanding::Followed, by),
        (AllocStanding::Stopped, None),
    ] {
        assert_eq!(deadline(&deployment, &one(standing)), expected, "{standing:?}");
    }
    assert_eq!(deadline(&deployment, &[healthy()]), None, "it was collected");
    // The one that follows is the one that counts.
    let mut followed = one(AllocStanding::Followed);
    let id = followed[1].id;
    let next = canary(3, &group, AllocStanding::Stopped, None);
    followed.push(AllocJudgement { previous: Some(id), ..next });
    assert_eq!(deadline(&deployment, &followed), None);
    followed[2].standing = AllocStanding::Live;
    assert_eq!(deadline(&deployment, &followed), by);
}

#[test]
fn a_canary_that_follows_one_that_failed_is_not_the_one_that_was_never_placed() {
    let record = record(0, false, "");
    let group = record.job.groups[0].name.clone();
    let mut deployment = running(&record);
    let by = Some(Timestamp::from_nanos(5));
    let failed = canary(1, &group, AllocStanding::Followed, Some(false));
    let healthy = canary(2, &group, AllocStanding::Live, Some(true));
    let next = AllocJudgement { previous: Some(failed.id), ..healthy };
    let deployed = deployment.groups.get_mut(&group).unwrap();
    (deployed.desired_canaries, deployed.require_progress_by) = (2, by);
    deployed.canaries = vec![failed.id, next.id];
    assert_eq!(deadline(&deployment, &[failed, next.clone()]), by);
    assert_eq!(deadline(&deployment, &[next]), by, "the first one was collected");
}

#[test]
fn a_canary_of_a_deployment_that_is_not_kept_any_more_was_never_accepted() {
    let group = record(0, false, "").job.groups[0].name.clone();
    assert!(History::default().awaits_promotion("d", &group));
}
