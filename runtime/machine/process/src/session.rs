//! Commands inside tasks, the agent's side: it makes the ends of a session and orders the command.
//!
//! How a task is isolated stands in the order that its supervisor was given and keeps, where a
//! later agent reads it too. See [`supervise::entrant`](super::supervise) for the other side.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ProcessError;
use super::start_permit::{self, Program};
use super::supervise::{self, END_BYTES, EnterEnds, EnterOrder};
use super::{EXEC_WAIT_MAX, HostProcess, ProcessHost, SignalTarget, child, identity, lock, user};
use ostler_model::clock;
use ostler_model::ids::RunId;
use ostler_model::limits::{EXEC_ARGUMENTS_MAX, EXEC_TEXT_BYTES_MAX, KILL_GRACE, ZYGOTE_TRIES_MAX};
use ostler_model::session::{ExecPlan, ExecSession, Resize, TerminalSize};

fn no_session(reason: impl Into<String>) -> ProcessError {
    ProcessError::Session { reason: reason.into() }
}

fn system_error(what: &'static str) -> impl FnOnce(io::Error) -> ProcessError {
    move |source| ProcessError::system(what, source)
}

impl ProcessHost {
    /// Run a command inside a task: in its cgroup and namespaces, as its user and under its
    /// rules. Returns once the program runs. The session ends with the task, and when its `end`
    /// is dropped.
    ///
    /// # Errors
    /// When the process is unknown, does not run or has no supervisor, when there are too many
    /// sessions, or when the program does not exist. Nothing runs then.
    pub async fn exec(
        &self,
        run: &RunId,
        id: &str,
        plan: ExecPlan,
        terminal: Option<TerminalSize>,
    ) -> Result<ExecSession, ProcessError> {
        let process = self.find(run, id)?;
        let sessions = Arc::clone(&self.inner.sessions);
        let permit = sessions.try_acquire_owned().map_err(|_| {
            no_session("as many commands as can be watched at once run inside tasks of this node")
        })?;
        let Some(line) = self.line().cloned() else {
            return Err(no_session("this agent has no process to enter tasks with"));
        };
        let program = plan.argv.first().cloned().unwrap_or_default();
        let (name, cwd) = (program.clone(), plan.cwd.clone().unwrap_or_default());
        let entered = Arc::clone(&process);
        let plan = Arc::new(plan);
        let mut tries = 1;
        let (report, control, pipes) = loop {
            let (asking, entered, plan) = (line.clone(), Arc::clone(&entered), Arc::clone(&plan));
            let posted =
                tokio::task::spawn_blocking(move || send_order(&asking, &entered, &plan, terminal));
            let PendingSession { mut status, control, pipes } =
                posted.await.unwrap_or(Err(ProcessError::Stopped))?;
            let report = clock::timeout(EXEC_WAIT_MAX, start_permit::read_report(&mut status));
            match line.await_answer(report).await {
                Some(report) => break (report, control, pipes),
                // The process that begins commands hung and was replaced.
                None if tries < ZYGOTE_TRIES_MAX => tries += 1,
                None => return Err(no_session("the process that begins commands hangs")),
            }
        };
        match report {
            Some(Ok(None)) => {}
            Some(Ok(Some(report))) => {
                let looked_for = "the PATH of the task".to_owned();
                let program = Program { path: name.clone().into(), looked_for };
                return Err(program.start_error(name, cwd.into(), report));
            }
            Some(Err(source)) => {
                return Err(ProcessError::system("reading the start report", source));
            }
            None => return Err(no_session("the program was not executed in time")),
        }
        let ends = match pipes {
            Some(pipes) => CommandStreams::Pipes(pipes),
            None => CommandStreams::receive_terminal(&control)
                .await
                .map_err(system_error("receiving the terminal"))?,
        };
        Ok(ends.into_session(Box::pin(wait_command_end(process, control, permit))))
    }
}

/// Wait for the exit code of the command. All processes of the session are killed when the future
/// is dropped, and when the task ends.
async fn wait_command_end(
    process: Arc<HostProcess>,
    mut control: UnixStream,
    _permit: OwnedSemaphorePermit,
) -> Result<i32, String> {
    let mut exit = process.exit.clone();
    drop(process);
    let mut bytes = [0; END_BYTES];
    let over = tokio::select! {
        read = control.read_exact(&mut bytes) => Some(read),
        // An error means that the task is forgotten.
        _ended = exit.wait_for(Option::is_some) => None,
    };
    let over = match over {
        Some(read) => Some(read),
        None => {
            // The entrant ends the command on this and reports how it ended.
            let _gone = control.shutdown().await;
            clock::timeout(KILL_GRACE, control.read_exact(&mut bytes)).await
        }
    };
    match over {
        Some(Ok(_)) => Ok(supervise::exit_code(bytes)),
        Some(Err(_)) | None => Err("the command was killed, alone or with its task".to_owned()),
    }
}

/// The agent's ends of a session that was ordered.
struct PendingSession {
    status: pipe::Receiver,
    control: UnixStream,
    /// `None` where the command has a terminal.
    pipes: Option<Pipes>,
}

/// Do the part that blocks: find the task's order, make the ends, and send them to the zygote.
fn send_order(
    line: &supervise::ZygoteClient,
    process: &HostProcess,
    plan: &ExecPlan,
    terminal: Option<TerminalSize>,
) -> Result<PendingSession, ProcessError> {
    let not_running = || no_session("the task does not run");
    if process.exit.borrow().is_some() || lock(&process.held).is_some() {
        return Err(not_running());
    }
    let SignalTarget::Supervisor { pidfd, task: Some(task) } = &process.reach else {
        return Err(no_session(
            "only what has a supervisor can be entered, and this task has none",
        ));
    };
    let order = enter_order(plan, terminal)?;
    let shim = process.identity.supervisor.map_or(0, |supervisor| supervisor.pid);
    let of_task = supervise::open_order(shim).map_err(|error| {
        no_session(format!(
            "what the task is kept apart from is not known, because its supervisor is of another version \
             of this program ({error}); restart the task"
        ))
    })?;
    // Checked last, so that what was read belongs to this process, not to the next owner of its
    // pid.
    if identity::has_ended(pidfd) {
        return Err(not_running());
    }
    let (pipes, stdio) = match terminal {
        // The entrant makes the terminal and sends its other end.
        Some(_) => (None, null_stdio().map_err(system_error("opening /dev/null"))?),
        None => {
            let (pipes, stdio) = Pipes::make().map_err(system_error("making a pipe"))?;
            (Some(pipes), stdio)
        }
    };
    let (control, control_end) =
        std::os::unix::net::UnixStream::pair().map_err(system_error("making a socket"))?;
    let (status, status_end) = child::pipe().map_err(system_error("making a pipe"))?;
    let [stdin, stdout, stderr] = &stdio;
    line.enter(
        &order,
        &EnterEnds {
            of_task: of_task.as_fd(),
            task: task.as_fd(),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            control: control_end.as_fd(),
            status: status_end.as_fd(),
        },
    )
    .map_err(system_error("asking for a command inside a task"))?;
    drop((status_end, stdio));
    control.set_nonblocking(true).map_err(system_error("watching a socket"))?;
    let control = UnixStream::from_std(control).map_err(system_error("watching a socket"))?;
    let status = pipe::Receiver::from_owned_fd(status).map_err(system_error("watching a pipe"))?;
    Ok(PendingSession { status, control, pipes })
}

fn enter_order(
    plan: &ExecPlan,
    terminal: Option<TerminalSize>,
) -> Result<EnterOrder, ProcessError> {
    let env = || plan.env.iter().flatten();
    let texts = || plan.argv.iter().chain(env().flat_map(|(name, value)| [name, value]));
    let bytes: usize = texts().map(String::len).sum();
    if plan.argv.is_empty() {
        return Err(no_session("no command is given"));
    }
    if plan.argv.len() > EXEC_ARGUMENTS_MAX || bytes > EXEC_TEXT_BYTES_MAX {
        return Err(no_session(format!(
            "command and environment have {} arguments and {bytes} bytes; at most \
             {EXEC_ARGUMENTS_MAX} and {EXEC_TEXT_BYTES_MAX}",
            plan.argv.len()
        )));
    }
    if let Some(cwd) = plan.cwd.as_ref().filter(|cwd| !cwd.starts_with('/')) {
        return Err(no_session(format!("its directory {cwd:?} is not absolute")));
    }
    let terminated = |what| {
        move |text: String| {
            let reason = "contains a NUL byte";
            CString::new(text).map_err(|_| ProcessError::InvalidText { what, reason })
        }
    };
    let argv: Result<_, _> = plan.argv.iter().cloned().map(terminated("argument")).collect();
    let env = env().map(|(name, value)| format!("{name}={value}"));
    let env: Result<_, _> = env.map(terminated("environment variable")).collect();
    let env = plan.env.is_some().then_some(env?);
    let uid = match &plan.user {
        Some(name) => Some(match user::account_of_task(Some(name), None)?.ids {
            Some(ids) => ids.uid,
            None => rustix::process::geteuid().as_raw(),
        }),
        None => None,
    };
    let cwd = plan.cwd.clone().map(terminated("working directory")).transpose()?;
    Ok(EnterOrder { argv: argv?, env, cwd, uid, terminal })
}

fn null_stdio() -> io::Result<[OwnedFd; 3]> {
    let null = child::dev_null()?;
    Ok([null.try_clone()?, null.try_clone()?, null])
}

/// The agent's ends of pipes.
struct Pipes {
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Pipes {
    /// Make the pipes. Returns the command's ends too.
    fn make() -> io::Result<(Self, [OwnedFd; 3])> {
        let (stdin_end, stdin) = child::pipe()?;
        let ((stdout, stdout_end), (stderr, stderr_end)) = (child::pipe()?, child::pipe()?);
        let pipes = Self {
            stdin: pipe::Sender::from_owned_fd(stdin)?,
            stdout: pipe::Receiver::from_owned_fd(stdout)?,
            stderr: pipe::Receiver::from_owned_fd(stderr)?,
        };
        Ok((pipes, [stdin_end, stdout_end, stderr_end]))
    }
}

/// The agent's ends of what a command reads and prints.
enum CommandStreams {
    Pipes(Pipes),
    Terminal { master: Arc<OwnedFd>, input: pipe::Sender, output: pipe::Receiver },
}

impl CommandStreams {
    /// Receive the terminal that the entrant made and sent before the program ran.
    async fn receive_terminal(control: &UnixStream) -> io::Result<Self> {
        let received =
            control.async_io(Interest::READABLE, || supervise::receive_terminal(control.as_fd()));
        let master = clock::timeout(EXEC_WAIT_MAX, received).await;
        let master = master.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let (input, output) = (master.try_clone()?, master.try_clone()?);
        Ok(Self::Terminal {
            // These are not pipes, but files that are read and written when they are ready all the
            // same.
            input: pipe::Sender::from_owned_fd_unchecked(input)?,
            output: pipe::Receiver::from_owned_fd_unchecked(output)?,
            master: Arc::new(master),
        })
    }

    fn into_session(
        self,
        end: ostler_model::ports::BoxFuture<'static, Result<i32, String>>,
    ) -> ExecSession {
        match self {
            Self::Pipes(Pipes { stdin, stdout, stderr }) => ExecSession {
                stdin: Box::new(stdin),
                stdout: Box::new(stdout),
                stderr: Some(Box::new(stderr)),
                resize: None,
                end,
            },
            Self::Terminal { master, input, output } => {
                let resize: Resize = Box::new(move |size| {
                    if let Err(error) = supervise::resize_terminal(&master, size) {
                        tracing::debug!(%error, "a terminal keeps its size");
                    }
                });
                ExecSession {
                    stdin: Box::new(input),
                    stdout: Box::new(TerminalReader(output)),
                    stderr: None,
                    resize: Some(resize),
                    end,
                }
            }
        }
    }
}

/// Reads what a terminal shows. The kernel reports its end by an error, once nobody has it open
/// any more.
struct TerminalReader(pipe::Receiver);

impl AsyncRead for TerminalReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, into) {
            Poll::Ready(Err(error)) if error.raw_os_error() == Some(libc::EIO) => {
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}
