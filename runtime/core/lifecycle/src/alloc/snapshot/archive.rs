//! Reads a tar archive entry by entry. Each part of an entry is bounded.
//!
//! The crate `tar` reads headers only. It does not go from one entry to the next here, because it
//! would read a name of any length into memory and would take an archive that was cut off between
//! two entries for a whole one.

use std::io::{self, Read};

use ostler_model::limits::{
    MOVED_EXTENSION_BYTES_MAX, MOVED_EXTENSIONS_MAX, MOVED_PADDING_BYTES_MAX, MOVED_PATH_BYTES_MAX,
};
use tar::{EntryType, Header, PaxExtensions};

/// Size of a header and of every block, bytes.
const BLOCK: usize = 512;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive ends without its end mark.
    #[error("it ended before it was complete")]
    Cut,
    /// A header cannot be read.
    #[error("what should describe an entry cannot be read: {0}")]
    Header(String),
    /// The description of an entry is longer than the bound.
    #[error("the description of an entry is longer than is taken")]
    TooLong,
    /// The source of the bytes failed.
    #[error("{0}")]
    Read(#[source] io::Error),
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveEntryKind {
    /// A directory, without its entries.
    Directory,
    /// A file, whose bytes follow.
    File,
    /// A symbolic link, and its target.
    Symlink(Vec<u8>),
    /// Another name of an entry that came before.
    HardLink(Vec<u8>),
    /// Something that is not moved, with a word for people.
    Other(&'static str),
}

/// The description of an entry, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveEntry {
    /// The path as it stands in the archive.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub kind: ArchiveEntryKind,
    /// The permission bits, as in `st_mode`.
    pub mode: u32,
    /// User id and group id.
    pub owner: Option<(u32, u32)>,
    /// When the entry was modified, seconds since 1970.
    pub changed: u64,
    /// Length of the content that follows, bytes.
    pub size: u64,
}

/// See the module.
pub struct ArchiveReader<R> {
    from: R,
    /// Bytes of the present entry that were not read yet.
    left: u64,
    /// Bytes that fill up the last block of the present entry.
    padding: u64,
}

/// Values that stood before a header and override those of the header.
#[derive(Default)]
struct HeaderOverrides {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
}

impl<R: Read> ArchiveReader<R> {
    /// A reader that has read nothing yet.
    pub const fn new(from: R) -> Self {
        Self { from, left: 0, padding: 0 }
    }

    /// The next entry. The unread rest of the entry before is skipped. `None`: the end mark of
    /// the archive came.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn next_entry(&mut self) -> Result<Option<ArchiveEntry>, ArchiveError> {
        let mut described = HeaderOverrides::default();
        for _ in 0..=MOVED_EXTENSIONS_MAX {
            self.skip_content()?;
            let Some(header) = self.read_header()? else {
                self.read_end()?;
                return Ok(None);
            };
            let size = header.entry_size().map_err(header_error)?;
            let kind = header.entry_type();
            let of_gnu = header.as_gnu().is_some() || header.as_ustar().is_some();
            match kind {
                EntryType::GNULongName if of_gnu => {
                    described.path = Some(self.read_long_name(size)?)
                }
                EntryType::GNULongLink if of_gnu => {
                    described.link = Some(self.read_long_name(size)?)
                }
                EntryType::XHeader => described.read(&self.read_extension(size)?)?,
                // It concerns all entries that follow; nothing in it is needed.
                EntryType::XGlobalHeader => drop(self.read_extension(size)?),
                _ => {
                    let size = described.size.unwrap_or(size);
                    self.begin_content(size)?;
                    return build_entry(&header, described, size).map(Some);
                }
            }
        }
        Err(ArchiveError::TooLong)
    }

    /// Read more of the present entry. Returns 0 at its end.
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

    fn begin_content(&mut self, size: u64) -> Result<(), ArchiveError> {
        let block = BLOCK as u64;
        // No file can have a length beyond `i64`.
        if i64::try_from(size).is_err() {
            return Err(ArchiveError::Header("a length that no file can have".to_owned()));
        }
        self.left = size;
        self.padding = size.next_multiple_of(block).saturating_sub(size);
        Ok(())
    }

    fn skip_content(&mut self) -> Result<(), ArchiveError> {
        let mut piece = [0; 8 * BLOCK];
        while self.read(&mut piece)? > 0 {}
        self.left = std::mem::take(&mut self.padding);
        while self.read(&mut piece)? > 0 {}
        Ok(())
    }

    /// Read a header. `None`: the first of the two empty blocks that mark the end.
    fn read_header(&mut self) -> Result<Option<Header>, ArchiveError> {
        let mut header = Header::new_old();
        self.read_whole(header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let said = header.cksum().map_err(header_error)?;
        let mut summed = header.clone();
        summed.set_cksum();
        if summed.cksum().map_err(header_error)? != said {
            return Err(ArchiveError::Header("its checksum is wrong".to_owned()));
        }
        Ok(Some(header))
    }

    /// Read the second of the two empty blocks, and what follows. Bytes from a network are whole
    /// only when the source ends there too.
    fn read_end(&mut self) -> Result<(), ArchiveError> {
        let mut second = [1; BLOCK];
        self.read_whole(&mut second)?;
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

    fn read_whole(&mut self, into: &mut [u8]) -> Result<(), ArchiveError> {
        self.from.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Cut,
            _ => ArchiveError::Read(error),
        })
    }

    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        if size > MOVED_EXTENSION_BYTES_MAX {
            return Err(ArchiveError::TooLong);
        }
        self.begin_content(size)?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            at = at.saturating_add(self.read(rest)?);
        }
        Ok(bytes)
    }

    /// Read a name that stands in an entry of its own. The name usually ends with a zero byte.
    fn read_long_name(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut name = self.read_extension(size)?;
        if name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }
}

impl HeaderOverrides {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        for extension in PaxExtensions::new(bytes) {
            let extension = extension.map_err(header_error)?;
            let value = extension.value_bytes();
            let number = || -> Result<u64, ArchiveError> {
                let text = std::str::from_utf8(value).ok();
                let number = text.and_then(|text| text.parse().ok());
                number.ok_or_else(|| ArchiveError::Header("an invalid number".to_owned()))
            };
            match extension.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"uid" => self.uid = Some(number()?),
                b"gid" => self.gid = Some(number()?),
                // A sparse file: its content does not simply follow.
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(ArchiveError::Header("a file in parts".to_owned()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn build_entry(
    header: &Header,
    described: HeaderOverrides,
    size: u64,
) -> Result<ArchiveEntry, ArchiveError> {
    let path = described.path.unwrap_or_else(|| header.path_bytes().into_owned());
    let link = described.link.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
    let link = link.unwrap_or_default();
    if path.len() > MOVED_PATH_BYTES_MAX || link.len() > MOVED_PATH_BYTES_MAX {
        return Err(ArchiveError::TooLong);
    }
    let kind = match header.entry_type() {
        EntryType::Directory => ArchiveEntryKind::Directory,
        // Very old archives mark a directory by its name alone.
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
        // The largest id means "do not change" to the kernel.
        id.filter(|id| *id < u32::MAX)
    };
    let owner = id(described.uid, header.uid()).zip(id(described.gid, header.gid()));
    Ok(ArchiveEntry {
        path,
        kind,
        mode: header.mode().map_err(header_error)?,
        owner,
        changed: header.mtime().unwrap_or_default(),
        size,
    })
}

fn header_error(error: io::Error) -> ArchiveError {
    ArchiveError::Header(error.to_string())
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
