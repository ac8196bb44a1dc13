//! Native task processes: started crash-safely, waited for by pidfd, killed whole, forgotten.
//!
//! ```text
//! spawn ─► prepare ─► fork, held ─► identity told ─┬─ release ─► go ─► exec ─► Running
//!            │            │               │        │                     │        │ pumps: pipes ─► sinks
//!          error      any failure, or the caller giving up:              ▼        ▼
//!                     the child is killed before user code             error    leader exits
//!                                                                       │ output drained, at most DRAIN_GRACE
//!  wait ◄── RawExit, every time ◄── Exited ◄── reaped ◄── group and cgroup killed
//!  forget_run: drops it, kills what runs
//! ```
//! It knows no driver and no WebAssembly. Start with [`ProcessHost`] and its rules, then `spawn.rs`.
//! [`isolate`] isolates a task, [`supervise`] lets it outlive the agent, `session.rs` runs a command
//! inside it, [`program`] runs a command to its end. [`limited_process`] starts a process that limits
//! itself; [`detached_process`] starts a process of the agent's own that goes on without it.

mod abilities;
mod adopt;
mod cgroup;
mod child;
mod command;
pub mod confine;
pub mod descriptors;
pub mod detached_process;
mod error;
mod forget;
pub mod identity;
pub mod isolate;
pub mod leftovers;
pub mod limited_process;
pub mod live;
pub mod memory;
pub mod netns;
pub mod open_files;
mod oversee;
pub mod program;
mod reap;
mod session;
pub mod signals;
mod spawn;
mod start_permit;
pub mod supervise;
#[cfg(test)]
mod tests;
mod unlinked_files;
mod usage;
pub mod user;

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_util::task::TaskTracker;

pub use self::cgroup::{CgroupStatus, CgroupUnavailable, WorkerCgroup, make_room};
pub use self::error::ProcessError;
pub use self::isolate::{Abilities, Isolation};
pub use self::supervise::record::ExitRecordError;
pub use self::unlinked_files::UnlinkedFiles;

use self::cgroup::Leaf;
use self::child::Spawner;
use self::netns::TaskNetwork;
use self::start_permit::StartPermit;
use self::supervise::ZygoteClient;
use self::supervise::record::ExitRecords;
use ostler_model::clock::Clock;
use ostler_model::cores::CoreSet;
use ostler_model::ids::RunId;
use ostler_model::limits::COMMANDS_INSIDE_MAX;
pub use ostler_model::limits::WORKLOADS_PER_RUN_MAX;
use ostler_model::ports::{BoxFuture, ByteSink, IdentityRecorder, ProcessIdentity};
use ostler_model::task::RawExit;

/// How long the output of an ended process is waited for while a descendant holds its pipe.
pub const DRAIN_GRACE: Duration = Duration::from_secs(2);
/// How long output already in the pipes may take after everything was killed.
const LAST_OUTPUT_WAIT: Duration = Duration::from_millis(500);
/// How long a supervisor may take to hold its task.
const SUPERVISOR_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long recording an identity may take before the start is given up.
pub const RECORD_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long the kernel may take to execute a program (a dead network file system hangs here).
pub const EXEC_WAIT_MAX: Duration = Duration::from_secs(30);

/// How a [`ProcessHost`] works.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    /// The control runtime: starts, pumps and reaping run here.
    pub control: Handle,
    /// Children die with the agent (embedded mode) instead of being found again by the next one.
    pub kill_with_agent: bool,
    /// Tasks get supervisors, by which they outlive the agent with output and exit code. With
    /// `kill_with_agent` only isolated tasks get one, and they end with the agent.
    pub supervision: Option<Supervision>,
    /// Cgroup below which the cgroups of tasks are made; by default `ostler` in the agent's
    /// own cgroup.
    pub cgroup_parent: Option<PathBuf>,
    /// The clock that gives the time at which a process ended.
    pub clock: Clock,
}

/// What supervisors need.
#[derive(Clone, Debug)]
pub struct Supervision {
    /// A program that calls [`supervise::main`] when its first argument is `__supervise`;
    /// `/proc/self/exe` is this one, also after its file was replaced.
    pub program: PathBuf,
    /// Directory of the exit records, in the data directory. It is made when absent.
    pub records: PathBuf,
}

/// What to run.
#[derive(Clone)]
pub struct ProcessSpec {
    /// The run it belongs to.
    pub run_id: RunId,
    /// The command: an absolute path, a path relative to `cwd` where it has a slash, or a name that
    /// is looked up in the `PATH` of `env`.
    pub command: String,
    /// Directories of the task, as it sees them, that are searched before `PATH`. A file that is
    /// found there is made executable.
    pub search: Vec<PathBuf>,
    /// Arguments after the command.
    pub args: Vec<String>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub cwd: PathBuf,
    /// User to run as; the agent's own when absent, or that of `isolation`.
    pub user: Option<String>,
    /// How the process is isolated. Where it gets its own root, all paths here are those that it
    /// will see in there.
    pub isolation: Option<Isolation>,
    /// The network that the process is in; the agent's own when absent.
    pub network: Option<TaskNetwork>,
    /// Takes the standard output of the process.
    pub stdout: Arc<dyn ByteSink>,
    /// Takes the standard error of the process.
    pub stderr: Arc<dyn ByteSink>,
    /// Called while the child is held; an error keeps the program from running.
    pub record_identity: IdentityRecorder,
    /// MHz reserved; 0 for no share. Only where cgroups allow it.
    pub cpu_mhz: u32,
    /// Cores that the process has for itself. An empty set: it shares the cores that nobody has.
    /// Where cgroups do not allow it, a set that is not empty is an error.
    pub cores: CoreSet,
    /// Largest memory, bytes; 0 for no limit. Only where cgroups allow it.
    pub memory_bytes_max: u64,
}

/// Whether a process still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or its last output is being read.
    Running,
    /// It ended; its exit is known.
    Exited,
}

/// Starts, signals, waits for and ends native processes. Cheap to clone.
///
/// Who forks and waits depends on the agent. An embedded agent does so itself, and its tasks end
/// with it. Otherwise each task has a supervisor that goes on without the agent ([`supervise`]),
/// and the next agent owns the task again by its recorded identity ([`ProcessHost::adopt`]).
///
/// - A process belongs to a run; its id is good only together with that run's id.
/// - The leader stays a zombie until everything else of its group was killed, and every signal is
///   sent under the lock that guards the reaping. So no pid of another process is ever signalled.
/// - A task ends with its leader: what is left of the group and cgroup is killed then.
/// - A run is over when all its processes have ended, not when they were killed: a process in
///   uninterruptible sleep is waited for.
/// - With `kill_with_agent`, the kernel kills leaders when the agent is gone. Their descendants are
///   then found through the cgroup, and in the way that [`leftovers`] describes.
/// - This crate spawns for each process one task to start it, one to reap it and two that pump
///   its output, all on the control runtime, whoever calls; and it has one thread that forks
///   (`child.rs`). A process with a supervisor has only one task, which waits for the supervisor.
#[derive(Clone, Debug)]
pub struct ProcessHost {
    inner: Arc<ProcessHostInner>,
}

#[derive(Debug)]
struct ProcessHostInner {
    control: Handle,
    kill_with_agent: bool,
    clock: Clock,
    way: ForkMode,
    /// Forks isolated tasks of an agent that forks the others itself.
    isolator: Option<ZygoteClient>,
    abilities: OnceCell<Abilities>,
    /// Permits for commands inside tasks: as many more may begin.
    sessions: Arc<Semaphore>,
    boot_id: String,
    cgroups: CgroupStatus,
    table: Mutex<Table>,
    /// Removals of exit records that have not ended.
    removals: TaskTracker,
}

/// Which process forks the tasks.
#[derive(Debug)]
enum ForkMode {
    /// This process does.
    Here(Spawner),
    /// A supervisor of each task does; the zygote forks the supervisors.
    Supervised(ZygoteClient),
}

type Table = HashMap<RunId, RunProcesses>;

/// The processes of one run.
#[derive(Debug, Default)]
struct RunProcesses {
    /// The run was released: a process that is spawned now is not held.
    released: bool,
    /// The run has a note that belongs to no process.
    noted: bool,
    processes: HashMap<String, Arc<HostProcess>>,
}

/// One process from fork to forgetting.
#[derive(Debug)]
struct HostProcess {
    identity: ProcessIdentity,
    reach: SignalTarget,
    leaf: Option<Leaf>,
    /// The permit to start its program; taken when the process is let go.
    held: Mutex<Option<StartPermit>>,
    /// The run is forgotten: no record of the process may stay once it has ended.
    forgotten: AtomicBool,
    /// The supervisor has ended, so there is nobody to signal.
    unwatched: AtomicBool,
    exit: watch::Receiver<Option<RawExit>>,
}

/// How a process is signalled.
#[derive(Debug)]
enum SignalTarget {
    /// A child of ours.
    Child {
        pid: Pid,
        pidfd: OwnedFd,
        /// Guards every use of the pid: `true` once it was reaped and may be another's.
        reaped: Mutex<bool>,
    },
    /// Through its supervisor.
    Supervisor {
        pidfd: OwnedFd,
        /// The task itself, for the case that the supervisor was killed.
        task: Option<OwnedFd>,
    },
    /// The process had ended before this host owned it.
    Gone,
}

impl ProcessHost {
    /// Prepare cgroups and start the thread that forks. Call it on a thread of normal priority:
    /// children inherit the priority.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(options: ProcessOptions) -> Result<Self, ProcessError> {
        let cgroups = cgroup::prepare(options.cgroup_parent.as_deref());
        if let Some(why) = &cgroups.unavailable {
            tracing::info!(reason = %why, "cgroups are not fully available: native tasks run without what is missing");
        }
        let supervision = options.supervision.map(|Supervision { program, records }| {
            ExitRecords::open(&records).map(|records| (program, records))
        });
        let (way, isolator) = match (supervision.transpose()?, options.kill_with_agent) {
            (Some((program, records)), false) => {
                let line = ZygoteClient::new(program, records).map_err(|source| {
                    ProcessError::system("starting the process that starts native tasks", source)
                })?;
                (ForkMode::Supervised(line), None)
            }
            (supervision, _) => {
                let spawner = Spawner::start().map_err(|source| {
                    ProcessError::system("starting the spawner thread", source)
                })?;
                let lazy = |(program, records)| ZygoteClient::lazy(program, records);
                (ForkMode::Here(spawner), supervision.map(lazy))
            }
        };
        let boot_id = identity::boot_id()
            .map_err(|source| ProcessError::system("reading the boot id", source))?;
        Ok(Self {
            inner: Arc::new(ProcessHostInner {
                control: options.control,
                kill_with_agent: options.kill_with_agent,
                clock: options.clock,
                way,
                isolator,
                abilities: OnceCell::new(),
                sessions: Arc::new(Semaphore::new(COMMANDS_INSIDE_MAX)),
                boot_id,
                cgroups,
                table: Mutex::default(),
                removals: TaskTracker::new(),
            }),
        })
    }

    /// Start a process and return its id once it is held before its first instruction. The
    /// process goes on with [`ProcessHost::release`]. In a run that was released before, this
    /// returns once the program itself runs. Dropping the future before that kills the child; so
    /// does every error. The future must have ended before [`ProcessHost::forget_run`] is called
    /// for the same run.
    ///
    /// # Errors
    /// See [`ProcessError`]; nothing is left running.
    pub async fn spawn(&self, spec: ProcessSpec) -> Result<String, ProcessError> {
        let started =
            AbortOnDrop(self.inner.control.spawn(spawn::start_process(self.clone(), spec)));
        started.join().await.unwrap_or(Err(ProcessError::Stopped))
    }

    /// Let all held processes of a run go, and those that are spawned in it later. The future
    /// ends once the programs run. When it is dropped before that, the processes not let go yet
    /// are killed.
    ///
    /// # Errors
    /// When a program could not be executed. Its process is ended; the others of the run go on.
    pub fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ProcessError>> {
        let mut held = Vec::new();
        {
            let mut table = self.table();
            let of_run = table.entry(run.clone()).or_default();
            of_run.released = true;
            for process in of_run.processes.values() {
                held.extend(process.take_held().map(|held| (Arc::clone(process), held)));
            }
        }
        let control = self.inner.control.clone();
        Box::pin(async move {
            if held.is_empty() {
                return Ok(());
            }
            let released = AbortOnDrop(control.spawn(start_permit::release_all(held)));
            released.join().await.unwrap_or(Err(ProcessError::Stopped))
        })
    }

    /// Wait for the end of a process. Every call returns it until the run is forgotten. For an
    /// unknown process the exit has an error text.
    #[must_use]
    pub fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit> {
        let (found, clock) = (self.find(run, id), self.inner.clock.clone());
        Box::pin(async move {
            let error = match found {
                Ok(process) => {
                    let mut exit = process.exit.clone();
                    drop(process);
                    let seen = exit.wait_for(Option::is_some).await;
                    match seen.ok().and_then(|exit| exit.clone()) {
                        Some(exit) => return exit,
                        None => ProcessError::Stopped,
                    }
                }
                Err(error) => error,
            };
            RawExit {
                error: Some(error.to_string()),
                finished_at: clock.now(),
                ..RawExit::default()
            }
        })
    }

    /// Send a signal, by name, to the process group. Does nothing when the process has ended.
    ///
    /// # Errors
    /// Unknown process, unknown signal, or the kernel refused.
    pub fn signal(&self, run: &RunId, id: &str, name: &str) -> Result<(), ProcessError> {
        let process = self.find(run, id)?;
        let signal = signals::parse(name)?;
        if signal == Signal::KILL {
            process.kill();
            return Ok(());
        }
        process.signal(signal).map_err(|errno| ProcessError::system("sending a signal", errno))
    }

    /// Kill the process group and everything in the cgroup. Returns before they are gone.
    ///
    /// # Errors
    /// Unknown process.
    pub fn kill(&self, run: &RunId, id: &str) -> Result<(), ProcessError> {
        self.find(run, id).map(|process| process.kill())
    }

    /// Whether the process runs.
    ///
    /// # Errors
    /// When the process is unknown.
    pub fn state(&self, run: &RunId, id: &str) -> Result<ProcessState, ProcessError> {
        let process = self.find(run, id)?;
        let exited = process.exit.borrow().is_some();
        Ok(if exited { ProcessState::Exited } else { ProcessState::Running })
    }

    /// The identity of the process, as it was recorded.
    ///
    /// # Errors
    /// When the process is unknown.
    pub fn identity(&self, run: &RunId, id: &str) -> Result<ProcessIdentity, ProcessError> {
        self.find(run, id).map(|process| process.identity.clone())
    }

    /// Kill all processes of a run.
    pub fn kill_run(&self, run: &RunId) {
        for process in self.processes_of(run) {
            process.kill();
        }
    }

    /// Kill all processes of all runs: an embedded agent ends.
    pub fn kill_all(&self) {
        let table = self.table();
        let all = table.values().flat_map(|of_run| of_run.processes.values());
        let all: Vec<Arc<HostProcess>> = all.cloned().collect();
        drop(table);
        for process in all {
            process.kill();
        }
    }

    /// Has the run no native process?
    #[must_use]
    pub fn has_no_process(&self, run: &RunId) -> bool {
        self.table().get(run).is_none_or(|of_run| of_run.processes.is_empty())
    }

    fn processes_of(&self, run: &RunId) -> Vec<Arc<HostProcess>> {
        self.table().get(run).map_or_else(Vec::new, |of| of.processes.values().cloned().collect())
    }

    /// The client of the zygote, where there are supervisors.
    fn line(&self) -> Option<&ZygoteClient> {
        match &self.inner.way {
            ForkMode::Supervised(line) => Some(line),
            ForkMode::Here(_) => self.inner.isolator.as_ref(),
        }
    }

    /// What isolation is possible on this node. It is probed once.
    pub async fn abilities(&self) -> &Abilities {
        self.inner.abilities.get_or_init(|| abilities::probe_abilities(self.line().cloned())).await
    }

    /// Cores that tasks may have for themselves now; none where cgroups do not let the agent give any.
    #[must_use]
    pub fn cores(&self) -> CoreSet {
        cgroup::cores::available_cores(&self.inner.cgroups)
    }

    /// What cgroups do for tasks here.
    #[must_use]
    pub fn cgroup_status(&self) -> &CgroupStatus {
        &self.inner.cgroups
    }

    fn find(&self, run: &RunId, id: &str) -> Result<Arc<HostProcess>, ProcessError> {
        let table = self.table();
        let found = table.get(run).and_then(|of_run| of_run.processes.get(id)).cloned();
        found.ok_or_else(|| ProcessError::UnknownProcess {
            run: run.to_string(),
            id: id.chars().take(64).collect(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.inner.table)
    }
}

impl HostProcess {
    /// The id plugins and tasks know it by.
    fn id(&self) -> String {
        self.identity.id()
    }

    /// The right to let it go; `None` when it was taken before.
    fn take_held(&self) -> Option<StartPermit> {
        lock(&self.held).take()
    }

    /// Signal the group. Does nothing when the process was reaped.
    fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let gone_is_done = |sent| match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno),
        };
        match &self.reach {
            SignalTarget::Gone => Ok(()),
            SignalTarget::Supervisor { .. } if self.unwatched.load(Ordering::SeqCst) => Ok(()),
            SignalTarget::Supervisor { pidfd, .. } if signal == Signal::KILL => {
                supervise::send_kill(pidfd.as_fd())
            }
            SignalTarget::Supervisor { pidfd, .. } => {
                gone_is_done(supervise::send_signal(pidfd.as_fd(), signal))
            }
            SignalTarget::Child { pid, pidfd, reaped } => {
                let reaped = lock(reaped);
                if *reaped {
                    return Ok(());
                }
                match kill_process_group(*pid, signal) {
                    // Before the child has made its group, it is alone.
                    Err(Errno::SRCH) => gone_is_done(pidfd_send_signal(pidfd, signal)),
                    sent => sent,
                }
            }
        }
    }

    /// End a supervisor that could not write down the exit and keeps it for an agent to read.
    fn dismiss(&self) {
        if let SignalTarget::Supervisor { pidfd, .. } = &self.reach
            && !self.unwatched.load(Ordering::SeqCst)
        {
            let _gone = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// Kill the group and the cgroup. A held process need not be let go first.
    fn kill(&self) {
        if let Err(errno) = self.signal(Signal::KILL) {
            tracing::warn!(pid = self.identity.pid, %errno, "a task process could not be killed");
        }
        let Some(leaf) = &self.leaf else { return };
        match &self.reach {
            SignalTarget::Child { reaped, .. } => {
                let reaped = lock(reaped);
                if !*reaped {
                    leaf.kill();
                }
            }
            SignalTarget::Supervisor { .. } if self.exit.borrow().is_none() => leaf.kill(),
            SignalTarget::Supervisor { .. } | SignalTarget::Gone => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task that ends when nobody waits for it any more.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    async fn join(mut self) -> Result<T, tokio::task::JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
