//! `wasi:filesystem` for components, for tasks and plugins alike. It is that of wasmtime-wasi,
//! with a check and a count around every function that opens something, keeps it, or changes how
//! much there is.

use std::sync::Arc;

use wasmtime::component::{HasData, Resource};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView};
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as Preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, DirectoryEntryStream,
    ErrorCode, Host, HostDescriptor, HostDirectoryEntryStream, MetadataHashValue, NewTimestamp,
    OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};

use super::listing::{Listing, ListingEntry};
use super::streams::{FileInput, FileOutput, WaitingInput, WaitingOutput};
use super::{GuestFile, GuestFiles, HasGuestFiles, OpenRefusal, descriptor_file, places};

type Fd = Resource<Descriptor>;

const FULL: ErrorCode = ErrorCode::InsufficientSpace;

/// The files of one store.
pub struct Files<'a> {
    /// The part of wasmtime-wasi.
    pub wasi: WasiFilesystemCtxView<'a>,
    /// What is counted of them.
    pub own: &'a mut GuestFiles,
}

/// Links [`Files`] of a store's data.
pub(crate) struct HasFiles;

impl HasData for HasFiles {
    type Data<'a> = Files<'a>;
}

/// The files of a store.
pub(crate) fn files<T: HasGuestFiles>(state: &mut T) -> Files<'_> {
    state.files()
}

fn reborrow<T: 'static>(resource: &Resource<T>) -> Resource<T> {
    Resource::new_borrow(resource.rep())
}

fn is_regular(stat: &DescriptorStat) -> bool {
    matches!(stat.type_, DescriptorType::RegularFile)
}

impl From<OpenRefusal> for ErrorCode {
    fn from(refused: OpenRefusal) -> Self {
        match refused {
            // The interface has no code for too many open files.
            OpenRefusal::TooMany => Self::InsufficientMemory,
            OpenRefusal::NotThere => Self::Access,
        }
    }
}

impl From<OpenRefusal> for FsError {
    fn from(refused: OpenRefusal) -> Self {
        ErrorCode::from(refused).into()
    }
}

/// The file or directory of a name that is about to be removed or replaced.
struct ReplacedEntry {
    stat: DescriptorStat,
    identity: u64,
}

impl Files<'_> {
    /// Length of an open regular file, bytes; 0 for anything else.
    async fn length(&mut self, file: &Fd) -> u64 {
        let stat = self.wasi.stat(reborrow(file)).await;
        stat.ok().filter(is_regular).map_or(0, |stat| stat.size)
    }

    fn is_full(&self) -> bool {
        self.own.disk().is_some_and(|disk| disk.is_full())
    }

    fn fits(&self, before: u64, after: u64) -> bool {
        self.own.disk().is_none_or(|disk| disk.fits(before, after))
    }

    fn record_resize(&self, before: u64, after: u64) {
        if let Some(disk) = self.own.disk() {
            disk.record_resize(before, after);
        }
    }

    fn record_name(&self) {
        if let Some(disk) = self.own.disk() {
            disk.record_name();
        }
    }

    /// Fail unless there is room for a new name.
    fn check_room(&self) -> FsResult<()> {
        if self.is_full() { Err(FULL.into()) } else { Ok(()) }
    }

    async fn stat_before(&mut self, dir: &Fd, path: &str) -> Option<ReplacedEntry> {
        self.own.disk()?;
        let none = PathFlags::empty();
        let stat = self.wasi.stat_at(reborrow(dir), none, path.to_owned()).await.ok()?;
        let hash = self.wasi.metadata_hash_at(reborrow(dir), none, path.to_owned()).await.ok()?;
        Some(ReplacedEntry { stat, identity: hash.lower })
    }

    /// Count a name that is gone, and its file if this was the last name.
    fn record_removal(&self, before: Option<ReplacedEntry>) {
        let (Some(ReplacedEntry { stat, identity }), Some(disk)) = (before, self.own.disk()) else {
            return;
        };
        if stat.link_count == 1 && is_regular(&stat) {
            self.own.record_unlink(identity, stat.size);
        } else {
            disk.record_removal(0);
        }
    }

    fn open_file(&self, fd: &Fd) -> FsResult<Arc<GuestFile>> {
        self.own.get(fd.rep()).cloned().ok_or_else(|| ErrorCode::BadDescriptor.into())
    }

    fn output(&mut self, fd: &Fd, at: Option<u64>) -> FsResult<Resource<DynOutputStream>> {
        // This also refuses what is not a file, and what may not be written.
        let stream = match at {
            Some(at) => self.wasi.write_via_stream(reborrow(fd), at),
            None => self.wasi.append_via_stream(reborrow(fd)),
        }?;
        let inner = self.wasi.table.delete(stream)?;
        let (file, disk) = (self.open_file(fd)?, self.own.disk().cloned());
        let stream: DynOutputStream = if self.own.waits() {
            let bytes = self.own.waiting_stream()?;
            let (shrinks, length) = (file.shrinks(), file.length());
            let at = at.unwrap_or(length);
            Box::new(WaitingOutput { inner, file, _bytes: bytes, disk, at, length, shrinks })
        } else {
            Box::new(FileOutput { file, at, disk, ended: false })
        };
        Ok(self.wasi.table.push(stream)?)
    }
}

fn entry(entry: &ListingEntry) -> FsResult<DirectoryEntry> {
    use rustix::fs::FileType;
    let name = entry.name.to_str().map_err(|_| ErrorCode::IllegalByteSequence)?.to_owned();
    let type_ = match entry.kind {
        FileType::RegularFile => DescriptorType::RegularFile,
        FileType::Directory => DescriptorType::Directory,
        FileType::Symlink => DescriptorType::SymbolicLink,
        FileType::Fifo => DescriptorType::Fifo,
        FileType::Socket => DescriptorType::Socket,
        FileType::CharacterDevice => DescriptorType::CharacterDevice,
        FileType::BlockDevice => DescriptorType::BlockDevice,
        FileType::Unknown => DescriptorType::Unknown,
    };
    Ok(DirectoryEntry { type_, name })
}

impl Preopens for Files<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Fd, String)>> {
        self.own.open_given(self.wasi.ctx)?;
        Preopens::get_directories(&mut self.wasi)
    }
}

impl Host for Files<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        self.wasi.convert_error_code(error)
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        self.wasi.filesystem_error_code(error)
    }
}

/// Functions that change neither what is open nor how much there is. They are passed on
/// as they are.
macro_rules! as_they_are {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(async fn $name(&mut self, $($arg: $type),*) -> $out {
            self.wasi.$name($($arg),*).await
        })*
    };
}

impl HostDescriptor for Files<'_> {
    as_they_are! {
        advise(fd: Fd, offset: u64, len: u64, advice: Advice) -> FsResult<()>;
        sync_data(fd: Fd) -> FsResult<()>;
        get_flags(fd: Fd) -> FsResult<DescriptorFlags>;
        get_type(fd: Fd) -> FsResult<DescriptorType>;
        set_times(fd: Fd, read: NewTimestamp, written: NewTimestamp) -> FsResult<()>;
        read(fd: Fd, len: u64, offset: u64) -> FsResult<(Vec<u8>, bool)>;
        sync(fd: Fd) -> FsResult<()>;
        stat(fd: Fd) -> FsResult<DescriptorStat>;
        stat_at(fd: Fd, flags: PathFlags, path: String) -> FsResult<DescriptorStat>;
        set_times_at(
            fd: Fd, flags: PathFlags, path: String, read: NewTimestamp, written: NewTimestamp
        ) -> FsResult<()>;
        readlink_at(fd: Fd, path: String) -> FsResult<String>;
        is_same_object(a: Fd, b: Fd) -> wasmtime::Result<bool>;
        metadata_hash(fd: Fd) -> FsResult<MetadataHashValue>;
        metadata_hash_at(fd: Fd, flags: PathFlags, path: String) -> FsResult<MetadataHashValue>;
    }

    async fn set_size(&mut self, fd: Fd, size: u64) -> FsResult<()> {
        if self.own.disk().is_none() {
            return self.wasi.set_size(fd, size).await;
        }
        let before = self.length(&fd).await;
        if !self.fits(before, size) {
            return Err(FULL.into());
        }
        let done = self.wasi.set_size(reborrow(&fd), size).await;
        let after = self.length(&fd).await;
        if after < before {
            self.own.record_shrink(fd.rep());
        }
        self.record_resize(before, after);
        done
    }

    async fn write(&mut self, fd: Fd, bytes: Vec<u8>, offset: u64) -> FsResult<u64> {
        if self.own.disk().is_none() {
            return self.wasi.write(fd, bytes, offset).await;
        }
        let before = self.length(&fd).await;
        if self.is_full() || !self.fits(before, offset) {
            return Err(FULL.into());
        }
        let done = self.wasi.write(reborrow(&fd), bytes, offset).await;
        let after = self.length(&fd).await;
        self.record_resize(before, after);
        done
    }

    async fn read_directory(&mut self, fd: Fd) -> FsResult<Resource<DirectoryEntryStream>> {
        let dir = match self.wasi.table.get(&fd)? {
            dir @ Descriptor::Dir(_) => Arc::clone(descriptor_file(dir)),
            Descriptor::File(_) => return Err(ErrorCode::NotDirectory.into()),
        };
        let listing = Listing::new(&dir, self.own)??;
        let listing = self.wasi.table.push(listing)?;
        // The interface uses the type that wasmtime-wasi has for the stream, and nobody else looks
        // into the table.
        Ok(Resource::new_own(listing.rep()))
    }

    async fn create_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.check_room()?;
        self.wasi.create_directory_at(fd, path).await?;
        self.record_name();
        Ok(())
    }

    async fn link_at(
        &mut self,
        fd: Fd,
        flags: PathFlags,
        from: String,
        dir: Fd,
        to: String,
    ) -> FsResult<()> {
        self.check_room()?;
        self.wasi.link_at(fd, flags, from, dir, to).await?;
        self.record_name();
        Ok(())
    }

    async fn symlink_at(&mut self, fd: Fd, from: String, to: String) -> FsResult<()> {
        self.check_room()?;
        self.wasi.symlink_at(fd, from, to).await?;
        self.record_name();
        Ok(())
    }

    async fn open_at(
        &mut self,
        fd: Fd,
        flags: PathFlags,
        path: String,
        how: OpenFlags,
        what: DescriptorFlags,
    ) -> FsResult<Fd> {
        let before = match self.wasi.stat_at(reborrow(&fd), flags, path.clone()).await {
            Ok(stat) => Some(stat),
            // After any other error something may be there that waits for ever.
            Err(error) => match error.downcast_ref() {
                Some(ErrorCode::NoEntry | ErrorCode::NotDirectory) => None,
                _ => return Err(error),
            },
        };
        if before.as_ref().is_some_and(|file| !places::is_plain(file)) {
            return Err(ErrorCode::Access.into());
        }
        let creates = how.contains(OpenFlags::CREATE) && before.is_none();
        if creates {
            self.check_room()?;
        }
        let permit = self.own.permit()?;
        let opened = self.wasi.open_at(fd, flags, path, how, what).await?;
        match before {
            None if creates => self.record_name(),
            Some(file) if how.contains(OpenFlags::TRUNCATE) => self.record_resize(file.size, 0),
            _ => {}
        }
        let admitted = self.own.add_opened(opened.rep(), self.wasi.table.get(&opened)?, permit);
        if let Err(refused) = admitted {
            HostDescriptor::drop(&mut self.wasi, opened).map_err(FsError::trap)?;
            return Err(refused.into());
        }
        if how.contains(OpenFlags::TRUNCATE) {
            self.own.record_shrink(opened.rep());
        }
        Ok(opened)
    }

    async fn remove_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.wasi.remove_directory_at(fd, path).await?;
        if let Some(disk) = self.own.disk() {
            disk.record_removal(0);
        }
        Ok(())
    }

    async fn rename_at(&mut self, fd: Fd, from: String, dir: Fd, to: String) -> FsResult<()> {
        // The file that `to` named is replaced, unless both are names of one file.
        let moved = self.stat_before(&fd, &from).await.map(|from| from.identity);
        let before = self.stat_before(&dir, &to).await;
        self.wasi.rename_at(fd, from, dir, to).await?;
        if before.as_ref().is_some_and(|to| Some(to.identity) != moved) {
            self.record_removal(before);
        }
        Ok(())
    }

    async fn unlink_file_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        let before = self.stat_before(&fd, &path).await;
        self.wasi.unlink_file_at(fd, path).await?;
        self.record_removal(before);
        Ok(())
    }

    fn read_via_stream(&mut self, fd: Fd, offset: u64) -> FsResult<Resource<DynInputStream>> {
        if let Descriptor::Dir(_) = self.wasi.table.get(&fd)? {
            return Err(ErrorCode::IsDirectory.into());
        }
        let file = self.open_file(&fd)?;
        let stream: DynInputStream = if self.own.waits() {
            let bytes = self.own.waiting_stream()?;
            let stream = self.wasi.read_via_stream(fd, offset)?;
            let inner = self.wasi.table.delete(stream)?;
            Box::new(WaitingInput { inner, _file: file, _bytes: bytes })
        } else {
            Box::new(FileInput { file, at: offset, ended: false })
        };
        Ok(self.wasi.table.push(stream)?)
    }

    fn write_via_stream(&mut self, fd: Fd, offset: u64) -> FsResult<Resource<DynOutputStream>> {
        self.output(&fd, Some(offset))
    }

    fn append_via_stream(&mut self, fd: Fd) -> FsResult<Resource<DynOutputStream>> {
        self.output(&fd, None)
    }

    fn drop(&mut self, fd: Fd) -> wasmtime::Result<()> {
        let number = fd.rep();
        HostDescriptor::drop(&mut self.wasi, fd)?;
        self.own.remove(number);
        Ok(())
    }
}

impl HostDirectoryEntryStream for Files<'_> {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<DirectoryEntry>> {
        let listing = Resource::<Listing>::new_borrow(stream.rep());
        let next = self.wasi.table.get_mut(&listing)?.next(self.own.waits()).await?;
        next.as_ref().map(entry).transpose()
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.wasi.table.delete(Resource::<Listing>::new_own(stream.rep()))?;
        Ok(())
    }
}
