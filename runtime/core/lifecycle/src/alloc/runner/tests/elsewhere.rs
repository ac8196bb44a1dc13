//! The allocation before, on another node: waited for, and its disk fetched.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::alloc::RestoredAlloc;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::AllocId;
use ostler_model::job::EphemeralDisk;
use ostler_model::other_nodes::{DiskPieces, NoDisk, OtherNodes, RemoteDisk};
use ostler_model::ports::BoxFuture;
use ostler_state::records::AllocKey;
use ostler_testing::fake_driver::Script;

/// What the other node does when it is asked for the disk.
enum Answer {
    /// Sends these pieces, and says that they were all.
    Whole(Vec<Vec<u8>>),
    /// Sends these pieces and breaks off.
    Broken(Vec<Vec<u8>>),
    /// Sends these pieces, and nothing more.
    Hangs(Vec<Vec<u8>>),
    No(NoDisk),
}

/// Another node by a script.
#[derive(Debug)]
struct Others {
    over: tokio::sync::watch::Sender<bool>,
    answers: Mutex<VecDeque<Answer>>,
    asked: AtomicU32,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an answer")
    }
}

impl Others {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        let answers = Mutex::new(answers.into_iter().collect());
        Arc::new(Self {
            over: tokio::sync::watch::channel(true).0,
            answers,
            asked: AtomicU32::new(0),
        })
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

struct Sent {
    pieces: VecDeque<Vec<u8>>,
    end: Result<(), Option<String>>,
}

impl DiskPieces for Sent {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async move {
            match (self.pieces.pop_front(), &self.end) {
                (Some(piece), _) => Ok(Some(piece)),
                (None, Ok(())) => Ok(None),
                (None, Err(Some(why))) => Err(why.clone()),
                (None, Err(None)) => std::future::pending().await,
            }
        })
    }
}

impl OtherNodes for Others {
    fn wait_until_over(&self, _: AllocId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.over.subscribe().wait_for(|over| *over).await.map(drop).map_err(|e| e.to_string())
        })
    }

    fn fetch_disk(
        &self,
        previous: AllocId,
        _: AllocId,
    ) -> BoxFuture<'_, Result<RemoteDisk, NoDisk>> {
        assert_eq!(previous, first_id());
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.lock().unwrap().pop_front();
        Box::pin(async move {
            let (pieces, end) = match answer.expect("no more tries than answers") {
                Answer::Whole(pieces) => (pieces, Ok(())),
                Answer::Broken(pieces) => (pieces, Err(Some("connection reset".to_owned()))),
                Answer::Hangs(pieces) => (pieces, Err(None)),
                Answer::No(no) => return Err(no),
            };
            let pieces = Box::new(Sent { pieces: pieces.into(), end });
            Ok(RemoteDisk { node: "other".to_owned(), pieces })
        })
    }
}

fn first_id() -> AllocId {
    AllocId::new(Rng::from_seed(70).uuid())
}

/// The pieces of an archive as another node sends it, small ones.
fn archive(out: bool) -> Vec<Vec<u8>> {
    let root = tempfile::tempdir().unwrap();
    let dir = crate::alloc::dir::AllocDir::create(root.path(), first_id()).unwrap();
    std::fs::write(dir.data().join("kept"), "data").unwrap();
    std::fs::write(dir.data().join("large"), vec![7; 100_000]).unwrap();
    let task = dir.create_task(&name("web")).unwrap();
    std::fs::write(task.local.join("mine"), "own").unwrap();
    if out {
        std::os::unix::fs::symlink("/etc/passwd", dir.data().join("out")).unwrap();
    }
    let mut bytes = Vec::new();
    crate::alloc::snapshot::pack(root.path(), first_id(), &[name("web")], &mut bytes).unwrap();
    bytes.chunks(1_000).map(<[u8]>::to_vec).collect()
}

fn half() -> Vec<Vec<u8>> {
    let mut pieces = archive(false);
    pieces.truncate(pieces.len() / 2);
    pieces
}

const MIGRATE: EphemeralDisk =
    EphemeralDisk { sticky: true, migrate: true, size_mb: 10, size_stated: true };

fn successor(bench: &Bench, others: &Arc<Others>, disk: EphemeralDisk) -> AllocStart {
    let mut allocation =
        fixtures::allocation(bench.kind, vec![task("web")], &Rng::from_seed(7)).unwrap();
    allocation.previous = Some(first_id());
    let mut job = allocation.job.as_ref().clone();
    job.groups[0].ephemeral_disk = disk;
    allocation.job = Arc::new(job);
    let other_nodes: Arc<dyn OtherNodes> = others.clone();
    let node = NodeContext { other_nodes: Some(other_nodes), ..bench.context() };
    bench.start_on(node, allocation)
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.node.script("web", [Script::runs()]);
    bench
}

fn said(alloc: &AllocHandle, what: &str) -> bool {
    let state = alloc.state().borrow().clone();
    state.tasks["web"].events.iter().any(|event| event.message.contains(what))
}

fn files(alloc: &AllocHandle) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(alloc.dir().join("alloc/data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn starts(bench: &Bench) -> usize {
    bench.node.calls().iter().filter(|call| *call == "start web").count()
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_until_the_servers_say_that_the_one_on_another_node_is_over() {
    let (bench, others) = (bench(), Others::new([]));
    others.over.send_replace(false);
    // Also where nothing is fetched.
    let alloc = AllocRunner::spawn(successor(&bench, &others, EphemeralDisk::default())).unwrap();
    let text = format!("waiting for previous allocation {} on another node", first_id());
    until(&alloc, |state| state.client_description == text).await;
    clock::sleep(600 * SECOND).await;
    assert_eq!(starts(&bench), 0, "no hook's bound counts");
    others.over.send_replace(true);
    until_running(&alloc, "web").await;
    assert!(said(&alloc, &text));
    assert_eq!(others.asked(), 0, "the group does not say migrate");
}

#[tokio::test(start_paused = true)]
async fn the_disk_of_the_other_node_is_there_before_the_first_task_starts() {
    let (bench, others) = (bench(), Others::new([Answer::Whole(archive(true))]));
    let alloc = AllocRunner::spawn(successor(&bench, &others, MIGRATE)).unwrap();
    until_running(&alloc, "web").await;
    assert_eq!(files(&alloc), ["kept", "large"]);
    assert_eq!(std::fs::read_to_string(alloc.dir().join("web/local/mine")).unwrap(), "own");
    assert!(said(&alloc, "on node other: alloc/data, web/local (3 files, 100007 bytes)"));
    assert!(said(&alloc, "left out: alloc/data/out (a link that leads out)"));
    let names = std::fs::read_dir(alloc.dir()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == "data fetch"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_breaks_off_is_fetched_again_from_the_beginning() {
    let away = || Answer::No(NoDisk::Now("it is away".to_owned()));
    let answers =
        [away(), Answer::Broken(half()), Answer::Whole(half()), Answer::Whole(archive(false))];
    let (bench, others) = (bench(), Others::new(answers));
    let alloc = AllocRunner::spawn(successor(&bench, &others, MIGRATE)).unwrap();
    let text = "is tried again in 2 s: it is away";
    until(&alloc, |state| state.client_description.contains(text)).await;
    until_running(&alloc, "web").await;
    assert_eq!((others.asked(), files(&alloc)), (4, vec!["kept".to_owned(), "large".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_fetched_is_said_and_the_allocation_runs_without() {
    let no = [Answer::No(NoDisk::Ever("permission denied".to_owned()))];
    let tries = ostler_model::limits::DISK_FETCH_TRIES_MAX;
    let broken = (0..tries).map(|_| Answer::Broken(half())).collect::<Vec<_>>();
    for (answers, why) in [(no.into(), "permission denied"), (broken, "connection reset")] {
        let (bench, others) = (bench(), Others::new(answers));
        let alloc = AllocRunner::spawn(successor(&bench, &others, MIGRATE)).unwrap();
        until_running(&alloc, "web").await;
        assert!(said(&alloc, "was not fetched, so the allocation starts without it: "), "{why}");
        assert!(said(&alloc, why), "{why}");
        assert_eq!(files(&alloc), [] as [&str; 0]);
        assert!(!alloc.dir().join("data fetch").exists());
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_the_disk_may_hold_is_not_taken() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(11 << 20);
    header.set_mode(0o644);
    archive.append_data(&mut header, "alloc/data/x", &vec![1; 11 << 20][..]).unwrap();
    let answer = Answer::Whole(vec![archive.into_inner().unwrap()]);
    let (bench, others) = (bench(), Others::new([answer]));
    let alloc = AllocRunner::spawn(successor(&bench, &others, MIGRATE)).unwrap();
    until_running(&alloc, "web").await;
    assert!(said(&alloc, "it has more than the 10 MiB that ephemeral_disk allows"));
    assert_eq!((others.asked(), files(&alloc).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stopped_while_its_disk_is_fetched_ends_and_starts_nothing() {
    let (bench, others) = (bench(), Others::new([Answer::Hangs(half())]));
    let alloc = AllocRunner::spawn(successor(&bench, &others, MIGRATE)).unwrap();
    while others.asked() == 0 {
        tokio::task::yield_now().await;
    }
    alloc.stop("not needed").await;
    let state = alloc.wait_done().await;
    assert_eq!((state.client_status, starts(&bench)), (ClientStatus::Complete, 0));
    assert_eq!(files(&alloc), [] as [&str; 0], "half of it is nowhere a task would look");
    assert_eq!(alloc.destroy().await, AllocPhase::Destroyed);
    assert!(!alloc.dir().exists());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_in_the_middle_of_a_fetch_has_the_next_one_begin_anew() {
    let others = Others::new([Answer::Hangs(half()), Answer::Whole(archive(false))]);
    let bench = bench();
    let first = AllocRunner::spawn(successor(&bench, &others, MIGRATE)).unwrap();
    while others.asked() == 0 {
        tokio::task::yield_now().await;
    }
    first.shutdown().await;
    let restored = RestoredAlloc::default();
    let next = AllocRunner::restore(successor(&bench, &others, MIGRATE), restored).unwrap();
    until_running(&next, "web").await;
    assert_eq!((others.asked(), files(&next)), (2, vec!["kept".to_owned(), "large".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_on_record_here_is_neither_asked_for_nor_fetched() {
    let (bench, others) = (bench(), Others::new([]));
    others.over.send_replace(false);
    let start = successor(&bench, &others, MIGRATE);
    let known = Allocation { id: first_id(), ..start.allocation.as_ref().clone() };
    bench.store.put(&AllocKey::of(first_id()), &known).await.unwrap();
    let alloc = AllocRunner::spawn(start).unwrap();
    until_running(&alloc, "web").await;
    assert_eq!(others.asked(), 0);
}
