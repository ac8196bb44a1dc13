//! Jobs that come, change and go.

use ostler_agent::{
    AllocError, AllocView, JobOptions, JobStatus, RegisterOptions, RestartScope, StopOptions,
    SubmitError,
};
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::clock::Clock;
use ostler_model::ids::JobId;
use ostler_model::time::Timestamp;

use super::{Served, holder, job_id, service, serving};
use crate::support::jobs::AT_ONCE;
use crate::support::parse;
use crate::support::system::{eventually, pid_in, runs};

#[tokio::test(flavor = "multi_thread")]
async fn an_equal_job_changes_nothing_and_a_changed_rule_is_taken_in_place() {
    let served = Served::start().await;
    let first = served.register(&service("", "")).await;
    assert_eq!((first.version, first.placed.len()), (0, 1));
    let before = served.until_running(1).await.remove(0);
    let pid = pid_in(&before.handle.dir().join("t/local/pid")).await;
    let commits = served.agent.state_stats().writes;

    let same = served.register(&service("", "")).await;
    assert_eq!((same.version, same.job_modify_index), (0, first.job_modify_index));
    assert!(same.placed.is_empty() && same.updated.is_empty() && same.stopped.is_empty());
    assert_eq!(served.agent.state_stats().writes, commits, "nothing is written");

    let second = served.register(&service("", "kill_timeout = \"7s\"")).await;
    assert_eq!((second.version, &second.updated), (1, &first.placed));
    assert!(second.job_modify_index > first.job_modify_index);
    let after = served.until_running(1).await.remove(0);
    assert_eq!(after.allocation.id, before.allocation.id);
    assert_eq!(after.allocation.job_version, 1);
    assert_eq!(after.allocation.job.groups[0].tasks[0].kill_timeout.as_secs(), 7);
    assert!(after.modify_index > before.modify_index);
    assert!(runs(pid), "the same process runs");
    served.end().await;
    assert!(!runs(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_does_not_fit_beside_the_old_one_comes_after_it() {
    let served = Served::start().await;
    let dir = served.data.path().join("devices");
    let files: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
    assert_eq!(files.len(), 1, "one device");
    let first = served.register(&holder("", "1")).await.placed;
    served.until_running(1).await;
    let plan = served.agent.plan(&parse(&holder("", "2")), JobOptions::default()).unwrap();
    let group = &plan.groups.values().next().unwrap();
    assert_eq!((group.destructive, group.place, group.stop), (1, 0, 0));
    assert!(plan.waiting.is_empty(), "{:?}", plan.waiting);
    let change = "group \"g\" task \"t\" env A: \"1\" -> \"2\" (forces replacement)";
    assert_eq!(plan.changes, [change]);

    let second = served.register(&holder("", "2")).await;
    assert_eq!((second.stopped, second.placed.len()), (first.clone(), 0));
    assert_eq!(second.warnings.len(), 1, "{:?}", second.warnings);
    let now = served.until_running(1).await.remove(0);
    assert_eq!(now.allocation.previous, Some(first[0]));
    assert!(served.view(first[0]).phase.has_ended());
    let held = now.allocation.devices.values().flatten().count();
    assert_eq!(held, 1, "the device changed hands");
    eventually("nothing waits", || {
        served.agent.control().job(&job_id()).unwrap().blocked.is_empty()
    })
    .await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_changes_starts_and_stops_the_difference() {
    let served = Served::start().await;
    let three = served.register(&service("count = 3", "")).await.placed;
    served.until_running(3).await;
    let indexes: Vec<_> = served.wanted().iter().map(|view| view.allocation.id).collect();
    let one = served.register(&service("count = 1", "")).await;
    assert_eq!(one.stopped, [indexes[2], indexes[1]], "the highest index first");
    assert_eq!(one.updated, [indexes[0]]);
    let left = served.until_running(1).await.remove(0);
    assert_eq!(left.allocation.id, indexes[0]);
    for id in three.into_iter().filter(|id| *id != indexes[0]) {
        served.until(id, ClientStatus::Complete).await;
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_job_can_run_again_and_a_purged_one_is_gone_with_its_allocations() {
    let served = Served::start().await;
    let unknown = served.agent.deregister(&job_id(), StopOptions::default()).await;
    assert!(matches!(unknown, Err(SubmitError::Unknown { .. })));
    let first = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    let index = served.agent.control().index();
    let stopped = served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap().index;
    assert!(stopped > index);
    served.until(first, ClientStatus::Complete).await;
    let view = served.view(first);
    assert_eq!(view.allocation.desired, DesiredStatus::Stop);
    assert_eq!(view.allocation.desired_description, "alloc not needed as job is stopped");
    let job = served.agent.control().job(&job_id()).unwrap();
    assert!(job.record.stopped);
    assert_eq!((job.status, job.record.modify_index), (JobStatus::Dead, stopped));

    let again = served.register(&service("", "")).await;
    assert_eq!((again.version, again.placed.len()), (1, 1));
    served.until_running(1).await;
    let purge = StopOptions { purge: true, ..StopOptions::default() };
    served.agent.deregister(&job_id(), purge).await.unwrap();
    assert!(served.agent.control().job(&job_id()).is_none());
    eventually("its allocations are collected", || served.agent.control().allocs().is_empty())
        .await;
    let allocs = served.data.path().join("allocs");
    assert_eq!(std::fs::read_dir(allocs).unwrap().count(), 0, "and their directories");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_at_the_wrong_index_changes_nothing() {
    let served = Served::start().await;
    let enforced = |index| RegisterOptions {
        enforce_job_modify_index: Some(index),
        ..RegisterOptions::default()
    };
    let job = || parse(&service("", ""));
    let wrong = served.agent.register(job(), enforced(7)).await;
    assert!(matches!(wrong, Err(SubmitError::Index { expected: 7, actual: 0, .. })));
    let first = served.agent.register(job(), enforced(0)).await.unwrap();
    let before = served.until_running(1).await.remove(0);
    let again = served.agent.register(job(), enforced(0)).await;
    assert!(matches!(again, Err(SubmitError::Index { expected: 0, .. })));
    served.agent.register(job(), enforced(first.job_modify_index)).await.unwrap();
    let after = served.wanted().remove(0);
    assert_eq!(after.allocation, before.allocation);
    assert_eq!(served.agent.control().job(&job_id()).unwrap().record.version, 0);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_does_not_fit_waits_with_its_reason_and_the_old_one_runs_on() {
    let served = Served::start().await;
    let two = format!("count = 2\n {AT_ONCE}");
    let first = served.register(&service(&two, "")).await;
    let before = served.until_running(2).await;
    let huge = service(&two, "resources {\n cpu = 20\n memory = 100000000\n }");
    let plan = served.agent.plan(&parse(&huge), JobOptions::default()).unwrap();
    assert_eq!((plan.waiting.len(), plan.job_modify_index), (2, first.job_modify_index));

    let taken = served.register(&huge).await;
    assert_eq!((taken.version, taken.placed.len(), taken.stopped.len()), (1, 0, 0));
    let warning = &taken.warnings[0];
    assert!(warning.starts_with("group g: 2 allocations wait: "), "{warning}");
    assert!(warning.contains("MiB of memory"), "{warning}");
    let ids = |views: &[AllocView]| views.iter().map(|v| v.allocation.id).collect::<Vec<_>>();
    let now = served.until_running(2).await;
    assert_eq!(ids(&now), ids(&before), "they run on, of the version before");
    let job = served.agent.control().job(&job_id()).unwrap();
    assert_eq!((job.record.version, job.places.waiting, job.blocked.len()), (1, 2, 2));

    // It is on record, and waits after a start too.
    let served = served.restart().await;
    let now = served.until_running(2).await;
    assert_eq!(ids(&now), ids(&before));
    let job = served.agent.control().job(&job_id()).unwrap();
    assert_eq!((job.record.version, job.places.waiting), (1, 2));
    let plan = served.agent.plan(&parse(&huge), JobOptions::default()).unwrap();
    assert_eq!((plan.version, plan.waiting.len()), (1, 2));

    // One that fits takes their places.
    let fits = service(&two, "env {\n A = \"b\"\n }");
    assert_eq!(served.register(&fits).await.stopped.len(), 2);
    let now = served.until_running(2).await;
    assert!(now.iter().all(|view| view.allocation.job_version == 2));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_starts_by_itself_when_what_it_waits_for_is_free() {
    let served = Served::start().await;
    let first = served.register(&holder("", "1")).await.placed[0];
    served.until_running(1).await;
    let other = holder("", "1").replace("job \"web\"", "job \"other\"");
    let waits = served.register(&other).await;
    assert!(waits.warnings[0].contains("held by"), "{:?}", waits.warnings);
    let id = JobId::new("other").unwrap();
    assert_eq!(served.agent.control().job(&id).unwrap().status, JobStatus::Pending);
    let again = served.register(&other).await;
    assert_eq!((again.version, again.index, again.placed.len()), (0, None, 0), "it is known");

    served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
    served.until(first, ClientStatus::Complete).await;
    eventually("the other runs", || {
        served.agent.control().job(&id).is_some_and(|job| job.status == JobStatus::Running)
    })
    .await;
    let job = served.agent.control().job(&id).unwrap();
    assert_eq!((job.blocked.len(), job.places.waiting), (0, 0));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_nobody_has_and_a_wrong_config_are_refused() {
    let served = Served::start().await;
    let unknown = service("", "").replace("\"raw_exec\"", "\"exek\"");
    let refused = served.try_register(&unknown).await.unwrap_err().to_string();
    let said = ["group g, task t: no driver exek; the loaded ones are: exec", "did you mean exec?"];
    assert!(said.iter().all(|text| refused.contains(text)), "{refused}");
    let wrong = service("", "").replace("command =", "comand =");
    let refused = served.try_register(&wrong).await;
    assert!(matches!(refused, Err(SubmitError::Config(_))), "{refused:?}");
    assert!(served.agent.control().jobs().is_empty());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_allocation_is_replaced_by_its_job() {
    let served = Served::start().await;
    let first = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    let owner = served.view(first).handle;
    served.agent.stop_alloc(first, false).await.unwrap();
    eventually("its owner knows", || owner.allocation().desired == DesiredStatus::Stop).await;
    assert_eq!(*owner.allocation(), *served.view(first).allocation);
    let next = served.until_running(1).await.remove(0);
    assert_ne!(next.allocation.id, first);
    assert_eq!(next.allocation.previous, Some(first));
    assert_eq!(next.allocation.job_version, 0, "the job did not change");
    served.until(first, ClientStatus::Complete).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_ended_takes_no_requests() {
    let served = Served::start().await;
    let job = service("", "").replace("job \"web\" {", "job \"web\" {\n type = \"batch\"");
    let job = job.replace("exec sleep 1000", "exit 0");
    let id = served.register(&job).await.placed[0];
    served.until(id, ClientStatus::Complete).await;
    eventually("it is over", || served.view(id).phase.has_ended()).await;
    let agent = &served.agent;
    assert!(matches!(agent.stop_alloc(id, false).await, Err(AllocError::Ended { .. })));
    for scope in [RestartScope::Running, RestartScope::All] {
        assert!(agent.restart_alloc(id, scope.clone(), "").await.is_err(), "{scope:?}");
    }
    assert!(agent.signal_alloc(id, None, "SIGHUP").await.is_err());
    let same = served.register(&job).await;
    assert!(same.placed.is_empty(), "work that is done is not done again");
    assert_eq!(agent.control().collect(Some(id)).await.unwrap().allocs, [id]);
    assert!(matches!(agent.control().collect(Some(id)).await, Err(AllocError::Unknown { .. })));
    assert!(agent.control().alloc(id).is_none());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_over_is_collected() {
    let served = Served::start().await;
    let id = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    assert!(matches!(
        served.agent.control().collect(Some(id)).await,
        Err(AllocError::NotOver { .. })
    ));
    assert!(served.agent.control().collect(None).await.unwrap().allocs.is_empty());
    assert!(served.agent.control().alloc(id).is_some());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_grows_with_every_change_and_over_restarts() {
    let served = Served::start().await;
    let mut changes = served.agent.control().changes();
    let mut seen = vec![*changes.borrow_and_update()];
    served.register(&service("", "")).await;
    served.until_running(1).await;
    served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
    while served.agent.control().allocs().iter().any(|view| !view.phase.has_ended()) {
        changes.changed().await.unwrap();
        seen.push(*changes.borrow_and_update());
    }
    assert!(seen.len() > 2 && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    let last = served.agent.control().index();
    let recorded = served.agent.control().job(&job_id()).unwrap().record.modify_index;
    let data = served.leave().await;

    let served = Served::on(data, "").await;
    assert!(served.agent.control().index() > last, "the time went on");
    let last = served.agent.control().index();
    let job = served.register(&service("", "")).await;
    assert!(job.job_modify_index > last);
    served.until_running(1).await;
    let data = {
        served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
        served.leave().await
    };

    // A clock that was set back: what is on record is not given again.
    let mut options = serving(data.path(), "");
    options.clock = Clock::fixed(Timestamp::from_nanos(1));
    let agent = ostler_agent::Agent::start(options).await.unwrap();
    let record = agent.control().job(&job_id()).unwrap().record;
    assert!(agent.control().index() > record.modify_index && record.modify_index > recorded);
    agent.shutdown().await;
}

/// Without allocations, so that what tasks write does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_jobs_at_once_share_their_commits() {
    const JOBS: u64 = 100;
    let served = Served::start().await;
    let job = |n| parse(&service("count = 0", "").replace("\"web\"", &format!("\"j{n}\"")));
    let jobs: Vec<_> = (0..JOBS).map(job).collect();
    let before = served.agent.state_stats();
    let mut registrations = tokio::task::JoinSet::new();
    for job in jobs {
        let agent = served.agent.clone();
        registrations.spawn(async move { agent.register(job, RegisterOptions::default()).await });
    }
    while let Some(registered) = registrations.join_next().await {
        registered.unwrap().unwrap_or_else(|error| panic!("{error}"));
    }
    let after = served.agent.state_stats();
    assert!(after.writes - before.writes >= JOBS);
    let commits = after.commits - before.commits;
    assert!(commits <= JOBS / 2, "{commits} commits");
    let data = served.leave().await;
    let served = Served::on(data, "").await;
    assert_eq!(served.agent.control().jobs().len(), 100, "what was acknowledged is there");
    served.end().await;
}

/// The records of its allocations and the intents of their tasks go in one commit, and nothing else of a
/// start is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_many_places_starts_with_hardly_more_than_one_commit() {
    const PLACES: u64 = 40;
    let served = Served::start().await;
    let before = served.agent.state_stats();
    served.register(&service("count = 40", "resources {\n cpu = 5\n memory = 16\n }")).await;
    let running = || {
        let allocs = served.agent.control().allocs();
        allocs.iter().filter(|alloc| alloc.state.client_status == ClientStatus::Running).count()
    };
    eventually("all run", || running() == 40).await;
    let commits = served.agent.state_stats().commits - before.commits;
    // One, and one for each while that states of tasks may lag.
    assert!(commits <= PLACES / 4, "{commits} commits for {PLACES} places");
    served.end().await;
}
