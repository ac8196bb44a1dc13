//! The worker's side.
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

use super::home::{Home, Notices};
use super::link::{self, Link, Received};
use super::protocol::{FromWorker, ListedTask, StartOrder, TaskPlace, ToWorker, VERSION};
use super::record::WorkerRecord;
use super::setup::Setup;
use super::{connect, order};
use ostler_model::clock::{self, Clock};
use ostler_model::ids::RunId;
use ostler_model::limits::{WORKER_ACCEPT_PAUSE, WORKER_HOME_LOOK_INTERVAL, WORKER_STARTS_MAX};
use ostler_model::rng::Rng;
use ostler_model::task::Usage;
use ostler_plugin::host::wasm_task::{WasmTaskError, WasmTaskHost, WasmTasks as _};
use ostler_process::confine::{Confinement, confine};
use ostler_process::netns;
use ostler_sandbox::{EngineKind, Sandbox, SandboxConfig, threads};

/// First argument by which this program is a worker.
pub const ARGUMENT: &str = "__worker";

/// The `__worker` program. `log` is called once threads may be started; what it returns is kept to the
/// end.
#[must_use]
pub fn main<L>(log: impl FnOnce() -> L) -> ExitCode {
    let begun = match begin() {
        Ok(begun) => begun,
        Err(error) => return failed(&error),
    };
    let _log = log();
    tracing::info!(confined = %begun.confined, "worker of WASM tasks started");
    let run = || threads::control_runtime()?.block_on(serve(begun));
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> ExitCode {
    #[expect(clippy::print_stderr, reason = "its log, before there is another")]
    {
        eprintln!("the worker of WASM tasks cannot start: {error}");
    }
    ExitCode::from(2)
}

struct Begun {
    setup: Setup,
    first: OwnedFd,
    listener: OwnedFd,
    home: Home,
    confined: String,
    /// As the cgroup allows it, which is not to be read any more later.
    cores: usize,
}

/// With one thread: what only the unconfined may do, then confined.
fn begin() -> io::Result<Begun> {
    let first = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    if sockopt::socket_type(&first)? != SocketType::SEQPACKET {
        return Err(io::Error::other("its standard input is no connection of an agent"));
    }
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let setup: Setup = link::receive_blocking(&first)?
        .ok_or_else(|| io::Error::other("the agent was gone before it said anything"))?;
    if let Some(network) = &setup.network {
        netns::enter(network)?;
    }
    let listener = connect::at(&setup.dir)?;
    WorkerRecord::own(setup.key.clone())?.write(&setup.dir)?;
    let home = Home::of(&setup.dir)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut read = setup.read.clone();
    read.push(PathBuf::from("/proc/sys/vm"));
    let confined =
        confine(&Confinement { write: setup.write.clone(), read, ..Confinement::default() });
    let confined = confined.map_err(io::Error::other)?.to_string();
    Ok(Begun { setup, first, listener, home, confined, cores })
}

async fn serve(begun: Begun) -> io::Result<()> {
    let Begun { setup, first, listener, mut home, cores, .. } = begun;
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
    let agent = Arc::new(Agent::default());
    let over = Arc::new(Notify::new());
    let (told, ended) = (Arc::clone(&agent), Arc::clone(&over));
    let exited = move |run: &RunId, id: &str, exit: &_| {
        let (run, id, exit) = (run.to_string(), id.to_owned(), order::exit_said(exit));
        told.tell(&FromWorker::Exited { run, id, exit });
        ended.notify_one();
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
                        // Without a descriptor for it, it stays where it is.
                        clock::sleep(WORKER_ACCEPT_PAUSE).await;
                    }
                    Err(_would_block) => {}
                }
            }
            taken = next(notices.as_ref()) => {
                if let Err(error) = taken {
                    tracing::debug!(%error, "no more notices of the worker's directory");
                    notices = None;
                }
            }
            () = clock::sleep(WORKER_HOME_LOOK_INTERVAL), if server.is_left() => {}
        }
        if server.is_over() {
            return Ok(());
        }
    }
}

/// Wait until something was removed that a worker is found by.
async fn next(notices: Option<&Notices>) -> io::Result<()> {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}

/// The connection to the present agent.
#[derive(Default)]
struct Agent {
    link: Mutex<Option<(u64, Arc<Link>)>>,
    numbers: AtomicU64,
}

impl Agent {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, Arc<Link>)>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Say something to the agent, if there is one: the next one asks.
    fn tell(&self, message: &FromWorker) {
        let link = self.lock().as_ref().map(|(_, link)| Arc::clone(link));
        if let Some(link) = link {
            let _gone = link.send(message, Vec::new());
        }
    }

    fn is_now(&self, number: u64) -> bool {
        self.lock().as_ref().is_some_and(|(now, _)| *now == number)
    }
}

struct Server {
    host: WasmTaskHost,
    sandbox: Arc<Sandbox>,
    agent: Arc<Agent>,
    starts: Arc<Semaphore>,
    retiring: AtomicBool,
    /// What the runs are of that were not forgotten, for an agent that does not know them.
    places: Mutex<HashMap<RunId, TaskPlace>>,
    home: Home,
    /// To be looked at: it may be over.
    over: Arc<Notify>,
}

impl Server {
    /// Serve a connection; the one before it ends.
    fn attend(self: &Arc<Self>, socket: OwnedFd) -> io::Result<()> {
        let link = Arc::new(Link::new(socket)?);
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
            server.left(number);
        });
        Ok(())
    }

    async fn converse(self: &Arc<Self>, link: &Arc<Link>, number: u64) -> io::Error {
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

    /// An agent is gone.
    fn left(&self, number: u64) {
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

    /// Is there no agent, and does nothing live that one could come for but its end?
    fn is_left(&self) -> bool {
        self.agent.lock().is_none() && self.host.is_at_rest()
    }

    fn is_over(&self) -> bool {
        let alone = self.agent.lock().is_none();
        let unused = alone || self.retiring.load(Ordering::SeqCst);
        (unused && self.host.is_empty()) || (self.is_left() && self.home.is_gone())
    }

    fn serve(self: &Arc<Self>, link: &Arc<Link>, number: u64, received: Received<ToWorker>) {
        let Received { message, fds } = received;
        let answer = |message: &FromWorker| drop(link.send(message, Vec::new()));
        // A run that is no run is known to nobody.
        let of = |text: &str, act: &dyn Fn(&RunId)| {
            order::run(text).map(|run| act(&run)).unwrap_or_default();
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
            ToWorker::Start { n, order } => {
                let (server, link) = (Arc::clone(self), Arc::clone(link));
                tokio::spawn(async move { server.start(&link, number, n, *order, fds).await });
            }
            ToWorker::Release { run } => of(&run, &|run| drop(self.host.release(run))),
            ToWorker::Kill { run, id } => of(&run, &|run| {
                let _ended = self.host.kill(run, &id);
            }),
            ToWorker::KillRun { run } => of(&run, &|run| self.host.kill_run(run)),
            ToWorker::ForgetRun { run } => {
                of(&run, &|run| {
                    self.host.forget_run(run);
                    self.places().remove(run);
                });
                self.over.notify_one();
            }
            ToWorker::List { n } => answer(&FromWorker::Listed { n, tasks: self.listed() }),
            ToWorker::Usage { n, run, id } => {
                let used = order::run(&run).ok().map(|run| self.host.used(&run, &id));
                answer(&used_now(n, used.flatten()));
            }
            ToWorker::Retire => {
                self.retiring.store(true, Ordering::SeqCst);
                self.over.notify_one();
            }
            ToWorker::Unknown => tracing::warn!("a message of a newer agent was ignored"),
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<RunId, TaskPlace>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self) -> Vec<ListedTask> {
        let places = self.places();
        let seen = self.host.seen().into_iter().map(|task| ListedTask {
            place: places.get(&task.run).cloned(),
            run: task.run.to_string(),
            id: task.id,
            released: task.released,
            exit: task.exit.as_ref().map(order::exit_said),
            cpu_mhz: Some(task.cpu_mhz),
        });
        seen.collect()
    }

    async fn start(
        self: Arc<Self>,
        link: &Link,
        number: u64,
        n: u64,
        order: StartOrder,
        fds: Vec<OwnedFd>,
    ) {
        let Ok(_turn) = self.starts.acquire().await else { return };
        let (agent, run) = (Arc::clone(&self.agent), order.run.clone());
        let place = order::place(&order);
        let said = Arc::new(move |text: String, _details: Vec<(String, String)>| {
            agent.tell(&FromWorker::Said { run: run.clone(), text });
        });
        // Directories are opened and code is mapped: on a disk that hangs, this thread hangs.
        let held = tokio::task::block_in_place(|| {
            let ordered =
                order::received(order, fds, said).map_err(|error| (error.to_string(), false))?;
            let run = ordered.context.run_id.clone();
            let held = self.host.hold(&ordered.context, &ordered.spec, &ordered.code);
            if held.is_ok() {
                self.places().extend(place.map(|place| (run.clone(), place)));
            }
            held.map(|id| (run, id)).map_err(|error| {
                let invalid =
                    matches!(error, WasmTaskError::Code { .. } | WasmTaskError::OtherWorld { .. });
                (error.to_string(), invalid)
            })
        });
        let message = match held {
            Ok((run, id)) => {
                if !self.agent.is_now(number) {
                    // Who asked is gone: nobody lets it go.
                    self.host.kill_run(&run);
                }
                FromWorker::Held { n, id }
            }
            Err((text, invalid)) => FromWorker::Refused { n, text, invalid },
        };
        let _gone = link.send(&message, Vec::new());
    }
}

fn used_now(n: u64, used: Option<Usage>) -> FromWorker {
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
