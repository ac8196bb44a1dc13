//! [`DiskQuota`](super::disk::DiskQuota) for core modules of WASI preview 1, waits that hold no
//! thread, and exits with any code.

use std::time::Duration;

use wasmtime::{AsContextMut as _, Caller, Extern, Linker};
use wasmtime_wasi::p1::types::{Errno, Fd, Filestat, Filetype, Lookupflags};
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self as p1, WasiSnapshotPreview1 as _};
use wiggle::{GuestMemory, GuestPtr};

use super::launch::ModuleTask;
use crate::clock;

const MODULE: &str = "wasi_snapshot_preview1";
/// `oflags` of `path_open`.
const CREATE: i32 = 1;
const TRUNCATE: i32 = 8;

/// The guest's memory, and the task's data beside it.
fn parts<'a>(
    caller: &'a mut Caller<'_, ModuleTask>,
) -> wasmtime::Result<(GuestMemory<'a>, &'a mut ModuleTask)> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Err(wasmtime::Error::msg("the module does not export its memory"));
    };
    // What wasmtime-wasi's own wrapper does first: each call may copy so much.
    let fuel = caller.as_context_mut().hostcall_fuel();
    let (bytes, task) = memory.data_and_store_mut(caller);
    task.wasi.set_hostcall_fuel(fuel);
    Ok((GuestMemory::Unshared(bytes), task))
}

fn errno(error: Errno) -> i32 {
    i32::from(u16::from(error))
}

/// Length of an open regular file.
async fn length(task: &mut ModuleTask, memory: &mut GuestMemory<'_>, fd: i32) -> Option<u64> {
    let stat = task.wasi.fd_filestat_get(memory, Fd::from(fd.cast_unsigned())).await.ok()?;
    (stat.filetype == Filetype::RegularFile).then_some(stat.size)
}

/// What a name stands for, links not followed unless `flags` say so.
async fn named(
    task: &mut ModuleTask,
    memory: &mut GuestMemory<'_>,
    dir: i32,
    flags: Lookupflags,
    path: (i32, i32),
) -> Option<Filestat> {
    let path = GuestPtr::<str>::new((path.0.cast_unsigned(), path.1.cast_unsigned()));
    task.wasi.path_filestat_get(memory, Fd::from(dir.cast_unsigned()), flags, path).await.ok()
}

/// Opening a pipe or a device may wait for ever, and a guest thread with it.
fn plain(kind: Filetype) -> bool {
    matches!(kind, Filetype::RegularFile | Filetype::Directory | Filetype::SymbolicLink)
}

/// Put a count around every function that changes how much there is, and wait where wasmtime-wasi
/// would hold the thread.
pub(super) fn bound(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    writes(linker)?;
    names(linker)?;
    linker.func_wrap_async(MODULE, "poll_oneoff", |mut caller, words: (i32, i32, i32, i32)| {
        Box::new(async move { poll(&mut caller, words).await })
    })?;
    // wasmtime-wasi takes a code above 125 for a failure of its own.
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime_wasi::I32Exit(exit_code(code)).into())
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

/// One of the codes there are; another one is a failure, as -1 is to a native program.
fn exit_code(code: i32) -> i32 {
    u8::try_from(code).unwrap_or(u8::MAX).into()
}

/// Offsets in a subscription: what for, and of a clock its timeout and flags.
const TAG: usize = 8;
const TIMEOUT: usize = 24;
const FLAGS: usize = 40;

/// A single wait for a time is waited for here: wasmtime-wasi lets the thread sleep, because the
/// context allows files to hold it. Two such tasks would hold all guest threads, and no kill ends
/// them.
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
    let (memory, _) = parts(caller)?;
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

/// A function that changes the length of the open file that is its first argument.
macro_rules! resizing {
    ($linker:ident, $name:ident, ($($arg:ident: $type:ty),*), $fits:expr) => {
        $linker.func_wrap_async(
            MODULE,
            stringify!($name),
            |mut caller: Caller<'_, ModuleTask>, (fd, $($arg),*): (i32, $($type),*)| {
                Box::new(async move {
                    let (mut memory, task) = parts(&mut caller)?;
                    let Some(before) = length(task, &mut memory, fd).await else {
                        return p1::$name(&mut task.wasi, &mut memory, fd, $($arg),*).await;
                    };
                    let fits: fn(&ModuleTask, u64, $($type),*) -> bool = $fits;
                    if !fits(task, before, $($arg),*) {
                        return Ok(errno(Errno::Nospc));
                    }
                    let done = p1::$name(&mut task.wasi, &mut memory, fd, $($arg),*).await;
                    let after = length(task, &mut memory, fd).await.unwrap_or(before);
                    task.disk.resized(before, after);
                    done
                })
            },
        )?;
    };
}

fn writes(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    resizing!(linker, fd_write, (at: i32, count: i32, written: i32), |task, _, _, _, _| {
        !task.disk.full()
    });
    resizing!(
        linker, fd_pwrite, (at: i32, count: i32, offset: i64, written: i32),
        // A write far behind the end makes the file as long.
        |task, before, _, _, offset, _| {
            !task.disk.full() && task.disk.fits(before, offset.cast_unsigned())
        }
    );
    resizing!(linker, fd_filestat_set_size, (size: i64), |task, before, size| {
        task.disk.fits(before, size.cast_unsigned())
    });
    Ok(())
}

/// A function that makes a name.
macro_rules! making {
    ($linker:ident, $name:ident, ($($arg:ident),*)) => {
        $linker.func_wrap_async(
            MODULE,
            stringify!($name),
            |mut caller: Caller<'_, ModuleTask>, ($($arg),*): ($(replace!($arg i32)),*)| {
                Box::new(async move {
                    let (mut memory, task) = parts(&mut caller)?;
                    if task.disk.full() {
                        return Ok(errno(Errno::Nospc));
                    }
                    let done = p1::$name(&mut task.wasi, &mut memory, $($arg),*).await;
                    if matches!(done, Ok(0)) {
                        task.disk.made();
                    }
                    done
                })
            },
        )?;
    };
}

macro_rules! replace {
    ($ignored:ident $type:ty) => {
        $type
    };
}

fn names(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    making!(linker, path_create_directory, (dir, path, len));
    making!(linker, path_symlink, (old, old_len, dir, path, len));
    making!(linker, path_link, (old_dir, flags, old, old_len, dir, path, len));
    linker.func_wrap_async(
        MODULE,
        "path_open",
        |mut caller: Caller<'_, ModuleTask>,
         (dir, flags, path, len, oflags, base, inheriting, fdflags, opened): (
            i32,
            i32,
            i32,
            i32,
            i32,
            i64,
            i64,
            i32,
            i32,
        )| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let changes = oflags & (CREATE | TRUNCATE) != 0;
                let follow = Lookupflags::SYMLINK_FOLLOW;
                let before = named(task, &mut memory, dir, follow, (path, len)).await;
                if before.as_ref().is_some_and(|file| !plain(file.filetype)) {
                    return Ok(errno(Errno::Acces));
                }
                if oflags & CREATE != 0 && before.is_none() && task.disk.full() {
                    return Ok(errno(Errno::Nospc));
                }
                let (wasi, memory) = (&mut task.wasi, &mut memory);
                let done = p1::path_open(
                    wasi, memory, dir, flags, path, len, oflags, base, inheriting, fdflags, opened,
                );
                let done = done.await;
                if changes && matches!(done, Ok(0)) {
                    match before {
                        None => task.disk.made(),
                        Some(file) if oflags & TRUNCATE != 0 => task.disk.resized(file.size, 0),
                        Some(_) => {}
                    }
                }
                done
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "path_unlink_file",
        |mut caller: Caller<'_, ModuleTask>, (dir, path, len): (i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let none = Lookupflags::empty();
                let before = named(task, &mut memory, dir, none, (path, len)).await;
                let wasi = &mut task.wasi;
                let done = p1::path_unlink_file(wasi, &mut memory, dir, path, len).await;
                if let (Ok(0), Some(file)) = (&done, before) {
                    let last = file.nlink == 1 && file.filetype == Filetype::RegularFile;
                    task.disk.removed(if last { file.size } else { 0 });
                }
                done
            })
        },
    )?;
    Ok(())
}
