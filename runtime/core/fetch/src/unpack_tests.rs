#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::io::{Cursor, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

const BOUNDS: UnpackLimits = UnpackLimits { bytes: 1 << 20, of_alloc: false, entries: 20 };

fn header(path: &str, kind: EntryType, size: usize, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_mtime(1_600_000_000);
    // Hostile archives do this; the crate refuses such paths.
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    header
}

struct Made(Builder<Vec<u8>>);

impl Made {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn file(mut self, path: &str, text: &str) -> Self {
        self.0
            .append(&header(path, EntryType::Regular, text.len(), 0o6644), text.as_bytes())
            .unwrap();
        self
    }

    fn entry(mut self, path: &str, kind: EntryType, target: &str) -> Self {
        let mut header = header(path, kind, 0, 0o755);
        if !target.is_empty() {
            header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
            header.set_cksum();
        }
        self.0.append(&header, &[][..]).unwrap();
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn what(kind: ArchiveKind) -> UnpackOptions {
    UnpackOptions { kind, part: None, one_file: false }
}

fn run(
    dir: &Path,
    bytes: &[u8],
    what: &UnpackOptions,
    bounds: UnpackLimits,
) -> Result<u64, ArchiveUnpackError> {
    let top = File::open(dir).unwrap().into();
    unpack(top, Cursor::new(bytes), what, bounds, &mut |_| {})
}

fn tar(bytes: &[u8]) -> (tempfile::TempDir, Result<u64, ArchiveUnpackError>) {
    let dir = tempfile::tempdir().unwrap();
    let done = run(dir.path(), bytes, &what(ArchiveKind::Tar(ArchiveCompression::Plain)), BOUNDS);
    (dir, done)
}

fn refused(made: Made) -> String {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("in");
    std::fs::create_dir(&dir).unwrap();
    let what = what(ArchiveKind::Tar(ArchiveCompression::Plain));
    let error = run(&dir, &made.bytes(), &what, BOUNDS).unwrap_err().to_string();
    let beside = std::fs::read_dir(outer.path()).unwrap().count();
    assert_eq!(beside, 1, "something is outside");
    error
}

fn text(dir: &Path, at: &str) -> String {
    std::fs::read_to_string(dir.join(at)).unwrap()
}

fn packed(packing: ArchiveCompression, bytes: &[u8]) -> Vec<u8> {
    match packing {
        ArchiveCompression::Plain => bytes.to_vec(),
        ArchiveCompression::Gz => {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        }
        ArchiveCompression::Bz2 => {
            let mut to = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        }
        ArchiveCompression::Xz => {
            let options = lzma_rust2::XzOptions::with_preset(1);
            let mut to = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        }
        ArchiveCompression::Zst => {
            ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
        }
    }
}

const PACKINGS: [ArchiveCompression; 4] = [
    ArchiveCompression::Gz,
    ArchiveCompression::Bz2,
    ArchiveCompression::Xz,
    ArchiveCompression::Zst,
];

#[test]
fn every_kind_of_tar_and_packed_file_is_unpacked() {
    let archive = Made::new()
        .entry("./bin", EntryType::Directory, "")
        .file("./bin/tool", "#!/bin/sh\n")
        .entry("bin/link", EntryType::Symlink, "../bin/tool")
        .entry("bin/hard", EntryType::Link, "bin/tool")
        .file("made/above/x", "x")
        .bytes();
    for packing in PACKINGS.into_iter().chain([ArchiveCompression::Plain]) {
        let dir = tempfile::tempdir().unwrap();
        let kind = ArchiveKind::Tar(packing);
        run(dir.path(), &packed(packing, &archive), &what(kind), BOUNDS).unwrap();
        for at in ["bin/tool", "bin/link", "bin/hard"] {
            assert_eq!(text(dir.path(), at), "#!/bin/sh\n", "{packing:?}");
        }
        assert_eq!(text(dir.path(), "made/above/x"), "x");
        let mode = std::fs::metadata(dir.path().join("bin/tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644, "no set-user-id");
    }
    for packing in PACKINGS {
        let dir = tempfile::tempdir().unwrap();
        // Two compressed files one after the other count as one.
        let twice = [packed(packing, b"one "), packed(packing, b"two")].concat();
        let one = UnpackOptions { one_file: true, ..what(ArchiveKind::File(packing)) };
        run(dir.path(), &twice, &one, BOUNDS).unwrap();
        assert_eq!(text(dir.path(), ONE), "one two", "{packing:?}");
    }
}

#[test]
fn nothing_leads_out() {
    let entry = |path: &str, kind, target: &str| refused(Made::new().entry(path, kind, target));
    assert!(refused(Made::new().file("../out", "x")).contains("has .. in it"));
    assert!(refused(Made::new().file("a/../../out", "x")).contains("has .. in it"));
    assert!(refused(Made::new().file("/tmp/out", "x")).contains("absolute"));
    for target in ["/etc/passwd", "../out", "a/../../out"] {
        assert!(entry("link", EntryType::Symlink, target).contains("leads out"), "{target}");
    }
    assert!(entry("link", EntryType::Link, "../out").contains(".."));
    assert!(entry("link", EntryType::Link, "/etc/passwd").contains("absolute"));
    for (kind, what) in [
        (EntryType::Char, "a device"),
        (EntryType::Block, "a device"),
        (EntryType::Fifo, "a named pipe"),
    ] {
        assert!(entry("x", kind, "").contains(what));
    }
    // These go through a link that stays inside, and through one in the place of a directory.
    let through = Made::new()
        .entry("a", EntryType::Directory, "")
        .entry("link", EntryType::Symlink, "a")
        .file("link/x", "x");
    assert!(refused(through).contains("make the directory"));
}

#[test]
fn of_two_entries_of_one_name_the_later_counts_and_links_are_not_followed() {
    let (dir, done) = tar(&Made::new()
        .file("kept", "kept")
        .entry("x", EntryType::Symlink, "kept")
        .file("x", "later")
        .bytes());
    done.unwrap();
    assert_eq!(
        (text(dir.path(), "x").as_str(), text(dir.path(), "kept").as_str()),
        ("later", "kept")
    );
    let (_, done) =
        tar(&Made::new().entry("x", EntryType::Directory, "").file("x", "file").bytes());
    assert!(matches!(done, Err(ArchiveUnpackError::Io { .. })));
}

#[test]
fn what_is_too_much_is_refused() {
    let mut many = Made::new();
    for number in 0..21 {
        many = many.file(&format!("{number}"), "");
    }
    assert!(refused(many).contains("more than 20 entries"));
    let large = "x".repeat(2 << 20);
    assert!(refused(Made::new().file("large", &large)).contains("more than 1048576 bytes"));
    let deep = "d/".repeat(45);
    let (_, done) = tar(&Made::new().file(&format!("{deep}x"), "").bytes());
    done.unwrap();
    // If this is the rest of what the allocation may hold, the job must allow more.
    let dir = tempfile::tempdir().unwrap();
    let of_alloc = UnpackLimits { of_alloc: true, ..BOUNDS };
    let plain = what(ArchiveKind::Tar(ArchiveCompression::Plain));
    let error = run(dir.path(), &Made::new().file("large", &large).bytes(), &plain, of_alloc);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("1048576 bytes that the allocation's ephemeral_disk.size leaves"),
        "{error}"
    );
    // These are some hundred bytes that become a gigabyte.
    let zeros = vec![0; 64 << 20];
    for packing in PACKINGS {
        let bomb = packed(packing, &zeros);
        let dir = tempfile::tempdir().unwrap();
        for kind in [ArchiveKind::File(packing), ArchiveKind::Tar(packing)] {
            let done = run(dir.path(), &bomb, &what(kind), BOUNDS);
            assert!(done.is_err(), "{packing:?}");
        }
        let size = std::fs::metadata(dir.path().join(ONE)).unwrap().len();
        assert!(size <= BOUNDS.bytes, "{size}");
    }
}

#[test]
fn what_is_cut_off_or_damaged_is_refused() {
    let whole = Made::new().file("a", "text").file("b", "text").bytes();
    for end in [1, 511, 512, 700, 1_024, 2_048] {
        let (_, done) = tar(&whole[..end]);
        assert!(done.is_err(), "{end}");
    }
    for packing in PACKINGS {
        let all = packed(packing, &[7; 4_096]);
        let one = what(ArchiveKind::File(packing));
        let dir = tempfile::tempdir().unwrap();
        let done = run(dir.path(), &all[..all.len() - 3], &one, BOUNDS);
        assert!(matches!(done, Err(ArchiveUnpackError::Archive { .. })), "{packing:?} {done:?}");
    }
    let (_, done) = tar(b"");
    assert!(done.is_err());
    let (_, done) = tar(&Made::new().bytes());
    assert!(matches!(done, Err(ArchiveUnpackError::Empty)));
}

#[test]
fn a_part_of_an_archive_and_the_one_file_in_it_can_be_meant() {
    let archive = Made::new().file("v1/bin/tool", "tool").file("v1/README", "read").bytes();
    let kind = ArchiveKind::Tar(ArchiveCompression::Plain);
    let part = |names: &[&str]| UnpackOptions {
        part: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..what(kind)
    };
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &archive, &part(&["v1", "bin"]), BOUNDS).unwrap();
    assert_eq!(text(dir.path(), "tool"), "tool");
    assert!(!dir.path().join("README").exists());
    run(dir.path(), &archive, &part(&["v1", "README"]), BOUNDS).unwrap();
    assert_eq!(text(dir.path(), "README"), "read");
    let done = run(dir.path(), &archive, &part(&["v2"]), BOUNDS);
    assert!(matches!(done, Err(ArchiveUnpackError::NoPart { .. })));
    let one = UnpackOptions { one_file: true, ..what(kind) };
    assert!(matches!(
        run(dir.path(), &archive, &one, BOUNDS),
        Err(ArchiveUnpackError::NotOne("several"))
    ));
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &Made::new().file("a/b", "one").bytes(), &one, BOUNDS).unwrap();
    assert_eq!(text(dir.path(), ONE), "one");
}

fn zipped(entries: &[(&str, u32, &str)]) -> Vec<u8> {
    let mut to = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (path, mode, text) in entries {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated)
            .unix_permissions(*mode);
        match mode & 0o170_000 {
            0o120_000 => to.add_symlink(*path, *text, options).unwrap(),
            _ if path.ends_with('/') => to.add_directory(*path, options).unwrap(),
            _ => {
                to.start_file(*path, options).unwrap();
                to.write_all(text.as_bytes()).unwrap();
            }
        }
    }
    to.finish().unwrap().into_inner()
}

#[test]
fn zip_files_are_unpacked_with_their_rights_and_links() {
    let dir = tempfile::tempdir().unwrap();
    let archive = zipped(&[
        ("bin/", 0o755, ""),
        ("bin/tool", 0o755, "tool"),
        ("read", 0o640, "read"),
        ("link", 0o120_777, "bin/tool"),
    ]);
    run(dir.path(), &archive, &what(ArchiveKind::Zip), BOUNDS).unwrap();
    assert_eq!(text(dir.path(), "link"), "tool");
    let mode = |at: &str| std::fs::metadata(dir.path().join(at)).unwrap().permissions().mode();
    assert_eq!((mode("bin/tool") & 0o777, mode("read") & 0o777), (0o755, 0o640));
}

#[test]
fn hostile_zip_files_are_refused() {
    let refused = |entries: &[(&str, u32, &str)]| {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("in");
        std::fs::create_dir(&dir).unwrap();
        let done = run(&dir, &zipped(entries), &what(ArchiveKind::Zip), BOUNDS);
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1);
        done.unwrap_err().to_string()
    };
    assert!(refused(&[("../out", 0o644, "x")]).contains("has .. in it"));
    assert!(refused(&[("link", 0o120_777, "/etc")]).contains("leads out"));
    let large = "x".repeat(2 << 20);
    assert!(refused(&[("large", 0o644, &large)]).contains("more than 1048576 bytes"));
    let names: Vec<String> = (0..21).map(|number| number.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), 0o644, "")).collect();
    assert!(refused(&many).contains("more than 20 entries"));
    let whole = zipped(&[("a", 0o644, "text")]);
    let dir = tempfile::tempdir().unwrap();
    let done = run(dir.path(), &whole[..whole.len() - 5], &what(ArchiveKind::Zip), BOUNDS);
    assert!(matches!(done, Err(ArchiveUnpackError::Archive { .. })));
}

/// Every path below `dir`, relative to it.
fn listed(dir: &Path, below: &Path, into: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            listed(&entry.path(), &path, into);
        }
        into.push(path);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever an archive says, nothing is made outside, every link stays inside, and the
    /// limits hold.
    #[test]
    fn any_archive_stays_inside(entries in prop::collection::vec(
        ("[ab./]{1,8}", prop_oneof![
            Just(EntryType::Regular), Just(EntryType::Directory), Just(EntryType::Symlink),
            Just(EntryType::Link), Just(EntryType::Fifo)
        ], "[ab./]{1,8}"), 0..12)) {
        let mut made = Made::new();
        for (path, kind, target) in &entries {
            made = match kind {
                EntryType::Regular => made.file(path, target),
                kind => made.entry(path, *kind, target),
            };
        }
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("in");
        std::fs::create_dir(&dir).unwrap();
        let _ = run(&dir, &made.bytes(), &what(ArchiveKind::Tar(ArchiveCompression::Plain)), BOUNDS);
        prop_assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1);
        let mut all = Vec::new();
        listed(&dir, Path::new(""), &mut all);
        let real = dir.canonicalize().unwrap();
        for path in all {
            // A link that leads nowhere does not lead outside either.
            if let Ok(at) = dir.join(&path).canonicalize() {
                prop_assert!(at.starts_with(&real), "{:?} leads to {:?}", path, at);
            }
        }
    }

    #[test]
    fn any_bytes_are_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600), kind in 0..10_usize) {
        let kinds = ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst", "zip", "gz", "bz2", "xz", "zst"];
        let dir = tempfile::tempdir().unwrap();
        let _ = run(dir.path(), &bytes, &what(ArchiveKind::from_name(kinds[kind]).unwrap()), BOUNDS);
    }

    #[test]
    fn a_damaged_archive_is_unpacked_or_refused(at in 0..2_000_usize, bit in 0..8_u32, kind in 0..5_usize) {
        let archive = Made::new().file("a/b", "text").entry("c", EntryType::Symlink, "a/b").bytes();
        let packing = [ArchiveCompression::Plain, ArchiveCompression::Gz, ArchiveCompression::Bz2, ArchiveCompression::Xz, ArchiveCompression::Zst][kind];
        let mut bytes = packed(packing, &archive);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let dir = tempfile::tempdir().unwrap();
        let _ = run(dir.path(), &bytes, &what(ArchiveKind::Tar(packing)), BOUNDS);
    }
}
