//! `wasi:filesystem` behind the trace.

use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    Advice, Descriptor, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry,
    DirectoryEntryStream, ErrorCode, Host, HostDescriptor, HostDirectoryEntryStream,
    MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};

use super::TracedState;
use super::number;
use super::wire::Argument as _;

type Fd = Resource<Descriptor>;

impl preopens::Host for TracedState<'_> {
    traced! { files Preopens;
        FS_PREOPENS get_directories() [] -> wasmtime::Result<Vec<(Fd, String)>>;
    }
}

use preopens::Host as Preopens;

impl Host for TracedState<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        Host::convert_error_code(&mut self.files(), error)
    }

    traced! { files Host;
        FS_ERROR filesystem_error_code(error: Resource<wasmtime::Error>) []
            -> wasmtime::Result<Option<ErrorCode>>;
    }
}

impl HostDescriptor for TracedState<'_> {
    traced_async! { files HostDescriptor;
        FS_ADVISE advise(fd: Fd, offset: u64, len: u64, advice: Advice) [offset, len]
            -> FsResult<()>;
        FS_SYNC_DATA sync_data(fd: Fd) [] -> FsResult<()>;
        FS_FLAGS get_flags(fd: Fd) [] -> FsResult<DescriptorFlags>;
        FS_TYPE get_type(fd: Fd) [] -> FsResult<DescriptorType>;
        FS_SET_SIZE set_size(fd: Fd, size: u64) [size] -> FsResult<()>;
        FS_SET_TIMES set_times(fd: Fd, read: NewTimestamp, written: NewTimestamp) []
            -> FsResult<()>;
        FS_READ read(fd: Fd, len: u64, offset: u64) [len, offset] -> FsResult<(Vec<u8>, bool)>;
        FS_OPEN open_at(fd: Fd, flags: PathFlags, path: String, how: OpenFlags, what: DescriptorFlags)
            [path] -> FsResult<Fd>;
        FS_WRITE write(fd: Fd, bytes: Vec<u8>, offset: u64) [bytes, offset] -> FsResult<u64>;
        FS_READ_DIRECTORY read_directory(fd: Fd) [] -> FsResult<Resource<DirectoryEntryStream>>;
        FS_SYNC sync(fd: Fd) [] -> FsResult<()>;
        FS_CREATE_DIRECTORY create_directory_at(fd: Fd, path: String) [path] -> FsResult<()>;
        FS_STAT stat(fd: Fd) [] -> FsResult<DescriptorStat>;
        FS_STAT_AT stat_at(fd: Fd, flags: PathFlags, path: String) [path]
            -> FsResult<DescriptorStat>;
        FS_SET_TIMES_AT set_times_at(
            fd: Fd, flags: PathFlags, path: String, read: NewTimestamp, written: NewTimestamp
        ) [path] -> FsResult<()>;
        FS_LINK link_at(fd: Fd, flags: PathFlags, from: String, dir: Fd, to: String) [from, to]
            -> FsResult<()>;
        FS_READLINK readlink_at(fd: Fd, path: String) [path] -> FsResult<String>;
        FS_REMOVE_DIRECTORY remove_directory_at(fd: Fd, path: String) [path] -> FsResult<()>;
        FS_RENAME rename_at(fd: Fd, from: String, dir: Fd, to: String) [from, to] -> FsResult<()>;
        FS_SYMLINK symlink_at(fd: Fd, from: String, to: String) [from, to] -> FsResult<()>;
        FS_UNLINK unlink_file_at(fd: Fd, path: String) [path] -> FsResult<()>;
        FS_SAME is_same_object(a: Fd, b: Fd) [] -> wasmtime::Result<bool>;
        FS_HASH metadata_hash(fd: Fd) [] -> FsResult<MetadataHashValue>;
        FS_HASH_AT metadata_hash_at(fd: Fd, flags: PathFlags, path: String) [path]
            -> FsResult<MetadataHashValue>;
    }

    traced! { files HostDescriptor;
        FS_READ_STREAM read_via_stream(fd: Fd, offset: u64) [offset]
            -> FsResult<Resource<DynInputStream>>;
        FS_WRITE_STREAM write_via_stream(fd: Fd, offset: u64) [offset]
            -> FsResult<Resource<DynOutputStream>>;
        FS_APPEND_STREAM append_via_stream(fd: Fd) [] -> FsResult<Resource<DynOutputStream>>;
    }

    fn drop(&mut self, fd: Fd) -> wasmtime::Result<()> {
        if self.0.tracer.is_playing() {
            Ok(())
        } else {
            HostDescriptor::drop(&mut self.files(), fd)
        }
    }
}

impl HostDirectoryEntryStream for TracedState<'_> {
    traced_async! { files HostDirectoryEntryStream;
        FS_ENTRY read_directory_entry(stream: Resource<DirectoryEntryStream>) []
            -> FsResult<Option<DirectoryEntry>>;
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        if self.0.tracer.is_playing() {
            Ok(())
        } else {
            HostDirectoryEntryStream::drop(&mut self.files(), stream)
        }
    }
}
