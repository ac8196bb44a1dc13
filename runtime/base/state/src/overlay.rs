//! A file that is read and never written: the engine's writes stay in memory.
//!
//! ```text
//! engine ─ write ─► blocks in memory (bounded)
//!        ─ read ──► block in memory, else the file (opened for reading only), else zeros
//! ```
//!
//! Opening a database writes: a mark that it is open, and its recovery after a crash. A person who
//! reads a file wants neither. With this underneath, the engine recovers a file of a killed agent,
//! one on a read-only file system, or one of another user, and the file stays as it is.
//!
//! The engine's locks are taken on the file as a reader's, so that nobody can write to it
//! meanwhile, and a file that another process writes is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

use crate::own_file;
use ostler_model::limits::STATE_OVERLAY_BYTES_MAX;

/// The number of bytes in a block in memory, which is the engine's page.
const BLOCK: usize = 4_096;

/// A file, and what was written over it in memory.
#[derive(Debug)]
pub struct Overlay {
    file: FileBackend,
    written: Mutex<OverlayContent>,
    most: u64,
}

#[derive(Debug)]
struct OverlayContent {
    /// The length of the whole.
    len: u64,
    /// The offset from which the file's own bytes no longer count, because it was cut there once.
    file_end: u64,
    /// The blocks by number. A block here hides that of the file.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Overlay {
    /// Open an overlay over the file at `path` that keeps at most [`STATE_OVERLAY_BYTES_MAX`]
    /// in memory.
    ///
    /// # Errors
    /// When it cannot be opened for reading, is no regular file or is empty.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        Self::with_limit(path, STATE_OVERLAY_BYTES_MAX)
    }

    /// The same as [`Overlay::open`], keeping at most `most` bytes in memory.
    ///
    /// # Errors
    /// As [`Overlay::open`].
    pub fn with_limit(path: &Path, most: u64) -> Result<Self, DatabaseError> {
        let file = own_file::read(path)?;
        let len = database_len(&file)?;
        let written = OverlayContent { len, file_end: len, blocks: BTreeMap::new() };
        Ok(Self { file: FileBackend::new(file)?, written: Mutex::new(written), most })
    }

    fn lock_content(&self) -> MutexGuard<'_, OverlayContent> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content of a block that is not in memory.
    fn read_block(&self, number: u64, file_end: u64) -> io::Result<Box<[u8]>> {
        let mut block = vec![0; BLOCK].into_boxed_slice();
        let start = number.saturating_mul(BLOCK as u64);
        let there = usize::try_from(file_end.saturating_sub(start)).unwrap_or(BLOCK).min(BLOCK);
        if let Some(part) = block.get_mut(..there).filter(|part| !part.is_empty()) {
            StorageBackend::read(&self.file, start, part)?;
        }
        Ok(block)
    }
}

/// The length of a file, if it can hold a database.
fn database_len(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    match (metadata.is_file(), metadata.len()) {
        (true, len) if len > 0 => Ok(len),
        // The engine would make a new database of an empty file.
        (true, _) => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty")),
        (false, _) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file")),
    }
}

/// The blocks that `len` bytes from `offset` touch: the number of each block, the place in it, and
/// the bytes there.
fn split_blocks(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, mut left) = (offset, len);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let within = usize::try_from(at % BLOCK as u64).unwrap_or(0);
        let bytes = left.min(BLOCK - within);
        let piece = (at / BLOCK as u64, within, bytes);
        at = at.saturating_add(bytes as u64);
        left -= bytes;
        Some(piece)
    })
}

fn out_of_range() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "read or write beyond the end of the file")
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock_content().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.lock_content();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.len) {
            return Err(out_of_range());
        }
        let mut rest = out;
        for (number, within, bytes) in split_blocks(offset, rest.len()) {
            let (part, after) = rest.split_at_mut_checked(bytes).ok_or_else(out_of_range)?;
            rest = after;
            let start = number.saturating_mul(BLOCK as u64).saturating_add(within as u64);
            match written.blocks.get(&number) {
                Some(block) => {
                    part.copy_from_slice(
                        block.get(within..within + bytes).ok_or_else(out_of_range)?,
                    );
                }
                None if start.saturating_add(bytes as u64) <= written.file_end => {
                    StorageBackend::read(&self.file, start, part)?;
                }
                None => {
                    let block = self.read_block(number, written.file_end)?;
                    part.copy_from_slice(
                        block.get(within..within + bytes).ok_or_else(out_of_range)?,
                    );
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.lock_content();
        let cut = len / BLOCK as u64;
        if len < written.len {
            written.blocks.split_off(&len.div_ceil(BLOCK as u64));
            let within = usize::try_from(len % BLOCK as u64).unwrap_or(0);
            if let Some(tail) = written.blocks.get_mut(&cut).and_then(|b| b.get_mut(within..)) {
                tail.fill(0);
            }
        }
        written.len = len;
        written.file_end = written.file_end.min(len);
        Ok(())
    }

    /// Nothing here outlives the process.
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.lock_content();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > written.len) {
            return Err(out_of_range());
        }
        let mut rest = data;
        for (number, within, bytes) in split_blocks(offset, rest.len()) {
            let (part, after) = rest.split_at_checked(bytes).ok_or_else(out_of_range)?;
            rest = after;
            if !written.blocks.contains_key(&number) {
                if (written.blocks.len() as u64 + 1).saturating_mul(BLOCK as u64) > self.most {
                    let most = self.most;
                    return Err(io::Error::new(
                        io::ErrorKind::OutOfMemory,
                        format!(
                            "to look at it without changing it takes more than {most} bytes of memory"
                        ),
                    ));
                }
                let block = self.read_block(number, written.file_end)?;
                written.blocks.insert(number, block);
            }
            let block = written.blocks.get_mut(&number);
            let place = block.and_then(|block| block.get_mut(within..within + bytes));
            place.ok_or_else(out_of_range)?.copy_from_slice(part);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
