#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn id() -> AllocId {
    "6f1f8e4e-0f5c-4f7e-9a51-2f8b8f0c3c11".parse().unwrap()
}

fn other(number: u8) -> AllocId {
    format!("cccccccc-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
}

fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_tree_has_nomads_shape_and_secrets_are_private() {
    let root = tempfile::tempdir().unwrap();
    let dir = AllocDir::create(&root.path().join("allocs"), id()).unwrap();
    let task = dir.create_task(&name("web")).unwrap();
    assert!(dir.path().is_absolute());
    assert!(dir.path().ends_with(format!("allocs/{}", id())));
    for public in [&dir.data(), &dir.logs(), &dir.tmp(), &task.local, &task.tmp, &task.path] {
        assert_eq!(mode(public), 0o755, "{}", public.display());
    }
    assert_eq!(mode(&task.secrets), 0o700);
    assert_eq!(task.local, dir.path().join("web/local"));
    assert_eq!(dir.data(), dir.path().join("alloc/data"));
}

#[test]
fn making_it_again_keeps_what_is_there_and_puts_modes_right() {
    let root = tempfile::tempdir().unwrap();
    let dir = AllocDir::create(root.path(), id()).unwrap();
    let task = dir.create_task(&name("web")).unwrap();
    std::fs::write(task.secrets.join("token"), "x").unwrap();
    std::fs::set_permissions(&task.secrets, std::fs::Permissions::from_mode(0o777)).unwrap();
    let again = AllocDir::create(root.path(), id()).unwrap().create_task(&name("web")).unwrap();
    assert_eq!(again, task);
    assert_eq!(std::fs::read_to_string(task.secrets.join("token")).unwrap(), "x");
    assert_eq!(mode(&task.secrets), 0o700);
}

#[test]
fn open_finds_what_create_made_and_says_when_it_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let missing = AllocDir::open(root.path(), id()).unwrap_err();
    assert!(matches!(missing, AllocDirError::Missing { .. }), "{missing}");
    let nowhere = AllocDir::open(&root.path().join("nowhere"), id()).unwrap_err();
    assert!(matches!(nowhere, AllocDirError::Missing { .. }), "{nowhere}");
    AllocDir::create(root.path(), id()).unwrap();
    AllocDir::open(root.path(), id()).unwrap().logs_dir().unwrap().write("x", "y").unwrap();
}

#[test]
fn a_link_in_the_place_of_a_directory_is_refused_and_its_target_untouched() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let dir = AllocDir::create(root.path(), id()).unwrap();
    let task = dir.create_task(&name("web")).unwrap();

    std::fs::remove_dir(&task.secrets).unwrap();
    symlink(outside.path(), &task.secrets).unwrap();
    let error = dir.create_task(&name("web")).unwrap_err();
    assert!(
        matches!(&error, AllocDirError::NotDirectory { path, found: "a symbolic link" } if *path == task.secrets),
        "{error}"
    );
    std::fs::remove_dir(dir.logs()).unwrap();
    symlink(outside.path(), dir.logs()).unwrap();
    assert!(matches!(dir.logs_dir(), Err(AllocDirError::NotDirectory { .. })));
    assert!(AllocDir::create(root.path(), id()).is_err());
    assert_eq!(mode(outside.path()), 0o711);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_file_in_the_place_of_a_directory_is_named() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(id().to_string()), "").unwrap();
    let error = AllocDir::create(root.path(), id()).unwrap_err();
    assert!(error.to_string().contains("is a file, not a directory"), "{error}");
}

#[test]
fn names_in_the_log_directory_cannot_lead_out_of_it() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "keep").unwrap();
    let dir = AllocDir::create(root.path(), id()).unwrap();
    symlink(&victim, dir.logs().join("web.stdout.0")).unwrap();
    assert!(dir.logs_dir().unwrap().write("web.stdout.0", "overwritten").is_err());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "keep");
}

#[test]
fn no_task_can_take_the_shared_directory() {
    let root = tempfile::tempdir().unwrap();
    let dir = AllocDir::create(root.path(), id()).unwrap();
    let error = dir.create_task(&name("alloc")).unwrap_err();
    assert!(matches!(error, AllocDirError::ReservedTaskName { .. }));
}

#[test]
fn destroy_removes_the_whole_tree_and_is_content_when_there_is_none() {
    let root = tempfile::tempdir().unwrap();
    let dir = AllocDir::create(root.path(), id()).unwrap();
    let task = dir.create_task(&name("web")).unwrap();
    std::fs::write(task.local.join("file"), "x").unwrap();
    AllocDir::destroy(root.path(), id()).unwrap();
    assert!(!dir.path().exists());
    AllocDir::destroy(root.path(), id()).unwrap();
    AllocDir::destroy(&root.path().join("nowhere"), id()).unwrap();
}

#[test]
fn destroy_leaves_what_planted_links_point_at() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("keep"), "x").unwrap();
    let dir = AllocDir::create(root.path(), id()).unwrap();
    let task = dir.create_task(&name("web")).unwrap();
    symlink(outside.path(), task.local.join("out")).unwrap();
    symlink(outside.path().join("keep"), dir.data().join("file")).unwrap();
    symlink("..", dir.data().join("up")).unwrap();
    AllocDir::destroy(root.path(), id()).unwrap();
    assert!(!dir.path().exists());
    assert_eq!(std::fs::read_to_string(outside.path().join("keep")).unwrap(), "x");

    symlink(outside.path(), dir.path()).unwrap();
    AllocDir::destroy(root.path(), id()).unwrap();
    assert!(!dir.path().is_symlink(), "the link itself goes");
    assert!(outside.path().join("keep").exists());
}

#[test]
fn a_read_only_and_a_full_disk_are_named_with_the_path_and_the_next_step() {
    for (kind, text) in [
        (io::ErrorKind::ReadOnlyFilesystem, "mount it so that it can be written"),
        (io::ErrorKind::StorageFull, "free some space"),
    ] {
        let error = io_error("create", Path::new("/data/x"))(kind.into()).to_string();
        assert!(
            error.starts_with("cannot create /data/x: the ") && error.contains(text),
            "{error}"
        );
    }
    let proc = AllocDir::create(Path::new("/proc/ostler-test"), id()).unwrap_err();
    assert!(proc.to_string().contains("/proc/ostler-test"), "{proc}");
}

#[test]
fn the_list_has_what_is_named_like_an_allocation_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(AllocDir::list(&root.path().join("nowhere")).unwrap(), []);
    for number in [3, 1, 2] {
        AllocDir::create(root.path(), other(number)).unwrap();
    }
    std::fs::create_dir(root.path().join("lost+found")).unwrap();
    std::fs::create_dir(root.path().join(other(9).to_string().to_uppercase())).unwrap();
    assert_eq!(AllocDir::list(root.path()).unwrap(), [other(1), other(2), other(3)]);
}

#[test]
fn building_listing_and_destroying_at_once_end_with_a_whole_directory_or_none() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let alloc = other(10);
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    let dir = AllocDir::create(root.path(), alloc).unwrap();
                    match dir.create_task(&name("web")) {
                        // The directory was removed in between.
                        Err(AllocDirError::Io { source, .. }) => {
                            assert_eq!(source.kind(), io::ErrorKind::NotFound);
                        }
                        made => drop(made.unwrap()),
                    }
                });
            }
            scope.spawn(|| {
                start.wait();
                AllocDir::destroy(root.path(), alloc).unwrap();
            });
            start.wait();
            AllocDir::list(root.path()).unwrap();
        });
        match AllocDir::open(root.path(), alloc) {
            Ok(dir) => {
                for part in [dir.data(), dir.logs(), dir.tmp()] {
                    assert!(part.is_dir(), "round {round}: {}", part.display());
                }
                let task = dir.task(&name("web"));
                assert!(!task.path.exists() || task.secrets.is_dir() && task.tmp.is_dir());
            }
            Err(error) => assert!(matches!(error, AllocDirError::Missing { .. }), "{error}"),
        }
        AllocDir::destroy(root.path(), alloc).unwrap();
    }
}

#[test]
fn a_directory_somebody_holds_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let held = AllocDirLock::take(&[other(20), other(21)]).unwrap();
    let (sender, made) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            AllocDir::create(root.path(), other(22)).unwrap();
            sender.send("another").unwrap();
            AllocDir::create(root.path(), other(21)).unwrap();
            sender.send("the held one").unwrap();
        });
        assert_eq!(made.recv().unwrap(), "another");
        assert!(made.try_recv().is_err());
        assert!(!root.path().join(other(21).to_string()).exists());
        drop(held);
        assert_eq!(made.recv().unwrap(), "the held one");
    });
}

#[test]
fn a_link_swapped_with_a_directory_while_it_is_built_changes_nothing_outside() {
    use rustix::fs::{CWD, RenameFlags};
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let dir = AllocDir::create(root.path(), other(30)).unwrap();
    let task = dir.create_task(&name("web")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut built, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let stop = &stop;
        let link = root.path().join("link");
        symlink(outside.path(), &link).unwrap();
        let (secrets, whole) = (task.secrets.clone(), task.path.clone());
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for place in [&secrets, &whole] {
                    for _ in 0..2 {
                        let _ = rustix::fs::renameat_with(
                            CWD,
                            &link,
                            CWD,
                            place,
                            RenameFlags::EXCHANGE,
                        );
                    }
                }
            }
        });
        // Until both were seen: the swap went on meanwhile.
        for _ in 0..200_000 {
            match dir.create_task(&name("web")) {
                Ok(_) => built += 1,
                Err(_) => refused += 1,
            }
            if built > 200 && refused > 200 {
                break;
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(built > 0 && refused > 0, "built {built}, refused {refused}");
    assert_eq!(mode(outside.path()), 0o711);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn what_is_left_is_named_with_the_directory_and_the_next_step() {
    let entry = UndeletedEntry { path: "x/alloc/data/db".into(), why: UndeletedReason::MountPoint };
    let error = AllocDirError::Left {
        path: "/allocs/x".into(),
        left: UndeletedParts { entries: vec![entry], count: 3 },
    };
    assert_eq!(
        error.to_string(),
        "cannot remove all of /allocs/x: x/alloc/data/db (something is mounted there; unmount it) \
         and 2 more"
    );
}
