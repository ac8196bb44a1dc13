//! The journal beside a state file: batches that are durable but not yet in the tree. Pure.
//!
//! ```text
//! batch ─► one record, one write, one sync        ─┐ file full, or nothing came for a while, or closed:
//!          │ names the one before by its checksum   ├─► all of them in one transaction of the tree, which
//!          └ the first one: what the tree ends with ┘   then ends with a new name: the file begins anew
//! ```
//!
//! A record lies in whole blocks, so that writing one never touches another:
//!
//! ```text
//! "OSJ" 1 (4) │ bytes of changes (4) │ state file (16) │ number (8) │ the one before (16) │ changes │
//! xxh3-128 of all before (16) │ zeros to the next block          numbers are little-endian
//! ```
//!
//! [`scan`] takes from a journal the records that follow from the end of the tree ([`Tip`]), one
//! from the other, from the first block on. So nothing is taken that was written for another file,
//! for an older or newer state of this one, or after something that is missing. At most one record
//! is on its way at a time, so an incomplete last record was never acknowledged. Whole records of
//! this file with higher numbers that do not follow are a sign of a hole.

pub mod pending;
pub mod plan;

use xxhash_rust::xxh3::xxh3_128;

use super::backend::Op;

/// Records begin at multiples of this number of bytes. It is the size of a page in the system's
/// cache, so that writing a record reads nothing.
pub const BLOCK: usize = 4_096;
/// The first bytes of a record; the last is the version of the layout.
const MAGIC: [u8; 4] = *b"OSJ\x01";
const HEADER: usize = 48;
const CHECKSUM: usize = 16;

/// What the next record follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// A number that names the state file, drawn when the file was made.
    pub file: u128,
    /// The number of the newest batch.
    pub number: u64,
    /// The checksum of the record before, or the number that the tree ends with. That number
    /// is drawn anew with each commit of the tree, so that a record whose fate is unknown
    /// never follows.
    pub chain: u128,
}

impl Tip {
    /// The tip after a commit of the tree that holds everything up to `number`. `chain` was never
    /// used before.
    #[must_use]
    pub fn after_commit(self, number: u64, chain: u128) -> Self {
        Self { number, chain, ..self }
    }
}

/// Replace `out` by the record of a batch, in whole blocks. Returns the tip after it, or `None` if
/// the batch cannot be a record: its effect depends on the content of the tree, or it is too large.
#[must_use]
pub fn encode(tip: &Tip, number: u64, batch: &[Op], out: &mut Vec<u8>) -> Option<Tip> {
    out.clear();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&tip.file.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&tip.chain.to_le_bytes());
    for op in batch {
        match op {
            Op::Put { key, value } => {
                out.push(0);
                put_bytes(out, key)?;
                put_bytes(out, value)?;
            }
            Op::Delete { key } => {
                out.push(1);
                put_bytes(out, key)?;
            }
            Op::DeletePrefix { prefix } => {
                out.push(2);
                put_bytes(out, prefix)?;
            }
            Op::Quarantine { .. } => return None,
        }
    }
    let len = u32::try_from(out.len().checked_sub(HEADER)?).ok()?;
    out.get_mut(MAGIC.len()..MAGIC.len() + 4)?.copy_from_slice(&len.to_le_bytes());
    let chain = xxh3_128(out);
    out.extend_from_slice(&chain.to_le_bytes());
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    Some(Tip { file: tip.file, number, chain })
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend_from_slice(bytes);
    Some(())
}

/// A whole record.
struct JournalRecord<'a> {
    tip: Tip,
    before: u128,
    changes: &'a [u8],
    /// The number of bytes it takes, in whole blocks.
    bytes: usize,
}

impl<'a> JournalRecord<'a> {
    /// The record at the beginning of `bytes`, if it is whole.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut header = bytes.get(..HEADER)?;
        if take_array::<4>(&mut header)? != MAGIC {
            return None;
        }
        let len = usize::try_from(u32::from_le_bytes(take_array(&mut header)?)).ok()?;
        let file = u128::from_le_bytes(take_array(&mut header)?);
        let number = u64::from_le_bytes(take_array(&mut header)?);
        let before = u128::from_le_bytes(take_array(&mut header)?);
        let end = HEADER.checked_add(len)?;
        let mut checksum = bytes.get(end..end.checked_add(CHECKSUM)?)?;
        let chain = u128::from_le_bytes(take_array(&mut checksum)?);
        if xxh3_128(bytes.get(..end)?) != chain {
            return None;
        }
        let changes = bytes.get(HEADER..end)?;
        let bytes = end.checked_add(CHECKSUM)?.next_multiple_of(BLOCK);
        Some(Self { tip: Tip { file, number, chain }, before, changes, bytes })
    }
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// The changes in the bytes of a record; `None` if the bytes are no changes.
fn decode_changes(mut bytes: &[u8]) -> Option<Vec<Op>> {
    let mut batch = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        let key = take_bytes(&mut bytes)?;
        batch.push(match kind {
            0 => Op::Put { key, value: take_bytes(&mut bytes)? },
            1 => Op::Delete { key },
            2 => Op::DeletePrefix { prefix: key },
            _ => return None,
        });
    }
    Some(batch)
}

fn take_bytes(bytes: &mut &[u8]) -> Option<Box<[u8]>> {
    let len = usize::try_from(u32::from_le_bytes(take_array(bytes)?)).ok()?;
    let (first, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(first.into())
}

/// The content of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalScan {
    /// The changes that the tree does not have, in order.
    pub changes: Vec<Op>,
    /// The number of batches with those changes.
    pub batches: u64,
    /// The tip after those changes.
    pub tip: Tip,
    /// The highest number of a whole record of this file, taken or not. If it is above that of
    /// `tip`, something is missing.
    pub newest: u64,
    /// Whether the journal holds whole records of another file.
    pub foreign: bool,
}

/// Find the content of a journal for a tree that ends with `tip`. `None` stands for the tree of an
/// older agent, which has no journal.
#[must_use]
pub fn scan(bytes: &[u8], tip: Option<Tip>) -> JournalScan {
    let begin = tip.unwrap_or(Tip { file: 0, number: 0, chain: 0 });
    let mut found = JournalScan {
        changes: Vec::new(),
        batches: 0,
        tip: begin,
        newest: begin.number,
        foreign: false,
    };
    let (mut at, mut follows) = (0, tip.is_some());
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(record) = JournalRecord::read(rest) else {
            follows = false;
            at = at.saturating_add(BLOCK);
            continue;
        };
        at = at.saturating_add(record.bytes);
        if tip.is_none() || record.tip.file != begin.file {
            (found.foreign, follows) = (true, false);
            continue;
        }
        found.newest = found.newest.max(record.tip.number);
        follows &= record.before == found.tip.chain && record.tip.number > found.tip.number;
        match decode_changes(record.changes).filter(|_| follows) {
            Some(batch) => {
                found.changes.extend(batch);
                found.batches = found.batches.saturating_add(1);
                found.tip = record.tip;
            }
            None => follows = false,
        }
    }
    found
}

#[cfg(test)]
mod tests;
