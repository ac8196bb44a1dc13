//! The first two thousand nodes, and each that failed once.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use ostler_sim::plan::{Act, Plan};
use ostler_sim::play::play;

/// Seeds of defects that were mended, of plans in which nothing happens to a jobs directory.
const MENDED: &[u64] =
    &[34, 153, 203, 315, 466, 585, 1_459, 1_503, 5_283, 9_386, 48_365, 64_623, 132_558, 143_679];

/// How often a seed is played that is to play the same: what is drawn among eight may be the same twice.
const PLAYS: usize = 4;

/// A directory in memory where there is one: nothing of a node is to outlive its play.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn fails(seed: u64) -> Option<String> {
    fails_as(seed, &Plan::from_seed(seed))
}

fn fails_as(seed: u64, plan: &Plan) -> Option<String> {
    let dir = directory();
    let failure = play(plan, dir.path()).err()?;
    Some(format!("seed {seed}: {}; again with: ostler-sim replay {seed}", failure.what))
}

/// What `look` finds wrong with the first seeds, of a few at most, on all cores.
fn wrong(seeds: u64, look: fn(u64) -> Option<String>) -> Vec<String> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let play = || {
            let mut wrong = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds || wrong.len() > 4 {
                    return wrong;
                }
                wrong.extend(look(seed));
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let players: Vec<_> = (0..cores).map(|_| scope.spawn(play)).collect();
        players.into_iter().flat_map(|player| player.join().unwrap()).collect()
    })
}

#[test]
fn two_thousand_nodes_keep_what_they_acknowledged_and_come_to_rest() {
    let failed = wrong(2_000, fails);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn nodes_that_failed_once_do_not_fail_again() {
    let fails_still = |seed: &u64| {
        let mut plan = Plan::from_seed(*seed);
        plan.steps.retain(|step| !matches!(step.act, Act::Files(_)));
        fails_as(*seed, &plan)
    };
    let failed: Vec<String> = MENDED.iter().filter_map(fails_still).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Everything that happens when a seed is played.
fn journal(seed: u64) -> Vec<String> {
    let dir = directory();
    let played = play(&Plan::from_seed(seed), dir.path());
    played.map_or_else(|failure| failure.journal, |played| played.journal)
}

/// Where several plays of a seed part.
fn parts(seed: u64) -> Option<String> {
    let first = journal(seed);
    (1..PLAYS).find_map(|_| {
        let again = journal(seed);
        let at = (0..first.len().max(again.len())).find(|at| first.get(*at) != again.get(*at))?;
        let (one, other) = (first.get(at), again.get(at));
        Some(format!("seed {seed} at line {at}: {one:?}, and another time {other:?}"))
    })
}

#[test]
fn the_same_seed_plays_the_same() {
    let differing = wrong(120, parts);
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
