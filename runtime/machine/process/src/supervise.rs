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
//!   It ends when the agent's end of its socket closes; its shims go on. A zygote that is dead or
//!   hangs is replaced at the next start ([`line`]).
//! - A shim that still holds its task when the agent is gone kills the task, and its record says
//!   that the task was never released.
//! - The agent signals the shim, by a pidfd that was checked against the recorded start time. The
//!   shim, as the parent that has not reaped the task yet, signals the task's group. So no pid is
//!   signalled that may name another process. An agent that came later needs nothing else.
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
pub(super) use self::line::{EnterEnds, OrderEnds, ZygoteClient};
pub(super) use self::terminal::{receive as receive_terminal, resize as resize_terminal};
pub use self::zygote::main;

use super::command::Texts;
use super::isolate::IsolationSetup;
use super::netns::TaskNetwork;
use super::user::Ids;

/// The signal by which a shim is told to signal its task. It is a real-time signal, so that two are
/// never merged into one, and its value is the number of the signal that the task is to get. The
/// number is fixed and not `SIGRTMIN + n`, because each C library defines `SIGRTMIN` for itself.
/// Never changes.
pub(super) const SIGNAL: libc::c_int = 40;
/// Byte on the go pipe: run the program.
pub(super) const GO: u8 = b'g';
/// Byte on the go pipe: this start is given up, leave no trace. The end of file means that the
/// agent is gone.
pub(super) const GIVE_UP: u8 = b'x';
/// First and only byte of the message that orders a shim; the rest are descriptors.
const ORDER: u8 = 1;
/// First and only byte of the message that asks what isolation is possible. Its descriptor takes
/// the answer.
const PROBE: u8 = 2;
/// First and only byte of the message that orders a command inside a task.
const ENTER: u8 = 3;
/// First and only byte of the message that asks whether the zygote answers. The zygote writes
/// one byte.
const PING: u8 = 4;
/// Most descriptors of a message. An order has: order, go, status, answer, records, and a directory
/// for each stream. A command inside a task has: order, the task's order, the task, its three ends,
/// control, status.
const ORDER_FDS_MAX: usize = 8;
/// Name of the memory file of an order, which its shim keeps open. A later agent reads there how
/// the task is isolated. The name changes with the layout of [`ShimOrder`].
const ORDER_NAME: &str = "ostler-order-1";

/// What a shim is told, in a memory file. Only builds of the same program exchange it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ShimOrder {
    /// Id of the run that the task belongs to.
    pub run: String,
    /// The program to execute, with its arguments and environment.
    pub texts: Texts,
    /// The user and groups to switch to; `None` keeps the agent's own.
    pub ids: Option<Ids>,
    /// The task's cgroup, made and empty.
    pub cgroup: Option<PathBuf>,
    /// Where standard output and standard error go; `None` discards the stream.
    pub streams: [Option<StreamOrder>; 2],
    /// How the task is isolated.
    pub setup: Option<IsolationSetup>,
    /// The network that the task is in; `None` for the node's own.
    pub network: Option<TaskNetwork>,
    /// The task ends with the agent that gave the order.
    pub with_agent: bool,
}

/// Files of one stream; the directory comes as a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StreamOrder {
    /// Name of a file without its index.
    pub prefix: String,
    /// Most files that are kept.
    pub files_max: u32,
    /// Bytes after which the next file is begun.
    pub file_bytes_max: u64,
}

/// What a shim answers: that it holds its task, or why it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShimAnswer {
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

    /// Description of the step for [`super::ProcessError::System`].
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

impl ShimAnswer {
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

    /// Read an answer; `None` for bytes that no shim sends.
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

/// Tell the shim behind `pidfd` to signal its task; a stopped shim is woken. The kernel checks the
/// permission (same user, or root). Fails with `SRCH` when the shim is gone, and with `AGAIN` when
/// too many signals are queued.
pub(super) fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
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
    // A stopped shim takes the signal once it goes on.
    let _gone = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
    Ok(())
}

/// Tell the shim behind `pidfd` to end its task and all descendants of the task. A shim that cannot
/// be told is killed, and its task with it.
pub(super) fn send_kill(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    let sent = match send_signal(pidfd, Signal::KILL) {
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

/// Open the order that this supervisor keeps. The caller knows that the pid is the supervisor's.
///
/// # Errors
/// When the supervisor has no order, or one of another version.
pub(super) fn open_order(supervisor: u32) -> io::Result<std::fs::File> {
    let path = find_memory_file(supervisor, ORDER_NAME).ok_or(io::ErrorKind::NotFound)?;
    std::fs::File::open(path)
}

/// Path in `/proc` of the memory file of this name that a process has open. Other files, such as
/// logs of a task with this name, have the name at another place of their path.
fn find_memory_file(pid: u32, name: &str) -> Option<PathBuf> {
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

/// Read and decode what is in a memory file.
fn read_memory_file<T: serde::de::DeserializeOwned>(file: impl AsFd) -> io::Result<T> {
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
        assert_eq!(find_memory_file(own, NAME), None);
        let _memory = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let found = std::fs::read_link(find_memory_file(own, NAME).unwrap()).unwrap();
        assert_eq!(found.to_str(), Some("/memfd:ostler-probe-1 (deleted)"));
    }

    #[test]
    fn answers_come_through_as_they_were_said() {
        let held = ShimAnswer::Held { shim: (7, 1 << 40), task: (u32::MAX, u64::MAX) };
        assert_eq!(ShimAnswer::from_bytes(held.to_bytes()), Some(held));
        for step in ShimStep::ALL {
            let failed = ShimAnswer::Failed { step, errno: -1 };
            assert_eq!(ShimAnswer::from_bytes(failed.to_bytes()), Some(failed));
        }
        assert_eq!(ShimAnswer::from_bytes([0xff; ShimAnswer::BYTES]), None);
    }
}
