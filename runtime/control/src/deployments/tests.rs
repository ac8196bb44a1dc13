#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use std::sync::Arc;

use ostler_model::rng::Rng;
use ostler_model::rollout::UpdatePolicy;
use ostler_model::saved::JobOrigin;
use ostler_testing::fixtures;

fn record(version: u64, stable: bool, env: &str) -> Arc<JobRecord> {
    let task = fixtures::task("t").unwrap();
    let alloc = fixtures::allocation(JobKind::Service, vec![task], &Rng::seeded(1)).unwrap();
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
    begin("d", record, &BTreeMap::from([(group, placed)])).unwrap()
}

#[test]
fn a_version_that_changes_nothing_needs_no_deployment_and_a_count_of_zero_neither() {
    let record = record(1, false, "");
    let group = record.job.groups[0].name.clone();
    let with = |progress| begin("d", &record, &BTreeMap::from([(group.clone(), progress)]));
    assert_eq!(with(GroupProgress { done: true, known: true, ..GroupProgress::default() }), None);
    // Successors of what failed are no deployment.
    let more = GroupProgress { places: true, known: true, ..GroupProgress::default() };
    assert_eq!(with(more), None);
    assert!(with(GroupProgress { updates: true, ..more }).is_some());
    let stopped = JobRecord { stopped: true, ..(*record).clone() };
    assert_eq!(begin("d", &stopped, &BTreeMap::new()), None);
}

#[test]
fn what_became_healthy_moves_the_deadline_and_what_was_collected_still_counts() {
    let record = record(0, false, "");
    let group = record.job.groups[0].name.clone();
    let mut deployment = running(&record);
    let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
    let id = AllocId::new(uuid::Uuid::from_u128(1));
    let entered = enter(&mut deployment, &group, id, false, at(100)).unwrap();
    assert_eq!((&*entered.id, entered.since, entered.canary), ("d", at(100), false));
    assert_eq!(deadline(&deployment, &[]), Some(at(700)));
    deployment.groups.get_mut(&group).unwrap().desired_total = 2;
    let healthy = Judged {
        id,
        group: group.clone(),
        canary: false,
        live: true,
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
    history.superseded(record(0, true, "old"));
    history.superseded(record(1, true, "good"));
    history.superseded(record(2, false, "other"));
    let (back, text) = history.rollback(&bad, "x");
    assert_eq!(back.unwrap().version, 1);
    assert_eq!(text, "x - rolling back to job version 1");
    let same = record(4, false, "good");
    assert_eq!(history.rollback(&same, "x").0, None);
}
