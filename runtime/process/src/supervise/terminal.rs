//! The terminal of a command inside a task: made among the task's own, so that its name in `/dev/pts` leads
//! to it there, and sent to the agent.
//!
//! ```text
//! entrant, in the task's root: open ptmx ─► the command's end, which becomes its input and output
//!                                     └───► the agent's end ── control ─► agent
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::user::Ids;
use ostler_model::session::TerminalSize;

/// Where terminals of the node are made, held open for a task that has none of its own.
pub(super) struct NodeTerminals(OwnedFd);

impl NodeTerminals {
    /// While the root is the node's.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(open(c"/dev", flags, Mode::empty())?))
    }
}

/// Both ends of a terminal.
pub(super) struct Terminal {
    master: OwnedFd,
    /// The command's end.
    pub own: OwnedFd,
}

impl Terminal {
    /// Of this size and for this user: among the terminals of a task with a root of its own, which was
    /// joined, else among the node's.
    ///
    /// # Errors
    /// As many terminals are open as there can be.
    pub fn make(
        rooted: bool,
        node: &NodeTerminals,
        size: TerminalSize,
        ids: Option<&Ids>,
    ) -> io::Result<Self> {
        let how = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let of_node = || openat(&node.0, c"ptmx", how, Mode::empty());
        let master = if rooted {
            // Not on every kernel has a task terminals of its own.
            match open(c"/dev/pts/ptmx", how | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(master) if is_master(&master) => master,
                Ok(_) | Err(rustix::io::Errno::NOENT) => of_node()?,
                Err(error) => return Err(error.into()),
            }
        } else {
            of_node()?
        };
        grantpt(&master)?;
        unlockpt(&master)?;
        let how = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = ioctl_tiocgptpeer(&master, how)?;
        resize(&master, size)?;
        if let Some(ids) = ids {
            // Or the command could not open it by its name.
            ids.own(&own)?;
        }
        Ok(Self { master, own })
    }

    /// Send the agent its end.
    pub fn send(&self, control: &OwnedFd) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut parts = SendAncillaryBuffer::new(&mut space);
        let master = [self.master.as_fd()];
        if !parts.push(SendAncillaryMessage::ScmRights(&master)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let byte = [IoSlice::new(&[0])];
        sendmsg(control, &byte, &mut parts, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Whether it is the end of a terminal that the kernel numbers, and nothing else that stood at its place.
fn is_master(file: impl AsFd) -> bool {
    ptsname(file, Vec::new()).is_ok()
}

/// Tell a terminal its size, and who runs in it that it changed.
pub(in super::super) fn resize(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows: ws_row, columns: ws_col } = size;
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

/// The agent's end, that was sent before the command's program ran.
///
/// # Errors
/// None was sent, or something else.
pub(in super::super) fn receive(control: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut parts = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let into = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(control, into, &mut parts, RecvFlags::CMSG_CLOEXEC)?;
    let sent = parts.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let other = || io::Error::other("no terminal was sent");
    sent.filter(|sent| is_master(sent)).ok_or_else(other)
}
