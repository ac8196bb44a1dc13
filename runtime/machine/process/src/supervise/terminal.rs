//! The terminal of a command inside a task. It is made among the task's own terminals, so that its
//! name in `/dev/pts` leads to it in there, and its other end is sent to the agent.
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

/// The node's `/dev`, held open to make a terminal for a task that has no terminals of its own.
pub(super) struct NodeTerminals(OwnedFd);

impl NodeTerminals {
    /// Open the node's `/dev`, while the root is the node's.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(open(c"/dev", flags, Mode::empty())?))
    }
}

/// Both ends of a terminal.
pub(super) struct TerminalPair {
    master: OwnedFd,
    /// The command's end.
    pub own: OwnedFd,
}

impl TerminalPair {
    /// Make a terminal of this size for this user. With `rooted` it is made among the terminals of
    /// the task, whose root this process has joined, otherwise among the node's.
    ///
    /// # Errors
    /// When no more terminals can be opened, or the kernel refuses.
    pub fn make(
        rooted: bool,
        node: &NodeTerminals,
        size: TerminalSize,
        ids: Option<&Ids>,
    ) -> io::Result<Self> {
        let how = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let of_node = || openat(&node.0, c"ptmx", how, Mode::empty());
        let master = if rooted {
            // On some kernels a task has no terminals of its own.
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
            // Otherwise the command could not open it by its name.
            ids.chown_file(&own)?;
        }
        Ok(Self { master, own })
    }

    /// Send the agent its end of the terminal.
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

/// Whether the file is the master end of a terminal, and nothing else that was at the path.
fn is_master(file: impl AsFd) -> bool {
    ptsname(file, Vec::new()).is_ok()
}

/// Set the size of a terminal. The kernel signals the change to the processes in it.
pub(in super::super) fn resize(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows: ws_row, columns: ws_col } = size;
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

/// Receive the agent's end, which was sent before the command's program ran.
///
/// # Errors
/// When no terminal was sent.
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
