//! The agent's side of one worker: start it or adopt it, ask it, and see its end.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::connect;
use super::discovery::FoundWorker;
use super::link::{MessageWithFds, PacketLink};
use super::order;
use super::process::{kill_process, remove_leftovers, remove_worker_dir, start_process};
use super::protocol::{FromWorker, ListedTask, StartOrder, ToWorker, VERSION};
use super::record::WorkerRecord;
use super::setup::Setup;
use super::share::ReservedShare;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{
    WORKER_ANSWER_WALL_MAX, WORKER_DOUBT_AFTER, WORKER_END_WALL_MAX, WORKER_LOOK_INTERVAL,
    WORKER_SILENCES_MAX, WORKER_START_WALL_MAX, WORKER_TASK_WALL_MAX, WORKER_USAGE_WALL_MAX,
};
use ostler_model::task::Usage;
use ostler_model::time::Timestamp;
use ostler_process::WorkerCgroup;
use ostler_process::detached_process::DetachedProcess;
use ostler_process::{ProcessHost, identity};
use ostler_wasm_task::WasmTaskError;

/// Bytes at the end of a worker's log that are searched for a panic when the worker ended.
const LOG_SHOWN_BYTES: u64 = 512;

/// Receives what happens in workers.
pub(crate) trait WorkerListener: Send + Sync + 'static {
    /// The worker sent a message that answers no question.
    fn handle_message(&self, worker: &Arc<Worker>, message: FromWorker);
    /// The worker ended, and every task in it. `how` says how, for people.
    fn handle_loss(&self, worker: &Arc<Worker>, how: String);
}

/// A worker process and the connection to it.
pub(crate) struct Worker {
    /// Which tasks the worker takes, such as those of one job.
    pub key: String,
    /// Whether the worker may get new tasks. A worker of another build may not.
    pub current: bool,
    /// How many of its runs were not forgotten.
    pub runs: AtomicUsize,
    dir: PathBuf,
    process: DetachedProcess,
    cgroup: Option<WorkerCgroup>,
    link: PacketLink,
    questions: Mutex<Option<HashMap<u64, oneshot::Sender<FromWorker>>>>,
    numbers: AtomicU64,
    life: Stopwatch,
    /// The agent has left the worker alone.
    left: AtomicBool,
    /// The worker answered once.
    welcomed: AtomicBool,
    /// The worker was told to end with its last task.
    retired: AtomicBool,
    /// Notified when an answer takes long, to find out whether the worker answers at all.
    doubted: Notify,
    /// MHz that the live tasks of the worker reserved together.
    reserved: Mutex<ReservedShare>,
}

/// Why this agent could not adopt the worker of an earlier agent.
pub(crate) struct AdoptionFailure {
    /// What went wrong.
    pub error: io::Error,
    /// Pid and start time of a worker that lives although it was killed, or that cannot
    /// be looked at.
    pub left: Option<(u32, u64)>,
}

/// Key of a worker whose record is lost.
const NOT_KNOWN: &str = "not known";

/// What is needed to start a worker.
pub(crate) struct NewWorker {
    /// Path of the program that becomes the worker.
    pub program: PathBuf,
    /// The worker's own directory, which is made at the start.
    pub dir: PathBuf,
    /// The cgroup that the worker runs in; absent where none can be made.
    pub cgroup: Option<WorkerCgroup>,
    /// The first message to the worker.
    pub setup: Setup,
}

impl Worker {
    /// Start a worker, and wait until it answers.
    pub async fn start(new: NewWorker, hears: Arc<dyn WorkerListener>) -> io::Result<Arc<Self>> {
        let NewWorker { program, dir, cgroup, setup } = new;
        let key = setup.key.clone();
        let started = {
            let dir = dir.clone();
            let start = move || {
                let begun = start_process(&program, &dir, cgroup.as_ref());
                begun.map(|(process, socket)| (process, socket, cgroup))
            };
            tokio::task::spawn_blocking(start).await.map_err(io::Error::other)?
        };
        let (process, socket, cgroup) = started.inspect_err(|_| remove_worker_dir(&dir))?;
        let told = PacketLink::new(socket).and_then(|link| {
            link.send(&setup, Vec::new())?;
            Ok(link)
        });
        let link = match told {
            Ok(link) => link,
            Err(error) => {
                kill_process(&process).await;
                remove_leftovers(&dir, cgroup.as_ref()).await;
                return Err(error);
            }
        };
        let worker = Arc::new(Self::new(key, true, dir, process, cgroup, link));
        worker.attend(hears);
        worker.greet(WORKER_START_WALL_MAX).await?;
        Ok(worker)
    }

    /// Connect to the worker of an earlier agent. `None`: it has ended meanwhile, and what it left
    /// is removed. A worker whose record is lost gets no new tasks, because only the record says
    /// which tasks it takes.
    pub async fn adopt(
        found: FoundWorker,
        processes: &ProcessHost,
        hears: Arc<dyn WorkerListener>,
    ) -> Result<Option<Arc<Self>>, AdoptionFailure> {
        let FoundWorker { pid, start_ticks, dir, removed, socket } = found;
        let unseen = |error| AdoptionFailure { error, left: Some((pid, start_ticks)) };
        let Some(process) = DetachedProcess::open_existing(pid, start_ticks).map_err(unseen)?
        else {
            remove_worker_dir(&dir);
            return Ok(None);
        };
        let key = WorkerRecord::read(&dir).ok().flatten().filter(|record| {
            let boot = identity::boot_id().unwrap_or_default();
            (record.pid, record.start_ticks, &record.boot_id) == (pid, start_ticks, &boot)
        });
        let current = key.is_some() && !removed && process.has_same_program();
        let key = key.map_or_else(|| NOT_KNOWN.to_owned(), |record| record.key);
        let cgroup = processes.find_worker_cgroup(&process).unwrap_or_else(|error| {
            tracing::warn!(pid, %error, "the cgroup of a worker was not found");
            None
        });
        let socket = socket
            .map_or_else(|| connect::connect_to_dir(&dir), |path| connect::connect_to_path(&path));
        let link = match socket.and_then(PacketLink::new) {
            Ok(link) => link,
            Err(error) => {
                let ended = kill_process(&process).await;
                remove_leftovers(&dir, cgroup.as_ref()).await;
                return Err(AdoptionFailure {
                    error,
                    left: (!ended).then_some((pid, start_ticks)),
                });
            }
        };
        let worker = Arc::new(Self::new(key, current, dir, process, cgroup, link));
        worker.attend(hears);
        match worker.greet(WORKER_ANSWER_WALL_MAX).await {
            Ok(()) => Ok(Some(worker)),
            Err(error) => {
                let left = worker.is_alive().then(|| worker.identity());
                Err(AdoptionFailure { error, left })
            }
        }
    }

    fn new(
        key: String,
        current: bool,
        dir: PathBuf,
        process: DetachedProcess,
        cgroup: Option<WorkerCgroup>,
        link: PacketLink,
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
            reserved: Mutex::default(),
        }
    }

    /// Has the worker answered once? If not, its start failed.
    pub fn has_come_up(&self) -> bool {
        self.welcomed.load(Ordering::SeqCst)
    }

    /// Was every run of the worker forgotten?
    pub fn is_unused(&self) -> bool {
        self.runs.load(Ordering::Relaxed) == 0
    }

    /// Was the worker told to end with its last task?
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// Tell the worker to end with its last task.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.tell(&ToWorker::Retire);
    }

    /// Add to what the live tasks of the worker reserved together, or take from it, and keep its
    /// share of the processor within an eighth of that.
    pub fn change_reserved(&self, cpu_mhz: u32, more: bool) {
        // The lock is held to the end, so that the share that is set last is that of the last sum.
        let mut share = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        share.change(cpu_mhz, more);
        if let Some(cgroup) = &self.cgroup
            && let Some(weight) = share.next_weight()
            && let Err(error) = cgroup.set_cpu_weight(weight)
            && !self.is_lost()
        {
            tracing::warn!(pid = self.pid(), %error, "the share of a worker was not set");
        }
    }

    /// Process id of the worker.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Pid and start time of the worker.
    pub fn identity(&self) -> (u32, u64) {
        (self.process.pid, self.process.start_ticks)
    }

    /// How long this agent has had the worker.
    pub fn age(&self) -> Duration {
        self.life.elapsed()
    }

    /// Has the agent seen the end of the worker, or left it?
    pub fn is_lost(&self) -> bool {
        self.questions().is_none()
    }

    /// Read from the worker in the background: answers go to whoever asked, other
    /// messages to `hears`.
    fn attend(self: &Arc<Self>, hears: Arc<dyn WorkerListener>) {
        let worker = Arc::clone(self);
        tokio::spawn(async move {
            let error = worker.converse(&*hears).await;
            worker.handle_disconnect(&error, &*hears).await;
        });
    }

    async fn converse(self: &Arc<Self>, hears: &dyn WorkerListener) -> io::Error {
        let mut flush = std::pin::pin!(self.link.flush());
        let mut silence = std::pin::pin!(self.watch_silence());
        loop {
            let received = tokio::select! {
                received = self.link.receive::<FromWorker>() => received,
                error = &mut flush => return error,
                error = &mut silence => return error,
            };
            match received {
                Ok(Some(MessageWithFds { message, .. })) => match question_number(&message) {
                    Some(number) => self.deliver_answer(number, message),
                    None => hears.handle_message(self, message),
                },
                Ok(None) => return io::ErrorKind::UnexpectedEof.into(),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(pid = self.pid(), %error, "a message of a worker was not understood");
                }
                Err(error) => return error,
            }
        }
    }

    /// Returns when the worker answers nothing any more: it hangs, and was killed for that.
    async fn watch_silence(self: &Arc<Self>) -> io::Error {
        let waited = WORKER_ANSWER_WALL_MAX.saturating_mul(WORKER_SILENCES_MAX);
        let mut silences = 0;
        while silences < WORKER_SILENCES_MAX {
            if silences == 0 {
                let _or_later = clock::timeout(WORKER_LOOK_INTERVAL, self.doubted.notified()).await;
            }
            // The question names no task: the worker answers it from memory.
            let question = |n| ToWorker::Usage { n, run: String::new(), id: String::new() };
            let asked = self.begin_question(question, Vec::new());
            let answer = match asked {
                Ok(mut asked) => asked.wait_answer(WORKER_ANSWER_WALL_MAX).await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => silences += 1,
                // Whoever receives from a worker that is lost or left sees that.
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

    /// Ask the worker now whether it answers at all, because somebody waits for it.
    pub fn check_answers(&self) {
        self.doubted.notify_one();
    }

    fn deliver_answer(&self, number: u64, message: FromWorker) {
        let waiting = self.questions().as_mut().and_then(|asked| asked.remove(&number));
        if let Some(waiting) = waiting {
            // Whoever asked may have given up.
            let _gone = waiting.send(message);
        }
    }

    /// The connection ended: wait for the end of the worker, and kill it if it does not end.
    /// Nothing is done where the agent left.
    async fn handle_disconnect(self: &Arc<Self>, error: &io::Error, hears: &dyn WorkerListener) {
        if self.left.load(Ordering::SeqCst) {
            return;
        }
        let how = match clock::timeout(WORKER_END_WALL_MAX, self.process.wait_for_end()).await {
            Some(_) if error.kind() == io::ErrorKind::TimedOut => {
                format!("{error}, and was killed")
            }
            Some(Ok(how)) => how.to_string(),
            Some(Err(error)) => error.to_string(),
            None => {
                kill_process(&self.process).await;
                format!("killed, because its connection was lost: {error}")
            }
        };
        let memory = self.cgroup.as_ref().is_some_and(WorkerCgroup::saw_oom_kill);
        let how = if memory { format!("{how}, out of its memory limit") } else { how };
        let said = self.last_words();
        *self.questions() = None;
        hears.handle_loss(self, how + &said);
        // The notes of its runs stay until the runs are forgotten.
        if self.is_unused() {
            self.remove_dir();
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove().await;
        }
    }

    /// Remove the directory of a worker that is gone.
    pub fn remove_dir(&self) {
        remove_worker_dir(&self.dir);
    }

    /// The last panic in the worker's log, in parentheses; empty where there is none.
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

    /// Send the worker a message that has no answer. A worker that is lost needs none.
    pub fn tell(&self, message: &ToWorker) {
        if let Err(error) = self.link.send(message, Vec::new()) {
            tracing::debug!(pid = self.pid(), %error, "a worker was not told");
        }
    }

    /// Ask the worker something and wait for the answer. A worker that takes long is asked whether
    /// it answers at all.
    async fn ask(
        self: &Arc<Self>,
        question: impl FnOnce(u64) -> ToWorker,
        fds: Vec<Arc<OwnedFd>>,
        within: Duration,
    ) -> io::Result<FromWorker> {
        self.begin_question(question, fds)?.wait(within).await
    }

    /// Ask the worker something. Whoever asks may do something else before it waits.
    fn begin_question(
        self: &Arc<Self>,
        question: impl FnOnce(u64) -> ToWorker,
        fds: Vec<Arc<OwnedFd>>,
    ) -> io::Result<PendingQuestion> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (answers, answer) = oneshot::channel();
        let known = self.questions().as_mut().map(|asked| asked.insert(number, answers)).is_some();
        if !known {
            return Err(gone_error());
        }
        let asked = PendingQuestion { worker: Arc::clone(self), number, answer };
        self.link.send(&question(number), fds)?;
        Ok(asked)
    }

    /// Wait for the welcome of the worker. A worker that does not send it is killed.
    async fn greet(self: &Arc<Self>, within: Duration) -> io::Result<()> {
        // The answer to a hello has no number. So a list is asked for as well, which is answered
        // after it.
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

    /// Kill the worker with everything in it, and wait for its end. Returns whether it ended.
    pub async fn end(&self) -> bool {
        kill_process(&self.process).await
    }

    /// Does the process of the worker live?
    pub fn is_alive(&self) -> bool {
        DetachedProcess::open_existing(self.process.pid, self.process.start_ticks)
            .is_ok_and(|one| one.is_some())
    }

    /// Every task that the worker has.
    pub async fn list(self: &Arc<Self>) -> io::Result<Vec<ListedTask>> {
        let asked = self.ask(|n| ToWorker::List { n }, Vec::new(), WORKER_ANSWER_WALL_MAX);
        match asked.await? {
            FromWorker::Listed { tasks, .. } => Ok(tasks),
            _ => Err(io::Error::other("it answered something else")),
        }
    }

    /// Have the worker hold a task. Returns the question, to whose answer [`read_held`] belongs.
    pub fn begin_hold(
        self: &Arc<Self>,
        order: StartOrder,
        fds: Vec<Arc<OwnedFd>>,
    ) -> io::Result<PendingQuestion> {
        let order = Box::new(order);
        self.begin_question(|n| ToWorker::Start { n, order }, fds)
    }

    /// What a task uses now; `None` where the worker does not answer or the task does not run.
    pub async fn usage(self: &Arc<Self>, run: String, id: String) -> Option<Usage> {
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

    /// Close the connection: the worker goes on without this agent.
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
        if clock::timeout(WORKER_END_WALL_MAX, self.process.wait_for_end()).await.is_none() {
            tracing::warn!(
                pid,
                key = self.key,
                "a worker without tasks does not end and is killed"
            );
            if !self.end().await {
                return;
            }
        }
        remove_leftovers(&self.dir, self.cgroup.as_ref()).await;
    }
}

fn gone_error() -> io::Error {
    io::Error::other("it ended")
}

/// Wait until a worker holds a task, or says why it does not.
pub(crate) async fn wait_held(asked: io::Result<PendingQuestion>) -> Result<(), WasmTaskError> {
    let failed = |error: io::Error| WasmTaskError::Worker { reason: error.to_string() };
    match asked.map_err(failed)?.wait(WORKER_TASK_WALL_MAX).await.map_err(failed)? {
        FromWorker::Held { .. } => Ok(()),
        FromWorker::Refused { text, invalid, .. } => {
            Err(WasmTaskError::Refused { text: order::sanitize_text(text), invalid })
        }
        _ => Err(failed(io::Error::other("it answered something else"))),
    }
}

/// A question whose answer is awaited. Dropping it forgets the question.
pub(crate) struct PendingQuestion {
    worker: Arc<Worker>,
    number: u64,
    answer: oneshot::Receiver<FromWorker>,
}

impl PendingQuestion {
    /// Wait for the answer. A worker that takes long is asked whether it answers at all.
    async fn wait(mut self, within: Duration) -> io::Result<FromWorker> {
        match clock::timeout(WORKER_DOUBT_AFTER, &mut self.answer).await {
            Some(answer) => answer.map_err(|_dropped| gone_error()),
            None => {
                self.worker.check_answers();
                self.wait_answer(within).await
            }
        }
    }

    async fn wait_answer(&mut self, within: Duration) -> io::Result<FromWorker> {
        let late = || {
            let text = format!("it did not answer within {within:?}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let answer = clock::timeout(within, &mut self.answer).await;
        answer.ok_or_else(late)?.map_err(|_dropped| gone_error())
    }
}

impl Drop for PendingQuestion {
    fn drop(&mut self) {
        if let Some(asked) = self.worker.questions().as_mut() {
            asked.remove(&self.number);
        }
    }
}

/// Number of the question that a message answers.
const fn question_number(message: &FromWorker) -> Option<u64> {
    match message {
        FromWorker::Held { n, .. }
        | FromWorker::Refused { n, .. }
        | FromWorker::Listed { n, .. }
        | FromWorker::Used { n, .. } => Some(*n),
        FromWorker::Welcome { .. }
        | FromWorker::Exited { .. }
        | FromWorker::Said { .. }
        | FromWorker::WantsDirs { .. }
        | FromWorker::Unknown => None,
    }
}
