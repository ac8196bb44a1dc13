//! Lists directories a piece at a time.
//!
//! wasmtime-wasi reads a whole directory when it is opened, and for modules again at every call.
//! That is hundreds of megabytes for a directory of a million names, for each of ten thousand
//! streams. Here a stream is a descriptor and one piece of some eight kilobytes. A module's listing
//! is not kept at all: the module names the position where it goes on.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::vec::IntoIter;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom};

use super::{GuestFiles, OpenRefusal};
use ostler_model::limits::LISTING_BYTES;
use ostler_sandbox::{DescriptorPermit, HostBytes};

/// Size of one piece as the kernel gives it, bytes.
const PIECE: usize = 8 * 1024;

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct ListingEntry {
    pub name: CString,
    pub kind: FileType,
    pub inode: u64,
    /// Position of the next entry in the directory.
    pub next: u64,
}

/// Open a directory again, so that the position of whoever else has it open does not change.
pub(crate) fn open(dir: &File) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, c".", flags, Mode::empty())?)
}

/// Go to a position that an entry named.
pub(crate) fn seek(dir: &OwnedFd, place: u64) -> io::Result<()> {
    rustix::fs::seek(dir, SeekFrom::Start(place))?;
    Ok(())
}

/// Read the next entries; none at the end.
pub(crate) fn read_piece(dir: &OwnedFd) -> io::Result<Vec<ListingEntry>> {
    let mut buffer = [MaybeUninit::uninit(); PIECE];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let (name, inode) = (entry.file_name().to_owned(), entry.ino());
        let (mut kind, next) = (entry.file_type(), entry.next_entry_cookie());
        if kind == FileType::Unknown {
            // Some file systems do not give the kind here. An entry that is gone meanwhile is
            // listed all the same.
            let stat = rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
            kind = stat.map_or(kind, |stat| FileType::from_raw_mode(stat.st_mode));
        }
        entries.push(ListingEntry { name, kind, inode, next });
        if raw.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}

/// As [`read_piece`], on a thread that can be given up where the read may wait.
pub(crate) async fn next_piece(dir: &Arc<OwnedFd>, waits: bool) -> io::Result<Vec<ListingEntry>> {
    if !waits {
        return read_piece(dir);
    }
    let dir = Arc::clone(dir);
    tokio::task::spawn_blocking(move || read_piece(&dir)).await?
}

/// The stream of a directory for a component.
pub(crate) struct Listing {
    dir: Arc<OwnedFd>,
    piece: IntoIter<ListingEntry>,
    _permit: DescriptorPermit,
    _bytes: HostBytes,
}

impl Listing {
    pub(super) fn new(dir: &File, files: &GuestFiles) -> Result<io::Result<Self>, OpenRefusal> {
        let (permit, bytes) = (files.permit()?, files.hold(LISTING_BYTES)?);
        let listing = |dir| Self {
            dir: Arc::new(dir),
            piece: Vec::new().into_iter(),
            _permit: permit,
            _bytes: bytes,
        };
        Ok(open(dir).map(listing))
    }

    /// The next entry, without the directory itself and the one above.
    pub(super) async fn next(&mut self, waits: bool) -> io::Result<Option<ListingEntry>> {
        loop {
            for entry in self.piece.by_ref() {
                if !matches!(entry.name.to_bytes(), b"." | b"..") {
                    return Ok(Some(entry));
                }
            }
            let piece = next_piece(&self.dir, waits).await?;
            if piece.is_empty() {
                return Ok(None);
            }
            self.piece = piece.into_iter();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt as _;

    fn names(dir: &OwnedFd) -> Vec<ListingEntry> {
        std::iter::from_fn(|| Some(read_piece(dir).unwrap()).filter(|piece| !piece.is_empty()))
            .flatten()
            .collect()
    }

    #[test]
    fn a_directory_is_read_piece_by_piece_and_on_from_any_entry() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..2_000 {
            std::fs::write(dir.path().join(format!("file-{n}")), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("below")).unwrap();
        let file = File::open(dir.path()).unwrap();
        let opened = open(&file).unwrap();
        assert!(read_piece(&opened).unwrap().len() < 1_000);
        seek(&opened, 0).unwrap();
        let all = names(&opened);
        let distinct: BTreeSet<_> = all.iter().map(|entry| &entry.name).collect();
        assert_eq!((all.len(), distinct.len()), (2_003, 2_003), "and . and ..");
        let below = all.iter().find(|entry| entry.name.as_bytes() == b"below").unwrap();
        assert_eq!(below.kind, FileType::Directory);
        let inode = std::fs::metadata(dir.path().join("below")).unwrap().ino();
        assert_eq!(below.inode, inode);

        let middle = all.get(1_000).unwrap();
        seek(&opened, middle.next).unwrap();
        let rest: Vec<_> = names(&opened).into_iter().map(|entry| entry.name).collect();
        let expected: Vec<_> = all.iter().skip(1_001).map(|entry| entry.name.clone()).collect();
        assert_eq!(rest, expected);
    }
}
