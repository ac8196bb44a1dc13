//! The zygote: waits for orders and forks a shim for each. It has one thread and hardly any memory.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketType, recvmsg, sockopt,
};

use super::{
    ENTER, ORDER, ORDER_FDS_MAX, PING, PROBE, ShimAnswer, ShimStep, entrant, record, shim,
};
use crate::child;
use crate::isolate::empty::EmptyMounts;
use crate::isolate::probe;

/// The `__supervise` program. Its standard input is a socket of the agent that started it, and it
/// ends when the agent does.
#[must_use]
pub fn main() -> ExitCode {
    let Ok(socket) = take_socket() else {
        return ExitCode::from(2);
    };
    // SAFETY: nothing else in this process has descriptors that it still needs.
    unsafe { child::close_from_but(3, socket.as_raw_fd()) };
    // Signals of the agent's terminal do not reach this process, and no signal ends it.
    let _already = rustix::process::setsid();
    child::block_signals();
    // SAFETY: this process has one thread, and its signals are blocked. Without one, tasks copy the node's mounts.
    let mut empty = unsafe { EmptyMounts::new() }.ok();
    // Ended shims vanish without being reaped here, as agents wait for them by pidfd.
    set_child_action(libc::SIG_IGN);
    // The first digest asks what the processor can do, for which a virtual machine is left several
    // times. Shims inherit the answer.
    let _name = record::name("", 0, 0);
    loop {
        match receive_message(&socket) {
            Ok(Some((ORDER, fds))) => serve_order(&socket, fds, &mut empty),
            Ok(Some((PROBE, fds))) => answer_probe(&socket, fds, empty.as_ref()),
            Ok(Some((ENTER, fds))) => serve_enter(&socket, fds),
            Ok(Some((PING, fds))) => {
                let _gone = fds.first().map(|answer| rustix::io::write(answer, &[PING]));
            }
            Ok(_) => {}
            // The agent is gone.
            Err(_) => return ExitCode::SUCCESS,
        }
    }
}

/// Take the socket from standard input, and put `/dev/null` in its place.
fn take_socket() -> Result<OwnedFd, Errno> {
    let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3)?;
    if sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
        return Err(Errno::INVAL);
    }
    let null = child::dev_null().map_err(|_| Errno::NOENT)?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}

/// Receive the kind of the next message and its descriptors; `None` for a message that is
/// not whole.
fn receive_message(socket: &OwnedFd) -> Result<Option<(u8, Vec<OwnedFd>)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ORDER_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let message = loop {
        let into = &mut [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let mut fds = Vec::with_capacity(ORDER_FDS_MAX);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if message.bytes == 0 && fds.is_empty() {
        return Err(Errno::PIPE);
    }
    let [byte] = byte;
    let whole = !message.flags.contains(ReturnFlags::CTRUNC);
    Ok(whole.then_some((byte, fds)))
}

/// Find out in a child what isolation is possible here.
fn answer_probe(socket: &OwnedFd, fds: Vec<OwnedFd>, empty: Option<&EmptyMounts>) {
    let Some(answer) = fds.into_iter().next() else { return };
    fork_and_run(socket, || {
        set_child_action(libc::SIG_DFL);
        let found = postcard::to_allocvec(&probe::probe_all(empty)).unwrap_or_default();
        let _gone = rustix::io::write(&answer, &found);
    });
}

/// Run a command inside a task. Where that cannot be started, its ends are closed without a report.
fn serve_enter(socket: &OwnedFd, fds: Vec<OwnedFd>) {
    let mut received = entrant::sort_descriptors(fds);
    fork_and_run(socket, || {
        if let Some((ends, status)) = received.take() {
            entrant::run(ends, status);
        }
    });
}

fn serve_order(socket: &OwnedFd, fds: Vec<OwnedFd>, empty: &mut Option<EmptyMounts>) {
    let Some(received) = shim::ShimFds::new(fds) else {
        return;
    };
    // The descriptors are moved and not copied: the shim would keep a copy of the answer's end
    // open.
    let mut received = Some(received);
    let begun = fork_and_run(socket, || {
        if let Some(received) = received.take() {
            // Only the child's copy is taken.
            shim::run(received, empty.take());
        }
    });
    if let Some(received) = received.filter(|_| !begun) {
        let errno = super::last_errno().raw_os_error();
        ShimAnswer::Failed { step: ShimStep::ForkShim, errno }.send(received.answer.as_fd());
    }
}

/// Do something in a child. Returns `false` when the fork failed.
fn fork_and_run(socket: &OwnedFd, what: impl FnOnce()) -> bool {
    // SAFETY: this process has one thread, so its child may do everything.
    match unsafe { libc::fork() } {
        0 => {
            let socket = socket.as_raw_fd();
            // Whatever happens, the child never comes back into this loop.
            let run = std::panic::AssertUnwindSafe(|| {
                // SAFETY: the child does not use the socket, and never drops its owner.
                unsafe { libc::close(socket) };
                what();
            });
            let code = i32::from(std::panic::catch_unwind(run).is_err());
            // SAFETY: ends the child without running anything that is the zygote's.
            unsafe { libc::_exit(code) }
        }
        pid => pid > 0,
    }
}

/// What happens when a child ends: `SIG_IGN` (it vanishes) or `SIG_DFL` (it waits to be reaped).
pub(super) fn set_child_action(action: libc::sighandler_t) {
    // SAFETY: sets a predefined action, no handler.
    unsafe { libc::signal(libc::SIGCHLD, action) };
}
