#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

const NOBODY: FileOwner = FileOwner { uid: 65534, gid: 65534 };
const OTHER: FileOwner = FileOwner { uid: 4711, gid: 4712 };

struct Place {
    root: tempfile::TempDir,
    alloc: AllocId,
    task: TaskName,
    dir: AllocDir,
}

/// None where files cannot be given away.
fn place() -> Option<Place> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root gives files to others");
        return None;
    }
    let root = tempfile::tempdir().unwrap();
    let alloc: AllocId = "11111111-1111-1111-1111-111111111111".parse().unwrap();
    let task = TaskName::new("web".to_owned()).unwrap();
    let dir = AllocDir::create(root.path(), alloc).unwrap();
    dir.create_task(&task).unwrap();
    Some(Place { root, alloc, task, dir })
}

impl Place {
    fn hand_over(&self, owner: FileOwner, whole: bool) {
        self.give(owner, whole, DataHandOver::Nobody);
    }

    fn give(&self, owner: FileOwner, whole: bool, data: DataHandOver) {
        let to = HandOver { owner, whole, ids: Some(80_000..=80_009), data };
        hand_over(self.root.path(), self.alloc, &self.task, &to).unwrap();
    }

    /// Files of `alloc/data`, each with its owner.
    fn data(&self, files: &[(&str, FileOwner)]) {
        for (name, owner) in files {
            let path = self.dir.data().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            std::os::unix::fs::chown(&path, Some(owner.uid), Some(owner.gid)).unwrap();
        }
    }

    fn owner(&self, at: &str) -> FileOwner {
        let found = std::fs::symlink_metadata(self.dir.path().join(at)).unwrap();
        FileOwner { uid: found.uid(), gid: found.gid() }
    }
}

#[test]
fn a_task_gets_its_directories_and_the_one_around_them_where_it_sees_that() {
    let Some(place) = place() else { return };
    place.hand_over(NOBODY, false);
    for name in ["local", "secrets", "tmp"] {
        assert_eq!(place.owner(&format!("web/{name}")), NOBODY, "{name}");
    }
    assert_eq!(place.owner("web"), agent_owner());
    for name in ["data", "tmp"] {
        let shared = place.dir.shared().join(name);
        assert_eq!(std::fs::metadata(shared).unwrap().permissions().mode() & 0o7777, 0o777);
    }
    place.hand_over(NOBODY, true);
    assert_eq!(place.owner("web"), NOBODY);
    assert_eq!(place.owner("alloc"), agent_owner());
}

#[test]
fn what_an_earlier_user_left_is_given_with_all_below_and_nothing_outside_is() {
    let Some(place) = place() else { return };
    place.hand_over(OTHER, false);
    let local = place.dir.path().join("web/local");
    std::fs::create_dir_all(local.join("a/b")).unwrap();
    let (outside, foreign) = (place.root.path().join("outside"), local.join("a/foreign"));
    for path in [local.join("a/b/file"), foreign.clone(), outside.clone()] {
        std::fs::write(path, "x").unwrap();
    }
    symlink(&outside, local.join("a/link")).unwrap();
    std::fs::hard_link(&outside, local.join("a/second-name")).unwrap();
    for path in ["a", "a/b", "a/b/file", "a/link", "a/second-name"] {
        std::os::unix::fs::lchown(local.join(path), Some(OTHER.uid), Some(OTHER.gid)).unwrap();
    }
    place.hand_over(NOBODY, false);
    for path in ["a", "a/b", "a/b/file", "a/link"] {
        assert_eq!(place.owner(&format!("web/local/{path}")), NOBODY, "{path}");
    }
    assert_eq!(place.owner("web/local/a/foreign"), agent_owner(), "the agent's stays the agent's");
    assert_eq!(place.owner("web/local/a/second-name"), OTHER, "it is a file of somewhere else too");
}

#[test]
fn each_directory_that_is_made_on_the_way_is_the_owners() {
    let Some(place) = place() else { return };
    let local = place.dir.local_dir(&place.task).unwrap();
    local.create_dir("there").unwrap();
    open_or_create(&local, Path::new("there/a/b"), Some(NOBODY)).unwrap();
    assert_eq!(place.owner("web/local/there"), agent_owner());
    assert_eq!(place.owner("web/local/there/a"), NOBODY);
    assert_eq!(place.owner("web/local/there/a/b"), NOBODY);
    let opened = open_or_create(&local, Path::new("./there/x/../a/b/c"), None).unwrap();
    assert_eq!(place.owner("web/local/there/a/b/c"), agent_owner());
    opened.write("file", "").unwrap();
    assert_eq!(place.owner("web/local/there/a/b/c/file"), agent_owner());
    for out in ["..", "there/../../x", "/there"] {
        open_or_create(&local, Path::new(out), None).unwrap_err();
    }
}

#[test]
fn what_a_task_puts_in_the_place_of_a_directory_that_was_just_made_is_not_given_away() {
    let Some(place) = place() else { return };
    let shared = place.dir.shared_dir().unwrap();
    place.data(&[("theirs/file", OTHER)]);
    let theirs = place.dir.data().join("theirs");
    std::os::unix::fs::chown(&theirs, Some(OTHER.uid), Some(OTHER.gid)).unwrap();
    symlink("theirs", place.dir.data().join("link")).unwrap();
    symlink("../logs", place.dir.data().join("logs")).unwrap();
    std::fs::write(place.dir.data().join("file"), "").unwrap();
    let data = shared.open_dir("data").unwrap();
    // As if each had just been made and was swapped.
    for swapped in ["link", "logs", "file", "theirs"] {
        let refused =
            own_new_directory(&data, OsStr::new(swapped), Some(NOBODY)).unwrap_err().to_string();
        assert!(refused.contains("was put in its place"), "{swapped}: {refused}");
    }
    assert_eq!(place.owner("alloc/data/theirs"), OTHER);
    assert_eq!(place.owner("alloc/logs"), agent_owner());
    data.create_dir("made").unwrap();
    own_new_directory(&data, OsStr::new("made"), Some(NOBODY)).unwrap();
    assert_eq!(place.owner("alloc/data/made"), NOBODY);
}

#[test]
fn a_link_that_was_there_is_followed_below_the_directory_and_what_it_leads_to_is_not_given() {
    let Some(place) = place() else { return };
    let local = place.dir.local_dir(&place.task).unwrap();
    local.create_dir("release").unwrap();
    local.symlink("release", "current").unwrap();
    local.symlink("../secrets", "out").unwrap();
    open_or_create(&local, Path::new("current/conf"), Some(NOBODY)).unwrap();
    assert_eq!(place.owner("web/local/release"), agent_owner());
    assert_eq!(place.owner("web/local/release/conf"), NOBODY);
    open_or_create(&local, Path::new("out/conf"), Some(NOBODY)).unwrap_err();
    assert!(!place.dir.path().join("web/secrets/conf").exists());
}

#[test]
fn other_users_of_the_node_get_no_further_than_the_root_of_all_allocations() {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let alloc: AllocId = "11111111-1111-1111-1111-111111111111".parse().unwrap();
    AllocDir::create(root.path(), alloc).unwrap();
    let mode = std::fs::metadata(root.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

const fn own(id: u32) -> FileOwner {
    FileOwner { uid: id, gid: id }
}

#[test]
fn data_of_an_allocation_before_is_the_next_ones_once() {
    let Some(place) = place() else { return };
    place.data(&[("of/it", own(80_003)), ("nobodys", NOBODY), ("others", OTHER)]);
    std::os::unix::fs::chown(place.dir.data().join("of"), Some(80_003), Some(80_003)).unwrap();
    std::fs::hard_link(place.dir.data().join("of/it"), place.dir.data().join("second")).unwrap();
    std::os::unix::fs::chown(place.dir.data(), None, Some(80_003)).unwrap();
    place.give(own(80_004), false, DataHandOver::OwnIdsAnd(NOBODY));
    for path in ["of", "of/it", "second"] {
        assert_eq!(place.owner(&format!("alloc/data/{path}")), own(80_004), "{path}");
    }
    assert_eq!(place.owner("alloc/data/others"), OTHER);
    let nobodys = "its tasks had ids: who was nobody there named that";
    assert_eq!(place.owner("alloc/data/nobodys"), NOBODY, "{nobodys}");
    assert_eq!(place.owner("alloc/data"), FileOwner { uid: 0, gid: 80_004 });
    // A later start of the same one looks at nothing.
    place.data(&[("later", own(80_003))]);
    place.give(own(80_004), false, DataHandOver::OwnIdsAnd(NOBODY));
    assert_eq!(place.owner("alloc/data/later"), own(80_003));
}

#[test]
fn data_that_was_written_before_there_were_ids_and_data_for_who_has_none() {
    let Some(place) = place() else { return };
    place.data(&[("nobodys", NOBODY), ("others", OTHER), ("agents", agent_owner())]);
    place.give(own(80_004), false, DataHandOver::OwnIds);
    assert_eq!(place.owner("alloc/data/nobodys"), NOBODY, "a task of it is nobody by name");
    std::os::unix::fs::chown(place.dir.data(), None, Some(0)).unwrap();
    place.give(own(80_004), false, DataHandOver::OwnIdsAnd(NOBODY));
    assert_eq!(place.owner("alloc/data/nobodys"), own(80_004));
    assert_eq!(place.owner("alloc/data/others"), OTHER);
    assert_eq!(place.owner("alloc/data/agents"), agent_owner());
    // The next names a user, or shares one.
    place.give(OTHER, false, DataHandOver::Nobody);
    assert_eq!(place.owner("alloc/data/nobodys"), own(80_004));
    place.give(OTHER, false, DataHandOver::OwnIds);
    assert_eq!(place.owner("alloc/data/nobodys"), OTHER);
    assert_eq!(place.owner("alloc/data"), agent_owner());
}
