//! Nodes that servers have.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use ostler_sim::joined::plan::JoinedPlan;
use ostler_sim::joined::play;

/// Those of defects that were mended, of the node or of what is expected of it.
const MENDED: &[u64] = &[138, 147, 175, 179, 218, 257, 336, 412, 456];
/// Played at each run.
const SEEDS: u64 = 60;

/// A directory in memory where there is one: nothing of a node is to outlive its play.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn fails(seed: u64) -> Option<String> {
    let failure = play::play(&JoinedPlan::from_seed(seed), directory().path()).err()?;
    Some(format!("seed {seed}: {}; again with: ostler-sim replay {seed} --joined", failure.what))
}

#[test]
fn nodes_run_what_their_servers_want_once_and_tell_them_whatever_happens_to_the_way() {
    let seeds: Vec<u64> = (0..SEEDS).chain(MENDED.iter().copied()).collect();
    let next = AtomicU64::new(0);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let player = || {
            let mut failed = Vec::new();
            while let Ok(at) = usize::try_from(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(seed) = seeds.get(at) else { break };
                failed.extend(fails(*seed));
            }
            failed
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let players: Vec<_> = (0..cores).map(|_| scope.spawn(player)).collect();
        players.into_iter().flat_map(|player| player.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
