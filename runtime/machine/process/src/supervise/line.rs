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
use super::record::ExitRecords;
use super::{ENTER, EnterOrder, ORDER, ORDER_FDS_MAX, ORDER_NAME, PING, PROBE, ShimOrder};
use ostler_model::clock;
use ostler_model::limits::{ZYGOTE_ANSWER_WALL_MAX, ZYGOTE_DOUBT_AFTER};

/// First argument by which this program becomes a zygote.
const ARGUMENT: &str = "__supervise";
/// Most orders that wait for an answer at once. Their descriptors are in flight, and the kernel
/// bounds the number of those by user (`RLIMIT_NOFILE`).
const UNANSWERED_MAX: usize = 64;
/// How long a zygote may take to accept an order.
const SEND_WAIT_MAX: Duration = Duration::from_secs(10);

/// The client of the zygote. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ZygoteClient {
    inner: Arc<ZygoteClientInner>,
}

#[derive(Debug)]
struct ZygoteClientInner {
    program: PathBuf,
    records: ExitRecords,
    zygote: Mutex<Option<Zygote>>,
    /// Zygotes that hung. Where the tasks of this agent end with their zygote, such a zygote is
    /// kept until the agent ends.
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
    /// Directories of the streams that have files, in the order of the streams.
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

impl ZygoteClient {
    /// Start the zygote. `program` becomes a zygote when its first argument is `__supervise`.
    pub fn new(program: PathBuf, records: ExitRecords) -> io::Result<Self> {
        let zygote = Mutex::new(Some(Zygote::start(&program)?));
        Ok(Self::from_parts(program, records, zygote, false))
    }

    /// As [`ZygoteClient::new`], but the zygote is started when it is needed, and tasks end with it.
    pub fn lazy(program: PathBuf, records: ExitRecords) -> Self {
        Self::from_parts(program, records, Mutex::new(None), true)
    }

    fn from_parts(
        program: PathBuf,
        records: ExitRecords,
        zygote: Mutex<Option<Zygote>>,
        ends_tasks: bool,
    ) -> Self {
        let unanswered = Arc::new(Semaphore::new(UNANSWERED_MAX));
        let hung = Mutex::default();
        let inner = ZygoteClientInner { program, records, zygote, hung, ends_tasks, unanswered };
        Self { inner: Arc::new(inner) }
    }

    /// Wait for an answer of the zygote or of a process that it forks. `None`: the zygote hung and
    /// was replaced, so the caller must send its message again.
    pub async fn await_answer<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        if let Some(answer) = clock::timeout(ZYGOTE_DOUBT_AFTER, &mut answer).await {
            return Some(answer);
        }
        let answers = async {
            let pid = self.pid()?;
            (!self.is_answering().await).then_some(pid)
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

    fn lock_zygote(&self) -> MutexGuard<'_, Option<Zygote>> {
        self.inner.zygote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pid of the present zygote. `None` when there is none, or while another caller holds
    /// its lock.
    fn pid(&self) -> Option<u32> {
        let zygote = self.inner.zygote.try_lock().ok()?;
        zygote.as_ref().map(|zygote| zygote.child.id())
    }

    /// Whether the zygote answers. `true` too when it is gone or cannot be asked now, as it then
    /// does not count as hung.
    async fn is_answering(&self) -> bool {
        let Ok((answer, end)) = child::pipe() else { return true };
        let Ok(mut answer) = pipe::Receiver::from_owned_fd(answer) else { return true };
        let pinged = self.ping(end.as_fd());
        drop(end);
        let mut byte = [0; 1];
        match pinged {
            PingOutcome::Gone => true,
            PingOutcome::Sent => {
                clock::timeout(ZYGOTE_ANSWER_WALL_MAX, answer.read(&mut byte)).await.is_some()
            }
            // The zygote has read nothing if its socket is still full after the wait.
            PingOutcome::Full => {
                clock::sleep(ZYGOTE_ANSWER_WALL_MAX).await;
                let Ok((_answer, end)) = child::pipe() else { return true };
                !matches!(self.ping(end.as_fd()), PingOutcome::Full)
            }
        }
    }

    fn ping(&self, answer: BorrowedFd<'_>) -> PingOutcome {
        let Ok(zygote) = self.inner.zygote.try_lock() else { return PingOutcome::Gone };
        let sent = zygote.as_ref().map(|zygote| zygote.send(PING, &[answer], SendFlags::DONTWAIT));
        match sent {
            Some(Ok(())) => PingOutcome::Sent,
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => PingOutcome::Full,
            Some(Err(_)) | None => PingOutcome::Gone,
        }
    }

    /// Kill the zygote of this pid, which hangs; the next order starts another.
    async fn replace(&self, pid: u32) {
        let line = self.clone();
        let replaced = tokio::task::spawn_blocking(move || {
            let mut zygote = line.lock_zygote();
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

    /// Ask what isolation is possible. The answer comes through the pipe. May wait for the zygote:
    /// call it where blocking is allowed.
    pub fn probe(&self, answer: BorrowedFd<'_>) -> io::Result<()> {
        self.send_message(PROBE, &[answer])
    }

    /// Have a command run inside a task. The status pipe reports its start, and the control socket
    /// its end. May wait for the zygote: call it where blocking is allowed.
    pub fn enter(&self, order: &EnterOrder, ends: &EnterEnds<'_>) -> io::Result<()> {
        let memory = to_memory_file("ostler-enter", order)?;
        let [stdin, stdout, stderr] = ends.stdio;
        let (of_task, task, control) = (ends.of_task, ends.task, ends.control);
        let fds = [memory.as_fd(), of_task, task, stdin, stdout, stderr, control, ends.status];
        self.send_message(ENTER, &fds)
    }

    /// The directory in which shims leave their records.
    pub fn records(&self) -> &ExitRecords {
        &self.inner.records
    }

    /// Acquire a permit to send an order. Keep it until the answer has come.
    pub async fn acquire_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.unanswered).acquire_owned().await.ok()
    }

    /// Send an order if that is possible at once. `false`: use [`ZygoteClient::send`].
    pub fn try_send(&self, order: &ShimOrder, ends: &OrderEnds<'_>) -> io::Result<bool> {
        let Ok(zygote) = self.inner.zygote.try_lock() else {
            return Ok(false);
        };
        let Some(zygote) = &*zygote else {
            return Ok(false);
        };
        let memory = to_memory_file(ORDER_NAME, order)?;
        let fds = self.descriptors(&memory, ends);
        Ok(zygote.send(ORDER, &fds, SendFlags::DONTWAIT).is_ok())
    }

    /// Send an order. A zygote that is gone is replaced, once. May wait for the zygote: call it
    /// where blocking is allowed.
    pub fn send(&self, order: &ShimOrder, ends: &OrderEnds<'_>) -> io::Result<()> {
        let memory = to_memory_file(ORDER_NAME, order)?;
        self.send_message(ORDER, &self.descriptors(&memory, ends))
    }

    fn send_message(&self, what: u8, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut zygote = self.lock_zygote();
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
        // The old zygote is reaped before the new one starts.
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

/// What became of a ping to the zygote.
enum PingOutcome {
    /// The ping was sent.
    Sent,
    /// The socket has no room for the ping.
    Full,
    /// There is no zygote now, or another caller holds its lock.
    Gone,
}

/// Write an order of any length to a memory file, for its receiver to read.
fn to_memory_file(name: &str, order: &impl serde::Serialize) -> io::Result<File> {
    let memory = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    memory.write_all_at(&postcard::to_allocvec(order).map_err(io::Error::other)?, 0)?;
    Ok(memory)
}

#[cfg(test)]
impl ZygoteClient {
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
        // None of the agent's files stays open in the zygote, because a shim may live for years.
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        descriptors::restore_limit(&mut command);
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
        // Killed, so that the wait for it is short. Its shims live on.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
