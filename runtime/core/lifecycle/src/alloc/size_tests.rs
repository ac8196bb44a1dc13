#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::CWD;

use super::*;
use ostler_model::ids::TaskName;
use ostler_model::limits::KIB;

fn id() -> AllocId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("bbbbbbbb-0000-4000-8000-{number:012x}").parse().unwrap()
}

struct Scene {
    root: tempfile::TempDir,
    alloc: AllocId,
    dir: AllocDir,
}

impl Scene {
    fn new() -> Self {
        Self::below(tempfile::tempdir().unwrap())
    }

    fn below(root: tempfile::TempDir) -> Self {
        let alloc = id();
        let dir = AllocDir::create(root.path(), alloc).unwrap();
        dir.create_task(&TaskName::new("web").unwrap()).unwrap();
        Self { root, alloc, dir }
    }

    fn measure(&self) -> AllocDiskUse {
        measure(self.root.path(), self.alloc, &CancellationToken::new()).unwrap()
    }

    /// What is added by `change`.
    fn added(&self, change: impl FnOnce(&Self)) -> AllocDiskUse {
        let before = self.measure();
        change(self);
        let after = self.measure();
        AllocDiskUse {
            bytes: after.bytes - before.bytes,
            apparent_bytes: after.apparent_bytes - before.apparent_bytes,
            inodes: after.inodes - before.inodes,
            complete: before.complete && after.complete,
        }
    }
}

#[test]
fn measuring_does_not_touch_access_times() {
    let scene = Scene::new();
    let data = scene.dir.path().join("alloc/data");
    fs::create_dir(data.join("inner")).unwrap();
    // Older than the last change: the next look would be noted, whatever the mount says.
    let old = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: omit };
    let seen = || fs::metadata(&data).unwrap().atime();
    rustix::fs::utimensat(CWD, &data, &times, AtFlags::empty()).unwrap();
    assert!(scene.measure().complete);
    assert_eq!(seen(), 1);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
    if seen() == 1 {
        eprintln!("this file system notes no access times: nothing was shown");
    }
}

#[test]
fn what_every_directory_but_the_logs_holds_is_counted() {
    let scene = Scene::new();
    let added = scene.added(|scene| {
        for place in ["alloc/data", "alloc/tmp", "web/local", "web/secrets", "web/tmp"] {
            fs::write(scene.dir.path().join(place).join("file"), vec![1; 1000]).unwrap();
        }
    });
    let file = fs::metadata(scene.dir.data().join("file")).unwrap();
    assert_eq!(added.inodes, 5);
    assert_eq!(added.apparent_bytes, 5_000);
    assert_eq!(added.bytes, 5 * file.blocks() * 512);
    assert!(added.complete && added.bytes > 0);
}

#[test]
fn logs_are_left_out_and_directories_of_this_name_elsewhere_are_not() {
    let scene = Scene::new();
    let logs = scene.added(|s| fs::write(s.dir.logs().join("x"), vec![1; 4096]).unwrap());
    assert_eq!((logs.bytes, logs.inodes), (0, 0));
    for place in ["web/local/logs", "alloc/data/logs", "web/logs", "web/local/alloc/logs"] {
        let other = scene.added(|scene| {
            let dir = scene.dir.path().join(place);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("x"), vec![1; 4096]).unwrap();
        });
        assert!(other.bytes >= 4096 && other.inodes >= 2, "{place}: {other:?}");
    }
}

#[test]
fn what_a_device_plugin_assigned_is_no_disk_of_the_allocation_unless_others_write_there() {
    let scene = Scene::new();
    let gathered = |scene: &Scene, below: &str| {
        let dir = scene.dir.path().join(below).join(ASSIGNED_FILES);
        fs::create_dir_all(dir.join("web/0")).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(dir.join("web/0/big"), vec![1; 4096]).unwrap();
    };
    let added = scene.added(|scene| gathered(scene, ""));
    assert_eq!((added.bytes, added.inodes), (0, 0));
    for elsewhere in ["web/local", "alloc/data", "alloc"] {
        let added = scene.added(|scene| gathered(scene, elsewhere));
        assert!(added.bytes >= 4096 && added.inodes >= 4, "{elsewhere}: {added:?}");
    }
    let opened = scene.added(|scene| {
        let dir = scene.dir.path().join(ASSIGNED_FILES);
        fs::set_permissions(dir, fs::Permissions::from_mode(0o770)).unwrap();
    });
    assert!(opened.bytes >= 4096 && opened.inodes >= 4, "{opened:?}");
    // No task can be called so.
    assert!(TaskName::new(ASSIGNED_FILES).is_err());
}

#[test]
fn a_file_with_several_names_counts_once_and_a_sparse_one_what_it_occupies() {
    let scene = Scene::new();
    let linked = scene.added(|scene| {
        let file = scene.dir.data().join("file");
        fs::write(&file, vec![1; 8192]).unwrap();
        for i in 0..5 {
            fs::hard_link(&file, scene.dir.path().join(format!("web/local/{i}"))).unwrap();
        }
    });
    assert_eq!((linked.inodes, linked.apparent_bytes), (1, 8192));
    let sparse = scene.added(|scene| {
        fs::File::create(scene.dir.data().join("sparse")).unwrap().set_len(1 << 32).unwrap();
    });
    assert_eq!(sparse.apparent_bytes, 1 << 32);
    assert!(sparse.bytes < MIB, "{sparse:?}");
}

#[test]
fn links_are_not_followed_and_devices_and_pipes_hold_nobody_up() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("big"), vec![1; 1 << 20]).unwrap();
    let added = scene.added(|scene| {
        symlink(outside.path(), scene.dir.data().join("out")).unwrap();
        symlink("..", scene.dir.data().join("up")).unwrap();
        symlink("/", scene.dir.path().join("web/local/root")).unwrap();
        let fifo = scene.dir.data().join("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        let device = scene.dir.data().join("null");
        let made = rustix::fs::mknodat(
            CWD,
            &device,
            FileType::CharacterDevice,
            mode,
            rustix::fs::makedev(1, 3),
        );
        if made.is_err() {
            fs::write(&device, "").unwrap();
        }
    });
    assert_eq!(added.inodes, 5);
    assert!(added.bytes < 64 * KIB && added.complete, "{added:?}");
}

#[test]
fn ten_thousand_levels_are_measured_with_few_open_files() {
    // In memory: removing so many levels from ext4 takes half a minute of disk waits.
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let scene = Scene::below(root);
    let added = scene.added(|scene| {
        let open = |dir: BorrowedFd<'_>, name: &str| {
            rustix::fs::openat(dir, name, DIRECTORY_FLAGS, Mode::empty()).unwrap()
        };
        let mut at = open(scene.dir.fd(), "web");
        for level in 0..10_000 {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            if level % 1000 == 0 {
                rustix::fs::mkdirat(&at, "side", Mode::from_raw_mode(0o700)).unwrap();
                let side = open(at.as_fd(), "side");
                rustix::fs::mkdirat(&side, "inner", Mode::from_raw_mode(0o700)).unwrap();
            }
            at = open(at.as_fd(), "d");
        }
    });
    assert_eq!(added.inodes, 10_020);
    assert!(added.complete);
    // The test's own clean-up recurses.
    AllocDir::destroy(scene.root.path(), scene.alloc).unwrap();
}

#[test]
fn a_directory_moved_away_under_the_walk_does_not_lead_it_elsewhere() {
    // The walk is below the open levels; its directory is moved to another place with much in it.
    let scene = Scene::new();
    let outside = tempfile::tempdir_in(scene.root.path()).unwrap();
    for i in 0..100 {
        fs::write(outside.path().join(format!("f{i}")), "x").unwrap();
    }
    let mut deep = scene.dir.path().join("web/local");
    for _ in 0..MEASURE_OPEN_LEVELS_MAX + 10 {
        deep.push("d");
    }
    fs::create_dir_all(deep.join("moving/inner")).unwrap();
    fs::create_dir_all(scene.dir.path().join("web/tmp/later")).unwrap();
    let cancel = CancellationToken::new();
    let mut walk = DiskWalk {
        found: AllocDiskUse { complete: true, ..AllocDiskUse::default() },
        device: rustix::fs::fstat(scene.dir.fd()).unwrap().st_dev,
        linked: BTreeSet::new(),
        entries_left: 1000,
        cancel: &cancel,
        levels: Vec::new(),
    };
    let mut at = rustix::io::dup(scene.dir.fd()).unwrap();
    walk.enter(&at, false);
    for name in deep.join("moving").strip_prefix(scene.dir.path()).unwrap() {
        let name = CString::new(name.to_str().unwrap()).unwrap();
        at = walk.descend(at.as_fd(), &name).unwrap();
        walk.enter(&at, false);
    }
    fs::rename(deep.join("moving"), outside.path().join("moving")).unwrap();
    walk.levels.pop();
    let back = walk.ascend(at.as_fd()).unwrap();
    assert_eq!(walk.levels.len(), MEASURE_OPEN_LEVELS_MAX, "back at the last open level");
    assert_eq!(identity(back.as_fd()), walk.levels.last().map(|level| level.identity));
    assert!(!walk.found.complete, "and it says so");
}

#[test]
fn more_entries_than_the_limit_are_a_lower_bound_that_says_so() {
    let scene = Scene::new();
    for i in 0..100 {
        fs::write(scene.dir.data().join(format!("{i}")), vec![1; 4096]).unwrap();
    }
    let whole = scene.measure();
    let (part, _) =
        measure_on(scene.root.path(), scene.alloc, &CancellationToken::new(), 50).unwrap();
    assert!(whole.complete && !part.complete);
    assert_eq!(part.inodes, 51, "the top and fifty entries");
    assert!(part.bytes < whole.bytes);
    let exact =
        measure_on(scene.root.path(), scene.alloc, &CancellationToken::new(), whole.inodes - 1);
    assert_eq!(exact.unwrap().0.bytes, whole.bytes);
}

/// Processes that hold a file of 5 MiB open which has no name.
struct Held;

impl DiskMeter for Held {
    fn deleted_files_use(
        &self,
        _alloc: AllocId,
        device: u64,
        _cancel: &CancellationToken,
    ) -> AllocDiskUse {
        assert_ne!(device, 0);
        AllocDiskUse { bytes: 5 * MIB, apparent_bytes: 5 * MIB, inodes: 1, complete: false }
    }
}

#[test]
fn what_processes_hold_without_a_name_counts_as_what_is_in_the_directory_does() {
    let scene = Scene::new();
    let cancel = CancellationToken::new();
    let measured = |meter: &dyn DiskMeter| {
        meter.measure_alloc(scene.root.path(), scene.alloc, &cancel).unwrap()
    };
    let (found, with) = (measured(&DirectoryMeter), measured(&Held));
    assert_eq!((with.bytes, with.inodes), (found.bytes + 5 * MIB, found.inodes + 1));
    assert!(found.complete && !with.complete, "both are lower bounds then");
}

#[test]
fn a_cancelled_measurement_ends_at_once_as_not_complete() {
    let scene = Scene::new();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let part = measure(scene.root.path(), scene.alloc, &cancel).unwrap();
    assert_eq!((part.inodes, part.complete), (1, false));
}

#[test]
fn a_missing_directory_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let missing = measure(root.path(), id(), &CancellationToken::new()).unwrap_err();
    assert!(matches!(missing, AllocDirError::Missing { .. }), "{missing}");
}

#[test]
fn tasks_that_create_move_and_remove_meanwhile_never_make_it_fail() {
    let scene = Scene::new();
    let (start, stop) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (scene.dir.data().join("a"), scene.dir.path().join("web/local/b"));
            start.wait();
            while !stop.load(Ordering::Relaxed) {
                fs::create_dir_all(a.join("x/y/z")).unwrap();
                fs::write(a.join("x/y/z/file"), "x").unwrap();
                fs::rename(&a, &b).unwrap();
                fs::remove_dir_all(&b).unwrap();
            }
        });
        start.wait();
        let seen: Vec<_> = (0..300).map(|_| scene.measure().inodes).collect();
        stop.store(true, Ordering::Relaxed);
        // Eight directories of the allocation, and up to five of the task's, seen twice at most.
        assert!(seen.iter().all(|inodes| (8..=18).contains(inodes)), "{seen:?}");
    });
}

#[test]
fn only_more_than_the_limit_is_over_it_and_the_text_has_both_numbers() {
    let used = |bytes, complete| AllocDiskUse { bytes, complete, ..AllocDiskUse::default() };
    let stated = |size_mb| EphemeralDisk { size_mb, size_stated: true, ..EphemeralDisk::default() };
    assert_eq!(over_limit(&used(300 * MIB, true), stated(300)), None);
    assert_eq!(over_limit(&used(10, false), stated(300)), None);
    assert_eq!(
        over_limit(&used(u64::MAX, true), stated(u32::MAX)).map(|text| text.is_empty()),
        Some(false)
    );
    assert_eq!(
        over_limit(&used(300 * MIB + 1, true), stated(300)).unwrap(),
        "the allocation has 301 MiB on disk without its logs; \
         ephemeral_disk.size allows 300 MiB"
    );
    let text = over_limit(&used(400 * MIB, false), stated(300)).unwrap();
    assert!(text.contains("at least 400 MiB"), "{text}");
    let text = over_limit(&used(400 * MIB, true), EphemeralDisk::default()).unwrap();
    assert!(
        text.contains("has no ephemeral_disk.size") && text.contains("keeps running"),
        "{text}"
    );
}
