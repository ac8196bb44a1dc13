//! How core modules of WASI preview 1 read, write, list and wait. They do it piece by piece, so
//! that others have the thread in between; without a copy of what is listed; and without a
//! thread that sleeps.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::{Caller, Linker};
use wasmtime_wasi::p1::types::{Errno, Filetype};
use wasmtime_wasi::p1::wasi_snapshot_preview1 as p1;
use wiggle::{GuestMemory, GuestPtr};

use super::disk_p1::{MODULE, errno, length, parts};
use super::launch::ModuleTask;
use crate::guest_files::{disk, listing};
use ostler_model::clock;
use ostler_model::limits::{
    GUEST_IO_PIECE_BYTES, GUEST_OUTPUT_PERMIT_BYTES, GUEST_WAITING_FILES_MAX,
};
use ostler_sandbox::{GuestSink, yield_once};

/// How many pieces of a directory are read before others have the thread: some thousand names.
const PIECES_AT_ONCE: u32 = 8;

pub(super) fn link_counted(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    linker.func_wrap_async(MODULE, "poll_oneoff", |mut caller, words: (i32, i32, i32, i32)| {
        Box::new(async move { poll(&mut caller, words).await })
    })?;
    linker.func_wrap_async(
        MODULE,
        "fd_readdir",
        |mut caller: Caller<'_, ModuleTask>, words: (i32, i32, i32, i64, i32)| {
            Box::new(async move { list(&mut caller, words).await })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_read",
        |mut caller: Caller<'_, ModuleTask>, (fd, at, count, moved): (i32, i32, i32, i32)| {
            Box::new(async move {
                move_in_pieces(&mut caller, Move { fd, how: MoveKind::Read, at, count, moved })
                    .await
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_write",
        |mut caller: Caller<'_, ModuleTask>, (fd, at, count, moved): (i32, i32, i32, i32)| {
            Box::new(async move {
                move_in_pieces(&mut caller, Move { fd, how: MoveKind::Write, at, count, moved })
                    .await
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_pwrite",
        |mut caller: Caller<'_, ModuleTask>,
         (fd, at, count, offset, moved): (i32, i32, i32, i64, i32)| {
            let how = MoveKind::WriteAt(offset.cast_unsigned());
            Box::new(async move {
                move_in_pieces(&mut caller, Move { fd, how, at, count, moved }).await
            })
        },
    )?;
    Ok(())
}

#[derive(Clone, Copy)]
enum MoveKind {
    Read,
    Write,
    WriteAt(u64),
}

/// Arguments of a read or write: `at` is the address of a list of `count` buffers, and the number
/// of bytes is written to the address `moved`.
#[derive(Clone, Copy)]
struct Move {
    fd: i32,
    how: MoveKind,
    at: i32,
    count: i32,
    moved: i32,
}

/// Standard output and error of a module, as long as their numbers are 1 and 2. What the module
/// prints goes from its memory straight to the sink, and not through the host's streams and a copy.
pub(super) struct PrintSinks(pub [Option<Arc<dyn GuestSink>>; 2]);

impl PrintSinks {
    fn place(&mut self, number: u32) -> Option<&mut Option<Arc<dyn GuestSink>>> {
        self.0.get_mut(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// Note that the module closed this number, or gave it to something else.
    pub(super) fn close(&mut self, number: u32) {
        if let Some(place) = self.place(number) {
            *place = None;
        }
    }
}

/// Print the first buffer that is not empty, if `what` prints. Returns the error number, 0 for
/// none. A buffer outside of the memory is left to the host's streams, which refuse it.
fn print_buffer(
    memory: &mut GuestMemory<'_>,
    task: &mut ModuleTask,
    what: Move,
) -> wasmtime::Result<Option<i32>> {
    let place = task.printing.place(what.fd.cast_unsigned());
    let Some(sink) = place.and_then(|sink| sink.as_ref()) else { return Ok(None) };
    let first = first_buffer(memory, what.at.cast_unsigned(), what.count.cast_unsigned());
    let Some((_, start, length)) = first else { return Ok(None) };
    let Ok(Some(bytes)) = memory.as_slice(GuestPtr::<[u8]>::new((start, length))) else {
        return Ok(None);
    };
    let mut done = 0;
    for piece in bytes.chunks(GUEST_OUTPUT_PERMIT_BYTES) {
        match sink.write(piece) {
            Ok(()) => done += piece.len(),
            Err(_) if done > 0 => break,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(Some(errno(Errno::Pipe)));
            }
            Err(_) => return Ok(Some(errno(Errno::Io))),
        }
    }
    write_u32(memory, what.moved.cast_unsigned(), u32::try_from(done).unwrap_or(u32::MAX))?;
    Ok(Some(0))
}

fn read_u32(memory: &GuestMemory<'_>, place: u32) -> wasmtime::Result<u32> {
    Ok(memory.read(GuestPtr::<u32>::new(place))?)
}

fn write_u32(memory: &mut GuestMemory<'_>, place: u32, value: u32) -> wasmtime::Result<()> {
    Ok(memory.write(GuestPtr::<u32>::new(place), value)?)
}

/// The first buffer that is not empty: the address of its entry in the list, its own address,
/// and its length.
fn first_buffer(memory: &GuestMemory<'_>, at: u32, count: u32) -> Option<(u32, u32, u32)> {
    for nth in 0..count {
        let place = at.checked_add(nth.checked_mul(8)?)?;
        let length = read_u32(memory, place.checked_add(4)?).ok()?;
        if length > 0 {
            let start = read_u32(memory, place).ok()?;
            return Some((place, start, length));
        }
    }
    None
}

/// Read or write a long buffer in pieces, because it takes disk and memory long. Others have the
/// thread between the pieces, and the quota of the task is checked before each.
async fn move_in_pieces(caller: &mut Caller<'_, ModuleTask>, whole: Move) -> wasmtime::Result<i32> {
    let (memory, _) = parts(caller)?;
    let buffer = first_buffer(&memory, whole.at.cast_unsigned(), whole.count.cast_unsigned());
    let Some((place, start, length)) = buffer.filter(|first| first.2 > GUEST_IO_PIECE_BYTES) else {
        return move_at_once(caller, whole).await;
    };
    let mut done: u32 = 0;
    let last = loop {
        let bytes = length.saturating_sub(done).min(GUEST_IO_PIECE_BYTES);
        let (mut memory, _) = parts(caller)?;
        write_u32(&mut memory, place, start.wrapping_add(done))?;
        write_u32(&mut memory, place.wrapping_add(4), bytes)?;
        let how = match whole.how {
            MoveKind::WriteAt(offset) => MoveKind::WriteAt(offset.saturating_add(done.into())),
            how => how,
        };
        let piece = Move { how, at: place.cast_signed(), count: 1, ..whole };
        let moved = move_at_once(caller, piece).await;
        if !matches!(moved, Ok(0)) {
            break moved;
        }
        let (memory, _) = parts(caller)?;
        let moved = read_u32(&memory, whole.moved.cast_unsigned())?.min(bytes);
        done = done.saturating_add(moved);
        if moved < bytes || done >= length {
            break Ok(0);
        }
        yield_once().await;
    };
    let (mut memory, _) = parts(caller)?;
    write_u32(&mut memory, place, start)?;
    write_u32(&mut memory, place.wrapping_add(4), length)?;
    // If something went wrong after a part of it, the guest gets the error at its next try.
    if done > 0 && last.is_ok() {
        write_u32(&mut memory, whole.moved.cast_unsigned(), done)?;
        return Ok(0);
    }
    last
}

async fn move_at_once(caller: &mut Caller<'_, ModuleTask>, what: Move) -> wasmtime::Result<i32> {
    let (mut memory, task) = parts(caller)?;
    let Move { fd, how, at, count, moved } = what;
    if matches!(how, MoveKind::Read) {
        return p1::fd_read(&mut task.wasi, &mut memory, fd, at, count, moved).await;
    }
    if matches!(how, MoveKind::Write)
        && let Some(done) = print_buffer(&mut memory, task, what)?
    {
        return Ok(done);
    }
    let before = length(task, &mut memory, fd).await;
    // A write far behind the end makes the file as long.
    let refused = before.is_some_and(|before| match how {
        MoveKind::WriteAt(offset) => task.disk.is_full() || !task.disk.fits(before, offset),
        _ => task.disk.is_full(),
    });
    if refused {
        return Ok(errno(Errno::Nospc));
    }
    let wasi = &mut task.wasi;
    let done = match how {
        MoveKind::WriteAt(offset) => {
            let offset = offset.cast_signed();
            p1::fd_pwrite(wasi, &mut memory, fd, at, count, offset, moved).await
        }
        _ => p1::fd_write(wasi, &mut memory, fd, at, count, moved).await,
    };
    if let Some(before) = before {
        let after = length(task, &mut memory, fd).await.unwrap_or(before);
        task.disk.record_resize(before, after);
    }
    done
}

const fn kind(kind: rustix::fs::FileType) -> Filetype {
    use rustix::fs::FileType;
    match kind {
        FileType::RegularFile => Filetype::RegularFile,
        FileType::Directory => Filetype::Directory,
        FileType::Symlink => Filetype::SymbolicLink,
        FileType::CharacterDevice => Filetype::CharacterDevice,
        FileType::BlockDevice => Filetype::BlockDevice,
        _ => Filetype::Unknown,
    }
}

/// An entry as `fd_readdir` writes it: the position of the next entry, its inode number, the length
/// of its name, its kind, its name.
fn dirent(device: u64, entry: &listing::ListingEntry) -> Vec<u8> {
    let name = entry.name.as_bytes();
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(24 + name.len());
    bytes.extend(entry.next.to_le_bytes());
    bytes.extend(disk::identity(device, entry.inode).to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend([kind(entry.kind) as u8, 0, 0, 0]);
    bytes.extend(name);
    bytes
}

fn io_errno(error: &std::io::Error) -> i32 {
    use std::io::ErrorKind;
    errno(match error.kind() {
        ErrorKind::NotADirectory => Errno::Notdir,
        ErrorKind::PermissionDenied => Errno::Acces,
        ErrorKind::NotFound => Errno::Noent,
        ErrorKind::InvalidInput => Errno::Inval,
        _ => Errno::Io,
    })
}

/// `fd_readdir`: write as many bytes of entries as fit, from a position on. The last entry is cut.
/// Fewer bytes than fit mean the end of the directory.
async fn list(
    caller: &mut Caller<'_, ModuleTask>,
    (fd, buffer, room, place, used): (i32, i32, i32, i64, i32),
) -> wasmtime::Result<i32> {
    let (_, task) = parts(caller)?;
    let Some(open) = task.files.get(fd.cast_unsigned()).map(Arc::clone) else {
        return Ok(errno(Errno::Badf));
    };
    let waits = task.files.waits();
    let Ok(_permit) = task.files.permit() else { return Ok(errno(Errno::Mfile)) };
    let (at, room) = (buffer.cast_unsigned(), room.cast_unsigned());
    let opened = listing::open(open.file()).and_then(|dir| {
        if place != 0 {
            listing::seek(&dir, place.cast_unsigned())?;
        }
        Ok((Arc::new(dir), std::os::unix::fs::MetadataExt::dev(&open.file().metadata()?)))
    });
    let (dir, device) = match opened {
        Ok(opened) => opened,
        Err(error) => return Ok(io_errno(&error)),
    };
    let mut written: u32 = 0;
    for nth in 1_u32.. {
        let piece = match listing::next_piece(&dir, waits).await {
            Ok(piece) => piece,
            Err(error) => return Ok(io_errno(&error)),
        };
        let (mut memory, _) = parts(caller)?;
        for entry in &piece {
            let bytes = dirent(device, entry);
            let left = room.saturating_sub(written);
            let part = bytes.get(..left as usize).unwrap_or(&bytes);
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let to = GuestPtr::<[u8]>::new((at.saturating_add(written), length));
            memory.copy_from_slice(part, to)?;
            written = written.saturating_add(length);
            if written == room {
                break;
            }
        }
        if piece.is_empty() || written == room {
            break;
        }
        if nth % PIECES_AT_ONCE == 0 {
            yield_once().await;
        }
    }
    let (mut memory, _) = parts(caller)?;
    write_u32(&mut memory, used.cast_unsigned(), written)?;
    Ok(0)
}

/// Offset of the tag in a subscription, which says what it is for. Below are those of timeout and
/// flags of a clock.
const TAG: usize = 8;
const TIMEOUT: usize = 24;
const FLAGS: usize = 40;

/// `poll_oneoff`. A single wait for a time is done here. wasmtime-wasi would let the thread sleep,
/// because the context allows files to hold it. Two such tasks would hold all guest threads, and no
/// kill would end them.
async fn poll(
    caller: &mut Caller<'_, ModuleTask>,
    (subscriptions, events, count, written): (i32, i32, i32, i32),
) -> wasmtime::Result<i32> {
    let at = |offset| (subscriptions.cast_unsigned() as usize).checked_add(offset);
    let number = |memory: &GuestMemory<'_>, offset: usize| {
        let at = at(offset)?;
        let GuestMemory::Unshared(bytes) = memory else { return None };
        bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
    };
    let (memory, task) = parts(caller)?;
    // Each subscription costs two entries of the table and a future on the host.
    let of_files = count.cast_unsigned() as usize > GUEST_WAITING_FILES_MAX;
    if count.cast_unsigned() > task.handles || (task.files.waits() && of_files) {
        return Ok(errno(Errno::Inval));
    }
    let of_clock = number(&memory, TAG).is_some_and(|tag| tag & 0xff == 0);
    let relative = number(&memory, FLAGS).is_some_and(|flags| flags & 1 == 0);
    let timeout = number(&memory, TIMEOUT).filter(|_| count == 1 && of_clock && relative);
    if let Some(timeout) = timeout {
        clock::sleep(Duration::from_nanos(timeout)).await;
    }
    let (mut memory, task) = parts(caller)?;
    let set = |memory: &mut GuestMemory<'_>, value: u64| {
        let place = at(TIMEOUT).and_then(|at| Some(at..at.checked_add(8)?));
        if let (GuestMemory::Unshared(bytes), Some(place)) = (memory, place)
            && let Some(place) = bytes.get_mut(place)
        {
            place.copy_from_slice(&value.to_le_bytes());
        }
    };
    if timeout.is_some() {
        set(&mut memory, 0);
    }
    let wasi = &mut task.wasi;
    let done = p1::poll_oneoff(wasi, &mut memory, subscriptions, events, count, written).await;
    if let Some(timeout) = timeout {
        set(&mut memory, timeout);
    }
    done
}
