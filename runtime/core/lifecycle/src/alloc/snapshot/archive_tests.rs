#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::{any, prop, prop_assert, proptest};
use tar::Builder;

use super::*;

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o640);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(9);
    header.set_size(size);
    header
}

fn plain(path: &str, content: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = header(EntryType::Regular, content.len() as u64);
    builder.append_data(&mut header, path, content).unwrap();
    builder.into_inner().unwrap()
}

type Read = Vec<(ArchiveEntry, Vec<u8>)>;

fn read(bytes: &[u8]) -> Result<Read, ArchiveError> {
    let mut archive = ArchiveReader::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = archive.next_entry()? {
        let (mut content, mut piece) = (Vec::new(), [0; 700]);
        loop {
            match archive.read(&mut piece)? {
                0 => break,
                count => content.extend_from_slice(&piece[..count]),
            }
        }
        all.push((entry, content));
    }
    Ok(all)
}

#[test]
fn entries_are_read_with_long_names_of_either_kind() {
    let (long, target) = (format!("alloc/data/{}", "n".repeat(200)), "t".repeat(300));
    let mut builder = Builder::new(Vec::new());
    builder.append_data(&mut header(EntryType::Directory, 0), "alloc/data", &b""[..]).unwrap();
    builder.append_data(&mut header(EntryType::Regular, 600), &long, &[5; 600][..]).unwrap();
    builder.append_link(&mut header(EntryType::Symlink, 0), "alloc/data/l", &target).unwrap();
    // As Go names what is not ASCII.
    let name = "alloc/data/größe".as_bytes();
    builder.append_pax_extensions([("path", name), ("uid", &b"70000"[..])]).unwrap();
    builder.append_data(&mut header(EntryType::Regular, 1), "alloc/data/gr", &b"x"[..]).unwrap();
    let all = read(&builder.into_inner().unwrap()).unwrap();
    let paths: Vec<_> = all.iter().map(|(entry, _)| entry.path.clone()).collect();
    assert_eq!(paths, [b"alloc/data", long.as_bytes(), b"alloc/data/l", name]);
    assert_eq!(all[0].0.kind, ArchiveEntryKind::Directory);
    assert_eq!((all[1].0.size, all[1].1.as_slice()), (600, &[5; 600][..]));
    assert_eq!((all[1].0.mode, all[1].0.owner, all[1].0.changed), (0o640, Some((7, 8)), 9));
    assert_eq!(all[2].0.kind, ArchiveEntryKind::Symlink(target.into_bytes()));
    assert_eq!(all[3].0.owner, Some((70_000, 8)));
}

#[test]
fn the_length_of_a_large_file_may_stand_beside_its_header() {
    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("size", &b"3"[..])]).unwrap();
    let mut bytes = builder.into_inner().unwrap();
    bytes.truncate(bytes.len() - 2 * BLOCK);
    let mut file = plain("alloc/data/f", b"abc");
    // In its header it has none.
    let mut none = header(EntryType::Regular, 0);
    none.set_path("alloc/data/f").unwrap();
    none.set_cksum();
    file[..BLOCK].copy_from_slice(none.as_bytes());
    bytes.extend(file);
    let all = read(&bytes).unwrap();
    assert_eq!((all.len(), all[0].0.size, all[0].1.as_slice()), (1, 3, &b"abc"[..]));
}

#[test]
fn one_that_is_cut_off_is_not_whole_wherever_that_is() {
    let bytes = plain("alloc/data/f", &[1; 1_000]);
    let whole = 3 * BLOCK + 2 * BLOCK;
    assert_eq!(bytes.len(), whole);
    for length in 0..whole {
        let error = read(&bytes[..length]).unwrap_err();
        assert!(matches!(error, ArchiveError::Cut), "{length}: {error}");
    }
    let padded = [bytes, vec![0; 9 * BLOCK]].concat();
    assert_eq!(read(&padded).unwrap().len(), 1);
}

/// Never ends.
struct Endless(Vec<u8>, u64);

impl io::Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 += into.len() as u64;
        if self.0.is_empty() {
            into.fill(b'n');
            return Ok(into.len());
        }
        let count = into.len().min(self.0.len());
        into[..count].copy_from_slice(&self.0[..count]);
        self.0.drain(..count);
        Ok(count)
    }
}

#[test]
fn a_name_without_end_is_refused_before_it_is_read() {
    for kind in [
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ] {
        let mut long = header(kind, 10 << 30);
        long.set_path("x").unwrap();
        long.set_cksum();
        let mut archive = ArchiveReader::new(Endless(long.as_bytes().to_vec(), 0));
        let error = archive.next_entry().unwrap_err();
        assert!(matches!(error, ArchiveError::TooLong), "{kind:?}: {error}");
        assert_eq!(archive.from.1, BLOCK as u64, "{kind:?}");
    }
}

#[test]
fn descriptions_of_nothing_and_zeros_behind_the_end_do_not_go_on_for_ever() {
    let mut long = header(EntryType::GNULongName, 1);
    long.set_path("x").unwrap();
    long.set_cksum();
    let one = [long.as_bytes(), &[b'n'; BLOCK][..]].concat();
    let error = read(&one.repeat(1_000)).unwrap_err();
    assert!(matches!(error, ArchiveError::TooLong), "{error}");
    let zeros = vec![0; 2 * BLOCK + MOVED_PADDING_BYTES_MAX as usize + 1];
    assert!(matches!(read(&zeros).unwrap_err(), ArchiveError::TooLong));
}

#[test]
fn a_file_in_parts_is_refused() {
    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("GNU.sparse.major", &b"1"[..])]).unwrap();
    let error = read(&builder.into_inner().unwrap()).unwrap_err();
    assert!(error.to_string().contains("a file in parts"), "{error}");
    let mut sparse = header(EntryType::GNUSparse, 0);
    sparse.set_path("x").unwrap();
    sparse.set_cksum();
    let error = read(sparse.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("a file in parts"), "{error}");
}

#[test]
fn a_length_that_no_file_can_have_is_refused() {
    let mut huge = header(EntryType::Regular, u64::MAX);
    huge.set_path("x").unwrap();
    huge.set_cksum();
    let error = read(huge.as_bytes()).unwrap_err();
    assert!(matches!(error, ArchiveError::Header(_)), "{error}");
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..3_000)) {
        drop(read(&bytes));
    }

    #[test]
    fn a_changed_header_is_refused_or_says_something_else(at in 0..BLOCK, to in any::<u8>()) {
        let mut bytes = plain("alloc/data/f", b"abc");
        let whole = read(&bytes).unwrap();
        let same = bytes[at] == to;
        bytes[at] = to;
        if let Ok(all) = read(&bytes) {
            // The sum may be written in more than one way, and zeros are its end.
            prop_assert!(same || (148..156).contains(&at), "{at} {to}");
            prop_assert!(all == whole);
        }
    }
}
