//! Files of guests: what a task or a call of a plugin has open, what that costs the host, and where it
//! may be.
//!
//! ```text
//!  guest ─► host.rs (components), wasm_task/disk_p1.rs (modules)
//!             │ may it be opened? places.rs      is there room on the disk? disk.rs
//!             ▼
//!        GuestFiles ── open ─► OpenFile: a descriptor of the guest's share, the inode known as open
//!             ├─ streams.rs: read and write at once, nothing is kept between two calls
//!             └─ listing.rs: one piece of a directory at a time, counted as the guest's memory
//! ```
//! Nothing here belongs to a guest for longer than its store lives.

pub(super) mod disk;
pub(super) mod host;
pub(super) mod listing;
pub(super) mod places;
mod sockets;
mod streams;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtx};

pub(super) use sockets::{HasGuestFiles, count as count_sockets, create as create_socket};

use self::disk::{DiskQuota, OpenInodes, inode};
use self::places::Place;
use ostler_model::limits::{
    FILE_STREAM_BYTES, GUEST_WAITING_FILES_MAX, GUEST_WAITING_HOLDERS_MAX, SOCKET_BYTES,
};
use ostler_sandbox::{DescriptorPermit, Descriptors, GivenDescriptors, GuestUsage, HostBytes};

/// What a task, or all calls of a plugin together, may have open.
#[derive(Debug)]
pub struct FileShare {
    descriptors: Arc<Descriptors>,
    /// Files where a call may wait for ever, as long as anybody has them.
    waiting: Mutex<Vec<Weak<File>>>,
}

impl FileShare {
    /// Nothing open yet.
    #[must_use]
    pub const fn new(descriptors: Arc<Descriptors>) -> Self {
        Self { descriptors, waiting: Mutex::new(Vec::new()) }
    }

    /// Remember a file that a given up call may keep. `false`: there are too many.
    fn waits(&self, file: &Arc<File>) -> bool {
        let room = self.has_room();
        if room {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(Arc::downgrade(file));
        }
        room
    }

    /// May one more be opened, or a stream be made of one? Every call that waits, and every stream,
    /// holds its file too.
    fn has_room(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|file| file.strong_count() > 0);
        let holders: usize = waiting.iter().map(Weak::strong_count).sum();
        waiting.len() < GUEST_WAITING_FILES_MAX && holders < GUEST_WAITING_HOLDERS_MAX
    }
}

/// Decide how calls about these directories run: on the guest's own thread, or, where one of them is on a
/// file system whose reads may wait for others, on threads that can be given up. Answers whether that
/// is so.
pub(super) fn choose_threads<'a>(
    wasi: &mut WasiCtxBuilder,
    mut paths: impl Iterator<Item = &'a Path>,
) -> bool {
    let waits = paths.any(|path| places::of_path(path) == Place::Waits);
    wasi.allow_blocking_current_thread(!waits);
    waits
}

/// Why a guest does not get what it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its share of descriptors, or its memory, is used up.
    TooMany,
    /// Not for guests: see [`places`].
    NotThere,
}

/// Files and sockets of one store.
pub(super) struct GuestFiles {
    usage: Arc<GuestUsage>,
    share: Arc<FileShare>,
    /// Calls run on threads that can be given up.
    waits: bool,
    /// Of a task.
    disk: Option<(Arc<DiskQuota>, Arc<OpenInodes>)>,
    open: HashMap<u32, Arc<OpenFile>>,
    sockets: HashMap<u32, (DescriptorPermit, HostBytes)>,
    /// Opens the directories of a task when it asks for them: most that wait never do.
    unopened: Option<OpenGiven>,
    /// Places of the directories that are open.
    given: Option<GivenDescriptors>,
}

/// Opens directories that a guest is given: what is to be shown, and how many there are. May block.
pub(super) type OpenGiven = Box<dyn FnOnce() -> wasmtime::Result<(WasiCtxBuilder, u64)> + Send>;

impl GuestFiles {
    /// Nothing open yet.
    pub(super) fn new(usage: Arc<GuestUsage>, share: Arc<FileShare>, waits: bool) -> Self {
        let (open, sockets) = (HashMap::new(), HashMap::new());
        let (unopened, given) = (None, None);
        Self { usage, share, waits, disk: None, open, sockets, unopened, given }
    }

    /// Of a task that may add so much.
    pub(super) fn bounded(self, disk: Arc<DiskQuota>, inodes: Arc<OpenInodes>) -> Self {
        Self { disk: Some((disk, inodes)), ..self }
    }

    /// With directories that are opened when the guest asks for them.
    pub(super) fn opening_late(self, unopened: Option<OpenGiven>) -> Self {
        Self { unopened, ..self }
    }

    /// Take places for directories that are open; an error that names the limit when there are too few.
    pub(super) fn hold_given(&mut self, many: u64) -> wasmtime::Result<()> {
        self.given = self.share.descriptors.give(many);
        wasmtime::ensure!(
            self.given.is_some(),
            "the directories of the task cannot be opened: tasks have too many files open; raise \
             the limit of the agent (ulimit -Hn, LimitNOFILE of the service)"
        );
        Ok(())
    }

    /// Open what was not opened yet, for `shown`.
    fn open_given(&mut self, shown: &mut WasiFilesystemCtx) -> wasmtime::Result<()> {
        if let Some(open) = self.unopened.take() {
            let (mut wasi, many) = open()?;
            self.hold_given(many)?;
            wasi.allow_blocking_current_thread(!self.waits);
            shown.clone_from(wasi.build().filesystem());
        }
        Ok(())
    }

    /// Do calls run on threads that can be given up?
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// Set it, before anything is open.
    pub(super) const fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// What a stream of a file that may wait holds of the guest's memory.
    pub(super) fn waiting_stream(&self) -> Result<HostBytes, Refused> {
        if !self.share.has_room() {
            return Err(Refused::TooMany);
        }
        self.hold(FILE_STREAM_BYTES as u64)
    }

    /// What the task may add to its directories.
    pub(super) fn disk(&self) -> Option<&Arc<DiskQuota>> {
        self.disk.as_ref().map(|(disk, _)| disk)
    }

    /// A place for one more descriptor.
    pub(super) fn permit(&self) -> Result<DescriptorPermit, Refused> {
        self.share.descriptors.take().ok_or(Refused::TooMany)
    }

    /// So much of the host's memory for the guest.
    fn hold(&self, bytes: u64) -> Result<HostBytes, Refused> {
        self.usage.hold(bytes).ok_or(Refused::TooMany)
    }

    /// The guest has opened this and knows it by `number`, if it may keep it.
    pub(super) fn opened(
        &mut self,
        number: u32,
        opened: &Descriptor,
        permit: DescriptorPermit,
    ) -> Result<(), Refused> {
        let file = file_of(opened);
        if !places::admit(file, self.waits) {
            return Err(Refused::NotThere);
        }
        if self.waits && !self.share.waits(file) {
            return Err(Refused::TooMany);
        }
        let inodes = self.disk.as_ref().filter(|_| matches!(opened, Descriptor::File(_)));
        let inode = inodes.and_then(|(_, inodes)| {
            let id = inode(file)?;
            inodes.opened(id);
            Some((id, Arc::clone(inodes)))
        });
        let open = OpenFile { file: Arc::clone(file), inode, _permit: Some(permit) };
        self.open.insert(number, Arc::new(open));
        Ok(())
    }

    /// A directory that the guest was given, by the number it knows it by.
    pub(super) fn given(&mut self, number: u32, dir: &Descriptor) {
        let open = OpenFile { file: Arc::clone(file_of(dir)), inode: None, _permit: None };
        self.open.insert(number, Arc::new(open));
    }

    /// What the guest knows by this number.
    pub(super) fn get(&self, number: u32) -> Option<&Arc<OpenFile>> {
        self.open.get(&number)
    }

    /// The guest has closed it.
    pub(super) fn closed(&mut self, number: u32) {
        self.open.remove(&number);
    }

    /// The guest knows it by another number now.
    pub(super) fn renumbered(&mut self, from: u32, to: u32) {
        if let Some(open) = self.open.remove(&from) {
            self.open.insert(to, open);
        }
    }

    /// The guest made it shorter: who writes into it knows its length no more.
    pub(super) fn shrunk(&self, number: u32) {
        if let Some((inode, inodes)) = self.get(number).and_then(|open| open.inode.as_ref()) {
            inodes.shrunk(*inode);
        }
    }

    /// The last name of a file of `bytes` bytes is gone: they count until nobody has it open.
    pub(super) fn unlinked(&self, inode: u64, bytes: u64) {
        let Some((disk, inodes)) = &self.disk else { return };
        let open = inodes.unlinked(inode, disk);
        disk.removed(if open { 0 } else { bytes });
    }

    fn socket(&self) -> Result<(DescriptorPermit, HostBytes), Refused> {
        Ok((self.permit()?, self.hold(SOCKET_BYTES)?))
    }
}

fn file_of(descriptor: &Descriptor) -> &Arc<File> {
    match descriptor {
        Descriptor::File(file) => &file.file,
        Descriptor::Dir(dir) => &dir.dir,
    }
}

/// What a guest has open; streams on it have it as well.
pub(super) struct OpenFile {
    file: Arc<File>,
    inode: Option<(u64, Arc<OpenInodes>)>,
    _permit: Option<DescriptorPermit>,
}

impl OpenFile {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// How often it was made shorter.
    fn shrinks(&self) -> u64 {
        self.inode.as_ref().map_or(0, |(inode, inodes)| inodes.shrinks(*inode))
    }

    /// Bytes in it.
    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some((inode, inodes)) = &self.inode {
            inodes.closed(*inode, || self.length());
        }
    }
}
