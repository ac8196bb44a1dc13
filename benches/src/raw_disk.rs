//! What the disk itself takes: one 4 KiB block and an fdatasync.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use ostler_model::clock::Stopwatch;

const BLOCK: usize = 4096;
/// Blocks written before a file of overwrites is used, so that they change no metadata.
const BLOCKS: u64 = 256;

/// Writes blocks to one file.
#[derive(Debug)]
pub struct RawDisk {
    file: File,
    block: [u8; BLOCK],
    blocks: u64,
    next: u64,
    append: bool,
}

impl RawDisk {
    /// Overwrites blocks of a file of 1 MiB in place, one after the other.
    ///
    /// # Panics
    /// When the disk refuses.
    #[must_use]
    pub fn overwrite(dir: &Path) -> Self {
        let mut raw = Self::open(&dir.join("raw-overwrite"), false);
        for _ in 0..BLOCKS {
            raw.write();
        }
        raw.file.sync_all().expect("the file is synced");
        raw
    }

    /// Makes a file longer, block by block.
    ///
    /// # Panics
    /// When the disk refuses.
    #[must_use]
    pub fn append(dir: &Path) -> Self {
        Self::open(&dir.join("raw-append"), true)
    }

    fn open(path: &Path, append: bool) -> Self {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(path);
        Self { file: file.expect("a file"), block: [0; BLOCK], blocks: BLOCKS, next: 0, append }
    }

    fn write(&mut self) {
        let at = if self.append { self.next } else { self.next % self.blocks };
        self.block.fill(u8::try_from(self.next % 251).unwrap_or(0));
        self.file.write_all_at(&self.block, at * 4096).expect("the block is written");
        self.next += 1;
    }

    /// Write one block and wait until it is durable.
    ///
    /// # Panics
    /// When the disk refuses.
    pub fn write_synced(&mut self) {
        self.write();
        self.file.sync_data().expect("the block is synced");
    }

    /// Do so during `slice`, and return what each took.
    ///
    /// # Panics
    /// When the disk refuses.
    pub fn run_for(&mut self, slice: Duration) -> Vec<Duration> {
        let whole = Stopwatch::start();
        let mut times = Vec::new();
        while whole.elapsed() < slice {
            let one = Stopwatch::start();
            self.write_synced();
            times.push(one.elapsed());
        }
        times
    }
}
