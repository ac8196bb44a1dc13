//! [`DiskQuota`](super::disk::DiskQuota) for components.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceTableError};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DescriptorType, ErrorCode, Host as _, HostDescriptor as _,
    OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{
    DynOutputStream, FsResult, OutputStream, Pollable, StreamError, StreamResult,
};
use wasmtime_wasi::{WasiView as _, async_trait};

use super::disk::DiskQuota;
use super::launch::ComponentTask;
use crate::host::special_files::{TYPES, plain};

type Context<'a> = StoreContextMut<'a, ComponentTask>;
/// What a function of the interface answers.
type Answer<T> = wasmtime::Result<(Result<T, ErrorCode>,)>;
const FULL: ErrorCode = ErrorCode::InsufficientSpace;

fn again<T>(resource: &Resource<T>) -> Resource<T>
where
    T: 'static,
{
    Resource::new_borrow(resource.rep())
}

impl ComponentTask {
    fn answer<T>(&mut self, result: FsResult<T>) -> Answer<T> {
        Ok((match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.filesystem().convert_error_code(error)?),
        },))
    }

    /// Length of an open regular file; of anything else nothing.
    async fn length(&mut self, file: &Resource<Descriptor>) -> u64 {
        let stat = self.filesystem().stat(again(file)).await;
        stat.ok().filter(regular).map_or(0, |stat| stat.size)
    }
}

fn regular(stat: &DescriptorStat) -> bool {
    matches!(stat.type_, DescriptorType::RegularFile)
}

/// Put a count around every function that changes how much there is.
pub(super) fn bound(linker: &mut Linker<ComponentTask>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    writes(linker)?;
    streams(linker)?;
    names(linker)?;
    files(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

fn writes(linker: &mut Linker<ComponentTask>) -> wasmtime::Result<()> {
    let mut types = linker.instance(TYPES)?;
    types.func_wrap_async(
        "[method]descriptor.write",
        |mut context: Context<'_>, (file, bytes, at): (Resource<Descriptor>, Vec<u8>, u64)| {
            Box::new(async move {
                let task = context.data_mut();
                let before = task.length(&file).await;
                if task.disk.full() || !task.disk.fits(before, at) {
                    return Ok((Err(FULL),));
                }
                let done = task.filesystem().write(again(&file), bytes, at).await;
                let after = task.length(&file).await;
                task.disk.resized(before, after);
                task.answer(done)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.set-size",
        |mut context: Context<'_>, (file, size): (Resource<Descriptor>, u64)| {
            Box::new(async move {
                let task = context.data_mut();
                let before = task.length(&file).await;
                if !task.disk.fits(before, size) {
                    return Ok((Err(FULL),));
                }
                let done = task.filesystem().set_size(again(&file), size).await;
                let after = task.length(&file).await;
                task.disk.resized(before, after);
                task.answer(done)
            })
        },
    )
}

fn streams(linker: &mut Linker<ComponentTask>) -> wasmtime::Result<()> {
    let mut types = linker.instance(TYPES)?;
    // Asynchronous only to ask for the file's length; the interface does not tell the difference.
    types.func_wrap_async(
        "[method]descriptor.write-via-stream",
        |mut context: Context<'_>, (file, at): (Resource<Descriptor>, u64)| {
            Box::new(async move {
                let task = context.data_mut();
                let length = task.length(&file).await;
                let stream = task.filesystem().write_via_stream(again(&file), at);
                let stream = stream.and_then(|stream| Ok(counted(task, stream, at, length)?));
                task.answer(stream)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.append-via-stream",
        |mut context: Context<'_>, (file,): (Resource<Descriptor>,)| {
            Box::new(async move {
                let task = context.data_mut();
                let length = task.length(&file).await;
                let stream = task.filesystem().append_via_stream(again(&file));
                let stream = stream.and_then(|stream| Ok(counted(task, stream, length, length)?));
                task.answer(stream)
            })
        },
    )
}

fn names(linker: &mut Linker<ComponentTask>) -> wasmtime::Result<()> {
    let mut types = linker.instance(TYPES)?;
    types.func_wrap_async(
        "[method]descriptor.create-directory-at",
        |mut context: Context<'_>, (dir, path): (Resource<Descriptor>, String)| {
            Box::new(async move {
                let task = context.data_mut();
                if task.disk.full() {
                    return Ok((Err(FULL),));
                }
                let done = task.filesystem().create_directory_at(dir, path).await;
                task.made(done)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.symlink-at",
        |mut context: Context<'_>, (dir, old, new): (Resource<Descriptor>, String, String)| {
            Box::new(async move {
                let task = context.data_mut();
                if task.disk.full() {
                    return Ok((Err(FULL),));
                }
                let done = task.filesystem().symlink_at(dir, old, new).await;
                task.made(done)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.link-at",
        |mut context: Context<'_>,
         (dir, flags, old, to, new): (
            Resource<Descriptor>,
            PathFlags,
            String,
            Resource<Descriptor>,
            String,
        )| {
            Box::new(async move {
                let task = context.data_mut();
                if task.disk.full() {
                    return Ok((Err(FULL),));
                }
                let done = task.filesystem().link_at(dir, flags, old, to, new).await;
                task.made(done)
            })
        },
    )
}

impl ComponentTask {
    fn made(&mut self, done: FsResult<()>) -> Answer<()> {
        if done.is_ok() {
            self.disk.made();
        }
        self.answer(done)
    }
}

fn files(linker: &mut Linker<ComponentTask>) -> wasmtime::Result<()> {
    let mut types = linker.instance(TYPES)?;
    types.func_wrap_async(
        "[method]descriptor.open-at",
        |mut context: Context<'_>,
         (dir, flags, path, open, rights): (
            Resource<Descriptor>,
            PathFlags,
            String,
            OpenFlags,
            DescriptorFlags,
        )| {
            Box::new(async move {
                let task = context.data_mut();
                let (creates, truncates) =
                    (open.contains(OpenFlags::CREATE), open.contains(OpenFlags::TRUNCATE));
                let before = task.filesystem().stat_at(again(&dir), flags, path.clone()).await.ok();
                if before.as_ref().is_some_and(|file| !plain(file)) {
                    return Ok((Err(ErrorCode::Access),));
                }
                if creates && before.is_none() && task.disk.full() {
                    return Ok((Err(FULL),));
                }
                let done = task.filesystem().open_at(dir, flags, path, open, rights).await;
                match before {
                    _ if done.is_err() => {}
                    None if creates => task.disk.made(),
                    Some(file) if truncates => task.disk.resized(file.size, 0),
                    _ => {}
                }
                task.answer(done)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.unlink-file-at",
        |mut context: Context<'_>, (dir, path): (Resource<Descriptor>, String)| {
            Box::new(async move {
                let task = context.data_mut();
                let none = PathFlags::empty();
                let before = task.filesystem().stat_at(again(&dir), none, path.clone()).await;
                let done = task.filesystem().unlink_file_at(dir, path).await;
                if let (Ok(()), Ok(file)) = (&done, before) {
                    let last = file.link_count == 1 && regular(&file);
                    task.disk.removed(if last { file.size } else { 0 });
                }
                task.answer(done)
            })
        },
    )
}

/// Put a counting stream in the place of one that writes at `at` into a file of `length` bytes.
fn counted(
    task: &mut ComponentTask,
    stream: Resource<DynOutputStream>,
    at: u64,
    length: u64,
) -> Result<Resource<DynOutputStream>, ResourceTableError> {
    let disk = Arc::clone(&task.disk);
    let table = task.ctx().table;
    let inner = table.delete(stream)?;
    let counted: DynOutputStream = Box::new(Counted { inner, disk, at, length });
    table.push(counted)
}

/// A stream into a file that stops when there is no room.
struct Counted {
    inner: DynOutputStream,
    disk: Arc<DiskQuota>,
    at: u64,
    /// The longest the file was known to be.
    length: u64,
}

#[async_trait]
impl Pollable for Counted {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl OutputStream for Counted {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let end = self.at.saturating_add(bytes.len() as u64);
        if !self.disk.fits(self.length, end) {
            let full = std::io::Error::from(rustix::io::Errno::NOSPC);
            return Err(StreamError::LastOperationFailed(full.into()));
        }
        self.inner.write(bytes)?;
        self.at = end;
        if end > self.length {
            self.disk.resized(self.length, end);
            self.length = end;
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.inner.check_write()
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}
