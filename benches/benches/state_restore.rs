//! Open the state and read it all back, decoded: 100, 1,000 and 10,000 allocations of three tasks,
//! eight records each. After a clean close, and after the process that wrote was killed in the
//! middle of its writes; against the bare storage engine (open and scan, nothing checked or
//! decoded) and against reading the file's bytes.
//!
//! Opening a file that was not closed repairs it, so every round works on a fresh copy. The copies
//! are in the page cache: what is measured is the work, not the disk.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and kills a process of its own"
)]

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ostler_benches::bare_redb::BareRedb;
use ostler_benches::cost::Meter;
use ostler_benches::counting::{Allocations, Counting};
use ostler_benches::fixture::{LocalRecord, RECORDS, Records, fill};
use ostler_benches::machine::{quick, runtime, scaled};
use ostler_benches::percentiles::{median, number};
use ostler_benches::report::{Report, bench};
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::clock::Stopwatch;
use ostler_model::task::TaskState;
use ostler_state::testing::decode_any;
use ostler_state::{KeyPrefix, RecordKey, StateStore};

#[global_allocator]
static COUNTING: Counting = Counting;

/// First argument of this program as the writer that is killed.
const WRITER: &str = "__writer";

/// Milliseconds of one round.
#[derive(Clone, Copy, Default)]
struct Round {
    open: f64,
    read: f64,
    /// Processor time of both: another program on the machine adds nothing to it.
    cpu: f64,
    /// KiB that an open store keeps.
    heap: f64,
    bare: f64,
    raw: f64,
}

/// What restoring one file took: medians of the rounds.
#[derive(Clone, Copy, Default)]
struct Restored {
    open: f64,
    whole: f64,
    cpu: f64,
    heap: f64,
    bare: f64,
    raw: f64,
    file: u64,
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == WRITER) {
        let path = args.next().map(PathBuf::from).expect("a path");
        let count = args.next().and_then(|count| count.to_str()?.parse().ok()).expect("a count");
        return write_until_killed(&path, count);
    }
    bench("state_restore", restore)
}

fn restore(report: &mut Report) {
    let counts = [scaled(100, 5), scaled(1_000, 10), scaled(3_000, 15), scaled(10_000, 20)];
    let clean = counts.map(|count| measure(report.dir(), count, false));
    let killed = counts.map(|count| measure(report.dir(), count, true));
    let names = |of: &str| counts.map(|count| format!("{of}, {count} allocations"));
    let names: Vec<String> = ["closed", "killed"].into_iter().flat_map(names).collect();
    let rows = names.iter().zip(clean.iter().chain(&killed));
    let rows: Vec<_> = rows.map(|(name, one)| (&**name, one.row())).collect();
    let columns =
        ["ms", "open ms", "cpu ms", "bare redb ms", "bytes read ms", "file KiB", "heap KiB"];
    report.figures(&format!("open and decode, {RECORDS} records each"), &columns, &rows);
    let points =
        |of: fn(&Restored) -> f64| counts.map(number).into_iter().zip(clean.iter().map(of));
    let time: Vec<_> = points(|one| one.whole).collect();
    let heap: Vec<_> = points(|one| one.heap).collect();
    let series = [("time, ms", &*time), ("heap, KiB", &*heap)];
    let exponents = report.curve("restoring allocations", "allocations", series);
    let exponent = exponents.into_iter().fold(0.0, f64::max);
    let promises = &mut report.promises;
    promises.at_most("cost_exponent_allocations", exponent, "power", 1.05);

    let [_, thousand, _, all] = clean;
    promises.at_most("restore_10000", all.whole, "ms", 1_000.0);
    let linearity = all.whole / thousand.whole / 10.0;
    promises.at_most("restore_linearity", linearity, "times linear", 1.5);
    let [_, thousand, _, all] = killed;
    promises.at_most("restore_10000_after_kill", all.whole, "ms", 1_000.0);
    let linearity = all.whole / thousand.whole / 10.0;
    promises.at_most("restore_linearity_after_kill", linearity, "times linear", 1.5);
}

fn measure(dir: &Path, count: u64, killed: bool) -> Restored {
    let name = if killed { "killed" } else { "clean" };
    let file = dir.join(format!("{name}-{count}"));
    let bare = dir.join(format!("bare-{name}-{count}"));
    if killed {
        kill_a_writer(&file, count);
    } else {
        let runtime = runtime();
        let store = StateStore::open(&file).expect("a store");
        runtime.block_on(fill(&store, 0..count));
        runtime.block_on(store.close());
    }
    fill_bare(&bare, &file, killed);
    let rounds: Vec<Round> = (0..scaled(if count > 5_000 { 7 } else { 15 }, 1))
        .map(|_| one_round(dir, &file, &bare, count))
        .collect();
    let middle = |of: fn(&Round) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
    Restored {
        open: middle(|one| one.open),
        whole: middle(|one| one.open + one.read),
        cpu: middle(|one| one.cpu),
        heap: middle(|one| one.heap),
        bare: middle(|one| one.bare),
        raw: middle(|one| one.raw),
        file: std::fs::metadata(&file).expect("the file").len(),
    }
}

impl Restored {
    fn row(&self) -> Vec<f64> {
        let file = number(self.file / 1024);
        vec![self.whole, self.open, self.cpu, self.bare, self.raw, file, self.heap]
    }
}

fn one_round(dir: &Path, file: &Path, bare: &Path, count: u64) -> Round {
    let copy = dir.join("copy");
    let mut round = Round::default();
    synced_copy(file, &copy);
    synced_copy(&journal(file), &journal(&copy));

    let watch = Stopwatch::start();
    read_bytes(&copy);
    round.raw = watch.elapsed().as_secs_f64() * 1e3;

    let before = Allocations::now().live();
    let meter = Meter::start();
    let watch = Stopwatch::start();
    let store = StateStore::open(&copy).expect("a store");
    round.open = watch.elapsed().as_secs_f64() * 1e3;
    assert!(store.open_report().quarantined.is_empty(), "every record is whole");
    let watch = Stopwatch::start();
    let allocations = read_back(&store);
    round.read = watch.elapsed().as_secs_f64() * 1e3;
    round.cpu = meter.stop().cpu.as_secs_f64() * 1e3;
    assert_eq!(allocations, count, "every allocation is there");
    round.heap = number(Allocations::now().live().saturating_sub(before)) / 1024.0;
    drop(store);

    synced_copy(bare, &copy);
    let watch = Stopwatch::start();
    let engine = BareRedb::open(&copy);
    let (records, _) = std::hint::black_box(engine.scan());
    round.bare = watch.elapsed().as_secs_f64() * 1e3;
    assert!(records >= count * number_of_records(), "every record is there");
    round
}

/// A copy with nothing left to be written: the engine syncs the file when it opens it, and would
/// wait for the copy's own pages.
fn synced_copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("a copy");
    let file = File::options().write(true).open(to).expect("the copy");
    file.sync_all().expect("the copy is on the disk");
}

/// The journal of a state file.
fn journal(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// Read a file to its end, piece by piece.
fn read_bytes(path: &Path) {
    let mut file = File::open(path).expect("the file");
    let mut piece = vec![0; 256 * 1024];
    while file.read(&mut piece).expect("its bytes") > 0 {
        std::hint::black_box(&piece);
    }
}

fn number_of_records() -> u64 {
    u64::try_from(RECORDS).unwrap_or(0)
}

/// Decode every record to its type; returns how many were allocations.
fn read_back(store: &StateStore) -> u64 {
    let mut allocations = 0;
    for record in store.scan(&KeyPrefix::Allocs).expect("a scan") {
        match record.key {
            RecordKey::Alloc(_) => {
                std::hint::black_box(decode_any::<Allocation>(&record).expect("an allocation"));
                allocations += 1;
            }
            RecordKey::AllocState(_) => {
                std::hint::black_box(decode_any::<AllocState>(&record).expect("a state"));
            }
            RecordKey::TaskLocal(..) => {
                std::hint::black_box(decode_any::<LocalRecord>(&record).expect("a record"));
            }
            RecordKey::TaskState(..) => {
                std::hint::black_box(decode_any::<TaskState>(&record).expect("a state"));
            }
            _ => {}
        }
    }
    allocations
}

/// As many records of the same keys and sizes in a bare database; `open` when its process would
/// have been killed: then the file is copied while the engine has it open.
fn fill_bare(bare: &Path, file: &Path, open: bool) {
    let (copy, work) = (file.with_extension("read"), file.with_extension("bare"));
    std::fs::copy(file, &copy).expect("a copy");
    std::fs::copy(journal(file), journal(&copy)).expect("a copy");
    let store = StateStore::open(&copy).expect("a store");
    let engine = BareRedb::create(&work);
    for chunk in store.scan(&KeyPrefix::Allocs).expect("a scan").chunks(4_096) {
        let pairs: Vec<_> =
            chunk.iter().map(|one| (one.key.encode(), vec![1; one.len()])).collect();
        engine.put_all(pairs.iter().map(|(key, record)| (&**key, &**record)));
    }
    if open {
        std::fs::copy(&work, bare).expect("a copy");
        drop(engine);
    } else {
        drop(engine);
        std::fs::copy(&work, bare).expect("a copy");
    }
    drop(store);
    for path in [copy, work] {
        std::fs::remove_file(path).expect("the copy is removed");
    }
}

/// Have a child write `count` allocations and go on changing them, and kill it meanwhile.
fn kill_a_writer(path: &Path, count: u64) {
    let this = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(this);
    command.arg(WRITER).arg(path).arg(count.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the writer starts");
    let mut said = [0; 6];
    let stdout = child.stdout.as_mut().expect("its output");
    stdout.read_exact(&mut said).expect("the writer has written all");
    // Into the middle of its changes, at whatever point of a commit.
    let watch = Stopwatch::start();
    while watch.elapsed().as_millis() < if quick() { 5 } else { 120 } {
        std::thread::yield_now();
    }
    child.kill().expect("the writer is killed");
    child.wait().expect("the writer has ended");
}

/// The child: writes everything, says so, and changes task states until it is killed.
fn write_until_killed(path: &Path, count: u64) -> ExitCode {
    let runtime = runtime();
    let store = StateStore::open(path).expect("a store");
    runtime.block_on(fill(&store, 0..count));
    println!("ready");
    runtime.block_on(async {
        for writer in 0..16 {
            tokio::spawn(change_forever(store.clone(), Records::new(writer % count)));
        }
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

async fn change_forever(store: StateStore, mut records: Records) {
    loop {
        for (key, task) in &mut records.tasks {
            task.restarts += 1;
            store.put(key, task).await.expect("the write");
        }
    }
}
