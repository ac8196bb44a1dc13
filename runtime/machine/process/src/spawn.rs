//! The start of a process, step by step, until it is held and known. Every step that fails, and
//! every await at which the caller gives up, kills the child and forgets it.
//!
//! ```text
//! prepare, make its cgroup ─┬─ fork into it here ──────────────────┬─► identify ─► register ─► record ─► held
//!                           └─ order ─► shim forks into it, answer ─┘
//! ```

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::process::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::cgroup::{Leaf, Limits};
use super::child::{self, ChildPlan, Spawner};
use super::command::{self, Texts};
use super::error::ProcessError;
use super::isolate::{self, Isolation, IsolationSetup};
use super::start_permit::{self, GoPipe, Program, StartPermit};
use super::supervise::{OrderEnds, ShimAnswer, ShimOrder, StreamOrder, ZygoteClient};
use super::user::Ids;
use super::{
    ForkMode, HostProcess, ProcessHost, ProcessSpec, RECORD_WAIT_MAX, RunProcesses,
    SUPERVISOR_WAIT_MAX, SignalTarget, WORKLOADS_PER_RUN_MAX, identity, oversee, reap, user,
};
use ostler_logs::pump::pump;
use ostler_model::clock;
use ostler_model::disk_work::run_disk_work;
use ostler_model::ids::RunId;
use ostler_model::limits::{TASK_PROCESSES_MAX, ZYGOTE_TRIES_MAX};
use ostler_model::ports::{ByteSink, ProcessIdentity, SinkFiles, SupervisorIdentity};
use ostler_model::task::RawExit;

/// Start a process. Returns its id once it is held, or once it runs where its run was
/// released before.
pub(super) async fn start_process(
    host: ProcessHost,
    spec: ProcessSpec,
) -> Result<String, ProcessError> {
    check_room(&host, &spec.run_id)?;
    let mut started = fork_held(&host, &spec).await?;
    if let Err(error) = record_identity(&spec, &started.process).await {
        return Err(started.abandon(error).await);
    }
    if let Some(held) = started.hold()
        && let Err(error) = held.release().await
    {
        return Err(started.abandon(error).await);
    }
    started.armed = false;
    Ok(started.process.id())
}

/// Fork a process that is held. A zygote that dies or hangs meanwhile is replaced. The new one is
/// asked with other pipes and another cgroup: what the old one has begun may still live, and gives
/// up by itself.
async fn fork_held(host: &ProcessHost, spec: &ProcessSpec) -> Result<StartGuard, ProcessError> {
    // A process with namespaces of its own is forked by a process of one thread.
    let apart = spec.isolation.is_some() || spec.network.is_some();
    for _ in 0..ZYGOTE_TRIES_MAX {
        let prepared = prepare(host, spec).await?;
        let line = match (&host.inner.way, apart) {
            (ForkMode::Here(spawner), false) => {
                return fork_here(host, spawner, spec, prepared).await;
            }
            (ForkMode::Supervised(line), _) => line,
            (ForkMode::Here(_), true) => host.inner.isolator.as_ref().ok_or(NO_ISOLATOR)?,
        };
        if let Some(started) = fork_supervised(host, line, spec, prepared).await? {
            return Ok(started);
        }
    }
    Err(ProcessError::Supervisor { reason: "was killed, or hung, before its task ran" })
}

const NO_ISOLATOR: ProcessError =
    ProcessError::Supervisor { reason: "is needed to isolate it, and this agent has none" };

fn check_room(host: &ProcessHost, run: &RunId) -> Result<(), ProcessError> {
    let count = host.table().get(run).map_or(0, |of_run| of_run.processes.len());
    if count >= WORKLOADS_PER_RUN_MAX {
        return Err(ProcessError::TooMany { run: run.to_string(), limit: WORKLOADS_PER_RUN_MAX });
    }
    Ok(())
}

/// What a fork needs, whichever process forks.
struct ForkInputs {
    texts: Texts,
    ids: Option<Ids>,
    program: Program,
    setup: Option<IsolationSetup>,
    /// The empty cgroup that the process is forked into.
    leaf: Option<Leaf>,
    go: (OwnedFd, GoPipe),
    status: (pipe::Receiver, OwnedFd),
    /// The files of each stream that has some, with their directory open.
    files: [Option<(SinkFiles, Arc<OwnedFd>)>; 2],
}

/// Check all that can be wrong before a process exists, and make what the fork needs. This reads
/// directories, asks name services for a user, and makes the cgroup, so it runs where blocking is
/// allowed.
async fn prepare(host: &ProcessHost, spec: &ProcessSpec) -> Result<ForkInputs, ProcessError> {
    let asks_for_user = spec.user.is_some() || spec.isolation.is_some();
    let (spec, cgroups) = (spec.clone(), host.inner.cgroups.clone());
    let prepare = move || {
        let what = resolve_program(&spec, cgroups.pids)?;
        let (go_child, go) = make_pipe()?;
        let (status, status_child) = make_pipe()?;
        let (go, status) = ((go_child, GoPipe::new(go)), (pipe_receiver(status)?, status_child));
        let most = spec.isolation.as_ref().map(processes_max);
        // A failure is an error: the task would run without the limits that the node reports.
        let leaf = Leaf::create(
            &cgroups,
            spec.run_id.as_str(),
            &Limits {
                cpu_mhz: spec.cpu_mhz,
                cores: spec.cores,
                memory_bytes: spec.memory_bytes_max,
                processes: most,
            },
        )
        .map_err(|source| ProcessError::system("making the cgroup of a task", source))?;
        let files = [open_files(&*spec.stdout)?, open_files(&*spec.stderr)?];
        let ResolvedProgram { texts, ids, program, setup } = what;
        Ok(ForkInputs { texts, ids, program, setup, leaf, go, status, files })
    };
    // A name service may be far away, and must not hold up other work on files.
    let prepared = if asks_for_user {
        clock::run_blocking(prepare).await.ok()
    } else {
        run_disk_work(prepare).await.ok()
    };
    prepared.unwrap_or(Err(ProcessError::Stopped))
}

/// Open the directory that a stream goes to, if it goes to files.
fn open_files(sink: &dyn ByteSink) -> Result<Option<(SinkFiles, Arc<OwnedFd>)>, ProcessError> {
    let Some(files) = sink.files() else { return Ok(None) };
    let dir = ostler_logs::open_log_dir(&files.dir)
        .map_err(|source| ProcessError::system("opening the log directory of a task", source))?;
    Ok(Some((files, dir)))
}

struct ResolvedProgram {
    texts: Texts,
    ids: Option<Ids>,
    program: Program,
    setup: Option<IsolationSetup>,
}

/// Find the program, its texts and its user. `counted`: the kernel counts the processes of
/// each task.
fn resolve_program(spec: &ProcessSpec, counted: bool) -> Result<ResolvedProgram, ProcessError> {
    if let Some(isolation) = &spec.isolation {
        let prepared = isolate::prepare::prepare(spec, isolation, counted)?;
        let isolate::prepare::IsolatedProgram { texts, ids, program, looked_for, setup } = prepared;
        let program = Program { path: program, looked_for };
        return Ok(ResolvedProgram { texts, ids, program, setup: Some(setup) });
    }
    command::check_cwd(&spec.cwd)?;
    let path = command::resolve(&spec.command, &spec.search, &spec.cwd, &spec.env)?;
    let account = user::account_of_task(spec.user.as_deref(), None)?;
    let env = account.environment(&spec.env);
    let reached = match account.ids {
        Some(_) => command::path_from_within(path.clone(), &spec.cwd),
        None => path.clone(),
    };
    let texts = Texts::new(&reached, &spec.command, &spec.args, &env, &spec.cwd)?;
    let looked_for = path.display().to_string();
    let program = Program { path, looked_for };
    Ok(ResolvedProgram { texts, ids: account.ids, program, setup: None })
}

/// Most processes of an isolated task where the kernel counts them; the usual bound unless the task
/// has one.
fn processes_max(isolation: &Isolation) -> u32 {
    isolation.processes_max.unwrap_or(TASK_PROCESSES_MAX)
}

fn make_pipe() -> Result<(OwnedFd, OwnedFd), ProcessError> {
    child::pipe().map_err(|source| ProcessError::system("making a pipe", source))
}

fn pipe_receiver(end: OwnedFd) -> Result<pipe::Receiver, ProcessError> {
    pipe::Receiver::from_owned_fd(end)
        .map_err(|source| ProcessError::system("watching a pipe", source))
}

async fn fork_here(
    host: &ProcessHost,
    spawner: &Spawner,
    spec: &ProcessSpec,
    prepared: ForkInputs,
) -> Result<StartGuard, ProcessError> {
    let ((stdout, stdout_child), (stderr, stderr_child)) = (make_pipe()?, make_pipe()?);
    let (stdout, stderr) = (pipe_receiver(stdout)?, pipe_receiver(stderr)?);
    let stdin =
        child::dev_null().map_err(|source| ProcessError::system("opening /dev/null", source))?;
    let ForkInputs { texts, ids, program, setup: _, leaf, go, status, files: _ } = prepared;
    let ((go_child, go), (status, status_child)) = (go, status);
    let cgroup = leaf.as_ref().map(Leaf::open).transpose();
    let plan = ChildPlan {
        texts,
        ids,
        cgroup: cgroup.map_err(|source| ProcessError::system("opening a cgroup", source))?,
        kill_with_agent: host.inner.kill_with_agent,
        stdin,
        stdout: stdout_child,
        stderr: stderr_child,
        go: go_child,
        status: status_child,
    };
    let forked = spawner.fork(plan).await.ok_or(ProcessError::Stopped)?;
    let forked = forked.map_err(|source| ProcessError::system("forking", source))?;
    let pid = forked.pid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    let mut identity = identity::read(pid)
        .map_err(|source| ProcessError::system("reading the start time", source))?;
    identity.cgroup = leaf.as_ref().map(|leaf| leaf.path().to_owned());
    let (pid, pidfd): (Pid, OwnedFd) = forked.into_parts().ok_or(ProcessError::Stopped)?;
    let reach = SignalTarget::Child { pid, pidfd, reaped: std::sync::Mutex::new(false) };
    let held = StartPermit::new(go, status, spec, program);
    let (process, exit) = new_process(identity, reach, leaf);
    let pumps = [
        tokio::spawn(pump_output(stdout, Arc::clone(&spec.stdout))),
        tokio::spawn(pump_output(stderr, Arc::clone(&spec.stderr))),
    ];
    tokio::spawn(reap::reap(Arc::clone(&process), pumps, exit, host.inner.clock.clone()));
    Ok(StartGuard::register(host, spec, process, held))
}

/// Ask the zygote for a shim, and take its answer. `None`: the zygote was lost over it.
async fn fork_supervised(
    host: &ProcessHost,
    line: &ZygoteClient,
    spec: &ProcessSpec,
    prepared: ForkInputs,
) -> Result<Option<StartGuard>, ProcessError> {
    let ForkInputs { texts, ids, program, setup, leaf, go, status, files } = prepared;
    let ((go_shim, go), (status, status_task)) = (go, status);
    let cgroup = leaf.as_ref().map(|leaf| leaf.path().to_owned());
    let order = ShimOrder {
        run: spec.run_id.to_string(),
        texts,
        ids,
        cgroup: cgroup.clone(),
        streams: files.each_ref().map(|files| files.as_ref().map(|(files, _)| stream_order(files))),
        setup,
        network: spec.network.clone(),
        with_agent: host.inner.kill_with_agent,
    };
    let dirs = files.into_iter().flatten().map(|(_, dir)| dir).collect();
    let ordered = ShimRequest { order, dirs, go: go_shim, status: status_task };
    let Some((shim, task)) = ordered.send_and_wait(line).await? else { return Ok(None) };

    // This process holds the go pipe: whatever fails from here on, the shim gives up.
    let system = |what| move |source| ProcessError::system(what, source);
    let held = StartPermit::new(go, status, spec, program);
    let opened = system("opening a supervisor");
    let pidfd = identity::open_same(shim.0, shim.1).map_err(opened)?;
    let task_fd = identity::open_same(task.0, task.1).map_err(system("opening a held process"))?;
    let (Some(pidfd), Some(task_fd)) = (pidfd, task_fd) else {
        // A task that could not be set up has ended, and its supervisor with it.
        return Err(held.read_failure().await.unwrap_or(SUPERVISOR_GONE));
    };
    let identity = ProcessIdentity {
        pid: task.0,
        start_ticks: task.1,
        boot_id: host.inner.boot_id.clone(),
        cgroup,
        supervisor: Some(SupervisorIdentity { pid: shim.0, start_ticks: shim.1 }),
    };
    let reach = SignalTarget::Supervisor { pidfd, task: Some(task_fd) };
    let process = supervised_process(host, &spec.run_id, identity, reach, leaf);
    Ok(Some(StartGuard::register(host, spec, process, held)))
}

const SUPERVISOR_GONE: ProcessError =
    ProcessError::Supervisor { reason: "was killed before its task ran" };

/// Make a process that a supervisor watches over, and spawn a task that waits for the supervisor.
pub(super) fn supervised_process(
    host: &ProcessHost,
    run: &RunId,
    identity: ProcessIdentity,
    reach: SignalTarget,
    leaf: Option<Leaf>,
) -> Arc<HostProcess> {
    let (process, exit) = new_process(identity, reach, leaf);
    if let Some(line) = host.line() {
        let records = line.records().clone();
        let watched = Arc::clone(&process);
        let waiting = oversee::watch_over(host.clone(), run.clone(), watched, records, exit);
        host.inner.control.spawn(waiting);
    }
    process
}

fn stream_order(files: &SinkFiles) -> StreamOrder {
    StreamOrder {
        prefix: files.prefix.clone(),
        files_max: files.files_max,
        file_bytes_max: files.file_bytes_max,
    }
}

/// An order and its descriptors, which are closed here once the order is answered.
struct ShimRequest {
    order: ShimOrder,
    dirs: Vec<Arc<OwnedFd>>,
    go: OwnedFd,
    status: OwnedFd,
}

/// A process by its pid and its start time in ticks.
type PidAndTicks = (u32, u64);

impl ShimRequest {
    fn send<T>(
        &self,
        line: &ZygoteClient,
        answer: &OwnedFd,
        how: impl FnOnce(&ZygoteClient, &ShimOrder, &OrderEnds<'_>) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        let dirs = self.dirs.iter().map(|dir| dir.as_fd()).collect();
        let (go, status, answer) = (self.go.as_fd(), self.status.as_fd(), answer.as_fd());
        how(line, &self.order, &OrderEnds { go, status, answer, dirs })
    }

    /// Send the order. Returns the shim and its held task. `None`: the zygote or the shim was
    /// killed, or the zygote hung and was replaced. A shim may have been forked all the same, so
    /// nothing of this order is used again.
    async fn send_and_wait(
        self,
        line: &ZygoteClient,
    ) -> Result<Option<(PidAndTicks, PidAndTicks)>, ProcessError> {
        let ordered = Arc::new(self);
        let _turn = line.acquire_turn().await.ok_or(ProcessError::Stopped)?;
        let (answer, answer_shim) = make_pipe()?;
        let mut answer = pipe_receiver(answer)?;
        if ordered.send(line, &answer_shim, ZygoteClient::try_send).unwrap_or(false) {
            drop(answer_shim);
        } else {
            let (line, asking) = (line.clone(), Arc::clone(&ordered));
            let sent = tokio::task::spawn_blocking(move || {
                asking.send(&line, &answer_shim, ZygoteClient::send)
            });
            sent.await
                .map_err(|_| ProcessError::Stopped)?
                .map_err(|source| ProcessError::system("asking for a supervisor", source))?;
        }
        let mut bytes = [0; ShimAnswer::BYTES];
        let answered = clock::timeout(SUPERVISOR_WAIT_MAX, answer.read_exact(&mut bytes));
        let Some(answered) = line.await_answer(answered).await else { return Ok(None) };
        match answered {
            None => Err(ProcessError::Supervisor { reason: "did not answer in time" }),
            Some(Err(error)) => {
                tracing::warn!(%error, "a supervisor was killed before it answered");
                Ok(None)
            }
            Some(Ok(_)) => match ShimAnswer::from_bytes(bytes) {
                Some(ShimAnswer::Held { shim, task }) => Ok(Some((shim, task))),
                Some(ShimAnswer::Failed { step, errno }) => {
                    let source = std::io::Error::from_raw_os_error(errno);
                    Err(ProcessError::system(step.name(), source))
                }
                None => Err(ProcessError::Supervisor { reason: "gave a broken answer" }),
            },
        }
    }
}

/// Make a process for the table, and the sender that publishes its exit.
pub(super) fn new_process(
    identity: ProcessIdentity,
    reach: SignalTarget,
    leaf: Option<Leaf>,
) -> (Arc<HostProcess>, watch::Sender<Option<RawExit>>) {
    let (sender, exit) = watch::channel(None);
    let (held, forgotten) = (std::sync::Mutex::new(None), false.into());
    let unwatched = false.into();
    (Arc::new(HostProcess { identity, reach, leaf, held, forgotten, unwatched, exit }), sender)
}

/// A process in the table whose start is not complete. It is killed and forgotten on drop.
struct StartGuard {
    host: ProcessHost,
    run: RunId,
    process: Arc<HostProcess>,
    held: Option<StartPermit>,
    armed: bool,
}

impl StartGuard {
    fn register(
        host: &ProcessHost,
        spec: &ProcessSpec,
        process: Arc<HostProcess>,
        held: StartPermit,
    ) -> Self {
        let (host, run, held) = (host.clone(), spec.run_id.clone(), Some(held));
        let id = process.id();
        let mut table = host.table();
        table.entry(run.clone()).or_default().processes.insert(id, Arc::clone(&process));
        drop(table);
        Self { host, run, process, held, armed: true }
    }

    /// Leave the process held until its run is released. Returns the permit where that was before.
    fn hold(&mut self) -> Option<StartPermit> {
        let held = self.held.take();
        let table = self.host.table();
        if table.get(&self.run).is_some_and(|of_run| of_run.released) {
            return held;
        }
        *super::lock(&self.process.held) = held;
        None
    }

    /// Kill the process, wait until it is gone, and return the error.
    async fn abandon(self, error: ProcessError) -> ProcessError {
        let process = Arc::clone(&self.process);
        drop(self);
        start_permit::wait_until_gone(&process).await;
        error
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        // Without its permit the process ends by itself, even if it cannot be killed.
        drop(self.held.take());
        drop(self.process.take_held());
        self.process.kill();
        let mut table = self.host.table();
        if let Some(of_run) = table.get_mut(&self.run) {
            of_run.processes.remove(&self.process.id());
            if of_run.is_forgettable() {
                table.remove(&self.run);
            }
        }
        drop(table);
        self.host.forget(&self.run, &self.process);
    }
}

impl RunProcesses {
    fn is_forgettable(&self) -> bool {
        self.processes.is_empty() && !self.released
    }
}

async fn pump_output(pipe: pipe::Receiver, sink: Arc<dyn ByteSink>) {
    if let Err(error) = pump(pipe, sink).await {
        tracing::warn!(%error, "reading the output of a task failed");
    }
}

async fn record_identity(spec: &ProcessSpec, process: &HostProcess) -> Result<(), ProcessError> {
    let recorded = (spec.record_identity)(process.identity.clone());
    let reason = match clock::timeout(RECORD_WAIT_MAX, recorded).await {
        Some(Ok(())) => return Ok(()),
        Some(Err(reason)) => reason,
        None => format!("no answer within {} s", RECORD_WAIT_MAX.as_secs()),
    };
    Err(ProcessError::NotRecorded { reason })
}
