//! What a history needs in which something goes wrong with work that ends, or with a place that changes
//! hands quickly.
//!
//! ```text
//!   work that ends ─► its ends ─► collection ─► the agent is killed or leaves ─► the same job with another count
//!   one version ─► the next, while what it replaces ends slowly ─► the one after
//!   a wait ─► the clock steps ─► the agent is killed ─► the wait goes on
//! ```

use std::time::Duration;

use super::{Act, Step, TakesOver};
use ostler_model::rng::Rng;

/// Draw which jobs have an end, and put such histories between the steps.
pub(super) fn mix(seed: u64, steps: &mut Vec<Step>) {
    let rng = Rng::from_seed(seed ^ 0x0077_0e4b);
    // A job is of one kind, whatever becomes of it.
    let batch: Vec<bool> = (0..super::JOBS.len()).map(|_| rng.number_below(3) == 0).collect();
    for _ in 0..rng.number_below(3) {
        let most = u64::try_from(steps.len()).unwrap_or(0);
        let at = usize::try_from(rng.number_below(most.saturating_add(1))).unwrap_or(0);
        let job = usize::try_from(rng.number_below(3)).unwrap_or(0);
        let drawn = match rng.number_below(3) {
            0 => ended_and_collected(&rng, job),
            1 => chain(&rng, job),
            _ => stepped(&rng, job),
        };
        drop(steps.splice(at..at, drawn));
    }
    for step in steps.iter_mut() {
        if let Act::Register { job, batch: has_end, takes_over, .. } = &mut step.act {
            *has_end = batch.get(*job).copied().unwrap_or(false);
            if *has_end {
                *takes_over = TakesOver::AtOnce;
            }
        }
    }
}

fn step(after: u64, act: Act) -> Step {
    Step { after: Duration::from_millis(after), act }
}

fn register(job: usize, count: u32, version: u32) -> Act {
    Act::Register {
        job,
        count,
        version,
        device: false,
        prepares: false,
        takes_over: TakesOver::AtOnce,
        batch: false,
    }
}

fn small(rng: &Rng, below: u64) -> u32 {
    u32::try_from(rng.number_below(below)).unwrap_or(0)
}

/// The agent goes, in one of the ways in which it may.
fn goes(rng: &Rng) -> Act {
    let gone = Duration::from_millis(rng.number_below(5_000));
    match rng.number_below(4) {
        0 => Act::Leave { drain: false, gone },
        _ => Act::Kill { doors: rng.number_below(20), gone, power: rng.number_below(4) == 0 },
    }
}

fn ended_and_collected(rng: &Rng, job: usize) -> Vec<Step> {
    let (count, version) = (1 + small(rng, 4), small(rng, 3));
    let mut steps = vec![step(rng.number_below(2_000), register(job, count, version))];
    for _ in 0..rng.number_below(2 * u64::from(count) + 1) {
        let code = i32::try_from(rng.number_below(2)).unwrap_or(0);
        steps.push(step(rng.number_below(20_000), Act::End(rng.number_below(1 << 20), code)));
    }
    steps.push(step(rng.number_below(100_000), Act::Collect));
    if rng.number_below(2) == 0 {
        steps.push(step(rng.number_below(2_000), goes(rng)));
    }
    // The job is looked at again.
    steps.push(step(
        rng.number_below(20_000),
        match rng.number_below(3) {
            0 => register(job, 1 + count, version),
            1 => Act::StopAlloc(rng.number_below(1 << 20)),
            _ => Act::Collect,
        },
    ));
    steps
}

fn chain(rng: &Rng, job: usize) -> Vec<Step> {
    let count = 1 + small(rng, 3);
    let first = small(rng, 3);
    let links = 2 + small(rng, 4);
    let mut steps = Vec::new();
    for link in 0..=links {
        let after = if link == 0 { rng.number_below(20_000) } else { rng.number_below(6_000) };
        steps.push(step(after, register(job, count, (first + link) % 3)));
        match rng.number_below(6) {
            0 => steps.push(step(rng.number_below(2_000), goes(rng))),
            1 => steps.push(step(rng.number_below(2_000), Act::Restart(rng.number_below(1 << 20)))),
            2 => {
                steps.push(step(rng.number_below(2_000), Act::StopAlloc(rng.number_below(1 << 20))))
            }
            _ => {}
        }
    }
    steps
}

fn stepped(rng: &Rng, job: usize) -> Vec<Step> {
    let by = i64::try_from(rng.number_below(7_200)).unwrap_or(0).saturating_sub(5_400);
    let mut steps = vec![
        step(rng.number_below(5_000), register(job, 1 + small(rng, 3), small(rng, 3))),
        step(rng.number_below(30_000), Act::End(rng.number_below(1 << 20), 1)),
        step(rng.number_below(20_000), Act::Jump(by)),
    ];
    if rng.number_below(3) > 0 {
        steps.push(step(rng.number_below(10_000), goes(rng)));
    }
    steps.push(step(rng.number_below(30_000), Act::End(rng.number_below(1 << 20), 1)));
    steps
}
