//! What happens in a history, drawn from its seed alone. Pure.

use std::fmt;
use std::time::Duration;

use ostler_model::rng::Rng;

use super::model::{Change, Life, Shape};

/// One thing done to the agent, or by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Register {
        job: usize,
        change: Change,
    },
    /// Updates in a row, while what the first one replaces may still be stopping.
    Updates {
        job: usize,
        times: u32,
    },
    Stop {
        job: usize,
        purge: bool,
    },
    /// Stopped and registered again at once, so often.
    StopAndRun {
        job: usize,
        times: u32,
    },
    StopAlloc {
        job: usize,
        index: u32,
    },
    RestartAlloc {
        job: usize,
        index: u32,
    },
    SignalAlloc {
        job: usize,
        index: u32,
    },
    KillTask {
        job: usize,
        index: u32,
    },
    KillSupervisor {
        job: usize,
        index: u32,
        agent_down: bool,
    },
    Collect,
    /// The agent dies so long after the other thing was asked for.
    KillAgent {
        during: Option<Box<Action>>,
        after: Duration,
    },
    /// It dies while it starts.
    KillStart {
        after: Vec<Duration>,
    },
    /// It is told to end, and started again.
    Leave,
    /// It is started again with few descriptors, and then with as many as before.
    FewFiles {
        limit: u32,
        meanwhile: Option<Box<Action>>,
    },
    /// The disk is full for a while.
    FullDisk {
        meanwhile: Box<Action>,
        kill: bool,
    },
    /// Somebody sets the clock by so many seconds.
    StepClock {
        seconds: i64,
    },
    /// A helper of the agent does not answer any more.
    Hang {
        helper: Helper,
        meanwhile: Option<Box<Action>>,
    },
    /// While no agent runs, a file beside the state is lost.
    LoseFile {
        file: Beside,
    },
    Settle,
}

/// A process that an agent has beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// WASM tasks live in it.
    Worker,
    /// It forks supervisors.
    Zygote,
    /// It watches over the task of a place.
    Supervisor { job: usize, index: u32 },
}

/// A file beside the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Of the worker: by which the next agent finds it.
    Worker,
    /// How far the state was, as the directory knows.
    Commits,
    /// The id of the node.
    NodeId,
    /// By which compiled code is sealed.
    CodeKey,
    /// The API's socket.
    Socket,
    /// Notes of runs that are not on record yet.
    Notes,
}

/// All of a history.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub jobs: Vec<Shape>,
    pub counts: Vec<u32>,
    /// The data directory is a small file system of its own.
    pub small_disk: bool,
    /// Allocations that are over and kept.
    pub max_allocs: Option<u32>,
    pub actions: Vec<Action>,
}

/// Draws from one generator.
struct Dice(Rng);

impl Dice {
    fn below(&self, bound: u64) -> u64 {
        self.0.number_below(bound)
    }

    fn small(&self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).unwrap()
    }

    fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn millis(&self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }

    fn of<T: Clone>(&self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()].clone()
    }
}

impl Plan {
    /// The same for the same arguments. `mounts`: small disks can be had.
    pub fn draw(seed: u64, length: usize, mounts: bool) -> Self {
        let dice = Dice(Rng::from_seed(seed));
        let small_disk = dice.chance(25) && mounts;
        let max_allocs = dice.chance(50).then(|| dice.of(&[1, 4, 50]));
        let mut kinds = vec![0, dice.below(8), dice.below(8), dice.below(8)];
        kinds.truncate(2 + usize::try_from(dice.below(3)).unwrap());
        let jobs: Vec<Shape> =
            kinds.iter().enumerate().map(|(number, kind)| shape(number, *kind, &dice)).collect();
        let counts = jobs.iter().map(|_| 1 + dice.small(4)).collect();
        let mut actions: Vec<Action> =
            (0..jobs.len()).map(|job| Action::Register { job, change: Change::Tasks }).collect();
        if dice.chance(60) {
            actions.push(Action::Settle);
        }
        while actions.len() < length {
            actions.push(action(&dice, &jobs, small_disk));
            if dice.chance(20) {
                actions.push(Action::Settle);
            }
        }
        Self { seed, jobs, counts, small_disk, max_allocs, actions }
    }
}

fn shape(number: usize, kind: u64, dice: &Dice) -> Shape {
    let base = Shape {
        id: format!("job{number}"),
        batch: false,
        wasm: false,
        sticky: dice.chance(25),
        attempts: dice.small(3),
        life: Life::Runs { stop: Duration::ZERO },
    };
    let slow = Life::Runs { stop: Duration::from_millis(500 + dice.below(2_500)) };
    let fails = Life::Fails { code: 1 + u8::try_from(dice.below(60)).unwrap() };
    let ends =
        Life::Ends { after: if dice.chance(50) { Duration::ZERO } else { dice.millis(2_000) } };
    match kind {
        0 | 1 => Shape { life: slow, attempts: 2, ..base },
        2 => Shape { attempts: 2, ..base },
        3 => Shape { life: fails, sticky: false, ..base },
        4 => Shape { life: fails, batch: true, sticky: false, ..base },
        5 => Shape { wasm: true, sticky: false, attempts: 2, ..base },
        6 if dice.chance(40) => {
            Shape { wasm: true, batch: true, sticky: false, life: ends, attempts: 2, ..base }
        }
        _ => Shape { batch: true, life: ends, sticky: false, ..base },
    }
}

fn action(dice: &Dice, jobs: &[Shape], small_disk: bool) -> Action {
    let upper = if small_disk { 130 } else { 118 };
    match dice.below(upper) {
        0..=61 => request(dice, jobs),
        62..=65 => {
            let (job, index) = place(dice, jobs);
            Action::KillTask { job, index }
        }
        66..=71 => {
            let (job, index) = place(dice, jobs);
            Action::KillSupervisor { job, index, agent_down: dice.chance(40) }
        }
        72..=86 => {
            let during = dice.chance(70).then(|| Box::new(request(dice, jobs)));
            let after = match dice.below(3) {
                0 => dice.millis(30),
                1 => dice.millis(200),
                _ => dice.millis(1_500),
            };
            Action::KillAgent { during, after }
        }
        87..=91 => {
            let times = 1 + dice.below(3);
            Action::KillStart { after: (0..times).map(|_| dice.millis(1_200)).collect() }
        }
        92..=94 => Action::Leave,
        95..=99 => Action::FewFiles {
            limit: 40 + dice.small(51),
            meanwhile: dice.chance(50).then(|| Box::new(request(dice, jobs))),
        },
        100..=105 => Action::StepClock { seconds: dice.of(&[-7_200, -3_600, -600, 600, 1_200]) },
        106..=111 => {
            let (job, index) = place(dice, jobs);
            let supervisor = Helper::Supervisor { job, index };
            let helper = dice.of(&[Helper::Worker, Helper::Zygote, supervisor]);
            let meanwhile = dice.chance(70).then(|| Box::new(request(dice, jobs)));
            Action::Hang { helper, meanwhile }
        }
        112..=117 => {
            let (keys, socket) = (Beside::CodeKey, Beside::Socket);
            let all =
                [Beside::Worker, Beside::Commits, Beside::NodeId, keys, socket, Beside::Notes];
            Action::LoseFile { file: dice.of(&all) }
        }
        _ => Action::FullDisk { meanwhile: Box::new(request(dice, jobs)), kill: dice.chance(50) },
    }
}

/// What a client asks.
fn request(dice: &Dice, jobs: &[Shape]) -> Action {
    let (job, index) = place(dice, jobs);
    match dice.below(60) {
        0..=9 => Action::Register { job, change: Change::Tasks },
        10..=16 => Action::Register { job, change: Change::Count(dice.small(7)) },
        17..=19 => Action::Register { job, change: Change::Rules },
        20..=22 => Action::Register { job, change: Change::Same },
        23..=30 => Action::Updates { job, times: 2 + dice.small(2) },
        31..=37 => Action::Stop { job, purge: dice.chance(35) },
        38..=41 => Action::StopAndRun { job, times: 1 + dice.small(2) },
        42..=48 => Action::StopAlloc { job, index },
        49..=51 => Action::RestartAlloc { job, index },
        52..=53 => Action::SignalAlloc { job, index },
        _ => Action::Collect,
    }
}

fn place(dice: &Dice, jobs: &[Shape]) -> (usize, u32) {
    (usize::try_from(dice.below(jobs.len() as u64)).unwrap(), dice.small(4))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, small disk: {}, max_allocs: {:?}",
            self.seed, self.small_disk, self.max_allocs
        )?;
        for (number, (shape, count)) in self.jobs.iter().zip(&self.counts).enumerate() {
            writeln!(f, "  job {number}: count {count}, {shape:?}")?;
        }
        for (number, action) in self.actions.iter().enumerate() {
            writeln!(f, "  {number:>2}. {action:?}")?;
        }
        Ok(())
    }
}
