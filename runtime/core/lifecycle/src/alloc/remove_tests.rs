#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, IFlags, RenameFlags};

use super::*;

/// In memory where there is such a place: ten thousand levels take half a minute of disk waits to
/// remove on ext4, whoever removes them.
fn deep_root() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn parent(dir: &tempfile::TempDir) -> OwnedFd {
    rustix::fs::open(dir.path(), DIRECTORY_FLAGS, Mode::empty()).unwrap()
}

fn remove(root: &tempfile::TempDir) -> Result<(), UndeletedParts> {
    remove_tree(parent(root).as_fd(), "tree")
}

fn is_gone(root: &tempfile::TempDir) -> bool {
    fs::read_dir(root.path()).unwrap().count() == 0
}

fn nest(root: &tempfile::TempDir, levels: usize) {
    let top = parent(root);
    rustix::fs::mkdirat(&top, "tree", OWNER).unwrap();
    let mut at = rustix::fs::openat(&top, "tree", DIRECTORY_FLAGS, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&at, "d", OWNER).unwrap();
        at = rustix::fs::openat(&at, "d", DIRECTORY_FLAGS, Mode::empty()).unwrap();
    }
}

fn set_flags(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    rustix::fs::ioctl_setflags(fs::File::open(path).unwrap(), flags)
}

/// Makes files immutable; mutable again when dropped, so that they can go.
struct Immutable(Vec<PathBuf>);

impl Immutable {
    /// `None`, said aloud, where the file system or the rights do not allow it.
    fn make(paths: &[PathBuf]) -> Option<Self> {
        let mut made = Self(Vec::new());
        for path in paths {
            if let Err(error) = set_flags(path, IFlags::IMMUTABLE) {
                eprintln!("SKIPPED: files cannot be made immutable here: {error}");
                return None;
            }
            made.0.push(path.clone());
        }
        Some(made)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        for path in &self.0 {
            if path.exists() {
                set_flags(path, IFlags::empty()).unwrap();
            }
        }
    }
}

#[test]
fn a_tree_of_ten_thousand_levels_is_removed() {
    let root = deep_root();
    nest(&root, 10_000);
    remove(&root).unwrap();
    assert!(is_gone(&root));
}

#[test]
fn a_wide_tree_with_names_like_our_own_is_removed() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..80 {
        let dir = root.path().join(format!("tree/.removing-{}/a{i}/b", i % 40));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), "").unwrap();
    }
    for i in 0..3_000 {
        fs::write(root.path().join(format!("tree/.removing-0/file{i}")), "").unwrap();
    }
    fs::write(root.path().join("tree/.removing-41"), "a file of such a name").unwrap();
    remove(&root).unwrap();
    assert!(is_gone(&root));
}

#[test]
fn a_file_a_link_and_nothing_at_all_in_the_place_of_the_tree_are_fine() {
    let root = tempfile::tempdir().unwrap();
    remove(&root).unwrap();
    fs::write(root.path().join("tree"), "").unwrap();
    remove(&root).unwrap();
    symlink("/etc", root.path().join("tree")).unwrap();
    remove(&root).unwrap();
    assert!(is_gone(&root));
}

#[test]
fn pipes_devices_and_sockets_are_unlinked_without_being_opened() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("tree/a/b");
    fs::create_dir_all(&dir).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap());
    let null = rustix::fs::makedev(1, 3);
    let kinds = [(FileType::CharacterDevice, null), (FileType::BlockDevice, null)];
    for (i, (kind, device)) in kinds.into_iter().enumerate() {
        if let Err(error) =
            rustix::fs::mknodat(CWD, dir.join(format!("device{i}")), kind, mode, device)
        {
            eprintln!("SKIPPED: no device nodes here: {error}");
        }
    }
    remove(&root).unwrap();
    assert!(is_gone(&root));
    assert!(Path::new("/dev/null").exists());
}

/// Run without the rights of root, where the test has them.
fn without_rights<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: changes the ids by which this thread, which ends below, reaches files.
                unsafe { libc::setfsuid(65_534) };
                run()
            })
            .join()
            .unwrap()
    })
}

#[test]
fn directories_a_task_closed_even_to_itself_are_removed_without_the_rights_of_root() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    without_rights(|| {
        let deep = root.path().join("tree/module/cache/x");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        for (dir, mode) in [("module/cache/x", 0o555), ("module/cache", 0o000), ("module", 0o500)] {
            let dir = root.path().join("tree").join(dir);
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
        }
        remove(&root).unwrap();
    });
    assert!(is_gone(&root));
}

#[test]
fn what_cannot_be_removed_is_named_and_everything_else_goes() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    for i in 0..40 {
        fs::create_dir_all(tree.join(format!("a{i}/b/c"))).unwrap();
        fs::write(tree.join(format!("a{i}/b/c/file")), "").unwrap();
    }
    let fixed = tree.join("a7/b/c/fixed");
    fs::write(&fixed, "keep").unwrap();
    let Some(_immutable) = Immutable::make(std::slice::from_ref(&fixed)) else { return };
    let left = remove(&root).unwrap_err();
    assert_eq!((left.count, left.entries.len()), (1, 1), "named once: {left}");
    let now = root.path().join(&left.entries[0].path);
    assert_eq!(fs::read_to_string(&now).unwrap(), "keep", "named where it is now");
    assert!(left.to_string().contains("chattr -i"), "{left}");
    let mut files = 0;
    let mut todo = vec![tree];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() { todo.push(entry.path()) } else { files += 1 }
        }
    }
    assert_eq!(files, 1, "nothing else is left");
    set_flags(&now, IFlags::empty()).unwrap();
    remove(&root).unwrap();
    assert!(is_gone(&root), "calling again goes on");
}

#[test]
fn an_immutable_directory_is_emptied_as_far_as_it_can_be() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    let locked = tree.join("a/locked");
    fs::create_dir_all(locked.join("sub/deeper/deepest")).unwrap();
    fs::write(locked.join("sub/deeper/big"), "x").unwrap();
    fs::write(locked.join("file"), "x").unwrap();
    fs::create_dir(tree.join("other")).unwrap();
    let Some(_immutable) = Immutable::make(std::slice::from_ref(&locked)) else { return };
    let left = remove(&root).unwrap_err();
    let names: Vec<_> = left.entries.iter().map(|entry| entry.path.clone()).collect();
    assert_eq!((left.count, names.len()), (2, 2), "{left}");
    assert!(names.iter().all(|name| name.starts_with("tree/a/locked")), "{left}");
    assert!(locked.join("file").exists() && locked.join("sub").exists());
    assert!(!locked.join("sub/deeper").exists(), "what is below could go");
    assert!(!tree.join("other").exists());
}

#[test]
fn immutable_directories_nested_deeper_than_the_limit_end_the_descent() {
    let root = tempfile::tempdir().unwrap();
    let mut at = root.path().join("tree");
    let mut paths = Vec::new();
    // Each descent deals with two levels.
    for _ in 0..2 * REMOVE_PINNED_DEPTH_MAX + 8 {
        at.push("d");
        paths.push(at.clone());
    }
    fs::create_dir_all(at.join("end")).unwrap();
    paths.reverse();
    let Some(_immutable) = Immutable::make(&paths) else { return };
    let left = remove(&root).unwrap_err();
    assert!(
        left.entries.iter().any(|entry| matches!(entry.why, UndeletedReason::TooDeep)),
        "{left}"
    );
}

#[test]
fn the_list_of_names_is_bounded_and_the_count_is_not() {
    let root = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> =
        (0..REMOVE_NAMES_MAX + 5).map(|i| root.path().join(format!("tree/{i}"))).collect();
    fs::create_dir(root.path().join("tree")).unwrap();
    files.iter().for_each(|file| fs::write(file, "").unwrap());
    let Some(_immutable) = Immutable::make(&files) else { return };
    let left = remove(&root).unwrap_err();
    assert_eq!(left.entries.len(), REMOVE_NAMES_MAX);
    assert_eq!(left.count, files.len() as u64);
    assert!(left.to_string().ends_with(" and 5 more"), "{left}");
}

/// Mount in a namespace of this thread alone; false, said aloud, where that is not allowed.
fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong) -> bool {
    let [source, kind] = [source, kind].map(|text| std::ffi::CString::new(text).unwrap());
    let target = std::ffi::CString::new(target.as_os_str().as_bytes()).unwrap();
    // SAFETY: the three strings live and end with zero; no options are given.
    let answer = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null())
    };
    answer == 0
}

#[test]
fn what_is_mounted_in_a_tree_is_neither_entered_nor_emptied() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir_in(root.path()).unwrap();
    let outside_path = outside.path().to_owned();
    fs::create_dir(outside_path.join("sub")).unwrap();
    fs::write(outside_path.join("sub/keep"), "x").unwrap();
    for dir in ["tree/a/tmpfs", "tree/a/b/bound", "tree/a/c"] {
        fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: gives this thread, which ends below, mounts of its own.
            let own = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0
                && mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE)
                && mount("none", &root.path().join("tree/a/tmpfs"), "tmpfs", 0)
                // The same device again: its number says nothing.
                && mount(
                    outside_path.to_str().unwrap(),
                    &root.path().join("tree/a/b/bound"),
                    "",
                    libc::MS_BIND,
                );
            if !own {
                eprintln!("SKIPPED: no mounts here: {}", io::Error::last_os_error());
                return;
            }
            fs::write(root.path().join("tree/a/tmpfs/keep"), "x").unwrap();
            let left = remove(&root).unwrap_err();
            assert_eq!(left.count, 2, "{left}");
            let mounted = |entry: &UndeletedEntry| matches!(entry.why, UndeletedReason::MountPoint);
            assert!(left.entries.iter().all(mounted), "{left}");
            assert!(outside_path.join("sub/keep").exists(), "the other directory is whole");
            let tmpfs = left.entries.iter().find(|entry| entry.path.ends_with("tmpfs")).unwrap();
            assert!(root.path().join(&tmpfs.path).join("keep").exists());
            assert!(!root.path().join("tree/a/c").exists(), "the rest is gone");
            let fd = rustix::fs::open(root.path(), DIRECTORY_FLAGS, Mode::empty()).unwrap();
            assert_eq!(open_same_mount(fd.as_fd(), c"tree", DIRECTORY_FLAGS).map(drop), Ok(()));
            let bound = left.entries.iter().find(|entry| entry.path.ends_with("bound")).unwrap();
            let above = root.path().join(bound.path.parent().unwrap());
            let above = rustix::fs::open(above, DIRECTORY_FLAGS, Mode::empty()).unwrap();
            let crossed = open_same_mount(above.as_fd(), c"bound", DIRECTORY_FLAGS);
            assert_eq!(crossed.map(drop), Err(Errno::XDEV));
        });
    });
    remove(&root).unwrap();
    assert!(outside_path.join("sub/keep").exists());
}

#[test]
fn a_link_swapped_with_a_directory_again_and_again_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("sub")).unwrap();
    fs::write(outside.path().join("sub/keep"), "x").unwrap();
    for round in 0..15 {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        for i in 0..20 {
            fs::create_dir_all(tree.join(format!("a{i}/sub/x"))).unwrap();
        }
        let (start, stop) = (std::sync::Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = root.path().join("link");
                symlink(outside.path(), &link).unwrap();
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    for i in 0..20 {
                        let dir = tree.join(format!("a{i}"));
                        let _ =
                            rustix::fs::renameat_with(CWD, &link, CWD, &dir, RenameFlags::EXCHANGE);
                    }
                }
            });
            start.wait();
            for _ in 0..20 {
                let _ = remove(&root);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(outside.path().join("sub/keep").exists(), "round {round}");
    }
}

#[test]
fn a_tree_that_may_not_go_itself_is_emptied_to_the_last_level() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    for i in 0..3 {
        fs::create_dir_all(tree.join(format!("a{i}/b/c/d"))).unwrap();
        fs::write(tree.join(format!("a{i}/b/c/d/file")), "").unwrap();
    }
    let Some(_immutable) = Immutable::make(&[root.path().to_owned()]) else { return };
    let left = remove(&root).unwrap_err();
    assert_eq!(left.count, 1, "{left}");
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 0, "{left}");
}

#[test]
fn a_removal_whose_budget_is_spent_moves_nothing() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("tree/a/b/c")).unwrap();
    for budget in 0..6 {
        let mut removal = TreeRemoval::new(budget);
        let gone = removal.clear(parent(&root).as_fd(), "tree", Path::new("tree"), 0);
        assert!(gone || !removal.left.entries.is_empty(), "budget {budget}");
    }
}

#[test]
fn a_process_that_goes_on_writing_ends_the_removal_at_its_budget() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    (0..50).for_each(|i| fs::write(tree.join(format!("a/{i}")), "").unwrap());
    let mut removal = TreeRemoval::new(10);
    assert!(!removal.clear(parent(&root).as_fd(), "tree", Path::new("tree"), 0));
    assert!(
        removal.left.entries.iter().any(|entry| matches!(entry.why, UndeletedReason::StillWritten))
    );
}
