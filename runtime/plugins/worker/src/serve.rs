//! The worker's side: the process that holds and runs the tasks.
//!
//! ```text
//! standard input: the first connection ─ setup ─► socket, record ─► confined ─► threads, engine
//!      ┌──────────────────────────────────────────────────────────────────────────────┘
//!      ▼
//! connection ─► hello, list ─► start ─► held ─► release … ─► exited ─► forget
//!      │ ends: what is held ends; what runs goes on ─► the next connection
//!      ├── no task is left: so does the worker
//!      └── no agent can find it any more: it ends with the last task that lives
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{SocketType, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, Semaphore};

use super::dir_waits::DirWaits;
use super::home::{Home, RemovalNotices};
use super::link::{self, MessageWithFds, PacketLink};
use super::notes::NoteFiles;
use super::order::ParsedOrder;
use super::protocol::{FromWorker, ListedTask, StartOrder, TaskPlace, ToWorker, VERSION};
use super::record::WorkerRecord;
use super::setup::Setup;
use super::{connect, order};
use ostler_model::clock::{self, Clock};
use ostler_model::ids::RunId;
use ostler_model::limits::{WORKER_ACCEPT_PAUSE, WORKER_HOME_LOOK_INTERVAL, WORKER_STARTS_MAX};
use ostler_model::rng::Rng;
use ostler_model::task::Usage;
use ostler_process::confine::{Confinement, confine};
use ostler_process::netns;
use ostler_sandbox::{EngineKind, Sandbox, SandboxConfig, threads};
use ostler_wasm_task::{WasmTaskError, WasmTaskHost, WasmTasks as _};

/// First argument that makes this program a worker.
pub const ARGUMENT: &str = "__worker";

/// The `__worker` program. `log` is called as soon as threads may be started; what it returns is
/// kept until the program ends.
#[must_use]
pub fn main<L>(log: impl FnOnce() -> L) -> ExitCode {
    let begun = match prepare_worker() {
        Ok(begun) => begun,
        Err(error) => return report_failure(&error),
    };
    let _log = log();
    tracing::info!(confined = %begun.confined, "worker of WASM tasks started");
    ostler_process::memory::give_back_from_now_on();
    let run = || threads::control_runtime()?.block_on(serve(begun));
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_failure(&error),
    }
}

fn report_failure(error: &io::Error) -> ExitCode {
    #[expect(clippy::print_stderr, reason = "its log, before there is another")]
    {
        eprintln!("the worker of WASM tasks cannot start: {error}");
    }
    ExitCode::from(2)
}

struct ConfinedWorker {
    setup: Setup,
    first: OwnedFd,
    listener: OwnedFd,
    home: Home,
    notes: NoteFiles,
    confined: String,
    /// Processor cores that the cgroup allows. The cgroup cannot be read any more once the
    /// process is confined.
    cores: usize,
}

/// Do what only an unconfined process may do, then confine this one. Runs while the process
/// has one thread.
fn prepare_worker() -> io::Result<ConfinedWorker> {
    let first = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    if sockopt::socket_type(&first)? != SocketType::SEQPACKET {
        return Err(io::Error::other("its standard input is not a connection to an agent"));
    }
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let setup: Setup = link::receive_blocking(&first)?
        .ok_or_else(|| io::Error::other("the agent was gone before it sent anything"))?;
    if let Some(network) = &setup.network {
        netns::enter(network)?;
    }
    let listener = connect::listen_in_dir(&setup.dir)?;
    WorkerRecord::own(setup.key.clone())?.write(&setup.dir)?;
    let home = Home::open(&setup.dir)?;
    let notes = NoteFiles::create(&setup.dir)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut read = setup.read.clone();
    read.push(PathBuf::from("/proc/sys/vm"));
    let confined =
        confine(&Confinement { write: setup.write.clone(), read, ..Confinement::default() });
    let confined = confined.map_err(io::Error::other)?.to_string();
    Ok(ConfinedWorker { setup, first, listener, home, notes, confined, cores })
}

async fn serve(begun: ConfinedWorker) -> io::Result<()> {
    let ConfinedWorker { setup, first, listener, mut home, notes: files, cores, .. } = begun;
    let sandbox = Sandbox::new(SandboxConfig {
        cache_dir: None,
        compiler: PathBuf::new(),
        ahead: Vec::new(),
        plugin_instances: 0,
        task_instances: setup.task_instances,
        dense: setup.dense,
        guest_threads: Some(cores),
    });
    let sandbox = Arc::new(sandbox.map_err(io::Error::other)?);
    let agent = Arc::new(AgentConnection::default());
    let over = Arc::new(Notify::new());
    let (told, ended) = (Arc::clone(&agent), Arc::clone(&over));
    let exited = move |run: &RunId, id: &str, exit: &_| {
        let (run, id, exit) = (run.to_string(), id.to_owned(), order::encode_exit(exit));
        // Without an agent this may have been the last task.
        if !told.tell(&FromWorker::Exited { run, id, exit }) {
            ended.notify_one();
        }
    };
    let mut notices = home.notices()?;
    let control = tokio::runtime::Handle::current();
    let (clock, rng) = (Clock::system(), Rng::system());
    let host = WasmTaskHost::new(Arc::clone(&sandbox), control, clock, rng, Some(Arc::new(exited)));
    let server = Arc::new(Server {
        host: host.map_err(io::Error::other)?,
        sandbox,
        agent,
        starts: Arc::new(Semaphore::new(WORKER_STARTS_MAX)),
        retiring: AtomicBool::new(false),
        places: Mutex::default(),
        notes: Mutex::new(files),
        dirs: DirWaits::default(),
        home,
        over,
    });
    server.attend(first)?;
    // SAFETY: the descriptor is owned here, never changes, and is closed only with the `AsyncFd`.
    let listener = unsafe { AsyncFd::register(listener) }?;
    loop {
        tokio::select! {
            () = server.over.notified() => {}
            ready = listener.readable() => {
                match ready?.try_io(|socket| connect::accept(socket.get_ref())) {
                    Ok(Ok(connection)) => {
                        if let Err(error) = server.attend(connection) {
                            tracing::warn!(%error, "a connection was not taken");
                        }
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "a connection was not taken");
                        // Without a free descriptor the connection stays in the kernel's queue.
                        clock::sleep(WORKER_ACCEPT_PAUSE).await;
                    }
                    Err(_would_block) => {}
                }
            }
            taken = next_notice(notices.as_ref()) => {
                if let Err(error) = taken {
                    tracing::debug!(%error, "no more notices of the worker's directory");
                    notices = None;
                }
            }
            () = clock::sleep(WORKER_HOME_LOOK_INTERVAL), if server.is_abandoned() => {}
        }
        if server.is_finished() {
            return Ok(());
        }
    }
}

/// Wait until a name was removed from the worker's directory. Without notices this never returns.
async fn next_notice(notices: Option<&RemovalNotices>) -> io::Result<()> {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}

/// The connection to the present agent, if there is one.
#[derive(Default)]
pub(super) struct AgentConnection {
    link: Mutex<Option<(u64, Arc<PacketLink>)>>,
    numbers: AtomicU64,
}

impl AgentConnection {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, Arc<PacketLink>)>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Send a message to the agent. Returns whether there is one: the next agent asks for the list
    /// instead.
    pub(super) fn tell(&self, message: &FromWorker) -> bool {
        let link = self.lock().as_ref().map(|(_, link)| Arc::clone(link));
        let Some(link) = link else { return false };
        let _gone = link.send(message, Vec::new());
        true
    }

    fn is_current(&self, number: u64) -> bool {
        self.lock().as_ref().is_some_and(|(now, _)| *now == number)
    }
}

struct Server {
    host: WasmTaskHost,
    sandbox: Arc<Sandbox>,
    agent: Arc<AgentConnection>,
    starts: Arc<Semaphore>,
    retiring: AtomicBool,
    /// Job, group and index of each run that was not forgotten, for an agent that does not
    /// know the run.
    places: Mutex<HashMap<RunId, TaskPlace>>,
    notes: Mutex<NoteFiles>,
    /// The tasks that wait for their directories.
    dirs: DirWaits,
    home: Home,
    /// Notified when the worker may have to end.
    over: Arc<Notify>,
}

impl Server {
    /// Serve a new connection. The connection before it is closed.
    fn attend(self: &Arc<Self>, socket: OwnedFd) -> io::Result<()> {
        let link = Arc::new(PacketLink::new(socket)?);
        let number = self.agent.numbers.fetch_add(1, Ordering::Relaxed);
        let before = self.agent.lock().replace((number, Arc::clone(&link)));
        if let Some((_, before)) = before {
            before.close();
            self.host.end_held();
        }
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let why = server.converse(&link, number).await;
            tracing::info!(%why, "the connection to an agent ended");
            server.handle_disconnect(number);
        });
        Ok(())
    }

    async fn converse(self: &Arc<Self>, link: &Arc<PacketLink>, number: u64) -> io::Error {
        let mut flush = std::pin::pin!(link.flush());
        loop {
            let received = tokio::select! {
                received = link.receive::<ToWorker>() => received,
                error = &mut flush => return error,
            };
            match received {
                Ok(Some(received)) => self.serve(link, number, received),
                Ok(None) => return io::ErrorKind::UnexpectedEof.into(),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "a message of the agent was not understood");
                }
                Err(error) => return error,
            }
        }
    }

    /// Handle the end of a connection. When it was that of the present agent, what is
    /// held is ended.
    fn handle_disconnect(&self, number: u64) {
        let last = {
            let mut link = self.agent.lock();
            let last = link.as_ref().is_some_and(|(now, _)| *now == number);
            if last {
                *link = None;
            }
            last
        };
        if last {
            self.host.end_held();
            self.over.notify_one();
        }
    }

    /// Is there no agent, and has every task ended?
    fn is_abandoned(&self) -> bool {
        self.agent.lock().is_none() && self.host.is_at_rest()
    }

    fn is_finished(&self) -> bool {
        let alone = self.agent.lock().is_none();
        let unused = alone || self.retiring.load(Ordering::SeqCst);
        (unused && self.host.is_empty()) || (self.is_abandoned() && self.home.is_gone())
    }

    fn serve(
        self: &Arc<Self>,
        link: &Arc<PacketLink>,
        number: u64,
        received: MessageWithFds<ToWorker>,
    ) {
        let MessageWithFds { message, fds } = received;
        let answer = |message: &FromWorker| drop(link.send(message, Vec::new()));
        // A text that is no run id names no run, and nothing is done.
        let of = |text: &str, act: &dyn Fn(&RunId)| {
            order::parse_run(text).map(|run| act(&run)).unwrap_or_default();
        };
        match message {
            ToWorker::Hello { version } => {
                tracing::info!(version, "an agent connected");
                let pool = self.sandbox.pool(EngineKind::Task);
                let notices = pool.lowered.is_some().then(|| pool.to_string());
                answer(&FromWorker::Welcome {
                    version: VERSION,
                    tasks_max: pool.got,
                    notices: notices.into_iter().collect(),
                });
            }
            ToWorker::Start { n, order } => self.start(link, number, n, *order, fds),
            ToWorker::Release { run, note } => {
                of(&run, &|run| self.release(run, note.as_deref()));
            }
            ToWorker::Kill { run, id } => of(&run, &|run| {
                let _ended = self.host.kill(run, &id);
            }),
            ToWorker::KillRun { run } => of(&run, &|run| self.host.kill_run(run)),
            ToWorker::ForgetRun { run } => {
                of(&run, &|run| {
                    self.host.forget_run(run);
                    self.places().remove(run);
                    self.dirs.forget(run);
                });
                if self.retiring.load(Ordering::SeqCst) {
                    self.over.notify_one();
                }
            }
            ToWorker::List { n } => answer(&FromWorker::Listed { n, tasks: self.list_tasks() }),
            ToWorker::Usage { n, run, id } => {
                let used =
                    order::parse_run(&run).ok().map(|run| self.host.current_usage(&run, &id));
                answer(&usage_answer(n, used.flatten()));
            }
            ToWorker::DirsMade { run, error } => {
                of(&run, &|run| self.dirs.note_made(run, error.clone()));
            }
            ToWorker::Retire => {
                self.retiring.store(true, Ordering::SeqCst);
                self.over.notify_one();
            }
            ToWorker::Unknown => tracing::warn!("a message of a newer agent was ignored"),
        }
    }

    /// Let a run start, once its note is written.
    fn release(&self, run: &RunId, note: Option<&str>) {
        let written = note.map_or(Ok(()), |note| {
            let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
            notes.add(run.as_str(), note, |known| {
                order::parse_run(known).is_ok_and(|run| self.places().contains_key(&run))
            })
        });
        match written {
            Ok(()) => drop(self.host.release(run)),
            Err(error) => {
                let text = format!(
                    "the task does not start: what the next agent needs to own it was not written                      ({error}); see whether the disk of the data directory is full"
                );
                self.agent.tell(&FromWorker::Said { run: run.to_string(), text });
                self.host.kill_run(run);
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<RunId, TaskPlace>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list_tasks(&self) -> Vec<ListedTask> {
        let places = self.places();
        let seen = self.host.list_tasks().into_iter().map(|task| ListedTask {
            place: places.get(&task.run).cloned(),
            run: task.run.to_string(),
            id: task.id,
            released: task.released,
            exit: task.exit.as_ref().map(order::encode_exit),
            cpu_mhz: Some(task.cpu_mhz),
        });
        seen.collect()
    }

    /// Hold the task of an order, at once where nothing has to be opened for it.
    fn start(
        self: &Arc<Self>,
        link: &Arc<PacketLink>,
        number: u64,
        n: u64,
        order: StartOrder,
        fds: Vec<OwnedFd>,
    ) {
        let (agent, run) = (Arc::clone(&self.agent), order.run.clone());
        let place = order::task_place(&order);
        let said = Arc::new(move |text: String, _details: Vec<(String, String)>| {
            agent.tell(&FromWorker::Said { run: run.clone(), text });
        });
        let late = |run, task_dir| self.dirs.maker(&self.agent, run, task_dir);
        let ordered = match order::read_order(order, fds, said, late) {
            Ok(ordered) => ordered,
            Err(error) => {
                let refused = FromWorker::Refused { n, text: error.to_string(), invalid: false };
                let _gone = link.send(&refused, Vec::new());
                return;
            }
        };
        if self.host.holds_at_once(&ordered.context, &ordered.spec, &ordered.code) {
            let answer = self.hold(number, n, &ordered, place);
            let _gone = link.send(&answer, Vec::new());
            return;
        }
        let (server, link) = (Arc::clone(self), Arc::clone(link));
        tokio::spawn(async move {
            let Ok(_turn) = server.starts.acquire().await else { return };
            // Directories are opened and code is mapped here: on a disk that hangs, the thread hangs.
            let answer = clock::run_blocking({
                let server = Arc::clone(&server);
                move || server.hold(number, n, &ordered, place)
            });
            let ended = |_| FromWorker::Refused {
                n,
                text: "internal error: the worker failed to hold the task".to_owned(),
                invalid: false,
            };
            let _gone = link.send(&answer.await.unwrap_or_else(ended), Vec::new());
        });
    }

    /// Hold a task. Returns the answer to its order. May block.
    fn hold(
        &self,
        number: u64,
        n: u64,
        ordered: &ParsedOrder,
        place: Option<TaskPlace>,
    ) -> FromWorker {
        let (run, id) = (&ordered.context.run_id, ordered.id.clone());
        match self.host.hold(&ordered.context, &ordered.spec, &ordered.code, id) {
            Ok(id) => {
                self.places().extend(place.map(|place| (run.clone(), place)));
                if !self.agent.is_current(number) {
                    // The agent that asked is gone: nobody would release the task.
                    self.host.kill_run(run);
                }
                FromWorker::Held { n, id }
            }
            Err(error) => {
                let invalid =
                    matches!(error, WasmTaskError::Code { .. } | WasmTaskError::OtherWorld { .. });
                FromWorker::Refused { n, text: error.to_string(), invalid }
            }
        }
    }
}

fn usage_answer(n: u64, used: Option<Usage>) -> FromWorker {
    FromWorker::Used {
        n,
        cpu_nanos: used.as_ref().and_then(|used| Some(nanos(used.cpu_time?))),
        memory_bytes: used.as_ref().and_then(|used| used.memory_bytes),
        taken_at: used.map_or(0, |used| used.taken_at.nanos()),
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
