#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use tar::{Builder, EntryType, Header};

use super::*;
use ostler_model::limits::MIB;

const FROM: &str = "aaaaaaaa-0000-4000-8000-000000000001";

fn tasks() -> BTreeSet<TaskName> {
    ["web", "db"].map(|name| name.parse().unwrap()).into()
}

/// An archive made by hand.
struct Made(Builder<Vec<u8>>);

impl Made {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    /// The name as it stands in the header, whatever it is.
    fn raw(mut self, path: &str, kind: EntryType, target: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o6754);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(1_000);
        header.set_size(content.len() as u64);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..path.len()].copy_from_slice(path.as_bytes());
        gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn file(self, path: &str, content: &[u8]) -> Self {
        self.raw(path, EntryType::Regular, "", content)
    }

    fn dir(self, path: &str) -> Self {
        self.raw(path, EntryType::Directory, "", b"")
    }

    fn link(self, path: &str, target: &str) -> Self {
        self.raw(path, EntryType::Symlink, target, b"")
    }

    fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// A directory to unpack in, beside one that must not be touched.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("new")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/keep"), "x").unwrap();
        Self { dir }
    }

    fn new_place(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("new").join(path)
    }

    fn take_bounded(
        &self,
        made: &[u8],
        bounds: UnpackBounds,
    ) -> Result<UnpackReport, DiskUnpackError> {
        let top = fs::File::open(self.dir.path().join("new")).unwrap();
        let taken = unpack_into(top.as_fd(), made, FROM.parse().unwrap(), &tasks(), bounds);
        // Whatever came: nothing beside the directory.
        let kept = fs::read_dir(self.dir.path()).unwrap().count();
        assert_eq!((kept, fs::read_dir(self.dir.path().join("outside")).unwrap().count()), (2, 1));
        assert_eq!(fs::read_to_string(self.dir.path().join("outside/keep")).unwrap(), "x");
        taken
    }

    fn take(&self, made: Made) -> Result<UnpackReport, DiskUnpackError> {
        self.take_bounded(&made.into_bytes(), UnpackBounds::of_disk(MIB))
    }

    fn refused(&self, made: Made, with: &str) {
        let error = self.take(made).unwrap_err().to_string();
        assert!(error.contains(with), "{error}");
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_directories_and_links_come_with_their_content_modes_and_times() {
    let scene = Scene::new();
    let made = Made::new()
        .dir("alloc/data")
        .dir("alloc/data/db")
        .file("alloc/data/db/rows", b"one, two")
        .link("alloc/data/current", "db/rows")
        .dir("web/local")
        .file("web/local/mine", b"web")
        .file("old/local/mine", b"of a task that is gone");
    let unpacked = scene.take(made).unwrap();
    assert_eq!((unpacked.files, unpacked.bytes, unpacked.left_out.count), (2, 11, 0));
    assert_eq!(fs::read_to_string(scene.new_place("alloc/data/current")).unwrap(), "one, two");
    assert_eq!(fs::read_to_string(scene.new_place("web/local/mine")).unwrap(), "web");
    assert_eq!(mode(&scene.new_place("alloc/data/db/rows")), 0o754, "and no set-user-id");
    assert_eq!(mode(&scene.new_place("alloc/data/db")), 0o754);
    assert_eq!(fs::metadata(scene.new_place("web/local/mine")).unwrap().mtime(), 1_000);
    assert!(!scene.new_place("old").exists());
}

#[test]
fn directories_that_the_archive_does_not_have_are_made_for_what_is_in_them_at_the_top_alone() {
    let scene = Scene::new();
    scene.take(Made::new().file("alloc/data/rows", b"x")).unwrap();
    assert!(scene.new_place("alloc/data/rows").exists());
    scene.refused(Made::new().file("alloc/data/db/rows", b"x"), "No such file");
}

#[test]
fn a_name_that_leads_up_or_to_the_root_is_refused() {
    for name in ["alloc/data/../../../outside/new", "../outside/new", "/tmp/ostler-unpack-test"] {
        let scene = Scene::new();
        scene.refused(Made::new().dir("alloc/data").file(name, b"x"), "is not a path inside");
        assert!(!Path::new("/tmp/ostler-unpack-test").exists());
    }
}

#[test]
fn logs_secrets_and_the_journal_of_a_move_cannot_be_brought() {
    for name in ["alloc/logs/web.stdout.0", "web/secrets/token", "data move.json", "alloc/data"] {
        let scene = Scene::new();
        scene.refused(Made::new().file(name, b"x"), "is not part of what moves");
    }
}

#[test]
fn nothing_is_made_through_a_link_of_the_archive() {
    // The link itself is taken: it stays inside.
    let scene = Scene::new();
    let made = Made::new()
        .dir("alloc/data")
        .dir("alloc/data/real")
        .link("alloc/data/l", "real")
        .file("alloc/data/l/x", b"x");
    scene.refused(made, "cannot open the directory of");
    let scene = Scene::new();
    let made = Made::new().dir("alloc/data").link("alloc/data/l", "real").dir("alloc/data/l");
    scene.refused(made, "cannot make");
}

#[test]
fn nothing_is_made_through_a_link_that_somebody_else_put_there() {
    for place in ["alloc", "alloc/data", "web/local"] {
        let scene = Scene::new();
        fs::create_dir_all(scene.new_place(place).parent().unwrap()).unwrap();
        symlink(scene.dir.path().join("outside"), scene.new_place(place)).unwrap();
        let made = Made::new().file("alloc/data/x", b"x").file("web/local/x", b"x");
        scene.refused(made, "cannot open the directory of");
    }
}

#[test]
fn links_that_lead_out_stay_behind_and_people_hear_of_them() {
    let scene = Scene::new();
    let mut made = Made::new().dir("alloc/data");
    for (number, target) in
        ["/etc/passwd", "../../../outside", "x/../../../../outside/keep"].iter().enumerate()
    {
        made = made.link(&format!("alloc/data/l{number}"), target);
    }
    for number in 3..9 {
        made = made.link(&format!("alloc/data/l{number}"), "/");
    }
    let left_out = scene.take(made).unwrap().left_out;
    assert_eq!((left_out.count, left_out.named.len()), (9, MOVED_LEFT_NAMED_MAX));
    assert_eq!(left_out.named[0], "alloc/data/l0 (a link that leads out)");
    assert_eq!(fs::read_dir(scene.new_place("alloc/data")).unwrap().count(), 0);
}

#[test]
fn devices_pipes_and_hard_links_stay_behind() {
    for (kind, what) in [
        (EntryType::Char, "a device"),
        (EntryType::Block, "a device"),
        (EntryType::Fifo, "a named pipe"),
        (EntryType::Link, "a hard link"),
    ] {
        let scene = Scene::new();
        let made =
            Made::new().dir("alloc/data").raw("alloc/data/x", kind, "../../outside/keep", b"");
        let left_out = scene.take(made).unwrap().left_out;
        assert_eq!(left_out.named, [format!("alloc/data/x ({what})")]);
        assert!(fs::symlink_metadata(scene.new_place("alloc/data/x")).is_err());
    }
}

#[test]
fn a_name_that_is_there_already_is_refused() {
    let scene = Scene::new();
    let made = Made::new().file("alloc/data/x", b"one").file("alloc/data/x", b"two");
    scene.refused(made, "File exists");
    let scene = Scene::new();
    let made = Made::new().link("alloc/data/x", "y").file("alloc/data/x", b"two");
    scene.refused(made, "File exists");
    assert!(!scene.new_place("alloc/data/y").exists());
    let scene = Scene::new();
    scene.refused(Made::new().file("alloc/data/x", b"one").dir("alloc/data/x"), "cannot make");
    // A directory may come twice.
    let scene = Scene::new();
    scene.take(Made::new().dir("alloc/data").dir("alloc/data")).unwrap();
}

#[test]
fn more_than_the_disk_may_have_is_refused_whatever_a_header_says() {
    let scene = Scene::new();
    let large = vec![1; MIB as usize + 1];
    scene.refused(Made::new().file("alloc/data/x", &large), "more than the 1 MiB");
    let half = vec![1; MIB as usize / 2 + 1];
    let scene = Scene::new();
    scene.refused(Made::new().file("alloc/data/x", &half).file("web/local/x", &half), "more than");
    // A header promises what never comes.
    let mut promised = Made::new().file("alloc/data/x", b"").into_bytes();
    let mut header = Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&promised[..512]);
    header.set_size(4 << 60);
    header.set_cksum();
    promised[..512].copy_from_slice(header.as_bytes());
    let scene = Scene::new();
    let error = scene.take_bounded(&promised, UnpackBounds::of_disk(MIB)).unwrap_err();
    assert!(matches!(error, DiskUnpackError::Archive(_)), "{error}");
    assert!(fs::metadata(scene.new_place("alloc/data/x")).unwrap().len() == 0);
}

#[test]
fn more_files_than_are_taken_are_refused() {
    let mut made = Made::new();
    for number in 0..11 {
        made = made.file(&format!("alloc/data/{number}"), b"");
    }
    let scene = Scene::new();
    let bounds = UnpackBounds { bytes: MIB, entries: 10 };
    let error = scene.take_bounded(&made.into_bytes(), bounds).unwrap_err();
    assert!(matches!(error, DiskUnpackError::TooMany { entries: 10 }), "{error}");
}

#[test]
fn holes_stay_holes_and_do_not_count() {
    let mut content = vec![0; 4 * MIB as usize + 5];
    content[2 * MIB as usize] = 1;
    let scene = Scene::new();
    scene.take(Made::new().file("alloc/data/x", &content)).unwrap();
    let file = scene.new_place("alloc/data/x");
    assert!(fs::read(&file).unwrap() == content);
    assert!(fs::metadata(&file).unwrap().blocks() * 512 < MIB);
}

#[test]
fn what_the_other_node_could_not_send_is_told_with_its_reason() {
    let scene = Scene::new();
    let marker = format!("NOMAD-{FROM}-ERROR.log");
    let made = Made::new()
        .file("alloc/data/x", b"x")
        .file(&marker, b"Error snapshotting: permission denied\x1b[2J");
    scene.refused(made, "could not send all of it: Error snapshotting: permission denied\\u{1b}");
}

#[test]
fn an_archive_that_breaks_off_is_refused() {
    let scene = Scene::new();
    let bytes = Made::new().file("alloc/data/x", b"x").into_bytes();
    let error = scene.take_bounded(&bytes[..1_024], UnpackBounds::of_disk(MIB)).unwrap_err();
    assert!(error.to_string().contains("it ended before it was complete"), "{error}");
}
