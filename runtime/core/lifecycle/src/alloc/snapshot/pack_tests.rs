#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::alloc::snapshot::{DiskUnpackError, UnpackBounds, UnpackReport, unpack_into};
use ostler_model::limits::MIB;
use ostler_model::rng::Rng;

/// An allocation with data, and a directory for what comes of it.
struct Scene {
    root: tempfile::TempDir,
    to: tempfile::TempDir,
    alloc: AllocId,
    tasks: Vec<TaskName>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let alloc = AllocId::new(Rng::from_seed(seed).uuid());
        let tasks: Vec<TaskName> = ["web", "never"].map(|name| name.parse().unwrap()).into();
        let dir = AllocDir::create(root.path(), alloc).unwrap();
        fs::create_dir(dir.data().join("db")).unwrap();
        fs::write(dir.data().join("db/rows"), "one, two").unwrap();
        fs::write(dir.logs().join("web.stdout.0"), "said").unwrap();
        let web = dir.create_task(&tasks[0]).unwrap();
        fs::write(web.local.join("mine"), "web").unwrap();
        fs::write(web.secrets.join("token"), "secret").unwrap();
        Self { root, to: tempfile::tempdir().unwrap(), alloc, tasks }
    }

    fn old(&self, path: &str) -> PathBuf {
        self.root.path().join(self.alloc.to_string()).join(path)
    }

    fn pack(&self) -> (Result<PackedDisk, PackError>, Vec<u8>) {
        let mut bytes = Vec::new();
        (pack(self.root.path(), self.alloc, &self.tasks, &mut bytes), bytes)
    }

    fn take(&self, bytes: &[u8]) -> Result<UnpackReport, DiskUnpackError> {
        let top = fs::File::open(self.to.path()).unwrap();
        let tasks: BTreeSet<_> = self.tasks.iter().cloned().collect();
        unpack_into(top.as_fd(), bytes, self.alloc, &tasks, UnpackBounds::of_disk(MIB))
    }

    fn told(&self) -> String {
        let (packed, bytes) = self.pack();
        assert!(matches!(packed, Err(PackError::Unreadable { .. })), "{packed:?}");
        match self.take(&bytes) {
            Err(DiskUnpackError::Sender(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_moves_comes_out_as_it_went_in_and_nothing_else_does() {
    let scene = Scene::new(1);
    let long = "n".repeat(200);
    fs::write(scene.old("alloc/data").join(&long), vec![7; 100_000]).unwrap();
    symlink("db/rows", scene.old("alloc/data/current")).unwrap();
    symlink("/etc/passwd", scene.old("web/local/out")).unwrap();
    fs::set_permissions(scene.old("web/local/mine"), fs::Permissions::from_mode(0o751)).unwrap();
    let (packed, bytes) = scene.pack();
    assert_eq!(packed.unwrap(), PackedDisk { entries: 8, bytes: 100_011 });
    let unpacked = scene.take(&bytes).unwrap();
    assert_eq!((unpacked.files, unpacked.bytes), (3, 100_011));
    assert_eq!(unpacked.left_out.named, ["web/local/out (a link that leads out)"]);
    let new = |path: &str| scene.to.path().join(path);
    assert_eq!(fs::read_to_string(new("alloc/data/current")).unwrap(), "one, two");
    assert_eq!(fs::read(new("alloc/data").join(&long)).unwrap(), vec![7; 100_000]);
    assert_eq!(fs::metadata(new("web/local/mine")).unwrap().permissions().mode() & 0o777, 0o751);
    assert!(!new("alloc/logs").exists() && !new("web/secrets").exists() && !new("never").exists());
}

#[test]
fn no_link_is_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("keep"), "not to be sent").unwrap();
    for place in ["alloc/data", "alloc", "web/local", "web"] {
        let scene = Scene::new(2);
        fs::remove_dir_all(scene.old(place)).unwrap();
        symlink(outside.path(), scene.old(place)).unwrap();
        scene.told();
    }
    let scene = Scene::new(3);
    symlink(outside.path(), scene.old("alloc/data/dir")).unwrap();
    let (packed, bytes) = scene.pack();
    packed.unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains("not to be sent"));
}

#[test]
fn pipes_and_sockets_are_left_out_and_hold_nobody_up() {
    let scene = Scene::new(4);
    let pipe = scene.old("alloc/data/pipe");
    let (kind, mode) = (FileType::Fifo, Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(scene.old("alloc/data/socket")).unwrap());
    let (packed, bytes) = scene.pack();
    packed.unwrap();
    assert_eq!(scene.take(&bytes).unwrap().left_out.count, 0);
}

#[test]
fn what_cannot_be_read_is_told_in_the_place_of_the_rest() {
    let scene = Scene::new(5);
    let deep = "d/".repeat(MOVED_DEPTH_MAX);
    fs::create_dir_all(scene.old("alloc/data").join(deep)).unwrap();
    let why = scene.told();
    assert!(why.contains("it lies too deep"), "{why}");
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_sent_is_told() {
    let scene = Scene::new(6);
    let path = scene.old("alloc/data/db/rows");
    let file = fs::File::open(&path).unwrap();
    let mut whole = ExactReader { file, left: 3_000, trouble: None };
    let mut bytes = Vec::new();
    whole.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes.len(), &bytes[..8]), (3_000, &b"one, two"[..]));
    assert!(whole.trouble.unwrap().to_string().contains("became shorter"));
}

#[test]
fn an_allocation_without_a_directory_is_an_error_and_nothing_is_sent() {
    let scene = Scene::new(7);
    AllocDir::destroy(scene.root.path(), scene.alloc).unwrap();
    let (packed, bytes) = scene.pack();
    assert!(matches!(packed, Err(PackError::Dir(AllocDirError::Missing { .. }))), "{packed:?}");
    assert!(bytes.is_empty());
}

/// Takes so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn sending_ends_when_nobody_takes_it_any_more() {
    let scene = Scene::new(8);
    for room in [0, 100, 1_000, 3_000] {
        let error = pack(scene.root.path(), scene.alloc, &scene.tasks, Full(room)).unwrap_err();
        assert!(matches!(error, PackError::Untaken(_)), "{room}: {error}");
    }
}
