#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::symlink;

use super::*;
use ostler_model::ids::TaskName;

struct SourcePlace {
    root: tempfile::TempDir,
    alloc: AllocId,
    dir: AllocDir,
}

fn place() -> SourcePlace {
    let root = tempfile::tempdir().unwrap();
    let alloc: AllocId = "11111111-1111-1111-1111-111111111111".parse().unwrap();
    let dir = AllocDir::create(root.path(), alloc).unwrap();
    dir.create_task(&TaskName::new("web".to_owned()).unwrap()).unwrap();
    SourcePlace { root, alloc, dir }
}

impl SourcePlace {
    fn bring(
        &self,
        to: &str,
        staged: &Path,
        outcome: &ArtifactOutcome,
    ) -> Result<(), AllocDirError> {
        let names = to.split('/').map(str::to_owned).collect();
        let destination = TaskPath { names, is_directory: false };
        bring(self.root.path(), self.alloc, &destination, staged, outcome, None)
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.root.path().join("staged");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn text(&self, at: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(at)).unwrap()
    }
}

#[test]
fn a_file_goes_where_its_destination_says_and_replaces_what_was_there() {
    let place = place();
    place.bring("web/local/a/b", &place.file("one"), &ArtifactOutcome::Named).unwrap();
    assert_eq!(place.text("web/local/a/b"), "one");
    place
        .bring("web/local/a", &place.file("two"), &ArtifactOutcome::Below("b".to_owned()))
        .unwrap();
    assert_eq!(place.text("web/local/a/b"), "two");
    place.bring("web/local/a", &place.file("x"), &ArtifactOutcome::Named).unwrap_err();
    place.bring("web", &place.file("x"), &ArtifactOutcome::Named).unwrap_err();
    let outside = place.root.path().join("outside");
    std::fs::write(&outside, "kept").unwrap();
    symlink(&outside, place.dir.path().join("web/local/link")).unwrap();
    place.bring("web/local/link", &place.file("three"), &ArtifactOutcome::Named).unwrap();
    assert_eq!(place.text("web/local/link"), "three");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
}

#[test]
fn nothing_goes_through_a_link_of_an_earlier_run() {
    let place = place();
    let outside = place.root.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, place.dir.path().join("web/local/link")).unwrap();
    place.bring("web/local/link/x", &place.file("x"), &ArtifactOutcome::Named).unwrap_err();
    let tree = place.root.path().join("tree");
    std::fs::create_dir_all(tree.join("link")).unwrap();
    std::fs::write(tree.join("link/x"), "x").unwrap();
    place.bring("web/local", &tree, &ArtifactOutcome::Tree).unwrap_err();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_tree_comes_beside_what_is_there() {
    let place = place();
    std::fs::create_dir_all(place.dir.path().join("web/local/bin")).unwrap();
    std::fs::write(place.dir.path().join("web/local/bin/old"), "old").unwrap();
    std::fs::write(place.dir.path().join("web/local/bin/tool"), "old").unwrap();
    let tree = place.root.path().join("tree");
    std::fs::create_dir_all(tree.join("bin/deep")).unwrap();
    std::fs::create_dir_all(tree.join("lib/empty")).unwrap();
    std::fs::write(tree.join("bin/tool"), "new").unwrap();
    std::fs::write(tree.join("bin/deep/x"), "x").unwrap();
    symlink("bin/tool", tree.join("run")).unwrap();
    place.bring("web/local", &tree, &ArtifactOutcome::Tree).unwrap();
    assert_eq!(place.text("web/local/bin/old"), "old");
    assert_eq!(place.text("web/local/bin/tool"), "new");
    assert_eq!(place.text("web/local/run"), "new");
    assert_eq!(place.text("web/local/bin/deep/x"), "x");
    assert!(place.dir.path().join("web/local/lib/empty").is_dir());
}
