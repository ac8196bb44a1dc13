//! Fetches the disk of the previous allocation from another node, try by try.
//!
//! ```text
//! a turn ─► try: a place, empty ─► OtherNodes::fetch_disk ─ pieces ─► unpacked beside ─► synced ─► moved
//!            ▲                                                            │ failed
//!            └───────────── a pause ◄── FetchTries ◄──────────────────────┘──► given up: the place is removed
//! ```
//! A stop or the end of the agent drops the fetch. That ends the unpacking too, because no piece
//! arrives any more.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use super::{AllocScope, HookNews};
use crate::alloc::fetch_tries::{AfterTry, FetchTries, unpack_failure};
use crate::alloc::migrate::{FetchedDir, MovedDir, move_fetched};
use crate::alloc::snapshot::{LeftOutEntries, UnpackBounds, UnpackReport, unpack_into};
use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{
    DISK_FETCH_TOLD_EVERY, DISK_FETCH_WALL_MAX, DISK_FETCHES_AT_ONCE_MAX, MIB,
    MOVED_PIECES_WAITING_MAX,
};
use ostler_model::other_nodes::{NoDisk, OtherNodes, RemoteDisk};

/// Permits for fetches: only so many run at a time.
static FETCHING: Semaphore = Semaphore::const_new(DISK_FETCHES_AT_ONCE_MAX);

/// One fetch of a disk from another node.
pub(super) struct DiskFetch<'a> {
    pub(super) scope: &'a AllocScope,
    pub(super) others: &'a Arc<dyn OtherNodes>,
    pub(super) from: AllocId,
    pub(super) tasks: Vec<TaskName>,
    /// Largest size of the disk, MiB.
    pub(super) size_mb: u32,
}

/// A fetched disk whose data is in the directory of the allocation.
pub(super) struct FetchedDisk {
    pub(super) node: String,
    pub(super) items: Vec<MovedDir>,
    pub(super) unpacked: UnpackReport,
}

impl FetchedDisk {
    /// Was there nothing to fetch, and nothing left out?
    pub(super) fn is_nothing(&self) -> bool {
        self.items.is_empty() && self.unpacked.left_out.count == 0
    }

    /// The sentence for people on what came.
    pub(super) fn text(&self, from: AllocId) -> String {
        let items: Vec<String> = self.items.iter().map(ToString::to_string).collect();
        let UnpackReport { files, bytes, left_out: LeftOutEntries { named, count } } =
            &self.unpacked;
        let files = ostler_model::words::count_noun(*files, "file");
        let left_out = match count.saturating_sub(u64::try_from(named.len()).unwrap_or(u64::MAX)) {
            _ if named.is_empty() => String::new(),
            0 => format!("; left out: {}", named.join(", ")),
            more => format!("; left out: {} and {more} more", named.join(", ")),
        };
        let items = items.join(", ");
        let node = &self.node;
        format!(
            "took over from allocation {from} on node {node}: {items} ({files}, {bytes} bytes){left_out}"
        )
    }
}

/// A piece on its way to be unpacked.
enum UnpackPiece {
    Bytes(Vec<u8>),
    /// There are no more pieces.
    End,
    Broken(String),
}

impl DiskFetch<'_> {
    /// Fetch the disk; a try that fails is repeated up to a bound.
    ///
    /// # Errors
    /// Why the fetch was given up. Nothing of the disk is there then.
    pub(super) async fn run(&self) -> Result<FetchedDisk, String> {
        let fetched = clock::timeout(DISK_FETCH_WALL_MAX, self.fetch_with_retries()).await;
        self.report_wait(None).await;
        let late = || {
            let hours = DISK_FETCH_WALL_MAX.as_secs() / 3_600;
            Err(format!("it was not complete after {hours} hours"))
        };
        let fetched = fetched.unwrap_or_else(late);
        if fetched.is_err() {
            let (root, to) = self.place();
            let removed = self.scope.on_disk(move || FetchedDir::remove(&root, to)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(alloc = %to, error = chain(&error), "what a fetch has left stays");
            }
        }
        fetched
    }

    async fn fetch_with_retries(&self) -> Result<FetchedDisk, String> {
        self.report_wait(Some("waits for its turn".to_owned())).await;
        let _turn = FETCHING.acquire().await.map_err(|error| error.to_string())?;
        self.report_wait(Some("begins".to_owned())).await;
        let mut tries = FetchTries::default();
        loop {
            let error = match self.fetch_once().await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => error,
            };
            match tries.count_failure(&error) {
                AfterTry::GiveUp => return Err(error.to_string()),
                AfterTry::Again(pause) => {
                    let alloc = self.scope.allocation.id;
                    tracing::info!(%alloc, from = %self.from, %error, "a disk is fetched again");
                    let seconds = pause.as_secs();
                    self.report_wait(Some(format!("is tried again in {seconds} s: {error}"))).await;
                    clock::sleep(pause).await;
                }
            }
        }
    }

    async fn report_wait(&self, what: Option<String>) {
        let what = what.map(|what| format!("fetching the data of allocation {} {what}", self.from));
        self.scope.tell(HookNews::Waiting(what)).await;
    }

    fn place(&self) -> (PathBuf, AllocId) {
        (self.scope.node.alloc_root.clone(), self.scope.allocation.id)
    }

    async fn fetch_once(&self) -> Result<FetchedDisk, NoDisk> {
        let (root, to) = self.place();
        let made = self.scope.on_disk(move || FetchedDir::create(&root, to)).await;
        let place = made.map_err(NoDisk::Ever)?.map_err(|error| NoDisk::Ever(chain(&error)))?;
        let RemoteDisk { node, mut pieces } = self.others.fetch_disk(self.from, to).await?;
        let (tx, rx) = mpsc::channel(MOVED_PIECES_WAITING_MAX);
        let (from, tasks) = (self.from, self.tasks.iter().cloned().collect::<BTreeSet<_>>());
        let bounds = UnpackBounds::of_disk(u64::from(self.size_mb).saturating_mul(MIB));
        let unpacking = self.scope.on_disk(move || {
            let pieces = PieceReader { queue: rx, piece: io::Cursor::default(), ended: false };
            let unpacked = unpack_into(place.fd(), pieces, from, &tasks, bounds);
            let unpacked = unpacked.map_err(|error| unpack_failure(&error))?;
            place.sync().map_err(|error| NoDisk::Ever(chain(&error)))?;
            Ok(unpacked)
        });
        let feeding = async {
            let (mut bytes, mut told) = (0_u64, clock::Stopwatch::start());
            loop {
                let (piece, over) = match pieces.next().await {
                    Ok(Some(piece)) => {
                        bytes =
                            bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
                        (UnpackPiece::Bytes(piece), false)
                    }
                    Ok(None) => (UnpackPiece::End, true),
                    Err(why) => (UnpackPiece::Broken(why), true),
                };
                // The receiver is gone: unpacking has failed, and its error says why.
                if tx.send(piece).await.is_err() || over {
                    break;
                }
                if told.elapsed() >= DISK_FETCH_TOLD_EVERY {
                    told = clock::Stopwatch::start();
                    self.report_wait(Some(format!("from node {node}: {} MiB so far", bytes / MIB)))
                        .await;
                }
            }
            drop(tx);
        };
        let (unpacked, ()) = tokio::join!(unpacking, feeding);
        let unpacked = unpacked.map_err(NoDisk::Ever)??;
        let ((root, to), tasks) = (self.place(), self.tasks.clone());
        let moved = self.scope.on_disk(move || move_fetched(&root, from, to, &tasks)).await;
        let moved = moved.map_err(NoDisk::Ever)?.map_err(|error| NoDisk::Ever(chain(&error)))?;
        Ok(FetchedDisk { node, items: moved.items, unpacked })
    }
}

/// The fetched pieces as one reader, for the thread that unpacks them.
struct PieceReader {
    queue: mpsc::Receiver<UnpackPiece>,
    piece: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl io::Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.piece.read(into)?;
            if count > 0 || into.is_empty() || self.ended {
                return Ok(count);
            }
            match self.queue.blocking_recv() {
                Some(UnpackPiece::Bytes(piece)) => self.piece = io::Cursor::new(piece),
                Some(UnpackPiece::End) => self.ended = true,
                Some(UnpackPiece::Broken(why)) => return Err(io::Error::other(why)),
                // The sender went without saying that this was the end.
                None => return Err(io::Error::other("its fetch was abandoned")),
            }
        }
    }
}
