//! What a log alone takes when many write to it: bytes handed to one thread, which writes what waits in
//! one piece and syncs it, over a file that was written before. Nothing is encoded, compared or kept.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

const BLOCK: usize = 4096;
/// Written over from the start again and again; as long as the store's own journal.
const BYTES: usize = 1 << 20;

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    writers: Vec<oneshot::Sender<()>>,
    asleep: bool,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

/// A log with group commit.
pub struct RawLog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl RawLog {
    /// A log in this directory.
    ///
    /// # Panics
    /// When the disk refuses.
    #[must_use]
    pub fn create(dir: &Path) -> Self {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).open(dir.join("raw-log"));
        let file = file.expect("a file");
        file.write_all_at(&vec![0; BYTES], 0).expect("the file is made");
        file.sync_all().expect("the file is synced");
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || for_thread.run(&file));
        Self { shared, thread: Some(thread) }
    }

    /// Write bytes and wait until they are durable.
    ///
    /// # Panics
    /// When the disk refuses.
    pub async fn write(&self, bytes: &[u8]) {
        let (done, durable) = oneshot::channel();
        {
            let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.bytes.extend_from_slice(bytes);
            waiting.writers.push(done);
            if std::mem::take(&mut waiting.asleep) {
                self.shared.wake.notify_one();
            }
        }
        durable.await.expect("the bytes are durable");
    }
}

impl Drop for RawLog {
    fn drop(&mut self) {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of it was seen by whoever wrote.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, file: &File) {
        let (mut bytes, mut writers, mut at) = (Vec::new(), Vec::new(), 0);
        loop {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                while waiting.writers.is_empty() {
                    if waiting.closed {
                        return;
                    }
                    waiting.asleep = true;
                    waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                    waiting.asleep = false;
                }
                std::mem::swap(&mut waiting.bytes, &mut bytes);
                std::mem::swap(&mut waiting.writers, &mut writers);
            }
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
            if at + bytes.len() > BYTES {
                at = 0;
            }
            file.write_all_at(&bytes, u64::try_from(at).unwrap_or(0))
                .expect("the bytes are written");
            file.sync_data().expect("the bytes are synced");
            at += bytes.len();
            bytes.clear();
            for done in writers.drain(..) {
                // An error means that nobody waits any more.
                let _ = done.send(());
            }
        }
    }
}
