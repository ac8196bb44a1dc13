//! The state store refuses: what was asked is not half done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ostler_agent::{Agent, JobStatus, StopOptions, SubmitError};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::AllocId;
use ostler_model::saved::JobRecord;
use ostler_state::disk_store::DiskBackend;
use ostler_state::records::{AllocKey, JobRecordKey, TaskStateKey};
use ostler_state::testing::{Fault, FaultyBackend};
use ostler_state::{KeyPrefix, RecordKey, StateStore};

use super::{Served, holder, job_id, service, serving};
use crate::support::jobs::{AT_ONCE, shell, with_guests};
use crate::support::system::{eventually, pid_in, runs};
use crate::support::{DataDir, PATIENCE};

/// More commits than any change asks for.
const ALL: usize = 1_000;

/// An agent over a store that refuses when told to.
struct Faulty {
    served: Served,
    disk: Arc<FaultyBackend>,
    store: StateStore,
}

impl Faulty {
    async fn start() -> Self {
        let data = DataDir::new();
        let opened = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&opened);
        let open = Box::new(move |path: &Path| {
            let disk = FaultyBackend::new(Arc::new(DiskBackend::open(path).unwrap()));
            let store = StateStore::with_backend(path, Arc::<FaultyBackend>::clone(&disk))?;
            *kept.lock().unwrap() = Some((disk, store.clone()));
            Ok(store)
        });
        let agent = Agent::start_with_state(serving(data.path(), ""), open).await.unwrap();
        let (disk, store) = opened.lock().unwrap().take().unwrap();
        Self { served: Served { agent, data }, disk, store }
    }

    fn refuse(&self, fault: Fault) {
        self.disk.plan(vec![Some(fault); ALL]);
    }

    /// Every job and allocation as the agent has them.
    fn known(&self) -> Known {
        let agent = &self.served.agent;
        let jobs = agent.control().jobs().into_iter().map(|job| {
            let record = job.record;
            (record.job.id.to_string(), (record.version, record.stopped, record.modify_index))
        });
        let allocs = agent.control().allocs().into_iter().map(|view| {
            assert_eq!(view.allocation, view.handle.allocation(), "its owner knows no more");
            (view.allocation.id, view.allocation)
        });
        Known { jobs: jobs.collect(), allocs: allocs.collect() }
    }

    /// What is on record of jobs and allocations, without what tasks do meanwhile.
    async fn recorded(&self) -> Vec<String> {
        self.store.flush().await.unwrap();
        let jobs = self.store.scan(&KeyPrefix::Jobs).unwrap();
        let allocs = self.store.scan(&KeyPrefix::Allocs).unwrap();
        let told = jobs.iter().chain(&allocs).filter_map(|record| match &record.key {
            RecordKey::Job(_) => Some(format!("{:?}", record.decode::<JobRecord>().unwrap())),
            RecordKey::Alloc(_) => Some(format!("{:?}", record.decode::<Allocation>().unwrap())),
            _ => None,
        });
        told.collect()
    }

    /// Every key of jobs and allocations.
    fn keys(&self) -> Vec<RecordKey> {
        let of = |prefix| self.store.scan(&prefix).unwrap().into_iter().map(|record| record.key);
        of(KeyPrefix::Jobs).chain(of(KeyPrefix::Allocs)).collect()
    }
}

#[derive(Debug, PartialEq)]
struct Known {
    jobs: BTreeMap<String, (u64, bool, u64)>,
    allocs: BTreeMap<AllocId, Arc<Allocation>>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_cannot_be_written_leaves_nothing_and_frees_what_it_held() {
    for fault in [Fault::Before, Fault::After] {
        let faulty = Faulty::start().await;
        let served = &faulty.served;
        let network = "network {\n port \"http\" {\n static = 28391\n }\n }";
        faulty.refuse(fault);
        let refused = served.try_register(&holder(network, "")).await;
        assert!(matches!(refused, Err(SubmitError::State(_))), "{refused:?}");
        faulty.disk.forget_plan();
        assert!(served.agent.control().jobs().is_empty());
        // What was placed is over; its directory is removed beside the answer.
        let allocs = served.agent.data_dir().join("allocs");
        eventually("what was placed is removed", || {
            let left = std::fs::read_dir(&allocs).map_or(0, Iterator::count);
            left == 0 && served.agent.control().allocs().is_empty() && faulty.keys().is_empty()
        })
        .await;
        assert_eq!(faulty.recorded().await, [""; 0], "{fault:?}");
        // The device and the port are free, and so is the name.
        let other = holder(network, "").replace("job \"web\"", "job \"other\"");
        served.register(&other).await;
        served.until_running(1).await;
        let Faulty { served, disk, store } = faulty;
        drop((disk, store));
        let data = served.leave().await;
        let served = Served::on(data, "").await;
        assert!(served.agent.control().job(&job_id()).is_none(), "{fault:?}: it came back");
        assert_eq!(served.until_running(1).await.len(), 1);
        served.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_written_leaves_the_job_as_it_was() {
    for fault in [Fault::Before, Fault::After] {
        let faulty = Faulty::start().await;
        let served = &faulty.served;
        served.register(&service(AT_ONCE, "")).await;
        let view = served.until_running(1).await.remove(0);
        let pid = pid_in(&view.handle.dir().join("t/local/pid")).await;
        let (known, recorded) = (faulty.known(), faulty.recorded().await);
        let keys = faulty.keys();
        let in_place = service(&format!("{AT_ONCE}\n shutdown_delay = \"1s\""), "");
        let other = service(AT_ONCE, "env {\n A = \"b\"\n }");
        let more = service(&format!("{AT_ONCE}\n count = 3"), "");
        // Each takes seconds: the owners of what is placed try to write for as long.
        let asked: &[usize] = if fault == Fault::Before { &[0, 1, 2] } else { &[1] };
        for what in asked.iter().copied() {
            faulty.refuse(fault);
            let job = [&in_place, &other, &more][what];
            let refused = served.try_register(job).await;
            assert!(matches!(refused, Err(SubmitError::State(_))), "{refused:?}");
            faulty.disk.forget_plan();
            assert_eq!(faulty.known().jobs, known.jobs, "{fault:?} {what}");
            let removed = eventually("what was placed is removed", || {
                faulty.known() == known && faulty.keys() == keys
            });
            // What is left is shown, not only that something is.
            let _late = ostler_model::clock::timeout(PATIENCE / 2, removed).await;
            assert_eq!(faulty.keys(), keys, "{fault:?} {what}");
            assert_eq!(faulty.known(), known, "{fault:?} {what}");
            assert_eq!(faulty.recorded().await, recorded, "{fault:?} {what}");
            assert!(runs(pid), "{fault:?} {what}");
        }
        // It goes on as if nothing had been asked.
        served.register(&other).await;
        eventually("the old one is over", || !runs(pid)).await;
        served.until_running(1).await;
        faulty.served.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_is_seen_when_it_is_durable() {
    let faulty = Faulty::start().await;
    let served = &faulty.served;
    let id = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    let held = faulty.disk.hold();
    let agent = served.agent.clone();
    let purging = tokio::spawn(async move {
        let purge = StopOptions { purge: true, ..StopOptions::default() };
        agent.deregister(&job_id(), purge).await
    });
    let stopping =
        || served.agent.control().alloc(id).unwrap().allocation.desired == DesiredStatus::Stop;
    eventually("it is decided", stopping).await;
    assert!(served.agent.control().job(&job_id()).is_some(), "it is not on disk yet");
    drop(held);
    purging.await.unwrap().unwrap();
    assert!(served.agent.control().job(&job_id()).is_none());
    eventually("it is collected", || served.agent.control().allocs().is_empty()).await;
    faulty.served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_of_a_purged_job_is_not_listed_again_when_only_the_purge_was_recorded() {
    let faulty = Faulty::start().await;
    let served = &faulty.served;
    let once = with_guests(&format!(
        "job \"web\" {{\n type = \"batch\"\n group \"g\" {{\n {}\n }}\n}}",
        shell("t", "exit 0", "")
    ));
    let id = served.register(&once).await.placed[0];
    served.until(id, ClientStatus::Complete).await;
    let over = || served.agent.control().job(&job_id()).unwrap().status == JobStatus::Dead;
    eventually("it is over", over).await;
    faulty.store.flush().await.unwrap();
    // As if the agent was killed right after the purge: nothing later reaches the disk.
    faulty.disk.fail_after_removing(&RecordKey::Job(job_id()));
    let purge = StopOptions { purge: true, ..StopOptions::default() };
    let stopped = served.agent.deregister(&job_id(), purge).await.unwrap();
    assert_eq!(stopped.unwritten, None);
    let Faulty { served, disk, store } = faulty;
    let data = served.leave().await;
    drop((disk, store));

    let served = Served::on(data, "").await;
    assert!(served.agent.control().job(&job_id()).is_none());
    eventually("it is collected", || served.agent.control().allocs().is_empty()).await;
    let dirs = std::fs::read_dir(served.agent.data_dir().join("allocs")).unwrap();
    assert_eq!(dirs.count(), 0);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_registered_while_its_name_is_purged_stays() {
    let faulty = Faulty::start().await;
    let served = &faulty.served;
    for _ in 0..5 {
        let first = served.register(&service("", "")).await.placed;
        let purge = StopOptions { purge: true, ..StopOptions::default() };
        let held = faulty.disk.hold();
        let agent = served.agent.clone();
        let purging = tokio::spawn(async move { agent.deregister(&job_id(), purge).await });
        let stopping = || {
            let view = first.first().and_then(|id| served.agent.control().alloc(*id));
            view.is_none_or(|view| view.allocation.desired == DesiredStatus::Stop)
        };
        eventually("it is decided", stopping).await;
        let agent = served.agent.clone();
        let job = crate::support::parse(&service("", "env {\n A = \"b\"\n }"));
        let again = tokio::spawn(async move { agent.register(job, Default::default()).await });
        tokio::task::yield_now().await;
        drop(held);
        purging.await.unwrap().unwrap();
        again.await.unwrap().unwrap();
        faulty.store.flush().await.unwrap();
        let recorded: Option<JobRecord> = faulty.store.get(&JobRecordKey::of(job_id())).unwrap();
        assert!(recorded.is_some_and(|record| !record.stopped), "its record is gone");
    }
    faulty.served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_taken_back_holds_up_no_other_job() {
    let faulty = Faulty::start().await;
    let served = &faulty.served;
    let before = faulty.disk.commits();
    faulty.refuse(Fault::Before);
    let agent = served.agent.clone();
    let job = crate::support::parse(&service("count = 20", ""));
    let refused = tokio::spawn(async move { agent.register(job, Default::default()).await });
    eventually("commits fail", || faulty.disk.commits() >= before + 4).await;
    // The disk does not answer any more: what was placed cannot be removed from it.
    let held = faulty.disk.hold();
    let agent = served.agent.clone();
    let other = service("count = 0", "").replace("job \"web\"", "job \"other\"");
    let other = crate::support::parse(&other);
    let registered = tokio::spawn(async move { agent.register(other, Default::default()).await });
    let id = ostler_model::ids::JobId::new("other").unwrap();
    let seen = async {
        while served.agent.control().job(&id).is_none() {
            tokio::task::yield_now().await;
        }
    };
    let decided = ostler_model::clock::timeout(std::time::Duration::from_secs(10), seen).await;
    assert!(decided.is_some(), "it waits for the other change");
    faulty.disk.forget_plan();
    drop(held);
    registered.await.unwrap().unwrap();
    let refused = refused.await.unwrap();
    assert!(matches!(refused, Err(SubmitError::State(_))), "{refused:?}");
    assert!(served.agent.control().job(&job_id()).is_none());
    eventually("what was placed is removed", || served.agent.control().allocs().is_empty()).await;
    faulty.served.end().await;
}

/// How a task is ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    Job,
    Purge,
    Alloc,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_ended_whatever_the_disk_says_and_the_answer_says_what_is_not_on_record() {
    for stop in [Stop::Job, Stop::Purge, Stop::Alloc] {
        let faulty = Faulty::start().await;
        let served = &faulty.served;
        let id = served.register(&service("", "")).await.placed[0];
        let view = served.until_running(1).await.remove(0);
        let pid = pid_in(&view.handle.dir().join("t/local/pid")).await;
        faulty.refuse(Fault::Before);
        let options = StopOptions { purge: stop == Stop::Purge, ..StopOptions::default() };
        let stopped = match stop {
            Stop::Alloc => served.agent.stop_alloc(id, false).await.unwrap(),
            _ => served.agent.deregister(&job_id(), options).await.unwrap(),
        };
        let why = stopped.unwritten.expect("it is said");
        assert!(why.contains("not on record"), "{why}");
        eventually("the task is ended", || !runs(pid)).await;
        eventually("it is shown", || {
            served
                .agent
                .control()
                .alloc(id)
                .is_some_and(|view| view.state.client_status.is_terminal())
        })
        .await;
        let exit = served.view(id).state.tasks.values().next().unwrap().last_exit.clone();
        assert_eq!(exit.unwrap().signal, 2, "{stop:?}: its exit is known");
        // It is on record as soon as the disk takes it.
        faulty.disk.forget_plan();
        if stop == Stop::Alloc {
            let next = served.until_running(1).await.remove(0);
            assert_eq!(next.allocation.previous, Some(id), "its place is filled");
        } else {
            eventually("the stop is on record", || {
                let record = faulty.store.get::<JobRecord>(&JobRecordKey::of(job_id())).unwrap();
                record.is_none_or(|record| record.stopped)
            })
            .await;
        }
        eventually("its end is on record", || {
            let alloc: Allocation = faulty.store.get(&AllocKey::of(id)).unwrap().unwrap();
            let task = ostler_model::ids::TaskName::new("t").unwrap();
            let key = TaskStateKey::of(id, task);
            // What is told of a task may lag: none of it was on record when the disk began to refuse.
            let state = faulty.store.get::<ostler_model::task::TaskState>(&key).unwrap();
            let exit = state.and_then(|state| state.last_exit);
            alloc.desired == DesiredStatus::Stop && exit.is_some_and(|exit| exit.signal == 2)
        })
        .await;
        let Faulty { served, disk, store } = faulty;
        drop((disk, store));
        let data = served.leave().await;
        let served = Served::on(data, "").await;
        assert_eq!(served.view(id).state.client_status, ClientStatus::Complete, "{stop:?}");
        served.end().await;
    }
}
