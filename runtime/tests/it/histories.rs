//! Random histories against the real binary.
//!
//! ```text
//! seed ─► actions ─► driver ──► `ostler agent`, killed and started again ──► tasks
//!         (pure)       │  marks: what was asked, what was acknowledged         │ start, end, double
//!                      ▼                                                       ▼
//!                    model: what is to be ─────────► oracle ◄──────────── evidence
//!                    (pure)                          (pure)
//! ```
//! Helpers hang, files beside the state are lost, the clock is set. Nothing runs twice, is lost, is left
//! behind or runs again after its end; and what is shown is what the tasks wrote. A few histories of a normal
//! run; with `OSTLER_SOAK=1` as many as fit into `OSTLER_HISTORIES_MINUTES`. `OSTLER_HISTORIES_SEED` plays the
//! history of one seed.

mod actions;
mod driver;
pub mod model;
pub mod oracle;
pub mod place;

use crate::support::needs::{Need, skipped};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ostler_model::clock::Stopwatch;
use ostler_model::rng::Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use actions::Plan;
use driver::World;

/// Played in every run, beside one nobody knows.
const SEEDS: [u64; 2] = [1, 2];
/// Actions of a history of a normal run, and of a long one.
const LENGTH: usize = 8;
const LENGTH_SOAK: usize = 18;
/// So many that went wrong are enough.
const WRONG_MAX: usize = 12;
/// Histories at a time.
const SIDE_BY_SIDE: usize = 3;

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub(crate) fn soak() -> bool {
    std::env::var_os("OSTLER_SOAK").is_some_and(|value| value == "1")
}

/// # Errors
/// All there is to say of a history that went wrong.
async fn play(seed: u64, length: usize, mounts: bool) -> Result<Duration, String> {
    let begun = Stopwatch::start();
    let plan = Plan::draw(seed, length, mounts);
    let described = plan.to_string();
    let mut world = World::new(plan);
    let Err(trouble) = world.play().await else { return Ok(begun.elapsed()) };
    let story = std::mem::take(&mut world.story);
    let kept = world.keep();
    let mut text = String::new();
    let _infallible = write!(
        text,
        "history {seed} went wrong after {:?}:\n{trouble}\n\n{described}\nwhat was done:\n{story}\n{kept}\n\
         again: OSTLER_HISTORIES_SEED={seed} OSTLER_HISTORIES_LENGTH={length} cargo test -p ostler --test it histories\n",
        begun.elapsed()
    );
    Err(text)
}

#[test]
fn the_same_seed_draws_the_same_history() {
    for seed in 0..50 {
        let (one, other) = (Plan::draw(seed, 20, true), Plan::draw(seed, 20, true));
        assert_eq!(one.to_string(), other.to_string());
        assert!(one.actions.len() >= 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_twice_or_is_lost_whatever_happens_to_the_agent() {
    let mounts = place::mounts();
    if !mounts {
        skipped(Need::Mounts, "full disks of histories: no file system can be mounted");
    }
    let length = number("OSTLER_HISTORIES_LENGTH").and_then(|length| usize::try_from(length).ok());
    if let Some(seed) = number("OSTLER_HISTORIES_SEED") {
        let done = play(seed, length.unwrap_or(LENGTH), mounts).await;
        done.unwrap_or_else(|trouble| panic!("{trouble}"));
        return;
    }
    let fresh = Rng::system();
    let minutes = number("OSTLER_HISTORIES_MINUTES").filter(|_| soak());
    let length = length.unwrap_or(if minutes.is_some() { LENGTH_SOAK } else { LENGTH });
    let begun = Stopwatch::start();
    let (mut running, room) = (JoinSet::new(), Arc::new(Semaphore::new(SIDE_BY_SIDE)));
    let (mut played, mut wrong, mut next) = (0, Vec::new(), SEEDS.to_vec().into_iter());
    let mut last = minutes.is_none().then(|| fresh.number_below(1 << 30));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.unwrap();
        while let Some(done) = running.try_join_next() {
            played += 1;
            finished(done.expect("a history is played"), &mut wrong);
        }
        let more =
            minutes.is_some_and(|minutes| begun.elapsed() < Duration::from_secs(60 * minutes));
        let seed = next
            .next()
            .or_else(|| if more { Some(fresh.number_below(1 << 40)) } else { last.take() });
        let Some(seed) = seed else { break };
        if wrong.len() >= WRONG_MAX {
            break;
        }
        println!("history {seed}, length {length}, begins after {:?}", begun.elapsed());
        running.spawn(async move {
            let _permit = permit;
            (seed, play(seed, length, mounts).await)
        });
    }
    while let Some(done) = running.join_next().await {
        played += 1;
        finished(done.expect("a history is played"), &mut wrong);
    }
    println!(
        "{played} histories of {length} actions in {:?}, {} wrong",
        begun.elapsed(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn finished((seed, done): (u64, Result<Duration, String>), wrong: &mut Vec<String>) {
    match done {
        Ok(took) => println!("history {seed}: well, {took:?}"),
        Err(trouble) => {
            println!("{trouble}");
            wrong.push(trouble);
        }
    }
}
