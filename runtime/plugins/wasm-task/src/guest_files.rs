//! Files of guests: what a task or a call of a plugin has open, what that costs the host, and where
//! it may lie.
//!
//! ```text
//!  guest ─► host.rs (components), ../disk_p1.rs (modules)
//!             │ may it be opened? places.rs      is there room on the disk? disk.rs
//!             ▼
//!        GuestFiles ── open ─► GuestFile: a descriptor of the guest's share, the inode known as open
//!             ├─ streams.rs: read and write at once, nothing is kept between two calls
//!             └─ listing.rs: one piece of a directory at a time, counted as the guest's memory
//! ```
//! Nothing here belongs to a guest for longer than its store lives.

pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod listing;
pub(crate) mod places;
mod sockets;
mod streams;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtx};

pub use host::Files;
pub use sockets::{HasGuestFiles, count_sockets, create_socket};

use self::disk::{DiskQuota, OpenInodes, inode};
use self::places::FileSystemKind;
use ostler_model::limits::{
    FILE_STREAM_BYTES, GUEST_WAITING_FILES_MAX, GUEST_WAITING_HOLDERS_MAX, SOCKET_BYTES,
};
use ostler_model::ports::DirMaker;
use ostler_sandbox::{DescriptorPermit, Descriptors, GivenDescriptors, GuestUsage, HostBytes};

/// The share of files that a task, or all calls of a plugin together, may have open.
#[derive(Debug)]
pub struct FileShare {
    descriptors: Arc<Descriptors>,
    /// Files on which a call may wait for ever, as long as anybody has them.
    waiting: Mutex<Vec<Weak<File>>>,
}

impl FileShare {
    /// A share of which nothing is used yet.
    #[must_use]
    pub const fn new(descriptors: Arc<Descriptors>) -> Self {
        Self { descriptors, waiting: Mutex::new(Vec::new()) }
    }

    /// Remember a file that a call may keep after it was given up. `false`: there are too many.
    fn track_waiting(&self, file: &Arc<File>) -> bool {
        let room = self.has_room();
        if room {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(Arc::downgrade(file));
        }
        room
    }

    /// May one more file be opened on which calls may wait, or a stream be made of one? Every call
    /// that waits, and every stream, holds its file too.
    fn has_room(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|file| file.strong_count() > 0);
        let holders: usize = waiting.iter().map(Weak::strong_count).sum();
        waiting.len() < GUEST_WAITING_FILES_MAX && holders < GUEST_WAITING_HOLDERS_MAX
    }
}

/// Decide how calls about these directories run: on the guest's own thread, or on threads that can
/// be given up. The latter is where one of them is on a file system whose reads may wait for
/// another machine or process. Returns whether it is so.
pub fn choose_threads<'a>(
    wasi: &mut WasiCtxBuilder,
    mut paths: impl Iterator<Item = &'a Path>,
) -> bool {
    let waits = paths.any(|path| places::kind_of_path(path) == FileSystemKind::Waits);
    wasi.allow_blocking_current_thread(!waits);
    waits
}

/// Why a guest may not keep what it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenRefusal {
    /// The guest's share of descriptors, or its memory, is used up.
    TooMany,
    /// Guests may not open it: see [`places`].
    NotThere,
}

/// Files and sockets of one store.
pub struct GuestFiles {
    usage: Arc<GuestUsage>,
    share: Arc<FileShare>,
    /// Whether calls run on threads that can be given up.
    waits: bool,
    /// For a task: how much it may add to its directories, and which files all tasks have open.
    disk: Option<(Arc<DiskQuota>, Arc<OpenInodes>)>,
    open: HashMap<u32, Arc<GuestFile>>,
    sockets: HashMap<u32, (DescriptorPermit, HostBytes)>,
    /// Opens the directories of a task when it asks for them. Most tasks that wait for a
    /// place never do.
    unopened: Option<DirOpener>,
    /// Makes these directories before they are opened.
    unmade: Option<DirMaker>,
    /// The places of the directories that are open.
    given: Option<GivenDescriptors>,
}

/// Opens the directories that a guest is given. May block.
pub(crate) type DirOpener = Box<dyn FnOnce() -> wasmtime::Result<OpenedDirs> + Send>;

/// The directories that a guest is given.
pub(crate) struct OpenedDirs {
    /// What is shown to the guest.
    pub wasi: WasiCtxBuilder,
    /// How many directories there are.
    pub many: u64,
    /// Whether calls about them run on threads that can be given up.
    pub waits: bool,
}

impl GuestFiles {
    /// The files of a store in which nothing is open yet.
    #[must_use]
    pub fn new(usage: Arc<GuestUsage>, share: Arc<FileShare>, waits: bool) -> Self {
        let (open, sockets) = (HashMap::new(), HashMap::new());
        let (unopened, unmade, given) = (None, None, None);
        Self { usage, share, waits, disk: None, open, sockets, unopened, unmade, given }
    }

    /// Set how much a task may add to its directories.
    pub(crate) fn with_quota(self, disk: Arc<DiskQuota>, inodes: Arc<OpenInodes>) -> Self {
        Self { disk: Some((disk, inodes)), ..self }
    }

    /// Set what makes and opens the directories when the guest asks for them.
    pub(crate) fn with_unopened(self, made: DirMaker, opened: DirOpener) -> Self {
        Self { unopened: Some(opened), unmade: Some(made), ..self }
    }

    /// What makes the directories, if that was not begun yet.
    pub(crate) const fn take_unmade(&mut self) -> Option<DirMaker> {
        self.unmade.take()
    }

    /// Take places for directories that are open. The error names the limit when there are
    /// too few places.
    pub(crate) fn hold_given(&mut self, many: u64) -> wasmtime::Result<()> {
        self.given = self.share.descriptors.give(many);
        wasmtime::ensure!(
            self.given.is_some(),
            "the directories of the task cannot be opened: tasks have too many files open; raise \
             the limit of the agent (ulimit -Hn, LimitNOFILE of the service)"
        );
        Ok(())
    }

    /// Open the directories that were not opened yet, and put them into `shown`.
    fn open_given(&mut self, shown: &mut WasiFilesystemCtx) -> wasmtime::Result<()> {
        if let Some(open) = self.unopened.take() {
            let OpenedDirs { mut wasi, many, waits } = open()?;
            self.hold_given(many)?;
            self.waits = waits;
            shown.clone_from(wasi.build().filesystem());
        }
        Ok(())
    }

    /// Do calls run on threads that can be given up?
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Set whether calls run on threads that can be given up. It must be set before
    /// anything is open.
    pub const fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Take the memory that a stream holds whose file may wait. It counts as the guest's memory.
    pub(crate) fn waiting_stream(&self) -> Result<HostBytes, OpenRefusal> {
        if !self.share.has_room() {
            return Err(OpenRefusal::TooMany);
        }
        self.hold(FILE_STREAM_BYTES as u64)
    }

    /// How much the task may add to its directories; `None` for plugins.
    pub(crate) fn disk(&self) -> Option<&Arc<DiskQuota>> {
        self.disk.as_ref().map(|(disk, _)| disk)
    }

    /// Take a place for one more descriptor.
    pub(crate) fn permit(&self) -> Result<DescriptorPermit, OpenRefusal> {
        self.share.descriptors.take().ok_or(OpenRefusal::TooMany)
    }

    /// Count this much of the host's memory as the guest's.
    fn hold(&self, bytes: u64) -> Result<HostBytes, OpenRefusal> {
        self.usage.hold(bytes).ok_or(OpenRefusal::TooMany)
    }

    /// Add what the guest has opened, if it may keep it. The guest knows it by `number`.
    pub(crate) fn add_opened(
        &mut self,
        number: u32,
        opened: &Descriptor,
        permit: DescriptorPermit,
    ) -> Result<(), OpenRefusal> {
        let file = descriptor_file(opened);
        if !places::admit(file, self.waits) {
            return Err(OpenRefusal::NotThere);
        }
        if self.waits && !self.share.track_waiting(file) {
            return Err(OpenRefusal::TooMany);
        }
        let inodes = self.disk.as_ref().filter(|_| matches!(opened, Descriptor::File(_)));
        let inode = inodes.and_then(|(_, inodes)| {
            let id = inode(file)?;
            inodes.add_open(id);
            Some((id, Arc::clone(inodes)))
        });
        let open = GuestFile { file: Arc::clone(file), inode, _permit: Some(permit) };
        self.open.insert(number, Arc::new(open));
        Ok(())
    }

    /// Add a directory that the guest was given. The guest knows it by `number`.
    pub(crate) fn add_given(&mut self, number: u32, dir: &Descriptor) {
        let open = GuestFile { file: Arc::clone(descriptor_file(dir)), inode: None, _permit: None };
        self.open.insert(number, Arc::new(open));
    }

    /// The file or directory that the guest knows by this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<GuestFile>> {
        self.open.get(&number)
    }

    /// Remove what the guest has closed.
    pub(crate) fn remove(&mut self, number: u32) {
        self.open.remove(&number);
    }

    /// Note that the guest knows a file by another number now.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) {
        if let Some(open) = self.open.remove(&from) {
            self.open.insert(to, open);
        }
    }

    /// Note that the guest made a file shorter, so that streams that write into it do not rely
    /// on its length.
    pub(crate) fn record_shrink(&self, number: u32) {
        if let Some((inode, inodes)) = self.get(number).and_then(|open| open.inode.as_ref()) {
            inodes.count_shrink(*inode);
        }
    }

    /// Note that the last name of a file of `bytes` bytes is gone. The bytes count until nobody has
    /// the file open.
    pub(crate) fn record_unlink(&self, inode: u64, bytes: u64) {
        let Some((disk, inodes)) = &self.disk else { return };
        let open = inodes.mark_unlinked(inode, disk);
        disk.record_removal(if open { 0 } else { bytes });
    }

    fn socket(&self) -> Result<(DescriptorPermit, HostBytes), OpenRefusal> {
        Ok((self.permit()?, self.hold(SOCKET_BYTES)?))
    }
}

fn descriptor_file(descriptor: &Descriptor) -> &Arc<File> {
    match descriptor {
        Descriptor::File(file) => &file.file,
        Descriptor::Dir(dir) => &dir.dir,
    }
}

/// A file or directory that a guest has open. Streams on it hold it too.
pub(crate) struct GuestFile {
    file: Arc<File>,
    inode: Option<(u64, Arc<OpenInodes>)>,
    _permit: Option<DescriptorPermit>,
}

impl GuestFile {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// How often the file was made shorter.
    fn shrinks(&self) -> u64 {
        self.inode.as_ref().map_or(0, |(inode, inodes)| inodes.shrink_count(*inode))
    }

    /// Length of the file, bytes.
    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }
}

impl Drop for GuestFile {
    fn drop(&mut self) {
        if let Some((inode, inodes)) = &self.inode {
            inodes.remove_open(*inode, || self.length());
        }
    }
}
