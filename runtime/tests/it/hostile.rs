//! The hostile-guest suite: every attack we know, against real host functions, one after the other.
//!
//! ```text
//!   round: each attack ─► what stopped it, how long past its deadline ─► nothing of it is left
//!          meanwhile: a neighbour is called again and again, timers are watched
//!   round, count, round, count again: the same
//! ```
//! Alone in its process, a child of the test: other tests open files and threads of their own. The
//! table it prints is what `docs/containment.md` is about.

mod arena;
mod attacks;
mod bytes;
mod devices;
mod drivers;
mod hangs;
mod held;
mod modules;
mod tasks;

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use arena::{Arena, Count, Outcome, Seen};
use attacks::Attack;

use crate::support::PATIENCE;
use crate::support::system::eventually;

/// What an attack may last beyond its deadline on a loaded machine in a build without optimisation.
const SLACK: Duration = Duration::from_secs(10);
/// What the process may grow in a second round, bytes.
const GROWTH_MAX: u64 = 48 << 20;
/// How often an attack is made before timers that are late are laid to it.
const TRIES_WHEN_LATE: usize = 3;
/// How much of what the child complains of is shown, bytes: its end has the reasons.
const COMPLAINT_BYTES: usize = 6_000;

/// The child; started by the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn suite() {
    println!();
    let arena = Arena::new().await;
    let attacks = attacks::all();
    let names: std::collections::BTreeSet<_> = attacks.iter().map(|attack| attack.name).collect();
    assert_eq!(names.len(), attacks.len(), "names are unique");
    let mut wrong = round(&arena, &attacks, true).await;
    let before = arena.settled().await;
    wrong.extend(round(&arena, &attacks, false).await);
    arena.leaves_nothing(&before, GROWTH_MAX).await;
    println!("{} attacks, twice: {before:?}, then {:?}", attacks.len(), Count::now(&arena));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every attack once; what was not as it should be.
async fn round(arena: &Arena, attacks: &[Attack], print: bool) -> Vec<String> {
    let only = std::env::var("OSTLER_TEST_ATTACK").unwrap_or_default();
    let mut wrong = Vec::new();
    for attack in attacks.iter().filter(|attack| attack.name.contains(&only)) {
        let (outcome, seen) = attacked(arena, attack).await;
        let Outcome { said, past, .. } = &outcome;
        let found = attack.stopped_by.iter().find(|text| said.contains(**text));
        let mut complain = |what: String| wrong.push(format!("{}: {what}", attack.name));
        if found.is_none() {
            complain(format!("none of {:?} in: {said}", attack.stopped_by));
        }
        if past.is_some_and(|past| past > SLACK) {
            complain(format!("{past:?} past its deadline"));
        }
        if let Some(escaped) = &outcome.escaped {
            complain(format!("escaped: {escaped}"));
        }
        if let Some(neighbour) = seen.neighbour_wrong {
            complain(format!("the neighbour: {neighbour}"));
        }
        if seen.late.too_much() {
            complain(format!("{:?}", seen.late));
        }
        if print {
            let ticks = past
                .map_or_else(String::new, |past| format!("{:.1} ticks", past.as_secs_f64() / 0.01));
            let text: String = found.copied().unwrap_or("?").chars().take(40).collect();
            let (late, calls) = (seen.late.timers.as_secs_f64() * 1e3, seen.calls);
            println!(
                "attack | {} | {} | {text} | {ticks} | {late:.1} ms | {calls}",
                attack.name, attack.tries
            );
        } else {
            println!("again | {}", attack.name);
        }
    }
    wrong
}

/// What came of an attack, and what was seen meanwhile. Late timers are looked at again: what an attack
/// does it does each time, and one that lasts for a single timer is as late as the machine is just then.
async fn attacked(arena: &Arena, attack: &Attack) -> (Outcome, Seen) {
    for _ in 1..TRIES_WHEN_LATE {
        let watched = arena.watch();
        let outcome = (attack.run)(arena).await;
        let seen = watched.end().await;
        let harmed = outcome.escaped.is_some() || seen.neighbour_wrong.is_some();
        if harmed || !seen.late.too_much() {
            return (outcome, seen);
        }
    }
    let watched = arena.watch();
    ((attack.run)(arena).await, watched.end().await)
}

#[tokio::test]
async fn every_attack_is_stopped_in_time_harms_nobody_and_leaves_nothing_behind() {
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::suite", "--ignored", "--nocapture", "--test-threads", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let complaints = tokio::spawn(async move {
        let mut complaints = Vec::new();
        BufReader::new(err).read_to_end(&mut complaints).await.map(|_| complaints)
    });
    // However many there are, on however busy a machine: each of them ends.
    let (mut lines, mut said) = (BufReader::new(out).lines(), String::new());
    let mut next = async || ostler_model::clock::timeout(5 * PATIENCE, lines.next_line()).await;
    while let Some(line) = next().await.expect("each attack ends").unwrap() {
        said += &line;
        said.push('\n');
    }
    let status = ostler_model::clock::timeout(PATIENCE, child.wait()).await;
    let complaints = complaints.await.unwrap().unwrap();
    let complaints = String::from_utf8_lossy(&complaints);
    let end = complaints.len().saturating_sub(COMPLAINT_BYTES);
    let end = (end..=complaints.len()).find(|at| complaints.is_char_boundary(*at)).unwrap();
    assert!(status.expect("it ends").unwrap().success(), "{}", &complaints[end..]);
    assert!(said.lines().filter(|line| line.starts_with("attack | ")).count() > 50, "{said}");
    println!("{said}");
}

/// A pipe that nobody writes to.
fn pipe(path: &std::path::Path) {
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

/// Waits until it holds: what ends a moment later has a moment.
async fn soon(what: &str, condition: impl FnMut() -> bool) {
    eventually(what, condition).await;
}
