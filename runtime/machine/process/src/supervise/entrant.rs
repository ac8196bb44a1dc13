//! A command inside a task: a process that joins the task, gives up what the task does not have, and only
//! then forks the command.
//!
//! ```text
//! zygote ── fork ─► entrant: the task's cgroup, namespaces, user, rules, filter
//!                     │ fork ─► command (in the task's pid namespace; with the terminal, if there is one)
//!   agent ◄─ status ──┤            exec: end of file; or which step failed
//!   agent ── hangs up ► kill everything of the session
//!   agent ◄─ exit ────┘ the command has ended, and what it left of this session was killed
//! ```
//! The sequence of these steps keeps a task from gaining rights: while the entrant may still do
//! more than the task, no process of the task can see it, trace it or read its memory. The child in
//! the task's pid namespace has no more than the task's rights from its first instruction on.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

use super::children::{ChildExit, find_ended_child, reap};
use super::terminal::{NodeTerminals, TerminalPair};
use super::{ShimOrder, read_memory_file, shim};
use crate::cgroup::{move_into, open_leaf};
use crate::child::{self, ChildImage, ChildPlan, ChildStep, ForkKind};
use crate::command::{self, PATH_DEFAULT, Texts};
use crate::isolate::{enter, inside};
use crate::user::WHO;
use ostler_model::clock::Stopwatch;
use ostler_model::isolation::IsolationKind;
use ostler_model::session::TerminalSize;

/// How long the processes that a session left may take to end.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause between looks for those processes.
const KILL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The command to run, sent in a memory file.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct EnterOrder {
    /// The program, followed by its arguments.
    pub argv: Vec<CString>,
    /// The environment, one `NAME=value` each; absent: that which the task was started with.
    pub env: Option<Vec<CString>>,
    /// Working directory, as the task sees it; absent: the one that the task was started in.
    pub cwd: Option<CString>,
    /// Id of the user that the driver named. Only the task's own user is accepted.
    pub uid: Option<u32>,
    /// Size of the terminal that is the command's input and output; absent: there is no terminal.
    pub terminal: Option<TerminalSize>,
}

/// Descriptors of an order, without the one of its status.
pub(super) struct EntrantFds {
    order: OwnedFd,
    /// The order that the task was started by.
    of_task: OwnedFd,
    task: OwnedFd,
    stdio: [OwnedFd; 3],
    control: OwnedFd,
}

/// Number of the descriptors, with the status.
const ENDS: usize = 8;

/// Sort the descriptors of a message into their fields; `None` when their number is wrong.
pub(super) fn sort_descriptors(fds: Vec<OwnedFd>) -> Option<(EntrantFds, OwnedFd)> {
    let ends: [OwnedFd; ENDS] = fds.try_into().ok()?;
    let [order, of_task, task, stdin, stdout, stderr, control, status] = ends;
    Some((EntrantFds { order, of_task, task, stdio: [stdin, stdout, stderr], control }, status))
}

/// Bytes of the message that says how a command ended.
pub(in super::super) const END_BYTES: usize = 8;

/// The exit code of a command from the entrant's message. For a signal it is 128 and the
/// signal's number.
pub(in super::super) fn exit_code(bytes: [u8; END_BYTES]) -> i32 {
    let [a, b, c, d, e, f, g, h] = bytes;
    match i32::from_ne_bytes([e, f, g, h]) {
        0 => i32::from_ne_bytes([a, b, c, d]),
        signal => signal.saturating_add(128),
    }
}

fn end_bytes(ended: ChildExit) -> Vec<u8> {
    let code = ended.exit_code.unwrap_or_default();
    let signal = ended.signal.and_then(|signal| i32::try_from(signal).ok()).unwrap_or_default();
    code.to_ne_bytes().into_iter().chain(signal.to_ne_bytes()).collect()
}

type EntrantError = inside::StepError;

fn error_context(what: &'static str) -> impl FnOnce(io::Error) -> EntrantError {
    move |error| (ChildStep::Isolate, what.to_owned(), error)
}

/// Run one command, in a process of its own.
pub(super) fn run(ends: EntrantFds, status: OwnedFd) {
    match start_entrant(ends, &status) {
        Ok(mut entrant) => {
            drop(status);
            entrant.run_to_end();
        }
        Err((step, about, error)) => {
            child::report_text_to(status.as_raw_fd(), step, &error, &about);
        }
    }
}

struct EntrantProcess {
    command: Pid,
    /// Socket to the agent, which hangs up to end the session and is told the end of the command.
    control: OwnedFd,
    signals: OwnedFd,
    /// The kernel's list of this process's children. Absent where the task has a pid namespace, in
    /// which the rest ends with the task.
    children: Option<File>,
    killing: bool,
    ended: Option<ChildExit>,
}

/// From the zygote's child to the command's process.
fn start_entrant(ends: EntrantFds, status: &OwnedFd) -> Result<EntrantProcess, EntrantError> {
    let EntrantFds { order, of_task, task, stdio, control } = ends;
    shim::own_session(c"ostler-exec").map_err(error_context("a session"))?;
    // Done while the node's own /proc is there.
    // SAFETY: this process is a child of the zygote's, with one thread.
    unsafe { child::unprotect() };
    hide().map_err(error_context("hiding from the task"))?;
    let enter: EnterOrder = read_memory_file(&order).map_err(error_context("the order"))?;
    let of_task: ShimOrder =
        read_memory_file(&of_task).map_err(error_context("the order of the task"))?;
    let ShimOrder { ids, cgroup, setup, texts, network, .. } = of_task;
    let own = ids.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |ids| ids.uid);
    if enter.uid.is_some_and(|asked| asked != own) {
        let other = io::Error::other("a command can only run as the user of its task");
        return Err((ChildStep::User, String::new(), other));
    }
    // With a terminal, which is made below, the ends are the node's own /dev/null, whose owner
    // stays.
    if let (Some(ids), None) = (&ids, &enter.terminal) {
        // Otherwise the command could not open them by their names in /dev.
        stdio
            .iter()
            .try_for_each(|end| ids.chown_file(end))
            .map_err(error_context("its input and output"))?;
    }
    if let Some(cgroup) = &cgroup {
        let leaf = open_leaf(cgroup).map_err(error_context("the task's cgroup"))?;
        move_into(leaf, rustix::process::getpid()).map_err(error_context("the task's cgroup"))?;
    }
    let signals = shim::signals(&[libc::SIGCHLD]).map_err(error_context("signals"))?;
    let alone = setup.as_ref().is_some_and(|setup| setup.has(IsolationKind::Pids));
    // Opened before the root changes.
    let children = File::open("/proc/thread-self/children").ok().filter(|_| !alone);
    let EnterOrder { argv, env, cwd, terminal, .. } = enter;
    let (mut env, cwd) = (env.unwrap_or_else(|| texts.env.clone()), cwd.unwrap_or(texts.cwd));
    let unsaid = texts.env.into_iter().filter(|of_task| is_missing_user_variable(of_task, &env));
    env.extend(unsaid.collect::<Vec<_>>());
    if terminal.is_some() && !env.iter().any(|one| one.to_bytes().starts_with(b"TERM=")) {
        // Programs that draw on the screen refuse to run without one.
        env.push(c"TERM=xterm".to_owned());
    }
    let rooted = setup.as_ref().is_some_and(|setup| setup.has(IsolationKind::Mounts));
    let within = ids.is_some() && !rooted;
    let reached = if within { ProgramAccess::FromWithin } else { ProgramAccess::ByPath };
    let candidates = candidates(argv.first(), &env, &cwd, reached);
    let null = || child::dev_null().map_err(error_context("/dev/null"));
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(error_context("its descriptors"));
    let [stdin, stdout, stderr] = stdio;
    let program = candidates.first().cloned().unwrap_or_default();
    let mut plan = ChildPlan {
        texts: Texts { program, argv, env, cwd },
        ids,
        cgroup: None,
        kill_with_agent: true,
        stdin,
        stdout,
        stderr,
        go: null()?,
        status: copy(status)?,
    };
    // Opened while the root is the node's.
    let terminal = terminal.map(|size| NodeTerminals::open().map(|node| (size, node)));
    let terminal = terminal.transpose().map_err(error_context("terminals of the node"))?;
    if let Some(network) = &network {
        network.join(&task).map_err(error_context("the network of its allocation"))?;
    }
    if let Some(setup) = &setup {
        enter::join(&task, setup).map_err(error_context("the task's namespaces"))?;
    }
    let terminal = terminal.map(|(size, node)| {
        let made = TerminalPair::make(rooted, &node, size, plan.ids.as_ref());
        made.and_then(|made| made.send(&control).map(|()| made.own))
    });
    let terminal = terminal.transpose().map_err(error_context("its terminal"))?;
    if let Some(own) = &terminal {
        for end in [&mut plan.stdin, &mut plan.stdout, &mut plan.stderr] {
            *end = copy(own)?;
        }
    }
    let laid = ChildImage::new(&plan).map_err(error_context("its descriptors"))?;
    inside::confine(&plan, setup.as_ref(), terminal.as_ref())?;
    // The change of user may have undone this.
    hide().map_err(error_context("hiding from the task"))?;
    // SAFETY: this process has one thread; what the child reads lives in `plan` and `laid`.
    let (command, _) =
        unsafe { child::fork_in(None, ForkKind::Own) }.map_err(error_context("forking"))?;
    if command == 0 {
        become_command(&laid, &candidates, terminal.is_some());
    }
    let command = Pid::from_raw(command)
        .ok_or_else(|| error_context("forking")(io::ErrorKind::Other.into()))?;
    Ok(EntrantProcess { command, control, signals, children, killing: false, ended: None })
}

/// Let nobody but root trace this process or read its memory.
fn hide() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Whether a variable of the task names its user or home, and `env` does not set it.
fn is_missing_user_variable(of_task: &CStr, env: &[CString]) -> bool {
    let sets = |one: &CStr, name: &str| {
        one.to_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    WHO.iter().any(|name| sets(of_task, name) && !env.iter().any(|one| sets(one, name)))
}

/// How the command reaches files below its working directory.
#[derive(Clone, Copy)]
enum ProgramAccess {
    ByPath,
    /// By relative paths, because its user is not the agent's, which owns the directories above.
    FromWithin,
}

/// The paths that the program may have, in the order in which they are tried.
fn candidates(
    program: Option<&CString>,
    env: &[CString],
    cwd: &CStr,
    reached: ProgramAccess,
) -> Vec<CString> {
    let bytes = |text: &CStr| std::ffi::OsStr::from_bytes(text.to_bytes()).to_owned();
    let command = program.map(|text| bytes(text)).unwrap_or_default();
    let cwd = bytes(cwd);
    let path = env.iter().rev().find_map(|one| one.to_bytes().strip_prefix(b"PATH="));
    let path = path.and_then(|path| std::str::from_utf8(path).ok()).unwrap_or(PATH_DEFAULT);
    let command = command.to_string_lossy();
    let found = command::candidates(&command, &[], Path::new(&cwd), path);
    let found = found.into_iter().map(|path| match reached {
        ProgramAccess::ByPath => path,
        ProgramAccess::FromWithin => command::path_from_within(path, Path::new(&cwd)),
    });
    found.filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).collect()
}

/// Turn this process into the command: its session, its terminal, its program.
fn become_command(laid: &ChildImage, candidates: &[CString], terminal: bool) -> ! {
    // SAFETY: this is the only thread of a fresh process.
    unsafe {
        laid.place_descriptors();
        child::die_with_parent();
        child::begin_session();
        if terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            child::report_text(ChildStep::Session, &io::Error::last_os_error(), "");
        }
    }
    inside::execute(laid, candidates)
}

impl EntrantProcess {
    /// Attend the session to the end of the command and of the processes that it left.
    fn run_to_end(&mut self) {
        let ended = loop {
            if let Some(ended) = self.ended {
                break ended;
            }
            self.poll_once();
        };
        self.kill();
        reap(self.command);
        self.end_children();
        // An agent that has hung up does not want to know.
        let _gone = rustix::io::write(&self.control, &end_bytes(ended));
    }

    /// Wait for something to do, and do it.
    fn poll_once(&mut self) {
        let control = (!self.killing).then(|| self.control.as_fd());
        let fds = [Some(self.signals.as_fd()), control];
        let asked = fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let mut asked: Vec<_> = asked.collect();
        let told = poll(&mut asked, None).is_ok();
        let hung_up = asked.get(1).is_some_and(|fd| told && !fd.revents().is_empty());
        drop(asked);
        if hung_up {
            self.killing = true;
            self.kill();
        }
        self.drain_signals();
        while let Some((pid, ended)) = find_ended_child() {
            if pid == self.command {
                // It stays a zombie, so that its group id is not used again before the group was
                // killed.
                self.ended = Some(ended);
                return;
            }
            reap(pid);
        }
    }

    fn drain_signals(&self) {
        let mut told = [0_u8; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.signals, &mut told).is_ok_and(|count| count > 0) {}
    }

    fn kill(&self) {
        if kill_process_group(self.command, Signal::KILL).is_err() {
            // A command that has not made its group yet is alone.
            let _gone = kill_process(self.command, Signal::KILL);
        }
    }

    /// Kill the processes that left the command's group. They are children of this process, which
    /// is their subreaper.
    fn end_children(&mut self) {
        let watch = Stopwatch::start();
        while watch.elapsed() < KILL_WAIT_MAX {
            let left = self.children();
            if left.is_empty() {
                return;
            }
            for child in left {
                // The child is not reaped, so its pid is its own.
                let _not_permitted = kill_process(child, Signal::KILL);
                reap(child);
            }
            // The end of a child wakes this.
            let _woken =
                poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], Some(&KILL_INTERVAL));
            self.drain_signals();
        }
    }

    fn children(&mut self) -> Vec<Pid> {
        let Some(file) = &mut self.children else { return Vec::new() };
        let mut text = String::new();
        if file.rewind().and_then(|()| file.read_to_string(&mut text)).is_err() {
            return Vec::new();
        }
        let pid = |text: &str| text.parse().ok().and_then(Pid::from_raw);
        text.split_ascii_whitespace().filter_map(pid).collect()
    }
}
