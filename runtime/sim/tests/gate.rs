//! The first two thousand nodes, and each that failed once.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use ostler_sim::plan::Plan;
use ostler_sim::play::play;

/// Seeds of defects that were mended.
const MENDED: &[u64] = &[34, 153, 203, 315, 466, 585, 1_459, 1_503, 5_283, 48_365, 143_679];

fn fails(seed: u64) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let failure = play(&Plan::from_seed(seed), dir.path()).err()?;
    Some(format!("seed {seed}: {}; again with: ostler-sim replay {seed}", failure.what))
}

#[test]
fn two_thousand_nodes_keep_what_they_acknowledged_and_come_to_rest() {
    let next = AtomicU64::new(0);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let play = || {
            let mut failed = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= 2_000 || failed.len() > 4 {
                    return failed;
                }
                failed.extend(fails(seed));
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let players: Vec<_> = (0..cores).map(|_| scope.spawn(play)).collect();
        players.into_iter().flat_map(|player| player.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn nodes_that_failed_once_do_not_fail_again() {
    let failed: Vec<String> = MENDED.iter().filter_map(|seed| fails(*seed)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_same_seed_plays_the_same() {
    for seed in [3, 153, 203] {
        let played = || {
            let dir = tempfile::tempdir().unwrap();
            let played = play(&Plan::from_seed(seed), dir.path()).map_err(|f| f.what).unwrap();
            (played.lives, played.doors, played.time)
        };
        assert_eq!(played(), played(), "seed {seed}");
    }
}
