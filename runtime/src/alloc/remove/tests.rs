#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::os::unix::fs::PermissionsExt;

use super::*;

fn parent(dir: &tempfile::TempDir) -> OwnedFd {
    rustix::fs::open(dir.path(), DIRECTORY_FLAGS, Mode::empty()).unwrap()
}

#[test]
fn a_tree_of_more_than_a_thousand_levels_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let top = parent(&root);
    rustix::fs::mkdirat(&top, "tree", OWNER).unwrap();
    let mut at = rustix::fs::openat(&top, "tree", DIRECTORY_FLAGS, Mode::empty()).unwrap();
    for _ in 0..1_200 {
        rustix::fs::mkdirat(&at, "d", OWNER).unwrap();
        at = rustix::fs::openat(&at, "d", DIRECTORY_FLAGS, Mode::empty()).unwrap();
    }
    remove_tree(top.as_fd(), Path::new("tree")).unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_wide_tree_with_names_like_our_own_is_removed() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..80 {
        let dir = root.path().join(format!("tree/.removing-{}/a{i}/b", i % 40));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
    }
    for i in 0..=BATCH {
        std::fs::write(root.path().join(format!("tree/.removing-0/file{i}")), "").unwrap();
    }
    remove_tree(parent(&root).as_fd(), Path::new("tree")).unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn directories_a_task_made_read_only_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("tree/module/cache");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), "").unwrap();
    for dir in [deep.as_path(), deep.parent().unwrap()] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    remove_tree(parent(&root).as_fd(), Path::new("tree")).unwrap();
    assert!(!root.path().join("tree").exists());
}
