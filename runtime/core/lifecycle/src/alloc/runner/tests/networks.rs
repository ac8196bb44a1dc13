//! Networks of allocations are made one at a time, and each takes as long as its plugins do.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use ostler_model::alloc::ClientStatus;
use ostler_model::job::NetworkSpec;
use ostler_model::limits::HOOK_WALL_MAX;
use ostler_model::network::{
    AllocNetwork, NetworkError, NetworkMode, NetworkWaitObserver, Networks,
};
use ostler_testing::fake_driver::Script;

/// How long a plugin takes for one.
const PLUGIN: Duration = Duration::from_secs(14);
/// So many that the last one waits longer than any hook may take.
const MANY: u64 = 7;

/// A node whose plugin is slow.
#[derive(Default)]
struct SlowNetworks {
    turn: tokio::sync::Mutex<()>,
    made: AtomicUsize,
    taken_away: AtomicUsize,
}

impl SlowNetworks {
    async fn work(&self, line: &dyn NetworkWaitObserver, done: &AtomicUsize) {
        line.set_waiting(true).await;
        let _turn = self.turn.lock().await;
        line.set_waiting(false).await;
        clock::sleep(PLUGIN).await;
        done.fetch_add(1, Ordering::SeqCst);
    }
}

impl Networks for SlowNetworks {
    fn set_up<'a>(
        &'a self,
        _alloc: &'a Allocation,
        line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>> {
        Box::pin(async move {
            self.work(line, &self.made).await;
            Ok(None)
        })
    }

    fn tear_down<'a>(
        &'a self,
        _alloc: &'a Allocation,
        line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            self.work(line, &self.taken_away).await;
            Ok(())
        })
    }
}

/// The allocation of this number, with a network of its own; it runs for a second.
fn alloc(bench: &Bench, networks: &Arc<SlowNetworks>, number: u64) -> AllocHandle {
    let name = format!("web{number}");
    bench.node.script(&name, [Script::ends(SECOND, 0)]);
    let rng = Rng::from_seed(number + 1);
    let mut allocation = fixtures::allocation(bench.kind, vec![task(&name)], &rng).unwrap();
    let mut job = allocation.job.as_ref().clone();
    job.groups[0].network = Some(NetworkSpec { mode: NetworkMode::Bridge, ..Default::default() });
    allocation.job = Arc::new(job);
    let networks: Arc<dyn Networks> = Arc::<SlowNetworks>::clone(networks);
    let node = NodeContext { networks, ..bench.context() };
    AllocRunner::spawn(bench.start_on(node, allocation)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_long_for_its_turn_to_get_a_network_gets_one_and_people_see_why() {
    assert!(u32::try_from(MANY - 1).unwrap() * PLUGIN > HOOK_WALL_MAX);
    let (bench, networks) = (Bench::new(), Arc::new(SlowNetworks::default()));
    let turn = networks.turn.lock().await;
    let all: Vec<_> = (0..MANY).map(|number| alloc(&bench, &networks, number)).collect();
    for handle in &all {
        let waits = until(handle, |s| s.client_description.starts_with("waiting for its turn"));
        assert_eq!(waits.await.client_status, ClientStatus::Pending);
    }
    drop(turn);
    for handle in &all {
        let state = handle.wait_done().await;
        assert_eq!(state.client_status, ClientStatus::Complete, "{}", state.client_description);
    }
    let many = usize::try_from(MANY).unwrap();
    let did = |what: &AtomicUsize| what.load(Ordering::SeqCst);
    assert_eq!((did(&networks.made), did(&networks.taken_away)), (many, many));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stopped_while_it_waits_for_its_turn_starts_nothing() {
    let (bench, networks) = (Bench::new(), Arc::new(SlowNetworks::default()));
    let turn = networks.turn.lock().await;
    let handle = alloc(&bench, &networks, 0);
    until(&handle, |s| s.client_description.starts_with("waiting for its turn")).await;
    handle.stop("not needed").await;
    until(&handle, |s| s.client_status == ClientStatus::Complete).await;
    drop(turn);
    handle.wait_done().await;
    assert!(!bench.node.calls().contains(&"start web0".to_owned()));
    let did = |what: &AtomicUsize| what.load(Ordering::SeqCst);
    assert_eq!((did(&networks.made), did(&networks.taken_away)), (0, 1));
}
