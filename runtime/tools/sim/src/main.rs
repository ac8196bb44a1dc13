//! Plays nodes from seeds.
//!
//! ```text
//! ostler-sim run --seeds 0..2000      plays them on all cores; a failure is shrunk and printed
//! ostler-sim replay 17                plays one and prints what happens
//! … --joined                          the same of a node that Nomad's servers have
//! … --planted NAME                    the same of a node with a defect (with the feature `planted`)
//! ostler-sim scale --nodes 1000       what so many nodes cost their servers
//! ```

use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};

use ostler_sim::history::History;
use ostler_sim::play::{Failure, Played};
use ostler_sim::scale::{self, ScalePlan};

/// Play whole nodes from seeds, on virtual time.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Of nodes with this defect.
    #[cfg(feature = "planted")]
    #[arg(long, global = true, value_parser = planted)]
    planted: Option<&'static str>,
}

/// What every node has that is played.
#[cfg(feature = "planted")]
static DEFECT: std::sync::OnceLock<Option<&'static str>> = std::sync::OnceLock::new();

#[derive(Subcommand)]
enum Command {
    /// Play many seeds on all cores. A failure prints its seed and the shortest plan that fails still.
    Run {
        /// First seed, and the one behind the last: 0..2000.
        #[arg(long, default_value = "0..2000", value_parser = seeds)]
        seeds: Range<u64>,
        /// Nodes that servers have.
        #[arg(long)]
        joined: bool,
        /// Threads; as many as there are cores unless given.
        #[arg(long)]
        threads: Option<usize>,
        /// Keep how far it came in this file, and go on from there.
        #[arg(long)]
        resume: Option<PathBuf>,
        /// End after so many failures.
        #[arg(long, default_value_t = 10)]
        failures: u64,
    },
    /// Play a cluster of many nodes and print what they cost its servers. Calls come from the
    /// seed; memory, wall time and some bytes of connections are the machine's.
    Scale {
        /// Nodes; half of them are drained.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
        nodes: u32,
        /// Allocations that they run.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        allocs: u32,
        /// What is random comes from it.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print JSON instead of tables.
        #[arg(long)]
        json: bool,
        /// Draw the bytes of each phase into this file, too.
        #[arg(long)]
        svg: Option<PathBuf>,
    },
    /// Play one seed and print what happens.
    Replay {
        /// Which.
        seed: u64,
        /// Of a node that servers have.
        #[arg(long)]
        joined: bool,
        /// The whole plan instead of the shortest that fails still.
        #[arg(long)]
        whole: bool,
        /// Print the log of the agent too.
        #[arg(long)]
        log: bool,
    },
}

#[cfg(feature = "planted")]
fn planted(name: &str) -> Result<&'static str, String> {
    let names = || ostler_sim::planted::PLANTED.iter().map(|planted| planted.name);
    let known = ostler_sim::planted::named(name).map(|planted| planted.name);
    known.ok_or_else(|| format!("one of {}", names().collect::<Vec<_>>().join(", ")))
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("two numbers with two dots between them")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(number(first)?..number(end)?)
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    #[cfg(feature = "planted")]
    let _first = DEFECT.set(args.planted);
    match args.command {
        Command::Run { seeds, joined, threads, resume, failures } => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            run(seeds, joined, threads.unwrap_or(cores), resume.as_deref(), failures)
        }
        Command::Scale { nodes, allocs, seed, json, svg } => {
            let (nodes, allocs) = (usize::try_from(nodes)?, usize::try_from(allocs)?);
            scale(&ScalePlan { nodes, allocs, seed }, json, svg.as_deref())
        }
        Command::Replay { seed, joined, whole, log } => replay(seed, joined, whole, log),
    }
}

/// A directory in memory where there is one.
fn directory() -> std::io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let owner_alone = || std::fs::Permissions::from_mode(0o700);
    let make = || {
        let mut make = tempfile::Builder::new();
        make.prefix("ostler-sim-").permissions(owner_alone());
        make
    };
    make().tempdir_in("/dev/shm").or_else(|_| make().tempdir())
}

fn scale(plan: &ScalePlan, json: bool, svg: Option<&std::path::Path>) -> Result<ExitCode> {
    let dir = directory()?;
    let report = scale::play(plan, dir.path()).map_err(anyhow::Error::msg)?;
    if json {
        println!("{:#}", report.json())
    } else {
        print!("{}\n{}", report.text(), report.measured_text())
    }
    if let Some(path) = svg {
        let drawn = std::fs::write(path, scale::picture::svg(&report));
        drawn.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn one(history: &History) -> Result<Played, Box<Failure>> {
    let failed = |what: String| Box::new(Failure { what, journal: Vec::new() });
    let dir = directory().map_err(|error| failed(error.to_string()))?;
    #[cfg(feature = "planted")]
    ostler_model::planted::plant(DEFECT.get().copied().flatten());
    history.play(dir.path())
}

/// On a thread of its own: a panic is a failure too.
fn guarded(history: &History) -> Result<Played, Box<Failure>> {
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(history)));
    played.unwrap_or_else(|_| {
        let what = "a panic; it is printed above".to_owned();
        Err(Box::new(Failure { what, journal: Vec::new() }))
    })
}

/// Does it fail in this way? Names and numbers differ.
fn fails_so(history: &History, what: &str) -> bool {
    let words = |what: &str| {
        let words = what.split(|c: char| c.is_whitespace());
        let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    guarded(history).is_err_and(|failure| words(&failure.what) == words(what))
}

fn run(
    seeds: Range<u64>,
    joined: bool,
    threads: usize,
    resume: Option<&std::path::Path>,
    most: u64,
) -> Result<ExitCode> {
    let known = resume.map(std::fs::read_to_string).and_then(Result::ok);
    let from = match known.as_deref().map(str::trim) {
        Some(text) => text.parse::<u64>().with_context(|| format!("{text:?} is not a seed"))?,
        None => seeds.start,
    };
    let (next, failed) = (AtomicU64::new(from.max(seeds.start)), AtomicU64::new(0));
    let (doors, lives) = (AtomicU64::new(0), AtomicU64::new(0));
    let output = Mutex::new(std::io::stdout());
    let threads = threads.max(1);
    // What each thread plays: everything below all of them was played.
    let at: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(from.max(seeds.start))).collect();
    let save = || {
        let safe = at.iter().map(|at| at.load(Ordering::SeqCst)).min();
        if let (Some(path), Some(safe)) = (resume, safe) {
            drop(std::fs::write(path, safe.to_string()));
        }
    };
    let player = |mine: &AtomicU64| {
        loop {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            let enough = failed.load(Ordering::Relaxed) >= most;
            mine.store(seed.min(seeds.end), Ordering::SeqCst);
            if seed >= seeds.end || enough {
                return;
            }
            let history = History::from_seed(seed, joined);
            match guarded(&history) {
                Ok(played) => {
                    doors.fetch_add(played.doors, Ordering::Relaxed);
                    lives.fetch_add(u64::from(played.lives), Ordering::Relaxed);
                }
                Err(failure) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    let short = history.shortest(|history| fails_so(history, &failure.what));
                    if let Ok(mut out) = output.lock() {
                        drop(writeln!(out, "seed {seed} fails: {}", failure.what));
                        for line in short.lines() {
                            drop(writeln!(out, "  {line}"));
                        }
                        let joined = if joined { " --joined" } else { "" };
                        drop(writeln!(out, "  again with: ostler-sim replay {seed}{joined}"));
                    }
                }
            }
            if seed % 1_000 == 0 {
                save();
            }
        }
    };
    std::thread::scope(|scope| {
        for mine in &at {
            scope.spawn(|| player(mine));
        }
    });
    let failed = failed.load(Ordering::Relaxed);
    let to = at.iter().map(|at| at.load(Ordering::SeqCst)).min().unwrap_or(from);
    let played = to.saturating_sub(from.max(seeds.start));
    println!(
        "{played} seeds, {failed} failed; {} agents passed {} doors",
        lives.load(Ordering::Relaxed),
        doors.load(Ordering::Relaxed)
    );
    save();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay(seed: u64, joined: bool, whole: bool, log: bool) -> Result<ExitCode> {
    let mut history = History::from_seed(seed, joined);
    if let Err(failure) = guarded(&history)
        && !whole
    {
        history = history.shortest(|history| fails_so(history, &failure.what));
    }
    if log {
        let level = tracing_subscriber::filter::LevelFilter::DEBUG;
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).init();
    }
    for line in history.lines() {
        println!("{line}");
    }
    match guarded(&history) {
        Ok(played) => {
            for line in &played.journal {
                println!("{line}");
            }
            let Played { lives, doors, time, .. } = played;
            println!("{lives} agents passed {doors} doors in {time:?}");
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            for line in &failure.journal {
                println!("{line}");
            }
            bail!("seed {seed}: {}", failure.what)
        }
    }
}
