//! The first four hundred nodes, two thousand with `OSTLER_SOAK`, and each that failed once.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use ostler_sim::plan::{Act, Disk, Plan, Step, TakesOver};
use ostler_sim::planted::SEEDS;
use ostler_sim::play::{Failure, Played, play};

/// Seeds of defects that were mended, of plans as they were drawn first.
const MENDED: &[u64] =
    &[34, 153, 203, 315, 466, 585, 1_459, 1_503, 5_283, 9_386, 48_365, 64_623, 132_558, 143_679];

/// The same of plans without work that ends and chains of updates.
const MENDED_SINCE: &[u64] = &[94, 138, 78_093, 147_606, 203_296];

/// How many nodes are played where there is time.
const SEEDS_OF_A_LONG_RUN: u64 = 2_000;

/// How many nodes are played several times.
const PLAYED_AGAIN: u64 = 24;

/// How often a seed is played that is to play the same: what is drawn among eight may be the same twice.
const PLAYS: usize = 4;

/// A directory in memory where there is one: nothing of a node is to outlive its play.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn played(plan: &Plan) -> Result<Played, Box<Failure>> {
    let dir = directory();
    play(plan, dir.path())
}

fn fails(seed: u64) -> Option<String> {
    let failure = played(&Plan::from_seed(seed)).err()?;
    Some(format!("seed {seed}: {}; again with: ostler-sim replay {seed}", failure.what))
}

fn drawn_before(seed: u64, draw: fn(u64) -> Plan) -> Option<String> {
    let failure = played(&draw(seed)).err()?;
    Some(format!("seed {seed} as it was drawn before: {}", failure.what))
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
fn nodes_keep_what_they_acknowledged_and_come_to_rest() {
    let long = std::env::var_os("OSTLER_SOAK").is_some();
    let failed = wrong(if long { SEEDS_OF_A_LONG_RUN } else { SEEDS }, fails);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn nodes_that_failed_once_do_not_fail_again() {
    let plain = MENDED.iter().filter_map(|seed| drawn_before(*seed, Plan::plain));
    let varied = MENDED_SINCE.iter().filter_map(|seed| drawn_before(*seed, Plan::varied));
    let failed: Vec<String> = plain.chain(varied).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A job whose task needs what another one prepares, one that comes while the disk forgets what it
/// could not sync, one that is acknowledged after that, and a power cut some doors later.
fn power_cut(doors: u64, file: bool) -> Plan {
    let prepared = Act::Register {
        job: 0,
        count: 2,
        version: 0,
        device: true,
        prepares: true,
        takes_over: TakesOver::AtOnce,
        batch: false,
    };
    let gone = Duration::from_secs(10);
    let refused = Act::Register {
        job: 2,
        count: 2,
        version: 0,
        device: false,
        prepares: false,
        takes_over: TakesOver::AtOnce,
        batch: false,
    };
    let again = Act::Register {
        job: 1,
        count: 1,
        version: 0,
        device: false,
        prepares: true,
        takes_over: TakesOver::AtOnce,
        batch: false,
    };
    let acts = [prepared, Act::Disk(Disk::Unsure), refused, Act::Disk(Disk::Works), again];
    let after = Duration::from_secs(20);
    let mut steps: Vec<Step> = acts.into_iter().map(|act| Step { after, act }).collect();
    let cut = Act::Kill { doors, gone, power: true };
    steps.push(Step { after: Duration::ZERO, act: cut });
    steps.push(Step { after: 10 * gone, act: Act::Collect });
    Plan { seed: doors, file, ends: false, steps }
}

#[test]
fn a_machine_that_is_started_anew_prepares_what_was_in_its_memory_and_knows_what_it_acknowledged() {
    let mut cut = 0;
    for (doors, file) in (0..12).flat_map(|doors| [(doors, false), (doors, true)]) {
        let played = played(&power_cut(doors, file));
        let played = played.unwrap_or_else(|failure| panic!("{doors}, {file}: {}", failure.what));
        // Where a start hangs, too few doors are passed.
        cut += usize::from(played.journal.iter().any(|line| line.contains("no power")));
    }
    assert!(cut >= 20, "the power is cut in {cut} plays");
}

/// Everything that happens when a seed is played.
fn journal(seed: u64) -> Vec<String> {
    played(&Plan::from_seed(seed)).map_or_else(|failure| failure.journal, |played| played.journal)
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
    let differing = wrong(PLAYED_AGAIN, parts);
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
