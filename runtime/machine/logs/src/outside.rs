//! Streams whose writer is another process: the side of that writer, and the agent's scans of
//! the files.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use super::files::{LogError, LogFiles};
use super::named_pipe::PipeWriter;
use super::pace::{PAUSE, WakePace};
use super::rotate::{FileStart, RotatingWriter};
use super::stream::{StreamPosition, StreamShared};
use ostler_model::clock;
use ostler_model::ports::{ByteSink, LogDir, SinkFiles};

/// How often the files are scanned in addition to the kernel's notices, which are missing on
/// network file systems and when the event queue is full.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often they are scanned if the kernel gives no notices.
const LOOK_INTERVAL_ALONE: Duration = Duration::from_millis(100);
/// How old the last scan of files may be that a task of this process writes, and perhaps others
/// too. For this long, a file that another process has pruned may still be written, and a file that
/// another process writes may grow beyond its limit.
const TASK_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The number of bytes of notices that are read at once.
const NOTICES_BYTES: usize = 4096;

/// Writes one stream in a process that is not the agent. It is synchronous, and shares its files
/// with other writers of the same stream.
#[derive(Debug)]
pub struct OutsideWriter(OutsideTarget);

/// The files or the pipe that it writes to.
#[derive(Debug)]
enum OutsideTarget {
    Files(Box<RotatingWriter>),
    Pipe(PipeWriter),
}

impl OutsideWriter {
    /// Go on with the files `<prefix>N` of `dir`: at most `files_max`, each with about
    /// `file_bytes_max` bytes. If `files_max` is 0, go on with the named pipe `prefix`.
    ///
    /// # Errors
    /// When the directory cannot be read or the file not be made.
    pub fn open(
        dir: OwnedFd,
        prefix: String,
        files_max: u32,
        file_bytes_max: u64,
    ) -> Result<Self, LogError> {
        let (dir, fresh) = (LogDir::Open(Arc::new(dir)), false);
        let files = SinkFiles { dir, prefix, files_max, file_bytes_max, fresh };
        Self::open_looking(&files, Duration::ZERO)
    }

    /// The same as [`OutsideWriter::open`], for a task whose single line must not cost a scan of
    /// the files.
    fn open_seldom_looking(files: &SinkFiles) -> Result<Self, LogError> {
        Self::open_looking(files, TASK_LOOK_INTERVAL)
    }

    fn open_looking(files: &SinkFiles, every: Duration) -> Result<Self, LogError> {
        let SinkFiles { dir, prefix, files_max, file_bytes_max, fresh } = files.clone();
        if files_max == 0 {
            return Ok(Self(OutsideTarget::Pipe(PipeWriter::new(dir, prefix))));
        }
        let files = LogFiles::from_handed_dir(dir, prefix);
        let writer = if fresh {
            RotatingWriter::begin_shared(files, files_max, file_bytes_max, every)
        } else {
            RotatingWriter::open_shared(files, files_max, file_bytes_max, every)
        };
        Ok(Self(OutsideTarget::Files(Box::new(writer?))))
    }

    /// Append bytes. This never fails: what cannot be written is counted.
    pub fn write(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            OutsideTarget::Files(files) => files.write(bytes),
            OutsideTarget::Pipe(pipe) => pipe.write(bytes),
        }
    }

    /// The number of bytes that could not be written since opening.
    #[must_use]
    pub const fn dropped_bytes(&self) -> u64 {
        match &self.0 {
            OutsideTarget::Files(files) => files.dropped_bytes(),
            OutsideTarget::Pipe(pipe) => pipe.dropped_bytes(),
        }
    }
}

/// A sink for a task that this process runs and another process follows. Each write is in the files
/// when it returns. The sink needs no runtime. The files are opened with the first byte, and each
/// write tries again until they can be opened.
#[must_use]
pub fn task_sink(files: SinkFiles) -> Arc<dyn ByteSink> {
    Arc::new(TaskSink { files, opened: Mutex::default() })
}

struct TaskSink {
    files: SinkFiles,
    opened: Mutex<SinkWriter>,
}

#[derive(Default)]
struct SinkWriter {
    writer: Option<OutsideWriter>,
    /// Whether the log already says that the files cannot be opened.
    complained: bool,
}

impl ByteSink for TaskSink {
    fn write(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.writer.is_none() {
            match OutsideWriter::open_seldom_looking(&self.files) {
                Ok(writer) => opened.writer = Some(writer),
                Err(error) if !opened.complained => {
                    opened.complained = true;
                    tracing::warn!(%error, "output of a task is dropped: its log cannot be opened");
                }
                Err(_) => {}
            }
        }
        if let Some(writer) = &mut opened.writer {
            writer.write(bytes);
        }
    }

    fn files(&self) -> Option<SinkFiles> {
        Some(self.files.clone())
    }
}

/// What is known of files that another process writes.
#[derive(Debug, Default)]
pub(super) struct OutsideFiles {
    /// The files as the last scan found them, oldest first.
    kept: Vec<FileStart>,
    /// The stream position at the end of the newest file, as far as it was seen.
    position: u64,
}

impl OutsideFiles {
    /// Scan the files. What cannot be read counts as unchanged.
    pub(super) fn scan_files(&mut self, files: &LogFiles) -> StreamPosition {
        match files.indices() {
            Ok(indices) => self.update_files(files, &indices),
            Err(error) => tracing::debug!(%error, "the logs of a task cannot be looked at"),
        }
        let none = FileStart { index: 0, start: 0 };
        let first = self.kept.first().copied().unwrap_or(none);
        let current = self.kept.last().copied().unwrap_or(none);
        StreamPosition {
            first: (first.index, first.start),
            current: (current.index, current.start),
            position: self.position,
            closed: false,
        }
    }

    /// Update the list of files. A file begins where the one before it ends. If all its
    /// predecessors are gone, it begins where the last scan ended; what came and went unseen since
    /// then is not counted.
    fn update_files(&mut self, files: &LogFiles, indices: &[u64]) {
        let mut kept = Vec::with_capacity(indices.len());
        let mut end = None;
        for index in indices {
            let known = self.kept.iter().find(|known| known.index == *index);
            let Some(size) = files.size(*index) else { continue };
            let begin = end.unwrap_or(self.position);
            let start = known.map_or(begin, |known| known.start);
            kept.push(FileStart { index: *index, start });
            end = Some(start.saturating_add(size));
        }
        if let Some(end) = end {
            self.kept = kept;
            self.position = self.position.max(end);
        }
    }
}

/// Scan the files of a stream whenever they may have changed, as long as somebody follows it.
pub(super) async fn watch_stream(stream: Weak<StreamShared>) {
    let Some(notices) = stream.upgrade().map(|stream| DirNotices::for_files(stream.files())) else {
        return;
    };
    let (mut notices, mut pace, mut flood) = (notices, WakePace::new(), false);
    loop {
        let Some(looked) = stream.upgrade() else { return };
        // Files are scanned on a thread that may be delayed.
        let looked = ostler_model::clock::run_blocking(move || looked.scan_for_followers());
        let Some(news) = looked.await.ok().flatten() else { return };
        // As long as each scan finds something new, no notices are asked for: each would cost the
        // printing task half as much as its line.
        flood = if flood { news } else { pace.pause().is_some() };
        if flood {
            notices.iter_mut().for_each(DirNotices::end_watch);
            clock::sleep(PAUSE).await;
            continue;
        }
        // Scan once more for what came before the notices began.
        if notices.as_mut().is_some_and(DirNotices::begin_watch) {
            continue;
        }
        let told = notices.as_ref().is_some_and(|notices| notices.watch.is_some());
        let interval = if told { LOOK_INTERVAL } else { LOOK_INTERVAL_ALONE };
        let notice = async {
            match &notices {
                Some(notices) => notices.wait_notices().await,
                None => std::future::pending().await,
            }
        };
        // After this time the files are scanned in any case.
        if clock::timeout(interval, notice).await == Some(false) {
            clock::sleep(LOOK_INTERVAL_ALONE).await;
        }
    }
}

/// The kernel's notices that something in a directory changed.
struct DirNotices {
    fd: AsyncFd<OwnedFd>,
    dir: LogFiles,
    /// The watch descriptor, while notices are asked for.
    watch: Option<i32>,
}

impl DirNotices {
    /// Prepare notices without asking for any yet. Returns `None` if there are none to be had,
    /// because each user may only have so many (`inotify(7)`).
    fn for_files(files: &LogFiles) -> Option<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
        let fd = fd
            .inspect_err(|errno| {
                tracing::debug!(%errno, "logs are looked at without notices of the kernel");
            })
            .ok()?;
        // SAFETY: the descriptor is owned here, never changes, and is closed only with the
        // `AsyncFd`.
        let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
        Some(Self { fd: fd.ok()?, dir: files.clone(), watch: None })
    }

    /// Ask for notices. Returns `false` if they were asked for before, or cannot be had now.
    fn begin_watch(&mut self) -> bool {
        if self.watch.is_some() {
            return false;
        }
        let what = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::ONLYDIR;
        // The directory is named by its descriptor, because the path may lead elsewhere by now.
        let Ok(dir) = self.dir.dir() else { return false };
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        self.watch = inotify::add_watch(self.fd.get_ref(), path, what).ok();
        self.watch.is_some()
    }

    /// Ask for no more notices.
    fn end_watch(&mut self) {
        if let Some(watch) = self.watch.take() {
            let _gone = inotify::remove_watch(self.fd.get_ref(), watch);
        }
    }

    /// Wait for notices and take those that are there. Returns `false` if that is not possible.
    async fn wait_notices(&self) -> bool {
        let Ok(mut ready) = self.fd.readable().await else {
            return false;
        };
        let taken = ready.try_io(|fd| {
            let mut buffer = [0; NOTICES_BYTES];
            loop {
                match rustix::io::read(fd.get_ref(), &mut buffer) {
                    Ok(NOTICES_BYTES) => {}
                    // There were fewer notices than fit, so those were all. The next wait would
                    // find that out itself.
                    Ok(_) | Err(rustix::io::Errno::AGAIN) => {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    Err(errno) => return Err::<(), io::Error>(errno.into()),
                }
            }
        });
        !matches!(taken, Ok(Err(_)))
    }
}
