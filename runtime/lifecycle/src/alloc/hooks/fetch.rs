//! Fetches the disk of the previous allocation from another node, try by try.
//!
//! ```text
//! a turn ─► try: a place, empty ─► OtherNodes::disk ─ pieces ─► unpacked beside ─► synced ─► moved
//!            ▲                                                      │ failed
//!            └───────────── a pause ◄── FetchTries ◄────────────────┘──► given up: the place is removed
//! ```
//! Whoever drops it (a stop, the end of the agent) ends the unpacking too: its pieces stay away.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use super::{AllocScope, News};
use crate::alloc::fetch_tries::{AfterTry, FetchTries, of_unpacking};
use crate::alloc::migrate::{FetchedDir, MovedDir, move_fetched};
use crate::alloc::snapshot::{LeftOut, UnpackBounds, Unpacked, unpack_into};
use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{
    DISK_FETCH_TOLD_EVERY, DISK_FETCH_WALL_MAX, DISK_FETCHES_AT_ONCE_MAX, MIB,
    MOVED_PIECES_WAITING_MAX,
};
use ostler_model::other_nodes::{NoDisk, OtherNodes, RemoteDisk};

/// Fetches at a time.
static FETCHING: Semaphore = Semaphore::const_new(DISK_FETCHES_AT_ONCE_MAX);

/// What is to be fetched.
pub(super) struct DiskFetch<'a> {
    pub(super) scope: &'a AllocScope,
    pub(super) others: &'a Arc<dyn OtherNodes>,
    pub(super) from: AllocId,
    pub(super) tasks: Vec<TaskName>,
    /// What the disk may hold.
    pub(super) size_mb: u32,
}

/// What was fetched, and is where it belongs.
pub(super) struct FetchedDisk {
    pub(super) node: String,
    pub(super) items: Vec<MovedDir>,
    pub(super) unpacked: Unpacked,
}

impl FetchedDisk {
    /// Neither was there anything to fetch, nor was anything left out.
    pub(super) fn is_nothing(&self) -> bool {
        self.items.is_empty() && self.unpacked.left_out.count == 0
    }

    /// What people hear of it.
    pub(super) fn text(&self, from: AllocId) -> String {
        let items: Vec<String> = self.items.iter().map(ToString::to_string).collect();
        let Unpacked { files, bytes, left_out: LeftOut { named, count } } = &self.unpacked;
        let files = ostler_model::words::counted(*files, "file");
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
enum Piece {
    Bytes(Vec<u8>),
    /// That was all.
    End,
    Broken(String),
}

impl DiskFetch<'_> {
    /// Fetch it, with as many tries as that takes.
    ///
    /// # Errors
    /// Why that was given up; nothing of it is there then.
    pub(super) async fn run(&self) -> Result<FetchedDisk, String> {
        let fetched = clock::timeout(DISK_FETCH_WALL_MAX, self.tries()).await;
        self.tell(None).await;
        let late = || {
            let hours = DISK_FETCH_WALL_MAX.as_secs() / 3_600;
            Err(format!("it was not all there after {hours} hours"))
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

    async fn tries(&self) -> Result<FetchedDisk, String> {
        self.tell(Some("waits for its turn".to_owned())).await;
        let _turn = FETCHING.acquire().await.map_err(|error| error.to_string())?;
        self.tell(Some("begins".to_owned())).await;
        let mut tries = FetchTries::default();
        loop {
            let error = match self.once().await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => error,
            };
            match tries.failed(&error) {
                AfterTry::GiveUp => return Err(error.to_string()),
                AfterTry::Again(pause) => {
                    let alloc = self.scope.allocation.id;
                    tracing::info!(%alloc, from = %self.from, %error, "a disk is fetched again");
                    let seconds = pause.as_secs();
                    self.tell(Some(format!("is tried again in {seconds} s: {error}"))).await;
                    clock::sleep(pause).await;
                }
            }
        }
    }

    async fn tell(&self, what: Option<String>) {
        let what = what.map(|what| format!("fetching the data of allocation {} {what}", self.from));
        self.scope.tell(News::Waiting(what)).await;
    }

    fn place(&self) -> (PathBuf, AllocId) {
        (self.scope.alloc_root.clone(), self.scope.allocation.id)
    }

    async fn once(&self) -> Result<FetchedDisk, NoDisk> {
        let (root, to) = self.place();
        let made = self.scope.on_disk(move || FetchedDir::create(&root, to)).await;
        let place = made.map_err(NoDisk::Ever)?.map_err(|error| NoDisk::Ever(chain(&error)))?;
        let RemoteDisk { node, mut pieces } = self.others.disk(self.from, to).await?;
        let (tx, rx) = mpsc::channel(MOVED_PIECES_WAITING_MAX);
        let (from, tasks) = (self.from, self.tasks.iter().cloned().collect::<BTreeSet<_>>());
        let bounds = UnpackBounds::of_disk(u64::from(self.size_mb).saturating_mul(MIB));
        let unpacking = self.scope.on_disk(move || {
            let pieces = Pieces { queue: rx, piece: io::Cursor::default(), ended: false };
            let unpacked = unpack_into(place.fd(), pieces, from, &tasks, bounds);
            let unpacked = unpacked.map_err(|error| of_unpacking(&error))?;
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
                        (Piece::Bytes(piece), false)
                    }
                    Ok(None) => (Piece::End, true),
                    Err(why) => (Piece::Broken(why), true),
                };
                // Nobody takes it: unpacking has failed, and says why.
                if tx.send(piece).await.is_err() || over {
                    break;
                }
                if told.elapsed() >= DISK_FETCH_TOLD_EVERY {
                    told = clock::Stopwatch::start();
                    self.tell(Some(format!("from node {node}: {} MiB so far", bytes / MIB))).await;
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

/// What is fetched, as it is read where it is unpacked.
struct Pieces {
    queue: mpsc::Receiver<Piece>,
    piece: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl io::Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.piece.read(into)?;
            if count > 0 || into.is_empty() || self.ended {
                return Ok(count);
            }
            match self.queue.blocking_recv() {
                Some(Piece::Bytes(piece)) => self.piece = io::Cursor::new(piece),
                Some(Piece::End) => self.ended = true,
                Some(Piece::Broken(why)) => return Err(io::Error::other(why)),
                // Without a word of its end.
                None => return Err(io::Error::other("nobody fetches it any more")),
            }
        }
    }
}
