#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use ostler_model::time::Timestamp;

fn id(number: u64) -> AllocId {
    format!("eeeeeeee-0000-4000-8000-{number:012x}").parse().unwrap()
}

/// What a removal of the fake does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Takes(Duration),
    Fails,
    Hangs,
    Panics,
}

#[derive(Default)]
struct Inner {
    allocs: BTreeMap<AllocId, u64>,
    behaves: BTreeMap<AllocId, Removal>,
    live: usize,
    /// Removals begun, in order.
    begun: Vec<AllocId>,
    under_way: BTreeSet<AllocId>,
    most_at_once: usize,
    /// Percent of the disk that is in use with nothing here, and of each allocation.
    base: u64,
    each: u64,
    /// Whether a measurement was asked to settle.
    settled: Vec<bool>,
}

/// A node: allocations that are over, and a disk of a hundred units they lie on.
#[derive(Clone, Default)]
struct Node(Arc<Mutex<Inner>>);

impl Node {
    fn with(over: u64, base: u64, each: u64) -> Self {
        let node = Self::default();
        {
            let mut inner = node.0.lock().unwrap();
            inner.allocs = (0..over).map(|i| (id(i), i)).collect();
            (inner.base, inner.each) = (base, each);
        }
        node
    }

    fn set(self, behaves: &[(u64, Removal)]) -> Self {
        self.0.lock().unwrap().behaves = behaves.iter().map(|(i, what)| (id(*i), *what)).collect();
        self
    }

    fn start(&self, policy: GcPolicy) -> (GcHandle, JoinHandle<()>, CancellationToken) {
        let cancel = CancellationToken::new();
        let node = Arc::new(self.clone());
        let (handle, task) = spawn(policy, node.clone(), node, cancel.clone());
        (handle, task, cancel)
    }

    fn begun(&self) -> Vec<AllocId> {
        self.0.lock().unwrap().begun.clone()
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().allocs.len()
    }
}

impl Garbage for Node {
    fn candidates(&self) -> Vec<Candidate> {
        let inner = self.0.lock().unwrap();
        let listed = |(id, at): (&AllocId, &u64)| Candidate {
            id: *id,
            ended_at: Timestamp::from_nanos(*at),
        };
        inner.allocs.iter().map(listed).collect()
    }

    fn live(&self) -> usize {
        self.0.lock().unwrap().live
    }

    fn destroy(&self, id: AllocId) -> BoxFuture<'static, Result<(), String>> {
        let node = self.clone();
        Box::pin(async move {
            let what = {
                let mut inner = node.0.lock().unwrap();
                inner.begun.push(id);
                inner.under_way.insert(id);
                inner.most_at_once = inner.most_at_once.max(inner.under_way.len());
                inner.behaves.get(&id).copied()
            };
            let outcome = match what.unwrap_or(Removal::Takes(Duration::from_millis(5))) {
                Removal::Takes(long) => {
                    clock::sleep(long).await;
                    node.0.lock().unwrap().allocs.remove(&id);
                    Ok(())
                }
                Removal::Fails => Err("it is immutable".to_owned()),
                Removal::Hangs => std::future::pending().await,
                Removal::Panics => panic!("a removal that panics, as the test wants"),
            };
            node.0.lock().unwrap().under_way.remove(&id);
            outcome
        })
    }
}

impl Gauge for Node {
    fn measure(&self, settle: bool) -> io::Result<FsUse> {
        let mut inner = self.0.lock().unwrap();
        inner.settled.push(settle);
        let disk_used = inner.base + inner.each * inner.allocs.len() as u64;
        Ok(FsUse { disk_used, disk_total: 100, ..FsUse::default() })
    }
}

fn policy() -> GcPolicy {
    GcPolicy::default()
}

/// Virtual time goes on while everything waits; measurements keep it until they are done.
async fn pass(time: Duration) {
    clock::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn one_is_removed_when_one_is_enough_however_slow_the_removal_is() {
    // 81 % with ten, 80 % with nine.
    let node = Node::with(10, 71, 1).set(&[(0, Removal::Takes(Duration::from_secs(50)))]);
    let (handle, _task, _cancel) = node.start(policy());
    handle.poke();
    pass(Duration::from_secs(600)).await;
    assert_eq!(node.begun(), [id(0)]);
    assert_eq!(node.left(), 9);
    let settled = node.0.lock().unwrap().settled.clone();
    assert_eq!(settled[..2], [false, true], "what was freed is waited for");
}

#[tokio::test(start_paused = true)]
async fn the_interval_alone_is_enough_to_have_it_looked() {
    let node = Node::with(3, 79, 1);
    let (_handle, _task, _cancel) = node.start(policy());
    pass(Duration::from_secs(59)).await;
    assert_eq!(node.begun(), []);
    pass(Duration::from_secs(2)).await;
    assert_eq!(node.begun(), [id(0), id(1)]);
}

#[tokio::test(start_paused = true)]
async fn pokes_do_not_put_the_interval_off() {
    let node = Node::with(2, 79, 1).set(&[(0, Removal::Fails), (1, Removal::Fails)]);
    let (handle, _task, _cancel) = node.start(policy());
    for _ in 0..100 {
        handle.poke();
        pass(Duration::from_secs(1)).await;
    }
    assert_eq!(node.begun(), [id(0), id(1), id(0), id(1)], "once, and again after a tick");
}

#[tokio::test(start_paused = true)]
async fn too_many_go_two_at_a_time_and_no_more_than_too_many() {
    let node = Node::with(10, 0, 1);
    node.0.lock().unwrap().live = 47;
    let (handle, _task, _cancel) = node.start(policy());
    handle.poke();
    pass(Duration::from_secs(10)).await;
    assert_eq!(node.begun(), (0..7).map(id).collect::<Vec<_>>());
    assert_eq!(node.0.lock().unwrap().most_at_once, 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_or_panics_is_passed_over_and_tried_again_later() {
    let node = Node::with(4, 77, 1).set(&[(0, Removal::Fails), (1, Removal::Panics)]);
    node.0.lock().unwrap().base = 78;
    let (handle, _task, _cancel) = node.start(policy());
    handle.poke();
    pass(Duration::from_secs(30)).await;
    assert_eq!(node.begun(), [0, 1, 2, 3].map(id), "82, 82, 82, 81, 80 %");
    assert_eq!(node.left(), 2);
    node.0.lock().unwrap().behaves.clear();
    node.0.lock().unwrap().base = 79;
    pass(Duration::from_secs(60)).await;
    assert_eq!(node.left(), 1, "tried again at the tick, as far as needed");
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_hangs_is_given_up_and_nothing_goes_in_its_place_at_once() {
    let node = Node::with(3, 79, 1).set(&[(0, Removal::Hangs)]);
    let policy = GcPolicy { interval: Duration::from_secs(3600), ..policy() };
    let (handle, _task, _cancel) = node.start(policy);
    for _ in 0..20 {
        handle.poke();
        pass(Duration::from_secs(60)).await;
    }
    assert_eq!(node.begun(), [id(0)], "it may free its room yet");
    node.0.lock().unwrap().behaves.clear();
    pass(Duration::from_secs(3600)).await;
    assert_eq!(node.begun(), [id(0), id(0), id(1)], "82, 81, 80 %");
}

#[tokio::test(start_paused = true)]
async fn a_destroy_that_hangs_holds_up_neither_who_pokes_nor_the_end_of_the_agent() {
    let node = Node::with(3, 90, 1).set(&[(0, Removal::Hangs)]);
    let (handle, task, cancel) = node.start(policy());
    handle.poke();
    pass(Duration::from_secs(1)).await;
    for _ in 0..10_000 {
        handle.poke();
    }
    let asked = tokio::spawn({
        let handle = handle.clone();
        async move { handle.collect(None).await }
    });
    pass(Duration::from_secs(1)).await;
    cancel.cancel();
    task.await.unwrap();
    assert_eq!(asked.await.unwrap(), Err(CollectError::Stopping));
    assert_eq!(handle.collect(None).await, Err(CollectError::Stopping));
}

#[tokio::test(start_paused = true)]
async fn the_collector_ends_with_its_last_handle() {
    let node = Node::with(0, 0, 0);
    let (handle, task, _cancel) = node.start(policy());
    drop(handle.clone());
    drop(handle);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn on_demand_one_goes_or_all_do() {
    let node = Node::with(6, 0, 0).set(&[(4, Removal::Fails)]);
    let (handle, _task, _cancel) = node.start(policy());
    let one = handle.collect(Some(id(3))).await.unwrap();
    assert_eq!(one, Removed { allocs: vec![id(3)], failed: vec![] });
    let again = handle.collect(Some(id(3))).await;
    assert_eq!(again, Err(CollectError::NotGarbage { alloc: id(3) }));
    let all = handle.collect(None).await.unwrap();
    assert_eq!(all.allocs, [0, 1, 2, 5].map(id));
    assert_eq!(all.failed, [(id(4), "it is immutable".to_owned())]);
    assert_eq!(node.0.lock().unwrap().most_at_once, 2);
    let none = Node::with(0, 0, 0);
    let (handle, _task, _cancel) = none.start(policy());
    assert_eq!(handle.collect(None).await.unwrap(), Removed::default());
}

#[tokio::test(start_paused = true)]
async fn what_failed_before_is_tried_at_once_when_asked_for() {
    let node = Node::with(1, 90, 1).set(&[(0, Removal::Fails)]);
    let (handle, _task, _cancel) = node.start(policy());
    handle.poke();
    pass(Duration::from_secs(1)).await;
    node.0.lock().unwrap().behaves.clear();
    assert_eq!(handle.collect(Some(id(0))).await.unwrap().allocs, [id(0)]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_measured_leaves_the_count() {
    struct Broken;
    impl Gauge for Broken {
        fn measure(&self, _settle: bool) -> io::Result<FsUse> {
            Err(io::ErrorKind::StaleNetworkFileHandle.into())
        }
    }
    let node = Node::with(4, 99, 1);
    let policy = GcPolicy { max_allocs: 3, ..policy() };
    let cancel = CancellationToken::new();
    let (handle, _task) = spawn(policy, Arc::new(node.clone()), Arc::new(Broken), cancel);
    handle.poke();
    pass(Duration::from_secs(1)).await;
    assert_eq!(node.begun(), [id(0)]);
}

#[test]
fn the_real_gauge_sees_a_file_come_and_go() {
    let Ok(root) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: no /dev/shm");
        return;
    };
    // Far more than what other tests put there meanwhile.
    const BYTES: usize = 64 << 20;
    let gauge = FsGauge { root: root.path().to_owned() };
    let before = gauge.measure(true).unwrap();
    std::fs::write(root.path().join("file"), vec![1; BYTES]).unwrap();
    let with = gauge.measure(true).unwrap();
    std::fs::remove_file(root.path().join("file")).unwrap();
    let after = gauge.measure(true).unwrap();
    let unit = rustix::fs::statvfs(root.path()).unwrap().f_frsize;
    let half = BYTES as u64 / unit / 2;
    assert!(with.disk_used >= before.disk_used + half, "{before:?} {with:?}");
    assert!(with.disk_used >= after.disk_used + half, "{with:?} {after:?}");
    for fs in [before, with, after] {
        assert!(fs.disk_used <= fs.disk_total && fs.inodes_used <= fs.inodes_total, "{fs:?}");
    }
    assert!(FsGauge { root: root.path().join("nowhere") }.measure(false).is_err());
}
