use std::sync::{Arc, Mutex as StdMutex};

use super::*;
use ostler_model::ports::BoxFuture;
use ostler_model::rng::Rng;

/// The reports of an allocation that waits in line.
#[derive(Default)]
struct ReportedWaits(StdMutex<Vec<bool>>);

impl NetworkWaitObserver for ReportedWaits {
    fn set_waiting(&self, waits: bool) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().push(waits);
        Box::pin(std::future::ready(()))
    }
}

impl ReportedWaits {
    fn all(&self) -> Vec<bool> {
        self.0.lock().unwrap().clone()
    }
}

fn networks(dir: &tempfile::TempDir) -> Arc<AllocNetworks> {
    Arc::new(AllocNetworks::new(&NetworkConfig::default(), dir.path()))
}

#[tokio::test(start_paused = true)]
async fn a_turn_comes_however_long_others_take_and_the_wait_for_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let networks = networks(&dir);
    let told = Arc::new(ReportedWaits::default());
    let before = networks.wait_turn(None).await;
    let waiting = {
        let (networks, told) = (Arc::clone(&networks), Arc::clone(&told));
        let alloc = AllocId::new(Rng::from_seed(1).uuid());
        tokio::spawn(async move { networks.take_away(alloc, Some(told.as_ref())).await })
    };
    clock::sleep(100 * HOOK_WALL_MAX).await;
    assert_eq!(told.all(), [true]);
    assert!(!waiting.is_finished());
    drop(before);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    assert_eq!(told.all(), [true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_at_once_is_no_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (networks, told) = (networks(&dir), ReportedWaits::default());
    drop(networks.wait_turn(Some(&told)).await);
    assert!(told.all().is_empty());
}
