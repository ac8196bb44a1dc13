//! A shim's end of its task's output: from the pipes into the files.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::StreamOrder;
use ostler_logs::OutsideWriter;

/// Bytes read from a pipe at once. The buffer is on the stack, so a silent task costs none of it.
const READ_BYTES: usize = 16 * 1024;
/// Bytes read at once from the pipe of a task that prints much.
const READ_MUCH_BYTES: usize = 64 * 1024;
/// Bytes that the pipe of such a task holds, so that task and supervisor wait for each other
/// less often.
const PIPE_BYTES: usize = 256 * 1024;
/// Most reads in a row before the supervisor attends to its other duties.
const READS: usize = 8;

/// A pipe of the task, and where it goes.
pub(super) struct OutputPump {
    pub pipe: Option<OwnedFd>,
    /// The directory and the order of the files, until the files could be opened.
    order: Option<(OwnedFd, StreamOrder)>,
    writer: Option<OutsideWriter>,
    /// The task printed much, and its pipe was made to hold more.
    widened: bool,
    dropped_bytes: u64,
}

/// The streams of an order: those with files have a directory among `dirs`, in order.
pub(super) fn make_pumps(
    pipes: [OwnedFd; 2],
    orders: [Option<StreamOrder>; 2],
    dirs: Vec<OwnedFd>,
) -> [OutputPump; 2] {
    let mut dirs = dirs.into_iter();
    let [out, err] = orders;
    let [out_pipe, err_pipe] = pipes;
    let mut stream = |pipe, order: Option<StreamOrder>| OutputPump {
        pipe: Some(pipe),
        order: order.and_then(|order| Some((dirs.next()?, order))),
        writer: None,
        widened: false,
        dropped_bytes: 0,
    };
    [stream(out_pipe, out), stream(err_pipe, err)]
}

impl OutputPump {
    /// Open the files, if the stream has any. Each output tries again until it works.
    fn open(&mut self) {
        let Some((dir, order)) = &self.order else { return };
        let Ok(dir) = dir.try_clone() else { return };
        let opened =
            OutsideWriter::open(dir, order.prefix.clone(), order.files_max, order.file_bytes_max);
        if let Ok(writer) = opened {
            self.writer = Some(writer);
            self.order = None;
        }
    }

    /// Move the output that is in the pipe to the files, at most some buffers of it.
    pub(super) fn pump(&mut self) {
        if self.read::<READ_BYTES>() == READ_BYTES {
            self.pump_much();
        }
    }

    /// As [`OutputPump::pump`], with larger buffers. It is not inlined, so that a task that prints
    /// little never uses their stack.
    #[inline(never)]
    fn pump_much(&mut self) {
        if let Some(pipe) = self.pipe.as_ref().filter(|_| !self.widened) {
            self.widened = true;
            // The kernel bounds what a user has in pipes (pipe(7)); a refusal only makes this a bit
            // slower.
            let _refused = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        for _ in 0..READS {
            if self.read::<READ_MUCH_BYTES>() < READ_MUCH_BYTES {
                return;
            }
        }
    }

    /// Move at most one buffer. Returns how many bytes were moved.
    fn read<const BYTES: usize>(&mut self) -> usize {
        let Some(pipe) = &self.pipe else { return 0 };
        let mut buffer = [MaybeUninit::<u8>::uninit(); BYTES];
        match rustix::io::read(pipe, &mut buffer) {
            Ok((bytes, _)) if !bytes.is_empty() => {
                let count = bytes.len();
                if self.writer.is_none() {
                    self.open();
                }
                match &mut self.writer {
                    Some(writer) => writer.write(bytes),
                    None if self.order.is_some() => self.dropped_bytes += count as u64,
                    None => {}
                }
                return count;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Closed by its last writer, or not readable: there is nothing more to come.
            Ok(_) | Err(_) => self.pipe = None,
        }
        0
    }

    pub(super) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes + self.writer.as_ref().map_or(0, OutsideWriter::dropped_bytes)
    }
}
