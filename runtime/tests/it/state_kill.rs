//! `kill -9` of a process that writes state, again and again over the same file: what it said was
//! durable is there, and nothing is there by half.
//!
//! ```text
//! this process                          a child: the same binary, one ignored test
//!   spawn ───────────────────────────►  opens the file, several writers
//!   read, count ◄── pipe ─────────────  `I` before each call, `A` after it
//!   kill at a seeded number of `A`
//!   read the rest, open the file, compare
//! ```
//!
//! Five rounds; 200 with `OSTLER_SOAK=1`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use ostler_model::clock;
use ostler_model::ids::{AllocId, PluginName, TaskName};
use ostler_model::rng::Rng;
use ostler_state::testing::{AnyKey, decode_any};
use ostler_state::{KeyPrefix, PutOutcome, RecordKey, StateStore};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;

use crate::support::PATIENCE;

const FILE: &str = "OSTLER_TEST_STATE_FILE";
const SEED: &str = "OSTLER_TEST_SEED";
const ROUND: &str = "OSTLER_TEST_ROUND";
const WRITERS: u64 = 6;
/// More than a round lets it do; the child ends by itself when nobody kills it.
const CALLS_MAX: u64 = 2_000;

/// One call of a writer, as it is told through the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Slot and number of the value; numbers are not used twice.
    Put(Slot, u64),
    /// May lag.
    Later(Slot, u64),
    Delete(Slot),
    /// An allocation of the writer, by its number.
    Destroy(u64),
    Flush,
}

/// One record of a writer: one of an allocation, or the one beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Of { alloc: u64, record: u64 },
    Beside,
}

const RECORDS: u64 = 4;

fn alloc_id(writer: u64, alloc: u64) -> AllocId {
    AllocId::new(uuid::Uuid::from_u64_pair(writer, alloc))
}

fn key(writer: u64, slot: Slot) -> RecordKey {
    let Slot::Of { alloc, record } = slot else {
        return RecordKey::PluginHandle(PluginName::new(format!("writer{writer}")).unwrap());
    };
    let (id, task) = (alloc_id(writer, alloc), TaskName::new("web").unwrap());
    match record {
        0 => RecordKey::Alloc(id),
        1 => RecordKey::AllocState(id),
        2 => RecordKey::TaskLocal(id, task),
        _ => RecordKey::TaskState(id, task),
    }
}

/// Whose key it is.
fn slot(key: &RecordKey) -> (u64, Slot) {
    if let RecordKey::PluginHandle(name) = key {
        return (name.as_str().strip_prefix("writer").unwrap().parse().unwrap(), Slot::Beside);
    }
    let (writer, alloc) = uuid::Uuid::from_bytes(*key.alloc().unwrap().as_bytes()).as_u64_pair();
    let slots = (0..RECORDS).map(|record| Slot::Of { alloc, record });
    (writer, slots.into_iter().find(|slot| self::key(writer, *slot) == *key).unwrap())
}

/// The content of a value is known from its number.
fn content(number: u64) -> String {
    let sizes = [40, 700, 2_000, 10_240, 90];
    let mark = format!("{number} ");
    let size = sizes[usize::try_from(number).unwrap() % sizes.len()];
    let mut content = mark.repeat(size / mark.len() + 1);
    content.truncate(size);
    content
}

fn number_in(content: &str) -> u64 {
    let number = content.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(content, self::content(number), "a value by half");
    number
}

impl Call {
    fn told(self) -> String {
        let slot = |slot| match slot {
            Slot::Of { alloc, record } => format!("{alloc} {record}"),
            Slot::Beside => "- -".to_owned(),
        };
        match self {
            Self::Put(at, number) => format!("put {} {number}", slot(at)),
            Self::Later(at, number) => format!("later {} {number}", slot(at)),
            Self::Delete(at) => format!("delete {}", slot(at)),
            Self::Destroy(alloc) => format!("destroy {alloc}"),
            Self::Flush => "flush".to_owned(),
        }
    }

    fn parse(words: &[&str]) -> Self {
        let slot = |alloc: &str, record: &str| match alloc {
            "-" => Slot::Beside,
            _ => Slot::Of { alloc: alloc.parse().unwrap(), record: record.parse().unwrap() },
        };
        match words {
            ["put", a, r, number] => Self::Put(slot(a, r), number.parse().unwrap()),
            ["later", a, r, number] => Self::Later(slot(a, r), number.parse().unwrap()),
            ["delete", a, r] => Self::Delete(slot(a, r)),
            ["destroy", alloc] => Self::Destroy(alloc.parse().unwrap()),
            ["flush"] => Self::Flush,
            _ => panic!("{words:?}"),
        }
    }
}

/// One line in one write, so that lines of several writers do not mix.
fn tell(line: String) {
    std::io::stdout().lock().write_all((line + "\n").as_bytes()).unwrap();
}

async fn make(store: &StateStore, writer: u64, call: Call) -> PutOutcome {
    match call {
        Call::Put(slot, number) => {
            store.put(&AnyKey(key(writer, slot)), &content(number)).await.unwrap()
        }
        Call::Later(slot, number) => {
            store.put_later(&AnyKey(key(writer, slot)), &content(number)).await.unwrap()
        }
        Call::Delete(slot) => {
            store.delete(&key(writer, slot)).await.map(|()| PutOutcome::Written).unwrap()
        }
        Call::Destroy(alloc) => {
            let id = alloc_id(writer, alloc);
            store.destroy_alloc(id).await.map(|()| PutOutcome::Written).unwrap()
        }
        Call::Flush => store.flush().await.map(|()| PutOutcome::Written).unwrap(),
    }
}

/// What a writer takes to be durable, to write it again.
fn mine(store: &StateStore, writer: u64) -> BTreeMap<Slot, u64> {
    let records = store.scan(&KeyPrefix::All).unwrap();
    let records = records
        .iter()
        .filter(|record| !matches!(record.key, RecordKey::Meta | RecordKey::Counters));
    let numbers = records.map(|record| {
        let (owner, slot) = slot(&record.key);
        (owner, slot, number_in(&decode_any::<String>(record).unwrap()))
    });
    numbers.filter(|(owner, ..)| *owner == writer).map(|(_, slot, n)| (slot, n)).collect()
}

async fn write(store: StateStore, writer: u64, seed: u64, round: u64) {
    let rng = Rng::from_seed(seed ^ (writer << 32) ^ (round << 40));
    let mut known = mine(&store, writer);
    let newest = known.keys().filter_map(|slot| match slot {
        Slot::Of { alloc, .. } => Some(*alloc),
        Slot::Beside => None,
    });
    // Numbers of earlier rounds are smaller.
    let (mut number, mut alloc) = (round << 20, newest.max().unwrap_or(0).max(round << 20) + 1);
    for _ in 0..CALLS_MAX {
        number += 1;
        let slot = match rng.number_below(5) {
            RECORDS => Slot::Beside,
            record => Slot::Of { alloc, record },
        };
        let call = match rng.number_below(16) {
            0 => {
                let oldest = known.keys().next();
                let Some(Slot::Of { alloc: oldest, .. }) = oldest.copied() else { continue };
                alloc += u64::from(oldest == alloc);
                Call::Destroy(oldest)
            }
            1 => Call::Delete(Slot::Beside),
            2 => Call::Flush,
            3 => {
                alloc += 1;
                continue;
            }
            4..=6 => Call::Later(slot, number),
            7..=9 => {
                let at = usize::try_from(rng.number_below(known.len() as u64)).unwrap();
                let Some((slot, number)) = known.iter().nth(at) else { continue };
                Call::Put(*slot, *number)
            }
            _ => Call::Put(slot, number),
        };
        tell(format!("I {writer} {}", call.told()));
        let put = make(&store, writer, call).await;
        match call {
            Call::Put(slot, number) => {
                // One that may lag may be on its way behind what is known.
                known.insert(slot, number);
            }
            Call::Delete(slot) | Call::Later(slot, _) => drop(known.remove(&slot)),
            Call::Destroy(gone) => {
                known.retain(|slot, _| !matches!(slot, Slot::Of { alloc, .. } if *alloc == gone));
            }
            Call::Flush => {}
        }
        tell(format!("A {writer} {put:?} {}", call.told()));
    }
}

/// The child; without its variables there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn writes_until_it_is_killed() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    let (seed, round) = (number(SEED), number(ROUND));
    tell("opening".to_owned());
    let store = StateStore::open(Path::new(&file)).unwrap();
    tell("open".to_owned());
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(store.clone(), writer, seed, round));
    }
    writers.join_all().await;
}

/// What the file may hold of one writer.
#[derive(Default)]
struct Told {
    durable: BTreeMap<Slot, u64>,
    /// Queued since the last durable write.
    later: Vec<(Slot, u64)>,
    /// Made and not acknowledged.
    open: Option<Call>,
}

impl Told {
    fn hear(&mut self, line: &[&str]) {
        match line {
            ["I", _, call @ ..] => self.open = Some(Call::parse(call)),
            ["A", _, put, call @ ..] => {
                let call = Call::parse(call);
                assert_eq!(self.open.take(), Some(call));
                self.acknowledged(call, put);
            }
            _ => panic!("{line:?}"),
        }
    }

    fn acknowledged(&mut self, call: Call, put: &str) {
        match (call, put) {
            (Call::Later(slot, number), "Queued") => return self.later.push((slot, number)),
            (Call::Put(slot, number), "Unchanged") => {
                // True only of what is durable and has nothing newer on its way.
                let later = self.later.iter().rev().find(|(at, _)| *at == slot);
                let newest = later.map(|(_, n)| n).or_else(|| self.durable.get(&slot));
                assert_eq!(newest, Some(&number), "wrongly taken as unchanged");
                return;
            }
            (_, "Written") => {}
            _ => panic!("{call:?} ended as {put}"),
        }
        self.durable.extend(self.later.drain(..));
        match call {
            Call::Put(slot, number) => drop(self.durable.insert(slot, number)),
            Call::Delete(slot) => drop(self.durable.remove(&slot)),
            Call::Destroy(gone) => self.durable.retain(|slot, _| !is_of(*slot, gone)),
            Call::Later(..) | Call::Flush => {}
        }
    }

    /// Whether `found` is what was acknowledged, with what was on its way done or not.
    fn allows(&self, found: &BTreeMap<Slot, u64>) -> Result<(), String> {
        let destroyed = match self.open {
            Some(Call::Destroy(alloc)) if !found.keys().any(|slot| is_of(*slot, alloc)) => {
                Some(alloc)
            }
            _ => None,
        };
        let later = self.later.iter().map(|(slot, _)| slot);
        for slot in self.durable.keys().chain(found.keys()).chain(later) {
            let (had, has) = (self.durable.get(slot), found.get(slot));
            let open = match self.open {
                Some(Call::Put(at, number) | Call::Later(at, number)) if at == *slot => {
                    has == Some(&number)
                }
                Some(Call::Delete(at)) if at == *slot => has.is_none(),
                _ => destroyed.is_some_and(|alloc| is_of(*slot, alloc)),
            };
            let lagged = self.later.iter().any(|(at, number)| at == slot && has == Some(number));
            if had != has && !open && !lagged {
                return Err(format!("{slot:?} is {has:?}, acknowledged {had:?}; {:?}", self.open));
            }
        }
        Ok(())
    }
}

fn is_of(slot: Slot, gone: u64) -> bool {
    matches!(slot, Slot::Of { alloc, .. } if alloc == gone)
}

/// Let a child write and kill it after `count` of its lines; every whole line it wrote.
async fn killed_after(count: u64, file: &Path, seed: u64, round: u64) -> Vec<String> {
    let child = "state_kill::writes_until_it_is_killed";
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture", "--test-threads", "1"])
        .env(FILE, file)
        .env(SEED, seed.to_string())
        .env(ROUND, round.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut pipe = BufReader::new(child.stdout.take().unwrap());
    let (mut lines, mut heard, mut line) = (Vec::new(), 0, String::new());
    while pipe.read_line(&mut line).await.unwrap() > 0 && line.ends_with('\n') {
        // The test harness begins a line that the child's first one ends.
        let counts = line.starts_with("A ") || line.ends_with("opening\n");
        heard += u64::from(counts);
        if counts && heard == count {
            child.start_kill().unwrap();
        }
        lines.push(std::mem::take(&mut line).trim_end().to_owned());
    }
    let status = child.wait().await.unwrap();
    assert!(!status.success() && status.code().is_none(), "ended by itself: {status}");
    lines
}

#[tokio::test]
async fn a_killed_writer_loses_nothing_it_was_told_is_durable() {
    let soak = std::env::var_os("OSTLER_SOAK").is_some_and(|value| value == "1");
    let rounds = if soak { 200 } else { 5 };
    let seed = Rng::system().number_below(1 << 30);
    let (rng, dir) = (Rng::from_seed(seed), tempfile::tempdir().unwrap());
    let file = dir.path().join("state.redb");
    let mut told: BTreeMap<u64, Told> = BTreeMap::new();
    let (mut acknowledged, mut early) = (0, 0);
    for round in 1..=rounds {
        // Now and then while it opens, now and then late.
        let most = [3, 60, 400][usize::try_from(rng.number_below(3)).unwrap()];
        let count = 1 + rng.number_below(most);
        let lines = killed_after(count, &file, seed, round);
        let lines = clock::timeout(PATIENCE, lines).await.expect("the child is killed");
        early += u64::from(!lines.iter().any(|line| line == "open"));
        for line in &lines {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["I" | "A", writer, ..] = words[..] {
                acknowledged += u64::from(words[0] == "A");
                told.entry(writer.parse().unwrap()).or_default().hear(&words);
            }
        }
        let store = StateStore::open(&file).expect("the file opens");
        let report = store.open_report();
        assert!(report.quarantined.is_empty() && report.in_quarantine == 0, "{report:?}");
        for writer in 0..WRITERS {
            let (found, told) = (mine(&store, writer), told.entry(writer).or_default());
            if let Err(what) = told.allows(&found) {
                panic!("seed {seed}, round {round}, killed after {count}, writer {writer}: {what}");
            }
            *told = Told { durable: found, ..Told::default() };
        }
    }
    println!("{rounds} rounds, {acknowledged} acknowledgements, {early} killed while opening");
    assert!(acknowledged > 0);
}
