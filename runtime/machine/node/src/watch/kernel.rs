//! The socket on which the kernel announces devices.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SocketFlags, SocketType, bind,
    recvmsg, socket_with,
};

use super::uevent;
use ostler_model::limits::UEVENT_BYTES_MAX;

/// The multicast group that only the kernel sends to. User space has another group.
const KERNEL_GROUP: u32 = 1;
/// Messages read before other work gets its turn.
const MESSAGES_AT_ONCE: usize = 1_024;

/// The result of one round of reading.
#[derive(Debug, Default)]
pub(super) struct KernelNews {
    /// Subsystems with news.
    pub subsystems: Vec<String>,
    /// Messages were dropped or could not be read: everything counts as changed.
    pub overflow: bool,
    /// Why nothing can be read any more.
    pub broken: Option<Errno>,
}

/// Open the socket. It needs no privilege, but a kernel and a container that have netlink.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(KOBJECT_UEVENT),
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(socket)
}

/// Read the waiting messages, up to a bound. Messages that the kernel did not send are passed over.
pub(super) fn read(socket: &OwnedFd) -> KernelNews {
    let mut heard = KernelNews::default();
    let mut buffer = vec![0; UEVENT_BYTES_MAX];
    for _ in 0..MESSAGES_AT_ONCE {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let mut no_control = RecvAncillaryBuffer::default();
        match recvmsg(socket, &mut slices, &mut no_control, RecvFlags::empty()) {
            Ok(message) => {
                // The kernel writes the port, not the sender. Only the kernel's own port is 0.
                let from = message.address.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                if from.is_none_or(|from| from.pid() != 0 || from.groups() != KERNEL_GROUP) {
                    continue;
                }
                let whole = !message.flags.contains(ReturnFlags::TRUNC);
                let bytes = buffer.get(..message.bytes).filter(|_| whole).unwrap_or_default();
                match uevent::parse(bytes) {
                    Ok(event) => heard.subsystems.extend(event.subsystem.map(str::to_owned)),
                    Err(_) => heard.overflow = true,
                }
            }
            Err(Errno::NOBUFS) => heard.overflow = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => {
                heard.broken = Some(error);
                break;
            }
        }
    }
    heard
}
