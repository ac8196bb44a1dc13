//! Streams whose writer is another process: the writer's side, and the agent's look at the files.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use super::files::{LogError, LogFiles};
use super::named_pipe::PipeWriter;
use super::pace::{PAUSE, Pace};
use super::rotate::{Kept, RotatingWriter};
use super::stream::{Shared, Standing};
use ostler_model::clock;
use ostler_model::ports::{ByteSink, SinkFiles};

/// How often the files are looked at besides the kernel's notices, which network file systems and
/// a full event queue keep back.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often they are looked at where the kernel gives no notices.
const LOOK_INTERVAL_ALONE: Duration = Duration::from_millis(100);
/// How old a look at files may be that a task of this process writes, and others perhaps. So long may
/// a file that another has pruned still be written, and one that another writes grow beyond its bound.
const TASK_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes of notices taken at once.
const NOTICES_BYTES: usize = 4096;

/// Writes one stream in a process that is not the agent. Synchronous; shares its files with other
/// writers of the same stream.
#[derive(Debug)]
pub struct OutsideWriter(Output);

/// Where it writes.
#[derive(Debug)]
enum Output {
    Files(Box<RotatingWriter>),
    Pipe(PipeWriter),
}

impl OutsideWriter {
    /// Go on with the files `<prefix>N` of `dir`: at most `files_max`, each left at
    /// `file_bytes_max` bytes; or, where that is 0, with the named pipe `prefix`.
    ///
    /// # Errors
    /// When the directory cannot be read or the file not be made.
    pub fn open(
        dir: OwnedFd,
        prefix: String,
        files_max: u32,
        file_bytes_max: u64,
    ) -> Result<Self, LogError> {
        Self::looking(dir, prefix, (files_max, file_bytes_max), Duration::ZERO)
    }

    /// As [`OutsideWriter::open`], for a task whose line is to cost no look at the files.
    fn seldom(files: &SinkFiles) -> Result<Self, LogError> {
        let dir = files.dir.try_clone().map_err(LogError::Directory)?;
        let bounds = (files.files_max, files.file_bytes_max);
        Self::looking(dir, files.prefix.clone(), bounds, TASK_LOOK_INTERVAL)
    }

    fn looking(
        dir: OwnedFd,
        prefix: String,
        (files_max, file_bytes_max): (u32, u64),
        every: Duration,
    ) -> Result<Self, LogError> {
        if files_max == 0 {
            return Ok(Self(Output::Pipe(PipeWriter::new(dir, prefix))));
        }
        let files = LogFiles::handed_over(dir, prefix);
        let writer = RotatingWriter::open_shared(files, files_max, file_bytes_max, every)?;
        Ok(Self(Output::Files(Box::new(writer))))
    }

    /// Append. Never fails: what cannot be written is counted.
    pub fn write(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Output::Files(files) => files.write(bytes),
            Output::Pipe(pipe) => pipe.write(bytes),
        }
    }

    /// Bytes that could not be written since opening.
    #[must_use]
    pub const fn dropped_bytes(&self) -> u64 {
        match &self.0 {
            Output::Files(files) => files.dropped_bytes(),
            Output::Pipe(pipe) => pipe.dropped_bytes(),
        }
    }
}

/// A sink for a task that this process runs and another process follows: each write is in the files when
/// it returns. It needs no runtime; the files are opened with the first byte, and tried again with each
/// write until they can be.
#[must_use]
pub fn task_sink(files: SinkFiles) -> Arc<dyn ByteSink> {
    Arc::new(TaskSink { files, opened: Mutex::default() })
}

struct TaskSink {
    files: SinkFiles,
    opened: Mutex<Opened>,
}

#[derive(Default)]
struct Opened {
    writer: Option<OutsideWriter>,
    /// That they cannot be opened was said.
    complained: bool,
}

impl ByteSink for TaskSink {
    fn write(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.writer.is_none() {
            match OutsideWriter::seldom(&self.files) {
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
pub(super) struct Outside {
    /// Oldest first, as found by the last look.
    kept: Vec<Kept>,
    /// End of the newest file, as far as it was seen.
    position: u64,
}

impl Outside {
    /// Look at the files. What cannot be read is taken as unchanged.
    pub(super) fn look(&mut self, files: &LogFiles) -> Standing {
        match files.indices() {
            Ok(indices) => self.found(files, &indices),
            Err(error) => tracing::debug!(%error, "the logs of a task cannot be looked at"),
        }
        let none = Kept { index: 0, start: 0 };
        let first = self.kept.first().copied().unwrap_or(none);
        let current = self.kept.last().copied().unwrap_or(none);
        Standing {
            first: (first.index, first.start),
            current: (current.index, current.start),
            position: self.position,
            closed: false,
        }
    }

    /// A file begins where the one before it ends; one whose predecessors are all gone, where the
    /// last look ended (what came and went unseen since is not counted).
    fn found(&mut self, files: &LogFiles, indices: &[u64]) {
        let mut kept = Vec::with_capacity(indices.len());
        let mut end = None;
        for index in indices {
            let known = self.kept.iter().find(|known| known.index == *index);
            let Some(size) = files.size(*index) else { continue };
            let begin = end.unwrap_or(self.position);
            let start = known.map_or(begin, |known| known.start);
            kept.push(Kept { index: *index, start });
            end = Some(start.saturating_add(size));
        }
        if let Some(end) = end {
            self.kept = kept;
            self.position = self.position.max(end);
        }
    }
}

/// Look at the files of a stream whenever they may have changed, for as long as somebody follows.
pub(super) async fn watch(stream: Weak<Shared>) {
    let Some(notices) = stream.upgrade().map(|stream| Notices::of(stream.files())) else { return };
    let (mut notices, mut pace, mut flood) = (notices, Pace::new(), false);
    loop {
        let Some(looked) = stream.upgrade() else { return };
        // Files are looked at on a thread that may be held up.
        let looked = ostler_model::clock::blocking(move || looked.look_for_followers());
        let Some(news) = looked.await.ok().flatten() else { return };
        // While there is news at each look, no notice is asked for: each would cost the task that
        // prints half as much as its line.
        flood = if flood { news } else { pace.pause().is_some() };
        if flood {
            notices.iter_mut().for_each(Notices::end);
            clock::sleep(PAUSE).await;
            continue;
        }
        // What came before the notices began is looked for once more.
        if notices.as_mut().is_some_and(Notices::begin) {
            continue;
        }
        let told = notices.as_ref().is_some_and(|notices| notices.watch.is_some());
        let interval = if told { LOOK_INTERVAL } else { LOOK_INTERVAL_ALONE };
        let notice = async {
            match &notices {
                Some(notices) => notices.next().await,
                None => std::future::pending().await,
            }
        };
        // Over time: looked at all the same.
        if clock::timeout(interval, notice).await == Some(false) {
            clock::sleep(LOOK_INTERVAL_ALONE).await;
        }
    }
}

/// The kernel's notices that something in a directory changed.
struct Notices {
    fd: AsyncFd<OwnedFd>,
    dir: LogFiles,
    /// What was asked for, while it is.
    watch: Option<i32>,
}

impl Notices {
    /// None asked for yet. `None` where there are none to be had: each user may only have so many
    /// (`inotify(7)`).
    fn of(files: &LogFiles) -> Option<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
        let fd = fd
            .inspect_err(|errno| {
                tracing::debug!(%errno, "logs are looked at without notices of the kernel");
            })
            .ok()?;
        // SAFETY: the descriptor is owned here, never changes, and is closed only with the `AsyncFd`.
        let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
        Some(Self { fd: fd.ok()?, dir: files.clone(), watch: None })
    }

    /// Ask for notices; `false` when they were asked for before, or cannot be had now.
    fn begin(&mut self) -> bool {
        if self.watch.is_some() {
            return false;
        }
        let what = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::ONLYDIR;
        // By descriptor: the path may lead elsewhere by now.
        let path = format!("/proc/self/fd/{}", self.dir.dir().as_raw_fd());
        self.watch = inotify::add_watch(self.fd.get_ref(), path, what).ok();
        self.watch.is_some()
    }

    /// Ask for no more.
    fn end(&mut self) {
        if let Some(watch) = self.watch.take() {
            let _gone = inotify::remove_watch(self.fd.get_ref(), watch);
        }
    }

    /// Wait for notices and take those that are there; `false` when that is not possible.
    async fn next(&self) -> bool {
        let Ok(mut ready) = self.fd.readable().await else {
            return false;
        };
        let taken = ready.try_io(|fd| {
            let mut buffer = [0; NOTICES_BYTES];
            loop {
                match rustix::io::read(fd.get_ref(), &mut buffer) {
                    Ok(NOTICES_BYTES) => {}
                    // Fewer than fit: those were all, and the next wait would say so itself.
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
