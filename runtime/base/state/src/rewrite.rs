//! Writes a whole file again, as the system shows it.
//!
//! After a failed sync the system may treat unwritten data as written: it shows the data from
//! memory, and no later sync brings it to the disk. Everything that is built on top is lost with
//! the next power cut. Once the file is written again, the data is on its way to the disk again,
//! and the next sync tells the truth.

use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use redb::backends::FileBackend;
use redb::{DatabaseError, StorageBackend};

use crate::own_file;

/// The number of bytes written at once.
const PAGE: usize = 4096;

/// Whether the content that the system shows of a file can be assumed to be on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileTrust {
    /// It can, except for what a crash loses.
    Trusted,
    /// It cannot, because a sync may have failed. The file must be written again before it is used.
    Doubted,
}

/// Write a file again that no process has open. Its content stays the same.
///
/// # Errors
/// When it is open somewhere, or cannot be opened, written or synced.
pub fn file(path: &Path) -> Result<(), DatabaseError> {
    let file = own_file::open(OpenOptions::new().read(true).write(true), path)?;
    // The storage engine takes this lock too. It is released with the file handle.
    match file.try_lock() {
        Ok(()) => Ok(storage(&FileBackend::new(file)?)?),
        Err(TryLockError::WouldBlock) => Err(DatabaseError::DatabaseAlreadyOpen),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Write every byte of a storage again and sync it. A crash meanwhile leaves what a crash during
/// the failed sync could have left.
///
/// # Errors
/// When it cannot be written or synced; nothing of it can be trusted then.
pub fn storage(storage: &dyn StorageBackend) -> io::Result<()> {
    let len = storage.len()?;
    let mut page = vec![0; PAGE];
    for offset in (0..len).step_by(PAGE) {
        page.truncate(usize::try_from(len.saturating_sub(offset)).unwrap_or(PAGE));
        // Content that the system shows from memory can be read. What cannot be read is only on the
        // disk.
        if storage.read(offset, &mut page).is_ok() {
            storage.write(offset, &page)?;
        }
    }
    storage.sync_data()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::disk_store::DiskBackend;

    #[test]
    fn a_file_written_again_is_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let content: Vec<u8> = (0..3 * PAGE + 100).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        file(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }

    #[test]
    fn a_file_that_is_open_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let open = DiskBackend::open(&path).unwrap();
        assert!(matches!(file(&path), Err(DatabaseError::DatabaseAlreadyOpen)));
        drop(open);
        file(&path).unwrap();
        DiskBackend::open(&path).unwrap();
    }
}
