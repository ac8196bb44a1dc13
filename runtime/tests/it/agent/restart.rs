//! The agent leaves and another one starts on the same directory.

use ostler_agent::{Agent, LeaveMode, StopOptions};
use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::event::EventKind;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::task::TaskState;
use ostler_state::records::{AllocKey, DeviceLedgerKey, TaskStateKey};
use ostler_state::testing::AnyKey;
use ostler_state::{KeyPrefix, RecordKey, StateStore};

use super::{Served, holder, job_id, service, serving};
use crate::support::DataDir;
use crate::support::system::{eventually, pid_in, runs};

fn store(data: &DataDir) -> StateStore {
    StateStore::open(&data.path().join("state.redb")).unwrap()
}

fn starts(state: &TaskState) -> usize {
    state.events.iter().filter(|event| event.kind == EventKind::Started).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_on_after_a_restart_and_nothing_starts_twice() {
    let served = Served::start().await;
    served.register(&service("count = 2", "")).await;
    let before = served.until_running(2).await;
    let mut pids = Vec::new();
    for view in &before {
        pids.push(pid_in(&view.handle.dir().join("t/local/pid")).await);
    }
    let served = served.restart().await;
    let after = served.until_running(2).await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.allocation, after.allocation);
        assert_eq!(starts(after.state.tasks.values().next().unwrap()), 1);
    }
    assert!(pids.iter().all(|pid| runs(*pid)), "the same processes");
    let job = served.agent.control().job(&job_id()).unwrap();
    assert_eq!((job.record.version, job.allocs.len()), (0, 2));
    served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
    eventually("they can be stopped", || !pids.iter().any(|pid| runs(*pid))).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_no_change_of_any_allocation() {
    let served = Served::start().await;
    let ends = service("", "").replace("exec sleep 1000", "exit 0").replace("\"web\"", "\"ends\"");
    let ends = ends.replacen("group", "type = \"batch\"\n group", 1);
    let ended = served.register(&ends).await.placed[0];
    served.until(ended, ClientStatus::Complete).await;
    let judged_at_once = "update {\n min_healthy_time = \"0s\"\n }";
    let running = served.register(&service(judged_at_once, "")).await.placed[0];
    served.until(running, ClientStatus::Running).await;
    let view = |served: &Served, id| {
        served.agent.control().allocs().into_iter().find(|view| view.allocation.id == id).unwrap()
    };
    let judged =
        || view(&served, running).state.health.is_some_and(|health| health.healthy.is_some());
    eventually("its health is judged", judged).await;
    let changed = |served: &Served| {
        [ended, running]
            .map(|id| view(served, id))
            .map(|view| (view.modify_time, view.modify_index))
    };
    let owned_again = async |served: &Served| {
        served.until(ended, ClientStatus::Complete).await;
        let recovered = || {
            let state = view(served, running).state;
            let last = state.tasks.values().next().unwrap().events.last().unwrap().kind;
            last == EventKind::Recovered
        };
        eventually("it is owned again", recovered).await;
    };
    let before = changed(&served);
    let served = served.restart().await;
    owned_again(&served).await;
    let after = changed(&served);
    for (before, after) in before.iter().zip(&after) {
        assert!(before.0 == after.0 && after.1 <= before.1, "{before:?} {after:?}");
    }
    let served = served.restart().await;
    owned_again(&served).await;
    assert_eq!(changed(&served), after);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_keeps_its_port_and_its_device_over_a_restart() {
    let served = Served::start().await;
    let network = "network {\n port \"http\" {}\n }";
    served.register(&holder(network, "")).await;
    let before = served.until_running(1).await.remove(0).allocation;
    let served = served.restart().await;
    let other = holder(network, "").replace("job \"web\"", "job \"other\"");
    let refused = served.waits(&other).await;
    assert!(refused.contains("held"), "{refused}");
    let fixed =
        format!("network {{\n port \"http\" {{\n static = {}\n }}\n }}", before.ports[0].value);
    let other = service(&fixed, "").replace("job \"web\"", "job \"other\"");
    let refused = served.waits(&other).await;
    assert!(refused.contains(&before.id.short()), "{refused}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_agent_starts_its_jobs_again_and_a_stopped_job_stays_stopped() {
    let served = Served::start().await;
    let first = served.register(&service("", "")).await.placed[0];
    let other = service("", "").replace("job \"web\"", "job \"other\"");
    let stopped = served.register(&other).await.placed[0];
    let view = served.until_running(2).await.remove(0);
    let pid = pid_in(&view.handle.dir().join("t/local/pid")).await;
    let other = ostler_model::ids::JobId::new("other").unwrap();
    served.agent.deregister(&other, StopOptions::default()).await.unwrap();
    served.until(stopped, ClientStatus::Complete).await;
    let deadline = std::time::Duration::from_secs(30);
    served.agent.leave(LeaveMode::Drain { deadline }).await;
    assert!(!runs(pid));
    let Served { agent, data } = served;
    drop(agent);

    let served = Served::on(data, "").await;
    let next = served.until_running(1).await.remove(0);
    assert_eq!(next.allocation.previous, Some(first));
    assert_eq!(served.view(first).allocation.desired, DesiredStatus::Stop);
    assert!(served.agent.control().job(&other).unwrap().record.stopped);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_done_is_not_done_again() {
    let served = Served::start().await;
    let job = service("", "").replace("job \"web\" {", "job \"web\" {\n type = \"batch\"");
    let id = served.register(&job.replace("exec sleep 1000", "exit 0")).await.placed[0];
    served.until(id, ClientStatus::Complete).await;
    eventually("it is over", || served.view(id).phase.has_ended()).await;
    let before = served.view(id).state;
    let served = served.restart().await;
    assert_eq!(served.agent.control().allocs().len(), 1);
    assert_eq!(served.view(id).state.tasks, before.tasks);
    assert_eq!(served.agent.state_stats().later_lost, 0);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collected_allocation_does_not_come_back() {
    let served = Served::start().await;
    let job = service("", "").replace("job \"web\" {", "job \"web\" {\n type = \"batch\"");
    let id = served.register(&job.replace("exec sleep 1000", "exit 0")).await.placed[0];
    served.until(id, ClientStatus::Complete).await;
    eventually("it is collected", || served.agent.control().alloc(id).unwrap().phase.has_ended())
        .await;
    served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
    served.agent.control().collect(Some(id)).await.unwrap();
    let data = served.leave().await;
    assert!(store(&data).scan(&KeyPrefix::Alloc(id)).unwrap().is_empty());
    let served = Served::on(data, "").await;
    assert!(served.agent.control().allocs().is_empty());
    served.end().await;
}

/// Bytes that are no record of any kind.
struct Garbage;

impl serde::Serialize for Garbage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(0xff)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_allocation_is_removed_and_stops_nothing() {
    let served = Served::start().await;
    let kept = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    let data = served.leave().await;
    let half = AllocId::new(uuid(1));
    let damaged = AllocId::new(uuid(2));
    let task = TaskName::new("t").unwrap();
    let state = store(&data);
    let original: Allocation = state.get(&AllocKey::of(kept)).unwrap().unwrap();
    state.put(&TaskStateKey::of(half, task.clone()), &TaskState::default()).await.unwrap();
    state.put(&AnyKey(RecordKey::Alloc(damaged)), &Garbage).await.unwrap();
    state.put(&TaskStateKey::of(damaged, task), &TaskState::default()).await.unwrap();
    state.close().await;
    drop(state);

    let served = Served::on(data, "").await;
    let view = served.until_running(1).await.remove(0);
    assert_eq!(*view.allocation, original);
    assert_eq!(served.agent.control().allocs().len(), 1);
    let told = served.agent.notices().iter().filter(|notice| notice.contains("put aside"));
    assert_eq!(told.count(), 1, "{:?}", served.agent.notices());
    served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
    served.until(kept, ClientStatus::Complete).await;
    let data = served.leave().await;
    let state = store(&data);
    for id in [half, damaged] {
        assert!(state.scan(&KeyPrefix::Alloc(id)).unwrap().is_empty(), "{id}");
    }
}

fn uuid(n: u64) -> uuid::Uuid {
    ostler_model::rng::Rng::from_seed(n).uuid()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_record_is_damaged_runs_on() {
    let served = Served::start().await;
    let id = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    let data = served.leave().await;
    let state = store(&data);
    state.put(&AnyKey(RecordKey::Job(job_id())), &Garbage).await.unwrap();
    state.close().await;
    drop(state);
    let served = Served::on(data, "").await;
    assert_eq!(served.until_running(1).await[0].allocation.id, id);
    assert_eq!(served.agent.control().job(&job_id()).unwrap().record.version, 0);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_was_not_written_before_a_crash_is_placed_by_the_next_start() {
    let served = Served::start().await;
    let id = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    served.agent.stop_alloc(id, true).await.unwrap();
    let second = served.until_running(1).await.remove(0).allocation.id;
    served.until(id, ClientStatus::Complete).await;
    served.agent.leave(LeaveMode::Drain { deadline: std::time::Duration::from_secs(30) }).await;
    let Served { agent, data } = served;
    drop(agent);
    // As after a crash between the job's record and that of its second allocation.
    let state = store(&data);
    state.destroy_alloc(second).await.unwrap();
    state.close().await;
    drop(state);
    let served = Served::on(data, "").await;
    let placed = served.until_running(1).await.remove(0);
    assert_eq!(placed.allocation.previous, Some(id));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_without_any_record_is_removed_and_one_with_a_record_stays() {
    let served = Served::start().await;
    let kept = served.register(&service("", "")).await.placed[0];
    let view = served.until_running(1).await.remove(0);
    let pid = pid_in(&view.handle.dir().join("t/local/pid")).await;
    let data = served.leave().await;
    let (orphan, half) = (AllocId::new(uuid(1)), AllocId::new(uuid(2)));
    let root = data.path().join("allocs");
    for id in [orphan, half] {
        let dir = AllocDir::create(&root, id).unwrap();
        std::os::unix::fs::symlink(data.path(), dir.data().join("out")).unwrap();
    }
    let state = store(&data);
    let task = TaskName::new("t").unwrap();
    state.put(&TaskStateKey::of(half, task), &TaskState::default()).await.unwrap();
    state.close().await;
    drop(state);

    let served = Served::on(data, "").await;
    served.until_running(1).await;
    eventually("it is removed", || !root.join(orphan.to_string()).exists()).await;
    assert_eq!(AllocDir::list(&root).unwrap().len(), 2);
    assert!(root.join(kept.to_string()).exists() && root.join(half.to_string()).exists());
    assert!(runs(pid) && served.data.path().join("state.redb").exists());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_on_the_directory_is_refused_at_once() {
    let served = Served::start().await;
    let second = Agent::start(serving(served.data.path(), "")).await;
    let Err(error) = second else { panic!("two agents on one directory") };
    assert!(error.to_string().contains("another agent"), "{error}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_its_driver() {
    let served = Served::start().await;
    served.register(&service("", "")).await;
    let before = served.until_running(1).await.remove(0);
    let drained = LeaveMode::Drain { deadline: std::time::Duration::from_secs(30) };
    served.agent.leave(drained).await;
    let Served { agent, data } = served;
    drop(agent);
    // The driver is not there at this start.
    let served = Served::on(data, "plugin \"raw_exec\" {\n enabled = false\n}").await;
    let job = served.agent.control().job(&job_id()).unwrap();
    assert_eq!((job.blocked.len(), job.status), (1, ostler_agent::JobStatus::Pending));
    assert_eq!(job.blocked[0].previous, Some(before.allocation.id));
    assert!(job.blocked[0].refusal.to_string().contains("no driver raw_exec"));
    let served = served.restart().await;
    served.until_running(1).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_removed_while_no_agent_ran_stops_its_job() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("jobs_dir = \"{}\"", dir.path().display());
    let path = dir.path().join("web.hcl");
    std::fs::write(&path, service("", "")).unwrap();
    // A directory that loses all its files does not count as emptied at once.
    std::fs::write(dir.path().join("none.hcl"), "").unwrap();
    let served = Served::on(DataDir::new(), &config).await;
    let first = served.until_running(1).await.remove(0).allocation;
    let data = served.leave().await;

    let served = Served::on(data, &config).await;
    assert_eq!(served.until_running(1).await[0].allocation, first, "an unchanged file: no change");
    let data = served.leave().await;
    std::fs::remove_file(&path).unwrap();
    let served = Served::on(data, &config).await;
    served.until(first.id, ClientStatus::Complete).await;
    let data = served.leave().await;
    let ledger: DeviceLedger = store(&data).get(&DeviceLedgerKey::of()).unwrap().unwrap();
    assert_eq!(ledger, DeviceLedger::default());
}
