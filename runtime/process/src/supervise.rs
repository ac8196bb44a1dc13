//! Supervisors: native tasks that outlive the agent.
//!
//! ```text
//! agent ── exec, once ─► zygote (this program as `__supervise`: one thread, no runtime)
//!   │  order, by socket      │ fork, for each start
//!   │                        ▼
//!   │ ◄─ answer, by pipe ── shim ── fork, held ─► task (dies with its shim)
//!   │ ── go, by pipe ──────► │ ─────── go ───────►  │ exec ─► user code
//!   │ ── signal 40, value ─► │ ─── kill(group) ───►  │
//!   │                        │ ◄── pipes ─────────── │
//!   │                        ├─► log files
//!   │                        ▼ task ended: output drained, group, cgroup, descendants killed
//!   │ ◄─ pidfd readable ── exit record in <data directory>/exits, then the shim ends
//! ```
//! - The zygote is small, so a fork of it costs little, and all shims share its relocated pages.
//!   It ends when the agent's end of its socket closes; its shims go on. A dead one is replaced
//!   at the next start, and so is one that hangs ([`line`]).
//! - A shim that holds a task it was not told to let go kills it when the agent is gone, and its
//!   record says that the task was never released.
//! - The agent signals the shim, by a pidfd that was checked against the recorded start time, and
//!   the shim, as the parent that has not reaped the task yet, signals the task's group: no pid is
//!   signalled that may be another's. An agent that came later needs nothing else.
//! - An isolated task has an init beside it, which ends what is in the task's pid namespace
//!   ([`isolate`](super::isolate)).
//! - A shim is a subreaper: descendants that left the group become its children and are killed at
//!   the end, without cgroups too.
//!
//! What must stay as it is, so that an agent of another version owns the tasks of this one:
//! `SIGNAL` with its value, the form of the exit record (`record`), and `ProcessIdentity`. The
//! order and its answer are only spoken between an agent and the zygote it started itself.

mod children;
mod entrant;
mod line;
pub(super) mod note;
mod output;
pub(super) mod record;
mod shim;
mod terminal;
mod zygote;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

pub(super) use self::entrant::{END_BYTES, EnterOrder, exit_code};
pub(super) use self::line::{EnterEnds, Line, OrderEnds};
pub(super) use self::terminal::{receive as receive_terminal, resize as resize_terminal};
pub use self::zygote::main;

use super::command::Texts;
use super::isolate::IsolationSetup;
use super::netns::TaskNetwork;
use super::user::Ids;

/// The signal by which a shim is told to signal its task: real-time, so that none is merged with
/// another, with the number of the signal meant as its value. A number of its own and not
/// `SIGRTMIN + n`: what `SIGRTMIN` is, each C library decides for itself. Never changes.
pub(super) const SIGNAL: libc::c_int = 40;
/// On the go pipe: run.
pub(super) const GO: u8 = b'g';
/// On the go pipe: this start is given up, leave no trace. The end of file means that the agent
/// is gone.
pub(super) const GIVE_UP: u8 = b'x';
/// First and only byte of an order's message; the rest are descriptors.
const ORDER: u8 = 1;
/// The same of a question: what isolation is possible. Its descriptor takes the answer.
const PROBE: u8 = 2;
/// The same of a command inside a task.
const ENTER: u8 = 3;
/// The same of a question that the zygote answers itself, with one byte: does it answer?
const PING: u8 = 4;
/// Descriptors of a message. Of an order: order, go, status, answer, records, and a directory for each
/// stream; of a command: order, the task's order, the task, its three ends, control, status.
const ORDER_FDS_MAX: usize = 8;
/// Name of the memory file of an order, which its shim keeps: who comes later reads there what the task
/// is kept apart from. To be changed with [`Order`] and what is in it.
const ORDER_NAME: &str = "ostler-order-1";

/// What a shim is told, in a memory file. Spoken only between builds of the same program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The run.
    pub run: String,
    /// What to execute.
    pub texts: Texts,
    /// As whom.
    pub ids: Option<Ids>,
    /// The task's cgroup, made and empty.
    pub cgroup: Option<PathBuf>,
    /// Standard output and error: where what is printed goes. `None`: nowhere.
    pub streams: [Option<StreamOrder>; 2],
    /// From what the task is kept apart.
    pub setup: Option<IsolationSetup>,
    /// The network that it is in.
    pub network: Option<TaskNetwork>,
    /// The task ends with the agent that gave the order.
    pub with_agent: bool,
}

/// Files of one stream; the directory comes as a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StreamOrder {
    /// Name without the index.
    pub prefix: String,
    /// Most files kept.
    pub files_max: u32,
    /// A file is left at this length, bytes.
    pub file_bytes_max: u64,
}

/// What a shim says when it holds its task, or why it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Held { shim: (u32, u64), task: (u32, u64) },
    Failed { step: ShimStep, errno: i32 },
}

/// Steps to a held task that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum ShimStep {
    ForkShim = 1,
    Order,
    Session,
    Signals,
    Pipes,
    ForkTask,
    Identity,
    Cgroup,
    Isolate,
    Network,
}

impl ShimStep {
    const ALL: [Self; 10] = [
        Self::ForkShim,
        Self::Order,
        Self::Session,
        Self::Signals,
        Self::Pipes,
        Self::ForkTask,
        Self::Identity,
        Self::Cgroup,
        Self::Isolate,
        Self::Network,
    ];

    /// For [`super::ProcessError::System`].
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ForkShim => "forking a supervisor",
            Self::Order => "reading the order of a supervisor",
            Self::Session => "making the session of a supervisor",
            Self::Signals => "setting up the signals of a supervisor",
            Self::Pipes => "making a pipe in a supervisor",
            Self::ForkTask => "forking in a supervisor",
            Self::Identity => "reading the start time in a supervisor",
            Self::Cgroup => "opening the cgroup of a task in a supervisor",
            Self::Isolate => "making the namespaces of a task in a supervisor",
            Self::Network => "entering the network of an allocation in a supervisor",
        }
    }
}

impl Answer {
    pub(super) const BYTES: usize = 32;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let (step, errno, shim, task) = match self {
            Self::Held { shim, task } => (0, 0, shim, task),
            Self::Failed { step, errno } => (step as u32, errno, (0, 0), (0, 0)),
        };
        let mut bytes = [0; Self::BYTES];
        let fields = [
            &step.to_ne_bytes()[..],
            &errno.to_ne_bytes(),
            &shim.0.to_ne_bytes(),
            &task.0.to_ne_bytes(),
            &shim.1.to_ne_bytes(),
            &task.1.to_ne_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// `None` for what no shim says.
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let (words, longs) = bytes.split_at(16);
        let mut words = words.chunks_exact(4).filter_map(|word| word.try_into().ok());
        let mut longs = longs.chunks_exact(8).filter_map(|long| long.try_into().ok());
        let mut word = || words.next().map(u32::from_ne_bytes);
        let (step, errno, shim, task) = (word()?, word()?, word()?, word()?);
        let mut long = || longs.next().map(u64::from_ne_bytes);
        let (shim_ticks, task_ticks) = (long()?, long()?);
        if step == 0 {
            return Some(Self::Held { shim: (shim, shim_ticks), task: (task, task_ticks) });
        }
        let step = ShimStep::ALL.into_iter().find(|known| *known as u32 == step)?;
        Some(Self::Failed { step, errno: errno.cast_signed() })
    }

    fn send(self, to: BorrowedFd<'_>) {
        // Nobody there: the go pipe is closed as well, and ends whatever was begun.
        let _gone = rustix::io::write(to, &self.to_bytes());
    }
}

/// The kernel's `siginfo_t` as far as a queued signal fills it.
#[repr(C)]
struct QueuedSignal {
    signo: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    _pad: libc::c_int,
    pid: libc::pid_t,
    uid: libc::uid_t,
    value: usize,
    _rest: [u8; 96],
}

/// Tell the shim behind `pidfd` to signal its task; a stopped shim is woken. The kernel checks that we may (same
/// user, or root); it fails with `SRCH` when the shim is gone, with `AGAIN` when too many are queued.
pub(super) fn ask(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    let info = QueuedSignal {
        signo: SIGNAL,
        errno: 0,
        code: libc::SI_QUEUE,
        _pad: 0,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        uid: rustix::process::getuid().as_raw(),
        value: usize::try_from(signal.as_raw()).map_err(|_| Errno::INVAL)?,
        _rest: [0; 96],
    };
    const { assert!(size_of::<QueuedSignal>() == size_of::<libc::siginfo_t>()) };
    // SAFETY: `info` has the size and the layout of the kernel's structure and outlives the call.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            SIGNAL,
            (&raw const info).cast::<libc::siginfo_t>(),
            0_u32,
        )
    };
    if sent != 0 {
        return Err(last_errno());
    }
    // One that was stopped takes it when it goes on.
    let _gone = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
    Ok(())
}

/// Tell the shim behind `pidfd` to end its task and everything of it. One that cannot be told is killed, and
/// its task with it.
pub(super) fn ask_to_kill(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    let sent = match ask(pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => return Ok(()),
        Err(_) => rustix::process::pidfd_send_signal(pidfd, Signal::KILL),
    };
    match sent {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The order that this shim keeps. The caller knows that the pid is the supervisor's.
///
/// # Errors
/// It has none, or one of another form.
pub(super) fn order_of(supervisor: u32) -> io::Result<std::fs::File> {
    let path = memory_file(supervisor, ORDER_NAME).ok_or(io::ErrorKind::NotFound)?;
    std::fs::File::open(path)
}

/// The memory file of this name that a process has open, in `/proc`. Other files, such as logs of a task that is called
/// so, have the name at another place of their path.
fn memory_file(pid: u32, name: &str) -> Option<PathBuf> {
    let memory = format!("/memfd:{name}");
    let is_named = |link: PathBuf| {
        let rest = link.to_str().and_then(|to| to.strip_prefix(&memory));
        rest.is_some_and(|rest| rest.is_empty() || rest == " (deleted)")
    };
    let mut entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    entries
        .find(|entry| std::fs::read_link(entry.path()).is_ok_and(is_named))
        .map(|entry| entry.path())
}

/// What is in a memory file.
fn read_posted<T: serde::de::DeserializeOwned>(file: impl AsFd) -> io::Result<T> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::from(file.as_fd().try_clone_to_owned()?);
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_memory_file_is_not_a_log_of_a_task_that_is_called_like_it() {
        const NAME: &str = "ostler-probe-1";
        let dir = tempfile::tempdir().unwrap();
        let _log = std::fs::File::create(dir.path().join(format!("{NAME}.stdout.0"))).unwrap();
        let own = std::process::id();
        assert_eq!(memory_file(own, NAME), None);
        let _memory = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let found = std::fs::read_link(memory_file(own, NAME).unwrap()).unwrap();
        assert_eq!(found.to_str(), Some("/memfd:ostler-probe-1 (deleted)"));
    }

    #[test]
    fn answers_come_through_as_they_were_said() {
        let held = Answer::Held { shim: (7, 1 << 40), task: (u32::MAX, u64::MAX) };
        assert_eq!(Answer::from_bytes(held.to_bytes()), Some(held));
        for step in ShimStep::ALL {
            let failed = Answer::Failed { step, errno: -1 };
            assert_eq!(Answer::from_bytes(failed.to_bytes()), Some(failed));
        }
        assert_eq!(Answer::from_bytes([0xff; Answer::BYTES]), None);
    }
}
