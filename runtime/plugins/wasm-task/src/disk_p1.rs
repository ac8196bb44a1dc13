//! Files of core modules of WASI preview 1: what they open and what they change is counted. Modules
//! may also exit with any code. How they read and write is in [`super::io_p1`].

use wasmtime::component::{Resource, ResourceTable};
use wasmtime::{AsContextMut as _, Caller, Extern, Linker};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView as _};
use wasmtime_wasi::p1::types::{Errno, Fd, Filestat, Filetype, Lookupflags};
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self as p1, WasiSnapshotPreview1 as _};
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wiggle::{GuestMemory, GuestPtr};

use super::io_p1;
use super::launch::ModuleTask;
use crate::guest_files::OpenRefusal;

/// Number of the first directory that a module was given.
const FIRST_GIVEN: u32 = 3;
pub(super) const MODULE: &str = "wasi_snapshot_preview1";
/// Bits in `oflags` of `path_open`.
const CREATE: i32 = 1;
const TRUNCATE: i32 = 8;

/// The guest's memory and the data of the task.
pub(super) fn parts<'a>(
    caller: &'a mut Caller<'_, ModuleTask>,
) -> wasmtime::Result<(GuestMemory<'a>, &'a mut ModuleTask)> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Err(wasmtime::Error::msg("the module does not export its memory"));
    };
    // The wrapper of wasmtime-wasi does the same first: it sets how much each call may copy.
    let fuel = caller.as_context_mut().hostcall_fuel();
    let (bytes, task) = memory.data_and_store_mut(caller);
    task.wasi.set_hostcall_fuel(fuel);
    Ok((GuestMemory::Unshared(bytes), task))
}

pub(super) fn errno(error: Errno) -> i32 {
    i32::from(u16::from(error))
}

/// Length of an open regular file, bytes; `None` for anything else.
pub(super) async fn length(
    task: &mut ModuleTask,
    memory: &mut GuestMemory<'_>,
    fd: i32,
) -> Option<u64> {
    let open = task.files.get(fd.cast_unsigned())?;
    if !task.files.waits() {
        return open.file().metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
    }
    let stat = task.wasi.fd_filestat_get(memory, Fd::from(fd.cast_unsigned())).await.ok()?;
    (stat.filetype == Filetype::RegularFile).then_some(stat.size)
}

/// What a name stands for. Links are not followed unless `flags` say so. `None` only where there is
/// nothing: a name that cannot be looked at is an error, because it is not known whether opening it
/// waits for ever.
async fn stat_name(
    task: &mut ModuleTask,
    memory: &mut GuestMemory<'_>,
    dir: i32,
    flags: Lookupflags,
    path: (i32, i32),
) -> Result<Option<Filestat>, Errno> {
    let path = GuestPtr::<str>::new((path.0.cast_unsigned(), path.1.cast_unsigned()));
    let dir = Fd::from(dir.cast_unsigned());
    match task.wasi.path_filestat_get(memory, dir, flags, path).await {
        Ok(found) => Ok(Some(found)),
        Err(error) => match error.downcast_ref().copied() {
            Some(Errno::Noent | Errno::Notdir) => Ok(None),
            Some(other) => Err(other),
            None => Err(Errno::Inval),
        },
    }
}

/// Is this a file, directory or link? Opening a pipe or a device may wait for ever, and hold
/// a guest thread.
fn is_plain(kind: Filetype) -> bool {
    matches!(kind, Filetype::RegularFile | Filetype::Directory | Filetype::SymbolicLink)
}

/// Note the directories that a module is given, before it runs.
pub(super) fn note_given_dirs(task: &mut ModuleTask) -> wasmtime::Result<()> {
    let mut wasi = task.wasi.filesystem();
    for (number, (dir, _)) in (FIRST_GIVEN..).zip(wasi.get_directories()?) {
        task.files.add_given(number, &wasi.table.delete(dir)?);
    }
    Ok(())
}

/// Put a check and a count around every function that opens something or changes how much there is.
pub(super) fn link_counted(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    link_writes(linker)?;
    link_names(linker)?;
    io_p1::link_counted(linker)?;
    // wasmtime-wasi takes a code above 125 for a failure of its own.
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime_wasi::I32Exit(exit_code(code)).into())
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

/// An exit code from 0 to 255. Any other code becomes 255, as -1 does for a native program.
fn exit_code(code: i32) -> i32 {
    u8::try_from(code).unwrap_or(u8::MAX).into()
}

fn link_writes(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    linker.func_wrap_async(
        MODULE,
        "fd_filestat_set_size",
        |mut caller: Caller<'_, ModuleTask>, (fd, size): (i32, i64)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let before = length(task, &mut memory, fd).await.unwrap_or(0);
                if !task.disk.fits(before, size.cast_unsigned()) {
                    return Ok(errno(Errno::Nospc));
                }
                let done = p1::fd_filestat_set_size(&mut task.wasi, &mut memory, fd, size).await;
                let after = length(task, &mut memory, fd).await.unwrap_or(before);
                if after < before {
                    task.files.record_shrink(fd.cast_unsigned());
                }
                task.disk.record_resize(before, after);
                done
            })
        },
    )?;
    Ok(())
}

/// Link a function that makes a name.
macro_rules! making {
    ($linker:ident, $name:ident, ($($arg:ident),*)) => {
        $linker.func_wrap_async(
            MODULE,
            stringify!($name),
            |mut caller: Caller<'_, ModuleTask>, ($($arg),*): ($(replace!($arg i32)),*)| {
                Box::new(async move {
                    let (mut memory, task) = parts(&mut caller)?;
                    if task.disk.is_full() {
                        return Ok(errno(Errno::Nospc));
                    }
                    let done = p1::$name(&mut task.wasi, &mut memory, $($arg),*).await;
                    if matches!(done, Ok(0)) {
                        task.disk.record_name();
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

fn link_names(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    making!(linker, path_create_directory, (dir, path, len));
    making!(linker, path_symlink, (old, old_len, dir, path, len));
    making!(linker, path_link, (old_dir, flags, old, old_len, dir, path, len));
    linker.func_wrap_async(
        MODULE,
        "path_open",
        |mut caller: Caller<'_, ModuleTask>, words: Open| {
            Box::new(async move { open(&mut caller, words).await })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_close",
        |mut caller: Caller<'_, ModuleTask>, (fd,): (i32,)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let done = p1::fd_close(&mut task.wasi, &mut memory, fd).await;
                if matches!(done, Ok(0)) {
                    task.files.remove(fd.cast_unsigned());
                    task.printing.close(fd.cast_unsigned());
                }
                done
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "fd_renumber",
        |mut caller: Caller<'_, ModuleTask>, (from, to): (i32, i32)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let done = p1::fd_renumber(&mut task.wasi, &mut memory, from, to).await;
                if matches!(done, Ok(0)) && from != to {
                    task.printing.close(from.cast_unsigned());
                    task.printing.close(to.cast_unsigned());
                    task.files.remove(to.cast_unsigned());
                    task.files.renumber(from.cast_unsigned(), to.cast_unsigned());
                }
                done
            })
        },
    )?;
    link_removals(linker)
}

fn link_removals(linker: &mut Linker<ModuleTask>) -> wasmtime::Result<()> {
    linker.func_wrap_async(
        MODULE,
        "path_unlink_file",
        |mut caller: Caller<'_, ModuleTask>, (dir, path, len): (i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let none = Lookupflags::empty();
                let before = stat_name(task, &mut memory, dir, none, (path, len)).await;
                let before = before.ok().flatten();
                let wasi = &mut task.wasi;
                let done = p1::path_unlink_file(wasi, &mut memory, dir, path, len).await;
                if matches!(done, Ok(0)) {
                    record_removal(task, before);
                }
                done
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "path_remove_directory",
        |mut caller: Caller<'_, ModuleTask>, (dir, path, len): (i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let wasi = &mut task.wasi;
                let done = p1::path_remove_directory(wasi, &mut memory, dir, path, len).await;
                if matches!(done, Ok(0)) {
                    task.disk.record_removal(0);
                }
                done
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "path_rename",
        |mut caller: Caller<'_, ModuleTask>,
         (dir, old, old_len, to, new, new_len): (i32, i32, i32, i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, task) = parts(&mut caller)?;
                let none = Lookupflags::empty();
                // The file that the new name stood for is replaced, unless both names are of one
                // file.
                let moved = stat_name(task, &mut memory, dir, none, (old, old_len)).await;
                let before = stat_name(task, &mut memory, to, none, (new, new_len)).await;
                let (moved, before) = (moved.ok().flatten(), before.ok().flatten());
                let (wasi, memory) = (&mut task.wasi, &mut memory);
                let done = p1::path_rename(wasi, memory, dir, old, old_len, to, new, new_len).await;
                let other = moved.map(|file| file.ino) != before.as_ref().map(|file| file.ino);
                if matches!(done, Ok(0)) && other && before.is_some() {
                    record_removal(task, before);
                }
                done
            })
        },
    )?;
    Ok(())
}

/// Count a name that is gone, and its file if this was the last name.
fn record_removal(task: &ModuleTask, before: Option<Filestat>) {
    let Some(file) = before else { return };
    if file.nlink == 1 && file.filetype == Filetype::RegularFile {
        task.files.record_unlink(file.ino, file.size);
    } else {
        task.disk.record_removal(0);
    }
}

/// Arguments of `path_open`: the directory, how links are followed, path and length, how to open,
/// rights, flags, and where the number is written.
type Open = (i32, i32, i32, i32, i32, i64, i64, i32, i32);

async fn open(caller: &mut Caller<'_, ModuleTask>, words: Open) -> wasmtime::Result<i32> {
    let (dir, flags, path, len, oflags, base, inheriting, fdflags, place) = words;
    let (mut memory, task) = parts(caller)?;
    let follow = Lookupflags::SYMLINK_FOLLOW;
    let before = match stat_name(task, &mut memory, dir, follow, (path, len)).await {
        Ok(before) => before,
        Err(error) => return Ok(errno(error)),
    };
    if before.as_ref().is_some_and(|file| !is_plain(file.filetype)) {
        return Ok(errno(Errno::Acces));
    }
    if oflags & CREATE != 0 && before.is_none() && task.disk.is_full() {
        return Ok(errno(Errno::Nospc));
    }
    let Ok(permit) = task.files.permit() else { return Ok(errno(Errno::Mfile)) };
    let entry = next_entry(task.wasi.ctx().table)?;
    let (wasi, guest) = (&mut task.wasi, &mut memory);
    let done =
        p1::path_open(wasi, guest, dir, flags, path, len, oflags, base, inheriting, fdflags, place);
    let done = done.await;
    if !matches!(done, Ok(0)) {
        return done;
    }
    match before {
        None if oflags & CREATE != 0 => task.disk.record_name(),
        Some(file) if oflags & TRUNCATE != 0 => task.disk.record_resize(file.size, 0),
        _ => {}
    }
    let number = memory.read(GuestPtr::<u32>::new(place.cast_unsigned()))?;
    let opened = task.wasi.ctx().table.get(&entry)?;
    let refused = match task.files.add_opened(number, opened, permit) {
        Ok(()) => {
            if oflags & TRUNCATE != 0 {
                task.files.record_shrink(number);
            }
            return done;
        }
        Err(OpenRefusal::TooMany) => Errno::Mfile,
        Err(OpenRefusal::NotThere) => Errno::Acces,
    };
    p1::fd_close(&mut task.wasi, &mut memory, number.cast_signed()).await?;
    Ok(errno(refused))
}

/// The entry that the table gives next. The numbers that wasmtime-wasi gives to modules lead to its
/// entries, and it does not say how. Whether the entry is a descriptor is checked when it is there.
fn next_entry(table: &mut ResourceTable) -> wasmtime::Result<Resource<Descriptor>> {
    let probe = table.push(())?;
    let entry = Resource::new_borrow(probe.rep());
    table.delete(probe)?;
    Ok(entry)
}
