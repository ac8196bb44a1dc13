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
//! The order is what keeps a task from more than it has: while the entrant may still do more than the task,
//! no process of the task can see it, trace it or read its memory. What is forked into the task's pid
//! namespace has the task's own rights from its first instruction on.

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

use super::children::{Ended, ended_child, reap};
use super::terminal::{NodeTerminals, Terminal};
use super::{Order, read_posted, shim};
use crate::cgroup::{move_into, open_leaf};
use crate::child::{self, Child, Laid, Plan, Step};
use crate::command::{self, PATH_DEFAULT, Texts};
use crate::isolate::{enter, inside};
use crate::user::WHO;
use ostler_model::clock::Stopwatch;
use ostler_model::isolation::Part;
use ostler_model::session::TerminalSize;

/// How long what a session left may take to end.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const KILL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// What is to be run, in a memory file.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct EnterOrder {
    /// Program and arguments.
    pub argv: Vec<CString>,
    /// `NAME=value`; absent: what the task was started with.
    pub env: Option<Vec<CString>>,
    /// Where to start, as the task sees it; absent: where the task was started.
    pub cwd: Option<CString>,
    /// The user that the driver named: nobody but the task's own is run as.
    pub uid: Option<u32>,
    /// Size of the terminal that is the command's input and output; absent: it has none.
    pub terminal: Option<TerminalSize>,
}

/// Descriptors of an order, but that of its status.
pub(super) struct EnterEnds {
    order: OwnedFd,
    /// The order that the task was started by.
    of_task: OwnedFd,
    task: OwnedFd,
    stdio: [OwnedFd; 3],
    control: OwnedFd,
}

/// How many there are, with the status.
const ENDS: usize = 8;

/// Sort them; `None` when they are too few.
pub(super) fn received(fds: Vec<OwnedFd>) -> Option<(EnterEnds, OwnedFd)> {
    let ends: [OwnedFd; ENDS] = fds.try_into().ok()?;
    let [order, of_task, task, stdin, stdout, stderr, control, status] = ends;
    Some((EnterEnds { order, of_task, task, stdio: [stdin, stdout, stderr], control }, status))
}

/// Bytes that say how a command ended.
pub(in super::super) const END_BYTES: usize = 8;

/// The exit code of a command by what its entrant says: 128 and the number of a signal.
pub(in super::super) fn exit_code(bytes: [u8; END_BYTES]) -> i32 {
    let [a, b, c, d, e, f, g, h] = bytes;
    match i32::from_ne_bytes([e, f, g, h]) {
        0 => i32::from_ne_bytes([a, b, c, d]),
        signal => signal.saturating_add(128),
    }
}

fn end_bytes(ended: Ended) -> Vec<u8> {
    let code = ended.exit_code.unwrap_or_default();
    let signal = ended.signal.and_then(|signal| i32::try_from(signal).ok()).unwrap_or_default();
    code.to_ne_bytes().into_iter().chain(signal.to_ne_bytes()).collect()
}

type Refused = inside::StepFailed;

fn at(what: &'static str) -> impl FnOnce(io::Error) -> Refused {
    move |error| (Step::Isolate, what.to_owned(), error)
}

/// Run one command, in a process of its own.
pub(super) fn run(ends: EnterEnds, status: OwnedFd) {
    match begin(ends, &status) {
        Ok(mut entrant) => {
            drop(status);
            entrant.attend();
        }
        Err((step, about, error)) => {
            child::report_text_to(status.as_raw_fd(), step, &error, &about);
        }
    }
}

struct Entrant {
    command: Pid,
    /// Of the agent; it hangs up to end the session, and hears the end.
    control: OwnedFd,
    signals: OwnedFd,
    /// What the kernel says this process's children are; where the task has no pid namespace, in which
    /// what is left ends with the task.
    children: Option<File>,
    killing: bool,
    ended: Option<Ended>,
}

/// From the zygote's child to the command's process.
fn begin(ends: EnterEnds, status: &OwnedFd) -> Result<Entrant, Refused> {
    let EnterEnds { order, of_task, task, stdio, control } = ends;
    shim::own_session(c"ostler-exec").map_err(at("a session"))?;
    // While the node's own /proc is there.
    // SAFETY: this process is a child of the zygote's, with one thread.
    unsafe { child::unprotect() };
    hide().map_err(at("hiding from the task"))?;
    let enter: EnterOrder = read_posted(&order).map_err(at("the order"))?;
    let of_task: Order = read_posted(&of_task).map_err(at("the order of the task"))?;
    let Order { ids, cgroup, setup, texts, network, .. } = of_task;
    let own = ids.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |ids| ids.uid);
    if enter.uid.is_some_and(|asked| asked != own) {
        let other = io::Error::other("a command runs as its task's user and as nobody else");
        return Err((Step::User, String::new(), other));
    }
    // In the place of a terminal, which is made below, is the node's own /dev/null: nobody else's.
    if let (Some(ids), None) = (&ids, &enter.terminal) {
        // Or the command could not open them by their names in /dev.
        stdio.iter().try_for_each(|end| ids.own(end)).map_err(at("its input and output"))?;
    }
    if let Some(cgroup) = &cgroup {
        let leaf = open_leaf(cgroup).map_err(at("the task's cgroup"))?;
        move_into(leaf, rustix::process::getpid()).map_err(at("the task's cgroup"))?;
    }
    let signals = shim::signals(&[libc::SIGCHLD]).map_err(at("signals"))?;
    let alone = setup.as_ref().is_some_and(|setup| setup.has(Part::Pids));
    // Open before the root is another one.
    let children = File::open("/proc/thread-self/children").ok().filter(|_| !alone);
    let EnterOrder { argv, env, cwd, terminal, .. } = enter;
    let (mut env, cwd) = (env.unwrap_or_else(|| texts.env.clone()), cwd.unwrap_or(texts.cwd));
    let unsaid = texts.env.into_iter().filter(|of_task| says_who(of_task, &env));
    env.extend(unsaid.collect::<Vec<_>>());
    if terminal.is_some() && !env.iter().any(|one| one.to_bytes().starts_with(b"TERM=")) {
        // Programs that draw refuse to without one.
        env.push(c"TERM=xterm".to_owned());
    }
    let rooted = setup.as_ref().is_some_and(|setup| setup.has(Part::Mounts));
    let within = ids.is_some() && !rooted;
    let reached = if within { Reached::FromWithin } else { Reached::ByPath };
    let candidates = candidates(argv.first(), &env, &cwd, reached);
    let null = || child::dev_null().map_err(at("/dev/null"));
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(at("its descriptors"));
    let [stdin, stdout, stderr] = stdio;
    let program = candidates.first().cloned().unwrap_or_default();
    let mut plan = Plan {
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
    // While the root is the node's.
    let terminal = terminal.map(|size| NodeTerminals::open().map(|node| (size, node)));
    let terminal = terminal.transpose().map_err(at("terminals of the node"))?;
    if let Some(network) = &network {
        network.join(&task).map_err(at("the network of its allocation"))?;
    }
    if let Some(setup) = &setup {
        enter::join(&task, setup).map_err(at("the task's namespaces"))?;
    }
    let terminal = terminal.map(|(size, node)| {
        let made = Terminal::make(rooted, &node, size, plan.ids.as_ref());
        made.and_then(|made| made.send(&control).map(|()| made.own))
    });
    let terminal = terminal.transpose().map_err(at("its terminal"))?;
    if let Some(own) = &terminal {
        for end in [&mut plan.stdin, &mut plan.stdout, &mut plan.stderr] {
            *end = copy(own)?;
        }
    }
    let laid = Laid::new(&plan).map_err(at("its descriptors"))?;
    inside::confine(&plan, setup.as_ref(), terminal.as_ref())?;
    // The change of user may have undone it.
    hide().map_err(at("hiding from the task"))?;
    // SAFETY: this process has one thread; what the child reads lives in `plan` and `laid`.
    let (command, _) = unsafe { child::fork_in(None, Child::Own) }.map_err(at("forking"))?;
    if command == 0 {
        become_command(&laid, &candidates, terminal.is_some());
    }
    let command =
        Pid::from_raw(command).ok_or_else(|| at("forking")(io::ErrorKind::Other.into()))?;
    Ok(Entrant { command, control, signals, children, killing: false, ended: None })
}

/// Nobody but root may trace this process or read what it has.
fn hide() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// A variable of the task that says who it runs as, and of which `env` says nothing.
fn says_who(of_task: &CStr, env: &[CString]) -> bool {
    let sets = |one: &CStr, name: &str| {
        one.to_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    WHO.iter().any(|name| sets(of_task, name) && !env.iter().any(|one| sets(one, name)))
}

/// How a task gets at files of its directory.
#[derive(Clone, Copy)]
enum Reached {
    ByPath,
    /// It is another user than the agent, whose directories are above.
    FromWithin,
}

/// The files that the program may be, in the order in which they are tried.
fn candidates(
    program: Option<&CString>,
    env: &[CString],
    cwd: &CStr,
    reached: Reached,
) -> Vec<CString> {
    let bytes = |text: &CStr| std::ffi::OsStr::from_bytes(text.to_bytes()).to_owned();
    let command = program.map(|text| bytes(text)).unwrap_or_default();
    let cwd = bytes(cwd);
    let path = env.iter().rev().find_map(|one| one.to_bytes().strip_prefix(b"PATH="));
    let path = path.and_then(|path| std::str::from_utf8(path).ok()).unwrap_or(PATH_DEFAULT);
    let command = command.to_string_lossy();
    let found = command::candidates(&command, &[], Path::new(&cwd), path);
    let found = found.into_iter().map(|path| match reached {
        Reached::ByPath => path,
        Reached::FromWithin => command::from_within(path, Path::new(&cwd)),
    });
    found.filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).collect()
}

/// The command's own process, up to its program.
fn become_command(laid: &Laid, candidates: &[CString], terminal: bool) -> ! {
    // SAFETY: we are the only thread of a process of our own.
    unsafe {
        laid.lay_out();
        child::die_with_parent();
        child::begin_session();
        if terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            child::report_text(Step::Session, &io::Error::last_os_error(), "");
        }
    }
    inside::execute(laid, candidates)
}

impl Entrant {
    /// To the end of the command, and of what it left.
    fn attend(&mut self) {
        let ended = loop {
            if let Some(ended) = self.ended {
                break ended;
            }
            self.turn();
        };
        self.kill();
        reap(self.command);
        self.end_children();
        // An agent that has hung up does not want to know.
        let _gone = rustix::io::write(&self.control, &end_bytes(ended));
    }

    /// Wait for something to do, and do it.
    fn turn(&mut self) {
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
        while let Some((pid, ended)) = ended_child() {
            if pid == self.command {
                // It stays, so that its group is its own until that was killed.
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
            // Before it has made its group, it is alone.
            let _gone = kill_process(self.command, Signal::KILL);
        }
    }

    /// What left the command's group and is this process's now, since it is their subreaper.
    fn end_children(&mut self) {
        let watch = Stopwatch::start();
        while watch.elapsed() < KILL_WAIT_MAX {
            let left = self.children();
            if left.is_empty() {
                return;
            }
            for child in left {
                // Ours and not reaped: the pid is its own.
                let _not_permitted = kill_process(child, Signal::KILL);
                reap(child);
            }
            // Woken by the end of one of them.
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
