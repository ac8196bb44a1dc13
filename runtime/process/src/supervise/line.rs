//! The agent's side: keeps a zygote, and sends it orders.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::descriptors;
use super::record::Records;
use super::{ENTER, EnterOrder, ORDER, ORDER_FDS_MAX, ORDER_NAME, Order, PROBE};

/// First argument by which this program becomes a zygote.
const ARGUMENT: &str = "__supervise";
/// Orders without an answer at once: their descriptors are in flight, of which the kernel allows a
/// user only so many (`RLIMIT_NOFILE`).
const UNANSWERED_MAX: usize = 64;
/// How long a zygote may take to accept an order.
const SEND_WAIT_MAX: Duration = Duration::from_secs(10);

/// The way to the zygote. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    program: PathBuf,
    records: Records,
    zygote: Mutex<Option<Zygote>>,
    unanswered: Arc<Semaphore>,
}

#[derive(Debug)]
struct Zygote {
    socket: OwnedFd,
    child: Child,
}

/// Descriptors that go with an order, by name.
pub(crate) struct OrderEnds<'a> {
    pub go: BorrowedFd<'a>,
    pub status: BorrowedFd<'a>,
    pub answer: BorrowedFd<'a>,
    /// Of the streams that have files, in order.
    pub dirs: Vec<BorrowedFd<'a>>,
}

/// Descriptors that go with a command inside a task, by name.
pub(crate) struct EnterEnds<'a> {
    pub of_task: BorrowedFd<'a>,
    pub task: BorrowedFd<'a>,
    pub stdio: [BorrowedFd<'a>; 3],
    pub control: BorrowedFd<'a>,
    pub status: BorrowedFd<'a>,
}

impl Line {
    /// Start the zygote. `program` becomes one when its first argument is `__supervise`.
    pub fn new(program: PathBuf, records: Records) -> io::Result<Self> {
        let zygote = Mutex::new(Some(Zygote::start(&program)?));
        let unanswered = Arc::new(Semaphore::new(UNANSWERED_MAX));
        Ok(Self { inner: Arc::new(Inner { program, records, zygote, unanswered }) })
    }

    /// The same, which starts a zygote when one is needed.
    pub fn lazy(program: PathBuf, records: Records) -> Self {
        let unanswered = Arc::new(Semaphore::new(UNANSWERED_MAX));
        let zygote = Mutex::new(None);
        Self { inner: Arc::new(Inner { program, records, zygote, unanswered }) }
    }

    /// Ask what isolation is possible; the answer comes by the pipe. May wait for the zygote: call
    /// it where blocking is allowed.
    pub fn probe(&self, answer: BorrowedFd<'_>) -> io::Result<()> {
        self.send_message(PROBE, &[answer])
    }

    /// Have a command run inside a task; what became of it comes by the status, and later by the control.
    /// May wait for the zygote: call it where blocking is allowed.
    pub fn enter(&self, order: &EnterOrder, ends: &EnterEnds<'_>) -> io::Result<()> {
        let memory = in_memory("ostler-enter", order)?;
        let [stdin, stdout, stderr] = ends.stdio;
        let (of_task, task, control) = (ends.of_task, ends.task, ends.control);
        let fds = [memory.as_fd(), of_task, task, stdin, stdout, stderr, control, ends.status];
        self.send_message(ENTER, &fds)
    }

    /// Where shims leave their records.
    pub fn records(&self) -> &Records {
        &self.inner.records
    }

    /// To be had before an order and kept until its answer.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.unanswered).acquire_owned().await.ok()
    }

    /// Send an order if that is possible at once; `false` when it is for [`Line::send`].
    pub fn try_send(&self, order: &Order, ends: &OrderEnds<'_>) -> io::Result<bool> {
        let Ok(zygote) = self.inner.zygote.try_lock() else {
            return Ok(false);
        };
        let Some(zygote) = &*zygote else {
            return Ok(false);
        };
        let memory = in_memory(ORDER_NAME, order)?;
        let fds = self.descriptors(&memory, ends);
        Ok(zygote.send(ORDER, &fds, SendFlags::DONTWAIT).is_ok())
    }

    /// Send an order. A zygote that is gone is replaced, once. May wait for the zygote: call it
    /// where blocking is allowed.
    pub fn send(&self, order: &Order, ends: &OrderEnds<'_>) -> io::Result<()> {
        let memory = in_memory(ORDER_NAME, order)?;
        self.send_message(ORDER, &self.descriptors(&memory, ends))
    }

    fn send_message(&self, what: u8, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut zygote = self.inner.zygote.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zygote) = &*zygote {
            match zygote.send(what, fds, SendFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "the process that starts native tasks is gone, starting another");
                }
            }
        }
        // The old one is reaped before its successor takes its place.
        *zygote = None;
        let started = zygote.insert(Zygote::start(&self.inner.program)?);
        started.send(what, fds, SendFlags::empty())
    }

    fn descriptors<'a>(&'a self, memory: &'a File, ends: &OrderEnds<'a>) -> Vec<BorrowedFd<'a>> {
        let records = self.inner.records.dir();
        let mut fds = vec![memory.as_fd(), ends.go, ends.status, ends.answer, records];
        fds.extend(&ends.dirs);
        fds
    }
}

/// An order as a file that its receiver reads, however long it is.
fn in_memory(name: &str, order: &impl serde::Serialize) -> io::Result<File> {
    let memory = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    memory.write_all_at(&postcard::to_allocvec(order).map_err(io::Error::other)?, 0)?;
    Ok(memory)
}

#[cfg(test)]
impl Line {
    /// Close the socket and forget the zygote, as the end of the agent's process does.
    pub fn close_for_test(&self) {
        let zygote = self.inner.zygote.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(zygote) = zygote {
            let mut zygote = std::mem::ManuallyDrop::new(zygote);
            // A descriptor of no use takes its place: the other end sees the end of the file.
            zygote.socket = std::fs::File::open("/dev/null").map_or_else(|_| panic!(), Into::into);
            let _reaped = zygote.child.wait();
        }
    }
}

impl Zygote {
    fn start(program: &PathBuf) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        set_socket_timeout(&ours, Timeout::Send, Some(SEND_WAIT_MAX))?;
        #[expect(clippy::disallowed_methods, reason = "host is where processes are started")]
        let mut command = std::process::Command::new(program);
        command.arg(ARGUMENT).env_clear().current_dir("/");
        // Nothing of the agent's stays open in it: a shim may live for years.
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        descriptors::as_before(&mut command);
        Ok(Self { socket: ours, child: command.spawn()? })
    }

    fn send(&self, what: u8, fds: &[BorrowedFd<'_>], how: SendFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ORDER_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let what = [what];
        let byte = [IoSlice::new(&what)];
        loop {
            match sendmsg(&self.socket, &byte, &mut control, how | SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                sent => return Ok(sent.map(drop)?),
            }
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // Killed and not only left alone, so that the wait is short. Its shims live on.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
