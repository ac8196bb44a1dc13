//! Power cuts at any moment: what was acknowledged is there afterwards, and runs, once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ostler_model::rng::Rng;

use super::jobs::{job, sleeper, starts, task};

use super::rig;
use super::rig::{Rig, blank};
use super::vm::Machine;
use super::writes::{Kept, replay};
use crate::support::PATIENCE;

/// Cuts in a row of one disk, so that no list grows too long to be looked through.
const CUTS_OF_A_DISK: usize = 5;
/// When the power goes, after that: a few questions take so long.
const CUT_WITHIN: Duration = Duration::from_secs(4);
/// Room for all writes of one machine; sparse.
const LOG_BYTES: u64 = 4 << 30;

/// What the node said of a job before its power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It was asked and did not answer.
    Nothing,
    Taken,
    /// A service that was stopped.
    Stopped,
    /// A batch job that was over.
    Complete,
}

/// All jobs of a disk.
#[derive(Debug, Default)]
struct Book {
    next: u32,
    services: BTreeMap<u32, Said>,
    batches: BTreeMap<u32, Said>,
}

impl Book {
    fn new_number(&mut self) -> u32 {
        self.next += 1;
        100_000 + self.next
    }

    /// Ask for so many things. What is asked counts as unanswered until it is answered.
    async fn work(&mut self, machine: &mut Machine, rng: &Rng, things: usize) {
        for _ in 0..things {
            match rng.number_below(6) {
                0..3 => {
                    let number = self.new_number();
                    self.services.insert(number, Said::Nothing);
                    let id = format!("s{number}");
                    if machine.submit(&id, &sleeper(&id, number)).await.code == 0 {
                        self.services.insert(number, Said::Taken);
                    }
                }
                3..5 => {
                    let number = self.new_number();
                    self.batches.insert(number, Said::Nothing);
                    let id = format!("b{number}");
                    let text = job(&id, "batch", &task("t", "/bin/true", &[], 16, ""));
                    if machine.submit(&id, &text).await.code == 0 {
                        self.batches.insert(number, Said::Taken);
                    }
                }
                _ => self.stop_one(machine, rng).await,
            }
            let taken = self.batches.iter().find(|(_, said)| **said == Said::Taken);
            if let Some(number) = taken.map(|(number, _)| *number)
                && machine.alloc(&format!("b{number}")).await["ClientStatus"] == "complete"
            {
                self.batches.insert(number, Said::Complete);
            }
        }
    }

    async fn stop_one(&mut self, machine: &mut Machine, rng: &Rng) {
        let taken: Vec<u32> = self.of(Said::Taken);
        let Some(number) = taken.get(rng.number_below(taken.len().max(1) as u64) as usize) else {
            return;
        };
        self.services.insert(*number, Said::Nothing);
        if machine.run(&format!("ostler job stop s{number}")).await.code == 0 {
            self.services.insert(*number, Said::Stopped);
        }
    }

    fn of(&self, said: Said) -> Vec<u32> {
        let found = self.services.iter().filter(|(_, is)| **is == said);
        found.map(|(number, _)| *number).collect()
    }

    /// Everything acknowledged is there, and runs, once.
    async fn holds(&self, machine: &mut Machine) {
        let (taken, stopped) = (self.of(Said::Taken), self.of(Said::Stopped));
        let missing = std::cell::RefCell::new(Vec::new());
        let wait = async {
            loop {
                let runs = machine.sleepers().await;
                let mut lacks = taken.clone();
                lacks.retain(|number| !runs.contains_key(number));
                if lacks.is_empty() {
                    return Some(runs);
                }
                missing.replace(lacks);
            }
        };
        // An emulated processor starts dozens of them one after the other.
        let Some(runs) = ostler_model::clock::timeout(5 * PATIENCE, wait).await.flatten() else {
            let missing = missing.into_inner();
            let first = missing.first().copied().unwrap_or_default();
            let ask = format!("ostler job status s{first}; cat /run/agent.log");
            let status = machine.run(&ask).await.text;
            panic!("of {taken:?} these do not run: {missing:?}\n{status}");
        };
        assert!(runs.values().all(|count| *count == 1), "twice: {runs:?}");
        let up = stopped.iter().find(|number| runs.contains_key(number));
        assert_eq!(up, None, "a stopped service runs: {runs:?}");
        for (number, said) in &self.batches {
            let id = format!("b{number}");
            match said {
                Said::Taken => drop(machine.alloc_when(&id, "complete").await),
                Said::Complete => {
                    let alloc = machine.alloc(&id).await;
                    assert_eq!(alloc["ClientStatus"], "complete", "{alloc:#?}");
                    assert_eq!(starts(&alloc, "t"), 1, "it was over: {alloc:#?}");
                }
                _ => {}
            }
        }
    }
}

/// One machine from its start to its end; afterwards `disk` is what a real one would be.
async fn one_cut(
    rig: &Rig,
    disk: &Path,
    book: &mut Book,
    (first, things): (bool, usize),
    rng: &Rng,
) {
    let (live, log) = (rig.dir.path().join("live"), rig.dir.path().join("log"));
    std::fs::copy(disk, &live).unwrap();
    let _none_before = std::fs::remove_file(&log);
    blank(&log, LOG_BYTES);
    let mut machine = Machine::boot(rig, &live, Some(&log)).await;
    machine.start_agent().await;
    book.holds(&mut machine).await;
    book.work(&mut machine, rng, things).await;
    // And then at any moment of what is done next.
    let when = Duration::from_micros(rng.number_below(CUT_WITHIN.as_micros() as u64));
    let _until_the_cut =
        ostler_model::clock::timeout(when, book.work(&mut machine, rng, usize::MAX)).await;
    machine.cut().await;
    let kept = match rng.number_below(4) {
        _ if first => Kept::Nothing,
        0 => Kept::Nothing,
        1 => Kept::All,
        _ => Kept::Some,
    };
    replay(&log, disk, kept, rng).unwrap();
}

/// That is what makes the test able to fail.
async fn the_disk_forgets_what_was_not_flushed(rig: &Rig, rng: &Rng) {
    let (disk, live, log) =
        (rig.disk("forgets"), rig.dir.path().join("live"), rig.dir.path().join("log"));
    std::fs::copy(&disk, &live).unwrap();
    blank(&log, LOG_BYTES);
    let mut machine = Machine::boot(rig, &live, Some(&log)).await;
    machine.ok("echo yes >/data/marks/kept; sync; echo no >/data/marks/lost").await;
    machine.cut().await;
    replay(&log, &disk, Kept::Nothing, rng).unwrap();
    let mut machine = Machine::boot(rig, &disk, None).await;
    machine.ok("grep yes /data/marks/kept && ! grep no /data/marks/lost").await;
    machine.cut().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_power_cut_everything_acknowledged_is_there_and_runs_once() {
    let Some((rig, _turn)) = rig().await else { return };
    let soak = std::env::var_os("OSTLER_SOAK").is_some();
    let seed = std::env::var("OSTLER_POWER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| Rng::system().next_u64());
    println!("OSTLER_POWER_SEED={seed} draws the same jobs and losses");
    let rng = Rng::from_seed(seed);
    the_disk_forgets_what_was_not_flushed(&rig, &rng).await;
    let (cuts, things) = if soak { (50, 6) } else { (2, 4) };
    let mut done = 0;
    while done < cuts {
        let (disk, mut book) = (rig.disk("power"), Book::default());
        for turn in 0..CUTS_OF_A_DISK.min(cuts - done) {
            let first = turn == 0;
            one_cut(&rig, &disk, &mut book, (first, things), &rng).await;
            done += 1;
            println!("cut {done} of {cuts}: {book:?}");
        }
        let mut machine = Machine::boot(&rig, &disk, None).await;
        machine.start_agent().await;
        book.holds(&mut machine).await;
        machine.cut().await;
    }
}
