//! What a disk holds after its power was cut: everything up to the last flush, and of what was written
//! after it any part.
//!
//! The log is the one of the kernel's `dm-log-writes`, as the emulator writes it: a superblock, then an
//! entry and its data for each write and flush, each on sectors of its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ostler_model::rng::Rng;

const SECTOR: u64 = 512;
const MAGIC: u64 = 0x6a_7366_7773_6872;
/// Flags of an entry.
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// Something a machine asked of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where on the disk, bytes.
    at: u64,
    /// How much, bytes.
    bytes: u64,
    flags: u64,
    /// Where its data is in the log.
    data: u64,
}

/// How much of what was not flushed the disk kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// Any of it, in any order; single writes torn.
    Some,
    All,
}

fn number(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap())
}

/// All entries of a log, the last of which may have been cut off.
pub fn entries(log: &File) -> io::Result<Vec<Entry>> {
    let mut sector = [0; SECTOR as usize];
    log.read_exact_at(&mut sector, 0)?;
    assert_eq!(number(&sector, 0), MAGIC, "no log of writes");
    let (end, mut at, mut found) = (log.metadata()?.len(), SECTOR, Vec::new());
    while at + SECTOR <= end {
        log.read_exact_at(&mut sector, at)?;
        let (place, count, flags) = (number(&sector, 0), number(&sector, 1), number(&sector, 2));
        if (count, flags) == (0, 0) {
            break;
        }
        let (bytes, data) = (count * SECTOR, at + SECTOR);
        found.push(Entry { at: place * SECTOR, bytes, flags, data });
        at = data + if flags & DISCARD == 0 { bytes } else { 0 };
    }
    Ok(found)
}

/// Which parts of which entries are on the disk after a cut.
pub fn survivors(entries: &[Entry], kept: Kept, rng: &Rng) -> Vec<Entry> {
    let flushed = entries.iter().rposition(|entry| entry.flags & FLUSH != 0).unwrap_or(0);
    let mut disk = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let durable = index <= flushed || entry.flags & FUA != 0;
        let part = match kept {
            _ if durable => entry.bytes,
            Kept::Nothing => 0,
            Kept::All => entry.bytes,
            Kept::Some => match rng.number_below(8) {
                0..4 => 0,
                4 => rng.number_below(entry.bytes / SECTOR + 1) * SECTOR,
                _ => entry.bytes,
            },
        };
        if part > 0 && entry.flags & DISCARD == 0 {
            disk.push(Entry { bytes: part, ..*entry });
        }
    }
    disk
}

/// Make `disk`, which is as it was when the machine started, what it was after the cut.
pub fn replay(log: &Path, disk: &Path, kept: Kept, rng: &Rng) -> io::Result<()> {
    let (log, disk) = (File::open(log)?, OpenOptions::new().write(true).open(disk)?);
    for Entry { at, bytes, data, .. } in survivors(&entries(&log)?, kept, rng) {
        let mut content = vec![0; usize::try_from(bytes).unwrap()];
        log.read_exact_at(&mut content, data)?;
        disk.write_all_at(&content, at)?;
    }
    Ok(())
}

#[test]
fn what_was_flushed_stays_and_of_the_rest_any_part() {
    let entry = |at, bytes, flags| Entry { at, bytes, flags, data: 0 };
    let (first, flush) = (entry(0, 4096, 0), entry(0, 0, FLUSH));
    let (second, sure) = (entry(8192, 4096, 0), entry(512, 512, FUA));
    let all = [first, flush, second, sure];
    let rng = Rng::from_seed(1);
    assert_eq!(survivors(&all, Kept::Nothing, &rng), [first, sure]);
    assert_eq!(survivors(&all, Kept::All, &rng), [first, second, sure]);
    let sizes: std::collections::BTreeSet<u64> = (0..200)
        .map(|_| survivors(&all, Kept::Some, &rng))
        .map(|disk| disk.iter().find(|entry| entry.at == 8192).map_or(0, |entry| entry.bytes))
        .collect();
    assert!(sizes.contains(&0) && sizes.contains(&4096) && sizes.len() > 4, "{sizes:?}");
}
