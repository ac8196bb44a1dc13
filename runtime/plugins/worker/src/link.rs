//! Packets over a unix socket, with descriptors.
//!
//! ```text
//! 'j' ─ the JSON itself          at most INLINE_BYTES_MAX bytes
//! 'f' ─ the first descriptor is a memory file with it; further descriptors are the message's own
//! ```
//! This format is frozen together with `protocol`.
//!
//! A packet is sent on the caller's thread where the socket takes it at once. Otherwise it waits
//! here, in order, for [`PacketLink::flush`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use ostler_model::limits::{WORKER_MESSAGE_BYTES_MAX, WORKER_OUTBOX_MAX};

/// Longest message that travels in the packet itself, bytes.
const INLINE_BYTES_MAX: usize = 16 * 1024;
/// Most descriptors of one message: a memory file and those of a start.
const FDS_MAX: usize = 4;
const INLINE: u8 = b'j';
const IN_FILE: u8 = b'f';

/// A received message and its descriptors.
pub(crate) struct MessageWithFds<T> {
    pub message: T,
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection between agent and worker.
pub(crate) struct PacketLink {
    socket: AsyncFd<OwnedFd>,
    waiting: Mutex<VecDeque<Packet>>,
    /// Notified when a packet waits, or the link was closed.
    more: Notify,
}

struct Packet {
    bytes: Vec<u8>,
    fds: Vec<Arc<OwnedFd>>,
}

impl PacketLink {
    /// A link over a connected socket. Must be called inside a runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // SAFETY: the descriptor is owned here, never changes, and is closed only with the `AsyncFd`.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(Self { socket, waiting: Mutex::default(), more: Notify::new() })
    }

    /// Send a message, now or when the other end takes it. An error means that the link is of no
    /// use any more; whoever receives sees its end.
    pub fn send<T: Serialize>(&self, message: &T, fds: Vec<Arc<OwnedFd>>) -> io::Result<()> {
        let packet = Packet::new(message, fds)?;
        let mut waiting = self.lock();
        if waiting.is_empty() {
            match packet.send(self.socket.get_ref().as_fd()) {
                Err(Errno::AGAIN) => {}
                sent => return Ok(sent?),
            }
        }
        if waiting.len() >= WORKER_OUTBOX_MAX {
            drop(waiting);
            self.close();
            return Err(io::Error::other("the other end of the connection does not read"));
        }
        waiting.push_back(packet);
        drop(waiting);
        self.more.notify_one();
        Ok(())
    }

    /// Send the packets that wait, as long as the link lives. It must be polled beside
    /// [`PacketLink::receive`].
    pub async fn flush(&self) -> io::Error {
        loop {
            self.more.notified().await;
            while !self.lock().is_empty() {
                let mut ready = match self.socket.writable().await {
                    Ok(ready) => ready,
                    Err(error) => return error,
                };
                let mut waiting = self.lock();
                let Some(packet) = waiting.front() else { break };
                let sent = ready.try_io(|socket| Ok(packet.send(socket.get_ref().as_fd())?));
                match sent {
                    Ok(Ok(())) => drop(waiting.pop_front()),
                    Ok(Err(error)) => return error,
                    Err(_would_block) => {}
                }
            }
        }
    }

    /// The next message; `None` when the other end is gone.
    pub async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<MessageWithFds<T>>> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| packet(socket.get_ref().as_fd())) {
                Ok(received) => return received?.map(Packet::read).transpose(),
                Err(_would_block) => {}
            }
        }
    }

    /// Close the link: both ends see that.
    pub fn close(&self) {
        let _gone = shutdown(self.socket.get_ref(), Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Packet>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Send one message on a socket that blocks. Waits as long as the socket's own timeout allows.
pub(crate) fn send_blocking<T: Serialize>(socket: &OwnedFd, message: &T) -> io::Result<()> {
    Ok(Packet::new(message, Vec::new())?.send(socket.as_fd())?)
}

/// Receive one message on a socket that blocks. Waits as long as the socket's own timeout allows. A
/// new worker waits without a bound for the agent that started it.
pub(crate) fn receive_blocking<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<T>> {
    let received = packet(socket.as_fd())?.map(Packet::read::<T>).transpose()?;
    Ok(received.map(|received| received.message))
}

impl Packet {
    fn new<T: Serialize>(message: &T, mut fds: Vec<Arc<OwnedFd>>) -> io::Result<Self> {
        let mut bytes = vec![INLINE];
        serde_json::to_writer(&mut bytes, message)?;
        if bytes.len() > INLINE_BYTES_MAX {
            let memory = File::from(memfd_create("ostler-worker", MemfdFlags::CLOEXEC)?);
            memory.write_all_at(bytes.get(1..).unwrap_or_default(), 0)?;
            fds.insert(0, Arc::new(memory.into()));
            bytes = vec![IN_FILE];
        }
        Ok(Self { bytes, fds })
    }

    fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        loop {
            let bytes = [IoSlice::new(&self.bytes)];
            match sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Decode the message. An error of the kind `InvalidData` is about this message alone.
    fn read<T: DeserializeOwned>(self) -> io::Result<MessageWithFds<T>> {
        let mut fds = self.fds;
        let (kind, rest) = self.bytes.split_first().ok_or_else(|| invalid("an empty message"))?;
        let message = match *kind {
            INLINE => read(rest)?,
            IN_FILE if !fds.is_empty() => {
                let file = Arc::into_inner(fds.remove(0)).ok_or_else(|| invalid("a lost file"))?;
                let file = File::from(file);
                let length = file.metadata()?.len();
                if length > WORKER_MESSAGE_BYTES_MAX {
                    return Err(invalid("a message that is too long"));
                }
                let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
                // The descriptor may not be a file, or the file may have become shorter.
                file.read_exact_at(&mut bytes, 0).map_err(|error| invalid(&error.to_string()))?;
                read(&bytes)?
            }
            _ => return Err(invalid("a message of an unknown form")),
        };
        let fds = fds.into_iter().filter_map(Arc::into_inner).collect();
        Ok(MessageWithFds { message, fds })
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// Decode JSON. A text that ends too early is invalid data, and not the end of the connection.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| invalid(&error.to_string()))
}

/// Receive one packet; `None` at the end of the connection.
fn packet(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; INLINE_BYTES_MAX];
    let message = loop {
        let into = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights.map(Arc::new));
        }
    }
    if message.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(invalid("a message that is cut off"));
    }
    if message.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(message.bytes);
    Ok(Some(Packet { bytes, fds }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (PacketLink, PacketLink) {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (PacketLink::new(a).unwrap(), PacketLink::new(b).unwrap())
    }

    #[tokio::test]
    async fn short_and_long_messages_come_whole_and_in_order_with_their_descriptors() {
        let (ours, theirs) = pair();
        let long = "x".repeat(INLINE_BYTES_MAX * 3);
        let null = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        ours.send(&"short", vec![]).unwrap();
        ours.send(&long, vec![Arc::clone(&null), null]).unwrap();
        let first: MessageWithFds<String> = theirs.receive().await.unwrap().unwrap();
        assert_eq!((first.message.as_str(), first.fds.len()), ("short", 0));
        let second: MessageWithFds<String> = theirs.receive().await.unwrap().unwrap();
        assert_eq!((second.message, second.fds.len()), (long, 2));
        drop(ours);
        assert!(theirs.receive::<String>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_the_other_end_does_not_take_at_once_waits_in_order() {
        let (ours, theirs) = pair();
        for number in 0..20_000_u32 {
            ours.send(&number, vec![]).unwrap();
        }
        let read = async {
            for number in 0..20_000_u32 {
                let received: MessageWithFds<u32> = theirs.receive().await.unwrap().unwrap();
                assert_eq!(received.message, number);
            }
        };
        tokio::select! {
            () = read => {}
            error = ours.flush() => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn an_end_that_never_reads_loses_the_link_and_not_the_senders_memory() {
        let (ours, theirs) = pair();
        let refused = (0..2 * WORKER_OUTBOX_MAX).find_map(|n| ours.send(&n, vec![]).err());
        assert!(refused.unwrap().to_string().contains("does not read"));
        while let Ok(Some(_)) = theirs.receive::<u64>().await {}
    }

    #[tokio::test]
    async fn what_is_no_message_is_an_error() {
        let (ours, theirs) = pair();
        let raw = |bytes: &[u8]| {
            rustix::net::send(ours.socket.get_ref(), bytes, SendFlags::empty()).unwrap();
        };
        let long = vec![b'j'; INLINE_BYTES_MAX + 1];
        for bytes in [&b"z{}"[..], b"f", b"j{", b"j", b"j[1,", b"j\xff", &long] {
            raw(bytes);
            let error = theirs.receive::<u32>().await.err().unwrap();
            // Others would end the connection, and with it all tasks of a worker.
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}: {error}");
        }
        ours.send(&7_u32, vec![]).unwrap();
        assert_eq!(theirs.receive::<u32>().await.unwrap().unwrap().message, 7);
    }

    /// How many descriptors of this process lead to a path that contains `name`.
    fn open(name: &str) -> usize {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.filter(|link| link.to_string_lossy().contains(name)).count()
    }

    #[tokio::test]
    async fn descriptors_of_a_message_that_is_refused_are_closed_and_the_link_goes_on() {
        let (ours, theirs) = pair();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marked-for-link");
        std::fs::write(&path, "[1").unwrap();
        let given = || Arc::new(OwnedFd::from(File::open(&path).unwrap()));
        let packet = |bytes: &[u8], fds: Vec<Arc<OwnedFd>>| Packet { bytes: bytes.to_vec(), fds };
        let as_file = |file: File| vec![Arc::new(OwnedFd::from(file))];
        let huge = tempfile::tempfile().unwrap();
        huge.set_len(WORKER_MESSAGE_BYTES_MAX + 1).unwrap();
        // No JSON, in a file and beside one; a directory; longer than any message. Each is made when the one
        // before it is gone.
        let directory = || as_file(File::open(dir.path()).unwrap());
        let refused: [&dyn Fn() -> Packet; 4] = [
            &|| packet(b"f", vec![given(), given()]),
            &|| packet(b"j{", vec![given(), given(), given(), given()]),
            &|| packet(b"f", directory()),
            &|| packet(b"f", as_file(huge.try_clone().unwrap())),
        ];
        for packet in refused {
            packet().send(ours.socket.get_ref().as_fd()).unwrap();
            let error = theirs.receive::<u32>().await.err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            assert_eq!(open("marked-for-link"), 0);
        }
        too_many(&ours, &given());
        let error = theirs.receive::<u32>().await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert_eq!(open("marked-for-link"), 0);
        ours.send(&7_u32, vec![]).unwrap();
        assert_eq!(theirs.receive::<u32>().await.unwrap().unwrap().message, 7);
    }

    /// Send a message with more descriptors than a message may have.
    fn too_many(link: &PacketLink, fd: &Arc<OwnedFd>) {
        let fds = [fd.as_fd(); 2 * FDS_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [IoSlice::new(b"j7")];
        sendmsg(link.socket.get_ref(), &bytes, &mut control, SendFlags::empty()).unwrap();
    }
}
