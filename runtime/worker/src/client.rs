//! One worker, as its agent sees it.

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::sync::{Notify, oneshot};

use super::found::FoundWorker;
use super::link::{Link, Received};
use super::order;
use super::protocol::{FromWorker, ListedTask, StartOrder, ToWorker, VERSION};
use super::record::WorkerRecord;
use super::setup::Setup;
use super::{ARGUMENT, connect};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{
    WORKER_ANSWER_WALL_MAX, WORKER_CPU_MHZ, WORKER_DOUBT_AFTER, WORKER_END_WALL_MAX,
    WORKER_LOOK_INTERVAL, WORKER_SILENCES_MAX, WORKER_START_WALL_MAX, WORKER_TASK_WALL_MAX,
    WORKER_USAGE_WALL_MAX,
};
use ostler_model::task::Usage;
use ostler_model::time::Timestamp;
use ostler_plugin::host::wasm_task::WasmTaskError;
use ostler_process::WorkerCgroup;
use ostler_process::detached::{self, Detached, DetachedSpec};
use ostler_process::{ProcessHost, identity};

/// Bytes of a worker's log that are shown when it ended.
const LOG_SHOWN_BYTES: u64 = 512;

/// What happens in workers.
pub(crate) trait Hears: Send + Sync + 'static {
    /// The worker said something that no question was about.
    fn heard(&self, worker: &Arc<Worker>, message: FromWorker);
    /// It ended, and every task in it.
    fn lost(&self, worker: &Arc<Worker>, how: String);
}

/// A worker.
pub(crate) struct Worker {
    /// What it was made for.
    pub key: String,
    /// May it get new tasks? One of another build may not.
    pub current: bool,
    /// Runs of it that were not forgotten.
    pub runs: AtomicUsize,
    dir: PathBuf,
    process: Detached,
    cgroup: Option<WorkerCgroup>,
    link: Link,
    questions: Mutex<Option<HashMap<u64, oneshot::Sender<FromWorker>>>>,
    numbers: AtomicU64,
    life: Stopwatch,
    /// The agent leaves it alone from here on.
    left: AtomicBool,
    /// It answered once.
    welcomed: AtomicBool,
    /// It was told to end with its last task.
    retired: AtomicBool,
    /// Somebody waits for it: does it answer at all?
    doubted: Notify,
    /// MHz that its live tasks reserved together.
    reserved: Mutex<u64>,
}

/// Why the worker of an earlier agent is not this one's.
pub(crate) struct NotAdopted {
    /// Why.
    pub error: io::Error,
    /// It was killed and lives on all the same, or cannot be seen: its pid and start time.
    pub left: Option<(u32, u64)>,
}

/// What is said of a worker of which nobody knows what it was made for.
const NOT_KNOWN: &str = "not known";

/// How a worker is started.
pub(crate) struct NewWorker {
    /// The program.
    pub program: PathBuf,
    /// Its directory, not made yet.
    pub dir: PathBuf,
    /// Its cgroup.
    pub cgroup: Option<WorkerCgroup>,
    /// What it is told.
    pub setup: Setup,
}

impl Worker {
    /// Start one, and wait until it answers.
    pub async fn start(new: NewWorker, hears: Arc<dyn Hears>) -> io::Result<Arc<Self>> {
        let NewWorker { program, dir, cgroup, setup } = new;
        let key = setup.key.clone();
        let started = {
            let dir = dir.clone();
            let start = move || {
                let begun = begin(&program, &dir, cgroup.as_ref());
                begun.map(|(process, socket)| (process, socket, cgroup))
            };
            tokio::task::spawn_blocking(start).await.map_err(io::Error::other)?
        };
        let (process, socket, cgroup) = started.inspect_err(|_| remove(&dir))?;
        let told = Link::new(socket).and_then(|link| {
            link.send(&setup, Vec::new())?;
            Ok(link)
        });
        let link = match told {
            Ok(link) => link,
            Err(error) => {
                end(&process).await;
                left_by(&dir, cgroup.as_ref()).await;
                return Err(error);
            }
        };
        let worker = Arc::new(Self::new(key, true, dir, process, cgroup, link));
        worker.attend(hears);
        worker.greet(WORKER_START_WALL_MAX).await?;
        Ok(worker)
    }

    /// Connect to that of an earlier agent. `None`: it has ended meanwhile, and what was left of it is
    /// removed. One whose record is lost gets no new tasks: what it was made for only that says.
    pub async fn adopt(
        found: FoundWorker,
        processes: &ProcessHost,
        hears: Arc<dyn Hears>,
    ) -> Result<Option<Arc<Self>>, NotAdopted> {
        let FoundWorker { pid, start_ticks, dir, removed, socket } = found;
        let unseen = |error| NotAdopted { error, left: Some((pid, start_ticks)) };
        let Some(process) = Detached::existing(pid, start_ticks).map_err(unseen)? else {
            remove(&dir);
            return Ok(None);
        };
        let key = WorkerRecord::read(&dir).ok().flatten().filter(|record| {
            let boot = identity::boot_id().unwrap_or_default();
            (record.pid, record.start_ticks, &record.boot_id) == (pid, start_ticks, &boot)
        });
        let current = key.is_some() && !removed && process.same_program();
        let key = key.map_or_else(|| NOT_KNOWN.to_owned(), |record| record.key);
        let cgroup = processes.worker_cgroup_of(&process).unwrap_or_else(|error| {
            tracing::warn!(pid, %error, "the cgroup of a worker was not found");
            None
        });
        let socket = socket.map_or_else(|| connect::to(&dir), |path| connect::through(&path));
        let link = match socket.and_then(Link::new) {
            Ok(link) => link,
            Err(error) => {
                let ended = end(&process).await;
                left_by(&dir, cgroup.as_ref()).await;
                return Err(NotAdopted { error, left: (!ended).then_some((pid, start_ticks)) });
            }
        };
        let worker = Arc::new(Self::new(key, current, dir, process, cgroup, link));
        worker.attend(hears);
        match worker.greet(WORKER_ANSWER_WALL_MAX).await {
            Ok(()) => Ok(Some(worker)),
            Err(error) => {
                let left = worker.lives().then(|| worker.who());
                Err(NotAdopted { error, left })
            }
        }
    }

    fn new(
        key: String,
        current: bool,
        dir: PathBuf,
        process: Detached,
        cgroup: Option<WorkerCgroup>,
        link: Link,
    ) -> Self {
        Self {
            key,
            current,
            runs: AtomicUsize::new(0),
            dir,
            process,
            cgroup,
            link,
            questions: Mutex::new(Some(HashMap::new())),
            numbers: AtomicU64::new(1),
            life: Stopwatch::start(),
            left: AtomicBool::new(false),
            welcomed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            doubted: Notify::new(),
            reserved: Mutex::new(0),
        }
    }

    /// Did it come up? One that did not is a start that failed.
    pub fn came_up(&self) -> bool {
        self.welcomed.load(Ordering::SeqCst)
    }

    /// Was it told to end?
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// It ends with its last task.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.tell(&ToWorker::Retire);
    }

    /// What its live tasks reserved together became more, or less.
    pub fn reserved(&self, cpu_mhz: u32, more: bool) {
        // Held to the end, so that what is set last is the last sum.
        let mut sum = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let mhz = u64::from(cpu_mhz);
        *sum = if more { sum.saturating_add(mhz) } else { sum.saturating_sub(mhz) };
        let all = u32::try_from(*sum).unwrap_or(u32::MAX).saturating_add(WORKER_CPU_MHZ);
        if let Some(cgroup) = &self.cgroup
            && let Err(error) = cgroup.weigh(all)
            && !self.is_lost()
        {
            tracing::warn!(pid = self.pid(), %error, "the share of a worker was not set");
        }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Its pid and start time.
    pub fn who(&self) -> (u32, u64) {
        (self.process.pid, self.process.start_ticks)
    }

    /// How long it has been this agent's.
    pub fn age(&self) -> Duration {
        self.life.elapsed()
    }

    /// Was its end seen?
    pub fn is_lost(&self) -> bool {
        self.questions().is_none()
    }

    /// What comes from it goes to who asked, or to `hears`.
    fn attend(self: &Arc<Self>, hears: Arc<dyn Hears>) {
        let worker = Arc::clone(self);
        tokio::spawn(async move {
            let error = worker.converse(&*hears).await;
            worker.over(&error, &*hears).await;
        });
    }

    async fn converse(self: &Arc<Self>, hears: &dyn Hears) -> io::Error {
        let mut flush = std::pin::pin!(self.link.flush());
        let mut silence = std::pin::pin!(self.silence());
        loop {
            let received = tokio::select! {
                received = self.link.receive::<FromWorker>() => received,
                error = &mut flush => return error,
                error = &mut silence => return error,
            };
            match received {
                Ok(Some(Received { message, .. })) => match asked(&message) {
                    Some(number) => self.answered(number, message),
                    None => hears.heard(self, message),
                },
                Ok(None) => return io::ErrorKind::UnexpectedEof.into(),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(pid = self.pid(), %error, "a worker was not understood");
                }
                Err(error) => return error,
            }
        }
    }

    /// Ends when the worker answers nothing any more: it hangs, and was killed for that.
    async fn silence(&self) -> io::Error {
        let waited = WORKER_ANSWER_WALL_MAX.saturating_mul(WORKER_SILENCES_MAX);
        let mut silences = 0;
        while silences < WORKER_SILENCES_MAX {
            if silences == 0 {
                let _or_later = clock::timeout(WORKER_LOOK_INTERVAL, self.doubted.notified()).await;
            }
            // Of no task: answered from memory.
            let question = |n| ToWorker::Usage { n, run: String::new(), id: String::new() };
            match self.put(question, Vec::new(), WORKER_ANSWER_WALL_MAX).await {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => silences += 1,
                // One that is lost or left is seen as such by whoever receives.
                _ => silences = 0,
            }
        }
        let (pid, key) = (self.pid(), &self.key);
        tracing::warn!(pid, key, ?waited, "a worker of WASM tasks does not answer and is killed");
        if let Err(error) = self.process.kill() {
            tracing::error!(pid, %error, "a worker could not be killed");
        }
        io::Error::new(io::ErrorKind::TimedOut, format!("it did not answer for {waited:?}"))
    }

    /// Somebody waits for something of it: it is asked now whether it answers at all.
    pub fn doubt(&self) {
        self.doubted.notify_one();
    }

    fn answered(&self, number: u64, message: FromWorker) {
        let waiting = self.questions().as_mut().and_then(|asked| asked.remove(&number));
        if let Some(waiting) = waiting {
            // Who asked may have given up.
            let _gone = waiting.send(message);
        }
    }

    /// Its connection ended: so does it, by itself or not, unless the agent left.
    async fn over(self: &Arc<Self>, error: &io::Error, hears: &dyn Hears) {
        if self.left.load(Ordering::SeqCst) {
            return;
        }
        let how = match clock::timeout(WORKER_END_WALL_MAX, self.process.ended()).await {
            Some(_) if error.kind() == io::ErrorKind::TimedOut => {
                format!("{error}, and was killed")
            }
            Some(Ok(how)) => how.to_string(),
            Some(Err(error)) => error.to_string(),
            None => {
                end(&self.process).await;
                format!("killed, because its connection was lost: {error}")
            }
        };
        let memory = self.cgroup.as_ref().is_some_and(WorkerCgroup::saw_oom_kill);
        let how = if memory { format!("{how}, out of its memory limit") } else { how };
        let said = self.last_words();
        *self.questions() = None;
        hears.lost(self, how + &said);
        left_by(&self.dir, self.cgroup.as_ref()).await;
    }

    /// What its log ends with.
    fn last_words(&self) -> String {
        use std::os::unix::fs::FileExt as _;
        let read = || {
            let file = File::open(self.dir.join("log"))?;
            let from = file.metadata()?.len().saturating_sub(LOG_SHOWN_BYTES);
            let mut bytes = vec![0; usize::try_from(LOG_SHOWN_BYTES).unwrap_or(0)];
            let length = file.read_at(&mut bytes, from)?;
            bytes.truncate(length);
            io::Result::Ok(bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let panicked = text.lines().rev().find(|line| line.contains("panicked at"));
        panicked.map(|line| format!(" ({})", line.trim())).unwrap_or_default()
    }

    fn questions(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<FromWorker>>>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tell it something. One that is lost needs no telling.
    pub fn tell(&self, message: &ToWorker) {
        if let Err(error) = self.link.send(message, Vec::new()) {
            tracing::debug!(pid = self.pid(), %error, "a worker was not told");
        }
    }

    /// Ask it something and wait for the answer. One that takes long is asked whether it answers at all.
    async fn ask(
        &self,
        question: impl FnOnce(u64) -> ToWorker,
        fds: Vec<Arc<OwnedFd>>,
        within: Duration,
    ) -> io::Result<FromWorker> {
        let mut answer = std::pin::pin!(self.put(question, fds, within));
        match clock::timeout(WORKER_DOUBT_AFTER, &mut answer).await {
            Some(answer) => answer,
            None => {
                self.doubt();
                answer.await
            }
        }
    }

    async fn put(
        &self,
        question: impl FnOnce(u64) -> ToWorker,
        fds: Vec<Arc<OwnedFd>>,
        within: Duration,
    ) -> io::Result<FromWorker> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (answers, answer) = oneshot::channel();
        let known = self.questions().as_mut().map(|asked| asked.insert(number, answers)).is_some();
        let gone = || io::Error::other("it ended");
        if !known {
            return Err(gone());
        }
        let asked = Asked { worker: self, number };
        self.link.send(&question(number), fds)?;
        let answer = clock::timeout(within, answer).await;
        drop(asked);
        let late = || {
            let text = format!("it did not answer within {within:?}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        answer.ok_or_else(late)?.map_err(|_dropped| gone())
    }

    /// Wait for its welcome; one that does not come is ended.
    async fn greet(&self, within: Duration) -> io::Result<()> {
        // The answer of a hello has no number: a list is asked for, which it answers after it.
        self.link.send(&ToWorker::Hello { version: VERSION }, Vec::new())?;
        let listed = self.ask(|n| ToWorker::List { n }, Vec::new(), within).await;
        match &listed {
            Ok(_) => self.welcomed.store(true, Ordering::SeqCst),
            Err(_) => {
                let _ended = self.end().await;
            }
        }
        listed.map(drop)
    }

    /// End it with everything in it, and wait for that; whether it ended.
    pub async fn end(&self) -> bool {
        end(&self.process).await
    }

    /// Is its process there?
    pub fn lives(&self) -> bool {
        Detached::existing(self.process.pid, self.process.start_ticks)
            .is_ok_and(|one| one.is_some())
    }

    /// Every task it has.
    pub async fn list(&self) -> io::Result<Vec<ListedTask>> {
        let asked = self.ask(|n| ToWorker::List { n }, Vec::new(), WORKER_ANSWER_WALL_MAX);
        match asked.await? {
            FromWorker::Listed { tasks, .. } => Ok(tasks),
            _ => Err(io::Error::other("it answered something else")),
        }
    }

    /// Have a task held; its id.
    pub async fn hold(
        &self,
        order: StartOrder,
        fds: Vec<Arc<OwnedFd>>,
    ) -> Result<String, WasmTaskError> {
        let order = Box::new(order);
        let asked = self.ask(|n| ToWorker::Start { n, order }, fds, WORKER_TASK_WALL_MAX);
        let failed = |error: io::Error| WasmTaskError::Worker { reason: error.to_string() };
        match asked.await.map_err(failed)? {
            FromWorker::Held { id, .. } if order::is_id(&id) => Ok(id),
            FromWorker::Refused { text, invalid, .. } => {
                Err(WasmTaskError::Refused { text: order::text_heard(text), invalid })
            }
            _ => Err(failed(io::Error::other("it answered something else"))),
        }
    }

    /// What a task uses now.
    pub async fn usage(&self, run: String, id: String) -> Option<Usage> {
        let question = |n| ToWorker::Usage { n, run, id };
        match self.ask(question, Vec::new(), WORKER_USAGE_WALL_MAX).await.ok()? {
            FromWorker::Used { cpu_nanos, memory_bytes, taken_at, .. } => {
                let memory_bytes = Some(memory_bytes?);
                let cpu_time = cpu_nanos.map(Duration::from_nanos);
                Some(Usage { cpu_time, memory_bytes, taken_at: Timestamp::from_nanos(taken_at) })
            }
            _ => None,
        }
    }

    /// It goes on without this agent.
    pub fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        *self.questions() = None;
        self.link.close();
    }

    /// The agent leaves, and it has no task: it ends by itself then. One that hangs does not, and is killed, or nobody
    /// would ever end it.
    pub async fn end_unused(&self) {
        self.leave();
        let pid = self.pid();
        if clock::timeout(WORKER_END_WALL_MAX, self.process.ended()).await.is_none() {
            tracing::warn!(
                pid,
                key = self.key,
                "a worker without tasks does not end and is killed"
            );
            if !self.end().await {
                return;
            }
        }
        left_by(&self.dir, self.cgroup.as_ref()).await;
    }
}

/// A question that is waited for; forgotten when the wait is given up.
struct Asked<'a> {
    worker: &'a Worker,
    number: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.worker.questions().as_mut() {
            asked.remove(&self.number);
        }
    }
}

/// The question that a message answers.
const fn asked(message: &FromWorker) -> Option<u64> {
    match message {
        FromWorker::Held { n, .. }
        | FromWorker::Refused { n, .. }
        | FromWorker::Listed { n, .. }
        | FromWorker::Used { n, .. } => Some(*n),
        FromWorker::Welcome { .. }
        | FromWorker::Exited { .. }
        | FromWorker::Said { .. }
        | FromWorker::Unknown => None,
    }
}

/// Make its directory and start its process.
fn begin(
    program: &Path,
    dir: &Path,
    cgroup: Option<&WorkerCgroup>,
) -> io::Result<(Detached, OwnedFd)> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let log = File::options().create(true).append(true).mode(0o600).open(dir.join("log"))?;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let process = detached::start(DetachedSpec {
        program,
        argument: ARGUMENT,
        place: dir,
        name: "ostler-worker",
        stdin: theirs,
        stderr: log,
        cgroup,
    })?;
    Ok((process, ours))
}

/// Kill a process and wait for its end; whether that came.
async fn end(process: &Detached) -> bool {
    if let Err(error) = process.kill() {
        tracing::error!(pid = process.pid, %error, "a worker could not be killed");
    }
    let ended = clock::timeout(WORKER_END_WALL_MAX, process.ended()).await.is_some();
    if !ended {
        tracing::error!(pid = process.pid, "a worker did not end after it was killed");
    }
    ended
}

/// Remove all that a worker which is gone left.
async fn left_by(dir: &Path, cgroup: Option<&WorkerCgroup>) {
    remove(dir);
    if let Some(cgroup) = cgroup {
        cgroup.remove().await;
    }
}

/// Remove the directory of a worker that is gone.
pub(crate) fn remove(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "what a worker left was not removed");
    }
}
