//! A tar.gz that is written part by part.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use ostler_model::time::Timestamp;

/// Only the user may read the file: it says much about the machine.
const MODE: u32 = 0o600;

/// A tar.gz file that is being written.
pub(super) struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    below: String,
    at: u64,
}

impl Archive {
    /// Create a new file. Everything in it lies below a directory called `below`.
    pub(super) fn create(path: &Path, below: &str, now: Timestamp) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Ok(Self { tar, below: below.to_owned(), at: now.nanos() / 1_000_000_000 })
    }

    /// Add a file to the archive.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        header.set_mode(MODE);
        header.set_mtime(self.at);
        self.tar.append_data(&mut header, format!("{}/{name}", self.below), bytes)
    }

    /// Finish the archive and write it to the disk.
    pub(super) fn finish(self) -> io::Result<()> {
        self.tar.into_inner()?.finish()?.sync_all()
    }
}
