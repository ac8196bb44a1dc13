//! The agent's side: keeps a zygote, and sends it orders.
//!
//! ```text
//! order ─► no answer for a while ─► ping ── answered ─► what it forked takes its time: waited for
//!                                      └── not ─► it hangs: killed and replaced, the order is sent anew
//! ```

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::{child, descriptors};
use super::record::Records;
use super::{ENTER, EnterOrder, ORDER, ORDER_FDS_MAX, ORDER_NAME, Order, PING, PROBE};
use ostler_model::clock;
use ostler_model::limits::{ZYGOTE_ANSWER_WALL_MAX, ZYGOTE_DOUBT_AFTER};

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
    /// Tasks of this agent end with their zygote: one that hangs is kept until the agent ends.
    hung: Mutex<Vec<Zygote>>,
    ends_tasks: bool,
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
        Ok(Self::with(program, records, zygote, false))
    }

    /// The same, which starts a zygote when one is needed, and whose tasks end with it.
    pub fn lazy(program: PathBuf, records: Records) -> Self {
        Self::with(program, records, Mutex::new(None), true)
    }

    fn with(
        program: PathBuf,
        records: Records,
        zygote: Mutex<Option<Zygote>>,
        ends_tasks: bool,
    ) -> Self {
        let unanswered = Arc::new(Semaphore::new(UNANSWERED_MAX));
        let hung = Mutex::default();
        let inner = Inner { program, records, zygote, hung, ends_tasks, unanswered };
        Self { inner: Arc::new(inner) }
    }

    /// Wait for what the zygote, or what it forks, is to say. `None`: it hangs and was replaced, and what it
    /// was sent is to be sent anew.
    pub async fn watched<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        if let Some(answer) = clock::timeout(ZYGOTE_DOUBT_AFTER, &mut answer).await {
            return Some(answer);
        }
        let answers = async {
            let pid = self.pid()?;
            (!self.answers().await).then_some(pid)
        };
        tokio::select! {
            answer = &mut answer => return Some(answer),
            hung = answers => match hung {
                Some(pid) => self.replace(pid).await,
                None => return Some(answer.await),
            },
        }
        None
    }

    fn zygote(&self) -> MutexGuard<'_, Option<Zygote>> {
        self.inner.zygote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pid of the present zygote; `None` too while somebody else waits for it.
    fn pid(&self) -> Option<u32> {
        let zygote = self.inner.zygote.try_lock().ok()?;
        zygote.as_ref().map(|zygote| zygote.child.id())
    }

    /// Does the zygote answer? One that is gone, or cannot be asked now, is not told to hang.
    async fn answers(&self) -> bool {
        let Ok((answer, end)) = child::pipe() else { return true };
        let Ok(mut answer) = pipe::Receiver::from_owned_fd(answer) else { return true };
        let pinged = self.ping(end.as_fd());
        drop(end);
        let mut byte = [0; 1];
        match pinged {
            Pinged::Gone => true,
            Pinged::Sent => {
                clock::timeout(ZYGOTE_ANSWER_WALL_MAX, answer.read(&mut byte)).await.is_some()
            }
            // It has read nothing for as long as its socket is full of what it was sent.
            Pinged::Full => {
                clock::sleep(ZYGOTE_ANSWER_WALL_MAX).await;
                let Ok((_answer, end)) = child::pipe() else { return true };
                !matches!(self.ping(end.as_fd()), Pinged::Full)
            }
        }
    }

    fn ping(&self, answer: BorrowedFd<'_>) -> Pinged {
        let Ok(zygote) = self.inner.zygote.try_lock() else { return Pinged::Gone };
        let sent = zygote.as_ref().map(|zygote| zygote.send(PING, &[answer], SendFlags::DONTWAIT));
        match sent {
            Some(Ok(())) => Pinged::Sent,
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Pinged::Full,
            Some(Err(_)) | None => Pinged::Gone,
        }
    }

    /// Kill the zygote of this pid, which hangs; the next order starts another.
    async fn replace(&self, pid: u32) {
        let line = self.clone();
        let replaced = tokio::task::spawn_blocking(move || {
            let mut zygote = line.zygote();
            let Some(hung) = zygote.take_if(|zygote| zygote.child.id() == pid) else { return };
            drop(zygote);
            tracing::warn!(
                pid,
                "the process that starts native tasks does not answer and is replaced"
            );
            if line.inner.ends_tasks {
                let mut kept = line.inner.hung.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push(hung);
            }
        });
        if let Err(error) = replaced.await {
            tracing::error!(pid, %error, "the process that starts native tasks was not replaced");
        }
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
        let mut zygote = self.zygote();
        if let Some(zygote) = &*zygote {
            match zygote.send(what, fds, SendFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let pid = zygote.child.id();
                    tracing::warn!(
                        pid,
                        "the process that starts native tasks takes no orders and is replaced"
                    );
                }
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

/// What became of a question whether the zygote answers.
enum Pinged {
    /// It is on its way.
    Sent,
    /// There is no room for it.
    Full,
    /// There is no zygote now, or somebody else waits for it.
    Gone,
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
