//! Fixture trees: a directory like sysfs, with links as the kernel makes them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A directory of its own for one test, removed at the end.
pub struct Tree(PathBuf);

impl Tree {
    /// An empty one; the name is the test's.
    #[allow(clippy::expect_used, reason = "for tests")]
    pub fn new(name: &str) -> Self {
        let name = format!("{}-{name}-{}", env!("CARGO_PKG_NAME"), std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).expect("a directory for the test");
        Self(root)
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// Something in it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Write a file with this text and a line end, making its directories.
    #[allow(clippy::expect_used, reason = "for tests")]
    pub fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.made(path);
        fs::write(path, format!("{text}\n")).expect("a file of the test");
        self
    }

    /// Make a link, and the directory it is in.
    #[allow(clippy::expect_used, reason = "for tests")]
    pub fn link(&self, path: &str, target: &str) -> &Self {
        symlink(target, self.made(path)).expect("a link of the test");
        self
    }

    /// Remove a file, a link or a whole directory.
    #[allow(clippy::expect_used, reason = "for tests")]
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).expect("a directory of the test")
        } else {
            fs::remove_file(path).expect("a file of the test")
        }
    }

    #[allow(clippy::expect_used, reason = "for tests")]
    fn made(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        let parent = path.parent().unwrap_or(&self.0);
        fs::create_dir_all(parent).expect("a directory of the test");
        path
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
