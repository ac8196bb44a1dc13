//! What happens to a node, drawn from a seed: a list that can be shortened.

mod script;
mod work;

use std::time::Duration;

use crate::files::{FileAct, mix};
use ostler_model::rng::Rng;
pub use script::{Ending, Script, Start};

const SECOND: Duration = Duration::from_secs(1);

/// How often a task is started again, and within which time.
pub(crate) const ATTEMPTS: (usize, Duration) = (2, Duration::from_secs(1_800));

/// One of so many plans has its records in a file: it takes twice as long.
const FILE_SHARE: u64 = 8;

/// How something of the world does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As it should.
    Works,
    /// Calls fail.
    Fails,
    /// Calls never end.
    Hangs,
    /// A driver says that it is not ready; a device plugin that there is nothing.
    Lies,
}

/// How the disk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// As it should.
    Works,
    /// Commits are refused.
    Full,
    /// Commits are made, and reported as failed.
    Forgets,
    /// Some operation of each commit fails.
    Fails,
    /// The first sync of each commit fails, and what it was to write is only shown from memory from
    /// then on.
    Unsure,
    /// Commits take half a minute.
    Slow,
}

/// How a new version of a job takes over, and whether what fails gets successors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakesOver {
    /// All at once; what failed stays failed.
    #[default]
    AtOnce,
    /// So many at a time, as they become healthy; what failed gets a few successors.
    Rolling(u32),
    /// So many beside the old ones first, which are promoted when they are healthy.
    Canaries(u32),
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A job is registered: which of the names, how often, with what in its environment.
    Register {
        /// Which.
        job: usize,
        /// Allocations.
        count: u32,
        /// Another one is a destructive update.
        version: u32,
        /// Its task asks for a device.
        device: bool,
        /// Another task prepares something in memory for it.
        prepares: bool,
        /// How a new version of it takes over.
        takes_over: TakesOver,
        /// Its work has an end.
        batch: bool,
    },
    /// A job is stopped.
    Stop {
        /// Which.
        job: usize,
        /// And forgotten.
        purge: bool,
    },
    /// One allocation is stopped; the number picks which.
    StopAlloc(u64),
    /// The tasks of one allocation are restarted.
    Restart(u64),
    /// What is over is collected.
    Collect,
    /// A process ends by itself with this code.
    End(u64, i32),
    /// The driver does so from now on.
    Driver(Mode),
    /// The device plugin does so from now on.
    Device(Mode),
    /// An instance becomes healthy or not.
    Health(u64, bool),
    /// The disk does so from now on.
    Disk(Disk),
    /// The agent is killed at this door from now, and gone for a while.
    Kill {
        /// How many doors are passed before.
        doors: u64,
        /// How long nobody runs.
        gone: Duration,
        /// The machine loses power there, and is started anew.
        power: bool,
    },
    /// The agent leaves, and is gone for a while.
    Leave {
        /// Every allocation is stopped before.
        drain: bool,
        /// How long nobody runs.
        gone: Duration,
    },
    /// The time of day jumps by seconds.
    Jump(i64),
    /// Something happens to the jobs directory.
    Files(FileAct),
}

/// Something happens after a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Time since the one before.
    pub after: Duration,
    /// What.
    pub act: Act,
}

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is random in the world comes from it too.
    pub seed: u64,
    /// The records are in a real state file, on a disk with faults.
    pub file: bool,
    /// Work of it ends, and no place is filled again that is done.
    pub ends: bool,
    /// In order.
    pub steps: Vec<Step>,
}

/// Names of jobs.
pub const JOBS: [&str; 3] = ["web", "db", "cron"];

pub(crate) fn pick<T: Clone>(rng: &Rng, from: &[T]) -> Option<T> {
    let at = usize::try_from(rng.number_below(u64::try_from(from.len()).unwrap_or(1))).unwrap_or(0);
    from.get(at).cloned()
}

impl Plan {
    /// Draw a plan.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut plan = Self { ends: true, ..Self::varied(seed) };
        work::mix(seed, &mut plan.steps);
        plan
    }

    /// As [`Plan::from_seed`], without work that ends, chains of updates and what follows them.
    #[must_use]
    pub fn varied(seed: u64) -> Self {
        let mut plan = Self::plain(seed);
        let rng = Rng::from_seed(seed ^ 0x00f1_1e5a);
        plan.file = rng.number_below(FILE_SHARE) == 0;
        for step in &mut plan.steps {
            match &mut step.act {
                Act::Register { prepares, .. } => *prepares = rng.number_below(3) == 0,
                Act::Kill { power, .. } => *power = rng.number_below(3) == 0,
                Act::Disk(disk) if plan.file && *disk != Disk::Works => {
                    let disks = [*disk, Disk::Fails, Disk::Unsure];
                    *disk = pick(&rng, &disks).unwrap_or(*disk);
                }
                _ => {}
            }
        }
        let rng = Rng::from_seed(seed ^ 0x00de_9107);
        for step in &mut plan.steps {
            if let Act::Register { takes_over, .. } = &mut step.act {
                *takes_over = match rng.number_below(4) {
                    0 => TakesOver::Rolling(1 + u32::try_from(rng.number_below(2)).unwrap_or(0)),
                    1 => TakesOver::Canaries(1 + u32::try_from(rng.number_below(2)).unwrap_or(0)),
                    _ => TakesOver::AtOnce,
                };
            }
        }
        mix(seed, &mut plan.steps);
        plan
    }

    /// As [`Plan::varied`], with records in memory, and without what a machine that is started anew
    /// may forget.
    #[must_use]
    pub fn plain(seed: u64) -> Self {
        let rng = Rng::from_seed(seed);
        let count = 4 + rng.number_below(24);
        let mut steps = vec![Step { after: SECOND, act: register(&rng) }];
        for _ in 0..count {
            let after = match rng.number_below(4) {
                0 => Duration::ZERO,
                1 => Duration::from_millis(rng.number_below(1_000)),
                2 => Duration::from_millis(rng.number_below(20_000)),
                _ => Duration::from_millis(rng.number_below(120_000)),
            };
            steps.push(Step { after, act: act(&rng) });
        }
        Self { seed, file: false, ends: false, steps }
    }
}

fn register(rng: &Rng) -> Act {
    Act::Register {
        job: usize::try_from(rng.number_below(3)).unwrap_or(0),
        count: u32::try_from(rng.number_below(5)).unwrap_or(0),
        version: u32::try_from(rng.number_below(3)).unwrap_or(0),
        device: rng.number_below(3) == 0,
        prepares: false,
        takes_over: TakesOver::AtOnce,
        batch: false,
    }
}

fn mode(rng: &Rng) -> Mode {
    let modes = [Mode::Works, Mode::Works, Mode::Fails, Mode::Hangs, Mode::Lies];
    pick(rng, &modes).unwrap_or(Mode::Works)
}

fn gone(rng: &Rng) -> Duration {
    Duration::from_millis(match rng.number_below(3) {
        0 => 0,
        1 => rng.number_below(5_000),
        _ => rng.number_below(300_000),
    })
}

fn act(rng: &Rng) -> Act {
    let job = usize::try_from(rng.number_below(3)).unwrap_or(0);
    match rng.number_below(26) {
        0..=5 => register(rng),
        6..=8 => Act::Stop { job, purge: rng.number_below(3) == 0 },
        9 | 10 => Act::StopAlloc(rng.number_below(1 << 20)),
        11 => Act::Restart(rng.number_below(1 << 20)),
        12 => Act::Collect,
        13 | 14 => {
            Act::End(rng.number_below(1 << 20), i32::try_from(rng.number_below(2)).unwrap_or(0))
        }
        15 => Act::Driver(mode(rng)),
        16 => Act::Device(mode(rng)),
        17 => Act::Health(rng.number_below(3), rng.number_below(2) == 0),
        18 | 19 => {
            let disks = [Disk::Works, Disk::Works, Disk::Full, Disk::Forgets, Disk::Slow];
            Act::Disk(pick(rng, &disks).unwrap_or(Disk::Works))
        }
        20..=22 => {
            let doors =
                if rng.number_below(2) == 0 { rng.number_below(12) } else { rng.number_below(100) };
            Act::Kill { doors, gone: gone(rng), power: false }
        }
        23 => Act::Leave { drain: rng.number_below(3) == 0, gone: gone(rng) },
        24 => Act::Jump(i64::try_from(rng.number_below(7_200)).unwrap_or(0).saturating_sub(3_600)),
        _ => Act::Disk(Disk::Works),
    }
}
