//! Reads a tar archive entry by entry, each part of it bounded.
//!
//! The crate `tar` reads headers. It is not what goes from one to the next: it would read a name of any length
//! into memory, and takes an archive that was cut off between two entries for a whole one.

use std::io::{self, Read};

use ostler_model::limits::{
    MOVED_EXTENSION_BYTES_MAX, MOVED_EXTENSIONS_MAX, MOVED_PADDING_BYTES_MAX, MOVED_PATH_BYTES_MAX,
};
use tar::{EntryType, Header, PaxExtensions};

/// Header, and unit of everything.
const BLOCK: usize = 512;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It ends before its end is said.
    #[error("it ended before it was whole")]
    Cut,
    /// A header is none.
    #[error("what should describe an entry cannot be read: {0}")]
    Header(String),
    /// More than is taken.
    #[error("the description of an entry is longer than is taken")]
    TooLong,
    /// Where it comes from failed.
    #[error("{0}")]
    Read(#[source] io::Error),
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveEntryKind {
    /// A directory.
    Directory,
    /// A file, whose bytes follow.
    File,
    /// A link, and what it says.
    Symlink(Vec<u8>),
    /// Another name of an entry that came before.
    HardLink(Vec<u8>),
    /// Something that is not moved; for people.
    Other(&'static str),
}

/// An entry, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveEntry {
    /// As it stands there.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: ArchiveEntryKind,
    /// Its rights.
    pub mode: u32,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// Seconds since 1970.
    pub changed: u64,
    /// Bytes that follow.
    pub size: u64,
}

/// See the module.
pub struct ArchiveReader<R> {
    from: R,
    /// Bytes of the present entry that were not read yet, and of what fills up its last block.
    left: u64,
    padding: u64,
}

/// What stood before a header and goes before what it says.
#[derive(Default)]
struct Described {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
}

impl<R: Read> ArchiveReader<R> {
    /// Nothing is read yet.
    pub const fn new(from: R) -> Self {
        Self { from, left: 0, padding: 0 }
    }

    /// The next entry; what was not read of the last one is skipped. `None`: that was all, and the archive
    /// says so.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn next_entry(&mut self) -> Result<Option<ArchiveEntry>, ArchiveError> {
        let mut described = Described::default();
        for _ in 0..=MOVED_EXTENSIONS_MAX {
            self.skip()?;
            let Some(header) = self.header()? else {
                self.end()?;
                return Ok(None);
            };
            let size = header.entry_size().map_err(unread)?;
            let kind = header.entry_type();
            let of_gnu = header.as_gnu().is_some() || header.as_ustar().is_some();
            match kind {
                EntryType::GNULongName if of_gnu => described.path = Some(self.name(size)?),
                EntryType::GNULongLink if of_gnu => described.link = Some(self.name(size)?),
                EntryType::XHeader => described.read(&self.extension(size)?)?,
                // For all that follow; nothing of it is needed.
                EntryType::XGlobalHeader => drop(self.extension(size)?),
                _ => {
                    let size = described.size.unwrap_or(size);
                    self.begin(size)?;
                    return entry(&header, described, size).map(Some);
                }
            }
        }
        Err(ArchiveError::TooLong)
    }

    /// More of the present entry; none of it is left where nothing is read.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, ArchiveError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let Some(into) = into.get_mut(..most).filter(|into| !into.is_empty()) else {
            return Ok(0);
        };
        let count = self.from.read(into).map_err(ArchiveError::Read)?;
        if count == 0 {
            return Err(ArchiveError::Cut);
        }
        self.left = self.left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }

    fn begin(&mut self, size: u64) -> Result<(), ArchiveError> {
        let block = BLOCK as u64;
        // A length that no file can have.
        if i64::try_from(size).is_err() {
            return Err(ArchiveError::Header("a length that no file can have".to_owned()));
        }
        self.left = size;
        self.padding = size.next_multiple_of(block).saturating_sub(size);
        Ok(())
    }

    fn skip(&mut self) -> Result<(), ArchiveError> {
        let mut piece = [0; 8 * BLOCK];
        while self.read(&mut piece)? > 0 {}
        self.left = std::mem::take(&mut self.padding);
        while self.read(&mut piece)? > 0 {}
        Ok(())
    }

    /// `None`: one of the two empty blocks that are the end.
    fn header(&mut self) -> Result<Option<Header>, ArchiveError> {
        let mut header = Header::new_old();
        self.whole(header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let said = header.cksum().map_err(unread)?;
        let mut summed = header.clone();
        summed.set_cksum();
        if summed.cksum().map_err(unread)? != said {
            return Err(ArchiveError::Header("its sum is another one".to_owned()));
        }
        Ok(Some(header))
    }

    /// Behind the first of the two blocks. What comes from a network is whole only when that says so too.
    fn end(&mut self) -> Result<(), ArchiveError> {
        let mut second = [1; BLOCK];
        self.whole(&mut second)?;
        if second.iter().any(|byte| *byte != 0) {
            return Err(ArchiveError::Header("an empty block".to_owned()));
        }
        let mut rest = (&mut self.from).take(MOVED_PADDING_BYTES_MAX);
        io::copy(&mut rest, &mut io::sink()).map_err(ArchiveError::Read)?;
        match self.from.read(&mut [0]).map_err(ArchiveError::Read)? {
            0 => Ok(()),
            _ => Err(ArchiveError::TooLong),
        }
    }

    fn whole(&mut self, into: &mut [u8]) -> Result<(), ArchiveError> {
        self.from.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Cut,
            _ => ArchiveError::Read(error),
        })
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        if size > MOVED_EXTENSION_BYTES_MAX {
            return Err(ArchiveError::TooLong);
        }
        self.begin(size)?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            at = at.saturating_add(self.read(rest)?);
        }
        Ok(bytes)
    }

    /// A name in an entry of its own, which ends with a zero as a rule.
    fn name(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut name = self.extension(size)?;
        if name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }
}

impl Described {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        for extension in PaxExtensions::new(bytes) {
            let extension = extension.map_err(unread)?;
            let value = extension.value_bytes();
            let number = || -> Result<u64, ArchiveError> {
                let text = std::str::from_utf8(value).ok();
                let number = text.and_then(|text| text.parse().ok());
                number.ok_or_else(|| ArchiveError::Header("a number that is none".to_owned()))
            };
            match extension.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"uid" => self.uid = Some(number()?),
                b"gid" => self.gid = Some(number()?),
                // A file that is told in parts: its parts are not what follows.
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(ArchiveError::Header("a file in parts".to_owned()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn entry(header: &Header, described: Described, size: u64) -> Result<ArchiveEntry, ArchiveError> {
    let path = described.path.unwrap_or_else(|| header.path_bytes().into_owned());
    let link = described.link.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
    let link = link.unwrap_or_default();
    if path.len() > MOVED_PATH_BYTES_MAX || link.len() > MOVED_PATH_BYTES_MAX {
        return Err(ArchiveError::TooLong);
    }
    let kind = match header.entry_type() {
        EntryType::Directory => ArchiveEntryKind::Directory,
        // A very old one says directory by its name.
        EntryType::Regular if path.ends_with(b"/") => ArchiveEntryKind::Directory,
        EntryType::Regular | EntryType::Continuous => ArchiveEntryKind::File,
        EntryType::Symlink => ArchiveEntryKind::Symlink(link),
        EntryType::Link => ArchiveEntryKind::HardLink(link),
        EntryType::Char | EntryType::Block => ArchiveEntryKind::Other("a device"),
        EntryType::Fifo => ArchiveEntryKind::Other("a named pipe"),
        EntryType::GNUSparse => {
            return Err(ArchiveError::Header("a file in parts".to_owned()));
        }
        _ => ArchiveEntryKind::Other("of a kind that is not known"),
    };
    let id = |described: Option<u64>, header: io::Result<u64>| {
        let id = described.or_else(|| header.ok()).and_then(|id| u32::try_from(id).ok());
        // The largest one means that nothing is to be changed.
        id.filter(|id| *id < u32::MAX)
    };
    let owner = id(described.uid, header.uid()).zip(id(described.gid, header.gid()));
    Ok(ArchiveEntry {
        path,
        kind,
        mode: header.mode().map_err(unread)?,
        owner,
        changed: header.mtime().unwrap_or_default(),
        size,
    })
}

fn unread(error: io::Error) -> ArchiveError {
    ArchiveError::Header(error.to_string())
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
